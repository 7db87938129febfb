from __future__ import annotations

import re

import pytest
from unit.graph_models import (
    ADD,
    DOUBLE,
    EXP,
    START,
    SUM,
    R,
    T,
    W,
    X,
    assert_same,
    generic,
    matmul,
    model,
    run,
    workloads,
)

from tilewright.compiler import ops
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.mlir import functions, ir
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.growth import in_order
from tilewright.passes.partition.rules import rules_named
from tilewright.passes.pipeline.graph_pipeline import graph_passes


def regions(text: str, fuse: Fuse = Fuse()) -> list[int]:  # noqa: B008  (a frozen value)
    """Region numbers in program order, fills and empties left out."""
    return [int(n) for n in re.findall(r"tw.region = (\d+)", run(text, [fuse]))]


def refusals(text: str) -> list[str]:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        return [r.rule for r in in_order(Graph(next(functions(module))), rules_named()).refusals]


def test_epilogue_joins_and_math_stays_out_of_the_next_contraction() -> None:
    body = matmul("m", "%x") + generic("y", "%m", T, "%e", T, EXP, "#id, #id") + matmul("m2", "%y")
    assert regions(model([X, W], body, "%m2", T)) == [0, 0, 1]


def test_value_used_elsewhere_becomes_a_further_result() -> None:
    body = (
        matmul("m", "%x")
        + generic("y", "%m", T, "%e", T, EXP, "#id, #id")
        + generic("z", "%m, %x", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id")
        + matmul("m2", "%y")
    )
    text = model([X, W], body, "%z, %m2", f"{T}, {T}")
    after = run(text, graph_passes())
    assert sorted(len(w.outputs) for w in workloads(after).values()) == [1, 2]
    assert_same(text, after, {"B": 3}, {"B": 1})


def test_value_under_two_maps_is_not_fused() -> None:
    square = "tensor<8x8xf32>"
    start = f"""  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {square}
  %f = linalg.fill ins(%zero : f32) outs(%e : {square}) -> {square}
  %m = linalg.matmul ins(%x, %w : {square}, {square}) outs(%f : {square}) -> {square}
"""
    body = generic("y", "%m, %m", f"{square}, {square}", "%e", square, ADD, "#id, #swap, #id")
    text = model([f"%x: {square} {{tw.dims = [8, 8]}}", W], body, "%y", square, start)
    assert regions(text) == [0, 1]
    assert refusals(text) == ["one-map"]
    assert_same(text, run(text, graph_passes()), {})


def test_transposed_epilogue_is_fused() -> None:
    body = (
        matmul("m", "%x")
        + "  %et = tensor.empty(%B) : tensor<8x?xf32>\n"
        + generic("y", "%m", T, "%et", "tensor<8x?xf32>", EXP, "#swap, #id")
    )
    text = model([X, W], body, "%y", "tensor<8x?xf32>")
    assert regions(text) == [0, 0]
    assert_same(text, run(text, graph_passes()), {"B": 3})


def test_two_reductions_of_one_tensor_join_through_their_reader() -> None:
    body = (
        generic("s", "%x", T, "%f1", R, SUM, "#id, #row", "pr")
        + generic("q", "%x", T, "%f1", R, SUM, "#id, #row", "pr")
        + generic("d", "%x, %s", f"{T}, {R}", "%e", T, ADD, "#id, #row, #id")
        + generic("y", "%d, %q", f"{T}, {R}", "%e", T, ADD, "#id, #row, #id")
    )
    text = model([X], body, "%y", T)
    assert regions(text) == [0, 0, 0, 0]
    assert_same(text, run(text, graph_passes()), {"B": 3}, {"B": 1})


def test_reduction_along_another_axis_opens_a_region() -> None:
    body = (
        generic("s", "%x", T, "%f1", R, SUM, "#id, #row", "pr")
        + generic("d", "%x, %s", f"{T}, {R}", "%e", T, ADD, "#id, #row, #id")
        + "  %e8 = tensor.empty() : tensor<8xf32>\n"
        + "  %f8 = linalg.fill ins(%zero : f32) outs(%e8 : tensor<8xf32>) -> tensor<8xf32>\n"
        + generic("t", "%d", T, "%f8", "tensor<8xf32>", SUM, "#id, #col", "rp")
    )
    text = model([X], body, "%t", "tensor<8xf32>")
    assert regions(text, Fuse(partition="greedy")) == [0, 0, 1]
    assert regions(text) == [0, 1, 1], "the sum is read again where the tensor would be written and read"
    assert_same(text, run(text, graph_passes()), {"B": 3})


def test_contraction_and_row_reduction_are_two_regions() -> None:
    body = matmul("m", "%x") + generic("s", "%m", T, "%f1", R, SUM, "#id, #row", "pr")
    text = model([X, W], body, "%s", R)
    assert regions(text) == [0, 1]
    assert refusals(text) == ["one-root"]


def test_cycle_through_another_region_is_refused() -> None:
    body = matmul("m", "%x") + matmul("n", "%m") + generic("y", "%m, %n", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id")
    text = model([X, W], body, "%y", T)
    assert regions(text) == [0, 1, 1]  # the sum ends the second contraction, the first one is its input
    assert "one-root" in refusals(text)
    wide = (
        matmul("m", "%x")
        + generic("s", "%m", T, "%f1", R, SUM, "#id, #row", "pr")
        + generic("y", "%m, %s", f"{T}, {R}", "%e", T, ADD, "#id, #row, #id")
    )
    assert regions(model([X, W], wide, "%y", T)) == [0, 1, 1]


def test_no_cycle_between_a_contraction_and_its_late_epilogue() -> None:
    body = (
        matmul("m", "%x")
        + generic("p", "%m", T, "%f1", R, SUM, "#id, #row", "pr")
        + generic("t", "%p", R, "%e", T, EXP, "#row, #id")
        + matmul("n", "%t")
        + generic("y", "%n, %m", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id")
    )
    text = model([X, W], body, "%y", T)
    assert_same(text, run(text, graph_passes()), {"B": 3})


@pytest.mark.parametrize(("body", "fused"), [(DOUBLE, True), (EXP, False)])
def test_cheap_producers_are_computed_at_load(body: str, fused: bool) -> None:
    text = model([X, W], generic("y", "%x", T, "%e", T, body, "#id, #id") + matmul("m", "%y"), "%m", T)
    assert regions(text) == ([0, 0] if fused else [0, 1])
    assert_same(text, run(text, graph_passes()), {"B": 3})


@pytest.mark.parametrize(("operations", "fused"), [(1, True), (2, True), (3, False)])
def test_a_producer_is_computed_at_load_up_to_two_operations(operations: int, fused: bool) -> None:
    steps = "\n    ".join(f"%s{i + 1} = arith.mulf %s{i}, %a0 : f32" for i in range(operations)).replace("%s0", "%a0")
    body = f"{steps}\n    linalg.yield %s{operations} : f32"
    text = model([X, W], generic("y", "%x", T, "%e", T, body, "#id, #id") + matmul("m", "%y"), "%m", T)
    assert regions(text) == ([0, 0] if fused else [0, 1])
    assert_same(text, run(text, graph_passes()), {"B": 3})


def test_shared_producer_is_a_value_of_its_own() -> None:
    body = (
        generic("y", "%x", T, "%e", T, DOUBLE, "#id, #id")
        + matmul("m", "%y")
        + generic("z", "%m, %y", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id")
    )
    text = model([X, W], body, "%z", T)
    assert regions(text) == [0, 1, 1]
    assert_same(text, run(text, graph_passes()), {"B": 3})


def test_calls_come_in_an_order_that_the_values_allow() -> None:
    body = (
        generic("a", "%x", T, "%e", T, EXP, "#id, #id")
        + matmul("m", "%a")
        + generic("b", "%a", T, "%e", T, EXP, "#id, #id")
        + generic("c", "%b, %m", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id")
        + matmul("n", "%c")
    )
    text = model([X, W], body, "%n, %b", f"{T}, {T}", START)
    assert_same(text, run(text, graph_passes()), {"B": 2}, {"B": 5})


def test_producers_of_producers_are_copied_to_the_last_reader() -> None:
    """Whether the broadcast was one to copy was asked after it had got a copy itself, by which it was another operation."""
    g = ops.Graph()
    wide = ops.broadcast_to(ops.relu(g.input("x", ["N"]) + 1.0), [3, "N"])
    g.output(ops.concat([wide, wide], 1))
    assert re.findall(r"func private @(\w+)", run(g.module_text(), graph_passes())) == ["add_max_concat"]


def test_operations_that_read_copies_keep_their_numbers() -> None:
    text = model([X, W], generic("y", "%x", T, "%e", T, DOUBLE, "#id, #id") + matmul("m", "%y"), "%m", T)
    after = run(text, [Fuse(numbers=True)])
    assert re.search(r"linalg\.matmul.*tw\.operation = ", after)
