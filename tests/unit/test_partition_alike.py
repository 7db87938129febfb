"""Equal parts of a graph: told apart from others, and cut as each would be by itself; equal regions share a function."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from unit.graph_models import EXP, START, T, W, X, assert_same, generic, main_ops, matmul, model, run, workloads
from unit.test_partition import DOWN, KEPT, assert_partition, parsed, random_model

from tilewright.passes.dispatch_creation.equal_parts import share_equal_parts
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.mlir import functions, ir, operations
from tilewright.passes.partition import plan as plans
from tilewright.passes.partition.alike import twins
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.plan import Plan
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.transforms.split_reductions import SplitReductions


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context(), ir.Location.unknown():
        yield
    KEPT.clear()


def several(seeds: list[int], columns: bool = False) -> str:
    """Random models of these seeds, equal ones of equal seeds, in one function."""
    arguments, body, named, types = [], "", "", ""
    for number, seed in enumerate(seeds):
        _, _, rest = random_model(seed, columns).partition(START + (DOWN if columns else ""))
        inside, _, results = rest.partition("  return ")
        here = re.compile(r"%([xwvsq]\d*)\b")
        renamed = inside if number == 0 else here.sub(rf"%\1_{number}", inside)
        values, _, kinds = results.partition(" : ")
        body += renamed
        named += ", " * bool(named) + (values if number == 0 else here.sub(rf"%\1_{number}", values))
        types += ", " * bool(types) + kinds.split("\n")[0]
        arguments += [a if number == 0 else here.sub(rf"%\1_{number}", a) for a in (X, W)]
    return model(arguments, body, named, types, START + (DOWN if columns else ""))


def areas(plan: Plan) -> set[tuple[int, ...]]:
    order = plan.partition.graph.order
    return {tuple(sorted(order[op] for op in r.ops)) for r in plan.partition.regions()}


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_equal_parts_are_cut_as_each_would_be_alone(seed: int, columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = SplitReductions(elements=16, rows=2, parts=1 << 20, columns=8) if columns else None
    passes, chance = graph_passes(parts=parts), random.Random(seed)
    at = next(n for n, p in enumerate(passes) if p.name == "fuse")
    text = run(several([seed, seed + 50, seed, seed], columns), passes[:at])
    fn = parsed(text)
    count = len(list(operations(fn.regions[0].blocks[0])))
    cuts = tuple(chance.randrange(count) for _ in range(6))
    fuses = [Fuse(), Fuse(partition="gain"), Fuse(partition="greedy", apart=cuts), Fuse(together=False)]
    with_twins = [fuse.plan(fn) for fuse in fuses]
    monkeypatch.setattr(plans, "twins", lambda *given: [])
    for fuse, plan in zip(fuses, with_twins, strict=True):
        alone = fuse.plan(fn)
        assert_partition(plan)
        assert areas(plan) == areas(alone) and plan.way == alone.way and plan.cost.seconds == pytest.approx(alone.cost.seconds)
    assert_same(text, run(text, [Fuse(), *passes[at + 1:]]), {"B": 3})


def test_parts_that_differ_or_share_a_tensor_are_no_twins() -> None:
    one = generic("y", "%x", T, "%e", T, EXP, "#id, #id") + matmul("m", "%y")
    other = generic("z", "%x_1", T, "%e", T, EXP, "#id, #id") + matmul("n", "%z", "%w_1")
    arguments = [X, W, X.replace("%x", "%x_1"), W.replace("%w", "%w_1")]
    found = twins(Graph(parsed(model(arguments, one + other, "%m, %n", f"{T}, {T}"))))
    assert [len(t.ops) for t in found] == [2]
    shared = twins(Graph(parsed(model(arguments, one + other.replace("%w_1", "%w"), "%m, %n", f"{T}, {T}"))))
    differ = twins(Graph(parsed(model(arguments, one + other.replace("math.exp", "math.sin"), "%m, %n", f"{T}, {T}"))))
    cut = twins(Graph(fn := parsed(model(arguments, one + other, "%m, %n", f"{T}, {T}"))), _pair(fn))
    assert not shared and not differ and not cut


def _pair(fn: ir.Operation) -> list[tuple[int, int]]:
    """The two operations of the first part that compute."""
    numbers = [n for n, op in enumerate(operations(fn.regions[0].blocks[0])) if op.name in ("linalg.generic", "linalg.matmul")]
    return [(numbers[0], numbers[1])]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_equal_parts_as_calls_of_one_function_give_the_same(seed: int, columns: bool) -> None:
    """Before all other passes; what is called is one function however often, and is gone in the end."""
    parts = SplitReductions(elements=16, rows=2, parts=1 << 20, columns=8) if columns else None
    text = several([seed, seed + 50, seed, seed], columns)
    module = ir.Module.parse(text)
    share_equal_parts(module, least=1, parts=2)
    assert len(list(functions(module))) == 2 and str(module).count("call @body_0") == 3
    passes = [*recover_passes(), *graph_passes(parts=parts)]
    shared, plain = run(str(module), passes), run(text, passes)
    assert sorted(w.key for w in workloads(shared).values()) == sorted(w.key for w in workloads(plain).values())
    assert len({sum(op.startswith("call ") for op in main_ops(after)) for after in (shared, plain)}) == 1
    assert_same(text, shared, {"B": 3}, {"B": 1})


def test_small_models_and_those_with_other_functions_are_left_alone() -> None:
    text = several([1, 1])
    module = ir.Module.parse(text)
    share_equal_parts(module)
    share_equal_parts(module, least=1)
    assert len(list(functions(module))) == 1
