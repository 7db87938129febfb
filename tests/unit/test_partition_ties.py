"""Parts that only single values tie together: cut at these they are calls of one function, in an order that can be run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.graph_models import ADD, DOUBLE, SUM, assert_same, generic, model, run
from unit.test_partition import KEPT, parsed

from tilewright.passes.dispatch_creation.equal_parts import share_equal_parts
from tilewright.passes.mlir import functions, ir, operations
from tilewright.passes.partition.ties import Stage, stages
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes

S, P = "tensor<f32>", "tensor<4x8xf32>"
START = f"""  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {P}
  %s = tensor.empty() : {S}
  %f = linalg.fill ins(%zero : f32) outs(%s : {S}) -> {S}
"""
BY = "%r = arith.mulf %a0, %a1 : f32\n    linalg.yield %r : f32"
NONE, OF_ALL, ONE = "affine_map<() -> ()>", "affine_map<(d0, d1) -> ()>", "affine_map<(d0, d1) -> (d0, d1)>"


def summed(name: str, value: str) -> str:
    return generic(name, value, P, "%f", S, SUM, f"{ONE}, {OF_ALL}", "rr")


def added(name: str, a: str, b: str) -> str:
    return generic(name, f"{a}, {b}", f"{S}, {S}", "%s", S, ADD, f"{NONE}, {NONE}, {NONE}", "")


def times(name: str, value: str, by: str) -> str:
    return generic(name, f"{value}, {by}", f"{P}, {S}", "%e", P, BY, f"{ONE}, {OF_ALL}, {ONE}")


def tied(count: int, again: bool) -> str:
    """Each of some tensors, doubled, times the sum of all; again: and that times the sum of all of these."""
    arguments = [f'%x{n}: {P} {{tw.dims = [4, 8]}}' for n in range(count)]
    body, given = "", [f"%x{n}" for n in range(count)]
    for turn in ("a", "b") if again else ("a",):
        for n, value in enumerate(given):
            body += generic(f"{turn}d{n}", value, P, "%e", P, DOUBLE, f"{ONE}, {ONE}") + summed(f"{turn}s{n}", value)
            if n:
                body += added(f"{turn}t{n}", f"%{turn}t{n - 1}" if n > 1 else f"%{turn}s0", f"%{turn}s{n}")
        for n in range(count):
            body += times(f"{turn}m{n}", f"%{turn}d{n}", f"%{turn}t{count - 1}")
        given = [f"%{turn}m{n}" for n in range(count)]
    return model(arguments, body, ", ".join(given), ", ".join([P] * count), START)


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context(), ir.Location.unknown():
        yield
    KEPT.clear()


def found(text: str) -> list[Stage]:
    return stages([op for op in operations(parsed(text).regions[0].blocks[0]) if op.name == "linalg.generic"])


@pytest.mark.parametrize("again", [False, True])
def test_what_no_tie_needs_lies_behind_the_ties(again: bool) -> None:
    first, *middle, last = found(tied(3, again))
    assert [len(p) for p in first.pieces] == [1, 1, 1] and len(first.ties) == 2  # a sum each
    assert [len(p) for p in last.pieces] == [2, 2, 2] and not last.ties  # doubled there, and multiplied
    assert [([len(p) for p in s.pieces], len(s.ties)) for s in middle] == [([3, 3, 3], 2)] * again


@pytest.mark.parametrize("again", [False, True])
def test_pieces_between_ties_are_calls_and_give_the_same(again: bool) -> None:
    text = tied(9, again)
    module = ir.Module.parse(text)
    share_equal_parts(module, least=1)
    assert module.operation.verify()
    assert str(module).count("call @body_") == 9 * (3 if again else 2)
    assert len(list(functions(module))) == (4 if again else 3)
    shared = run(str(module), [*recover_passes(), *graph_passes()])
    assert_same(text, shared, {})


def test_a_single_value_of_one_part_is_no_tie() -> None:
    body = summed("n", "%x") + added("t", "%n", "%n") + times("m", "%x", "%t")
    [stage] = found(model([f"%x: {P} {{tw.dims = [4, 8]}}"], body, "%m", P, START))
    assert [len(p) for p in stage.pieces] == [3] and not stage.ties
