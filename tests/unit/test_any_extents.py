"""Workloads that differ in extents alone become one with dims."""

from __future__ import annotations

import pytest

from tilewright.compiler import ops
from tilewright.compiler.host.launch_groups import launches_in_order
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.any_extents import AnyExtents, dims_of, with_dims
from tilewright.passes.dispatch_creation.outlined import workloads_of
from tilewright.passes.mlir import ir, new_context
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.spaces.segments import Segments
from tilewright.passes.spaces.workload import Workload
from tilewright.passes.transforms.split_reductions import SplitReductions
from tilewright.runtime.program.kernel import Param
from tilewright.runtime.shape import Expr


def workload(graph: ops.Graph, parts: SplitReductions | None = None) -> Workload:
    """The one of a graph, of a reduction in parts the one that makes these."""
    module = ir.Module.parse(graph.module_text())
    PassPipeline([*recover_passes(), *graph_passes(parts=parts)]).run(module)
    [found] = [w for w in workloads_of(module).values() if parts is None or w.part_rows]
    return found


def elements(*size: int) -> ops.Graph:
    g = ops.Graph()
    x = g.input("x", list(size))
    g.output(ops.exp(x) * x, name="y")
    return g


def squares(*size: int) -> ops.Graph:
    g = ops.Graph()
    x = g.input("x", list(size))
    g.output(ops.sum(x * x), name="y")
    return g


def test_equal_work_on_lists_of_any_length_has_one_key() -> None:
    with new_context(), ir.Location.unknown():
        few, many, other = workload(elements(3, 5)), workload(elements(64, 64)), workload(squares(7))
        found = [AnyExtents.of(w) for w in (few, many, other)]
        assert found[0] is not None and found[1] is not None and found[2] is not None
        assert found[0].key == found[1].key != found[2].key
        assert (found[0].extents, found[1].extents) == ((15,), (4096,))
        made = [with_dims(w, {0: "d0"}) for w in (few, many)]
        assert made[0].key == made[1].key and made[0].ir == made[1].ir
        assert made[0].dims == ("d0",) and made[0].outputs[0].dims == (Expr.dim("d0"),)
        assert ir.Module.parse(made[0].ir).operation.verify()


def test_parts_follow_from_rows() -> None:
    """Of as many rows as there are, a part for every sixteen."""
    with new_context(), ir.Location.unknown():
        parts = SplitReductions(elements=256, rows=16)
        tall, wide = (workload(squares(*size), parts) for size in ((100, 24), (90, 40)))
        found = [AnyExtents.of(w) for w in (tall, wide)]
        assert found[0] is not None and found[1] is not None and found[0].key == found[1].key
        assert found[0].extents == (100, 24)
        made = with_dims(tall, {0: "d0", 1: "d1"})
        assert made.outputs[0].dims == (Expr.dim("d0").ceildiv(16),)
        assert with_dims(tall, {0: "d0"}).inputs[0].dims == (Expr.dim("d0"), Expr.of(24))


def test_other_sizes_of_parts_are_other_work() -> None:
    with new_context(), ir.Location.unknown():
        found = [AnyExtents.of(workload(squares(100, 24), SplitReductions(elements=64, rows=rows))) for rows in (16, 32)]
        assert found[0] is not None and found[1] is not None and found[0].key != found[1].key


def test_what_has_dims_or_products_is_left_alone() -> None:
    g = ops.Graph()
    g.output(ops.exp(g.input("x", ["N", 4])), name="y")
    product = ops.Graph()
    product.output(ops.dense(product.input("x", [4, 8]), product.input("w", [8, 8])), name="y")
    with new_context(), ir.Location.unknown():
        assert AnyExtents.of(workload(product)) is None
        module = ir.Module.parse(g.module_text())
        PassPipeline([*recover_passes(), *graph_passes()]).run(module)
        assert all(AnyExtents.of(w) is None for w in workloads_of(module).values() if w.dims)


@pytest.mark.parametrize("extents,names", [
    ([(3, 5), (4, 5)], {0: "d0"}),
    ([(3, 3), (4, 4)], {0: "d0", 1: "d0"}),
    ([(3, 4), (4, 4), (5, 6)], {0: "d0", 1: "d1"}),
    ([(7,), (7,)], {}),
])
def test_extents_that_differ_are_dims_and_equal_ones_share_one(extents: list[tuple[int, ...]], names: dict[int, str]) -> None:
    assert dims_of(extents) == names


def test_members_are_told_with_what_differs() -> None:
    segments = Segments((0, 2), ((0, 0),), ("d0",), members=12)
    assert Segments.parse(str(segments)) == segments
    assert Segments.parse("pointer 1").members == 0
    assert segments.has(Param("stride", 0, 0)) and not segments.has(Param("pointer", 1))


def test_launches_follow_each_other() -> None:
    assert [launch.calls for launch in launches_in_order([1, 3, 2], 4)] == [(4,), (5, 6, 7), (8, 9)]
