"""Kernels that no shape of the declared ranges is dispatched to are not built."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.tuning.dispatch_tables import untuned_tables
from tilewright.compiler.tuning.operator_tuning import task_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.dispatch import Leaf, Split, leaves, select, switch, within
from tilewright.search.protocols import BuildResult

TREE = Split("a*b", 20, switch("a", [(1, Leaf(0)), (4, Leaf(1, 1))], Leaf(2)), Split("b % 4", 0, Leaf(3), Leaf(1, 2)))


class Counted(LocalBuilder):
    def __init__(self, target: str) -> None:
        super().__init__(full_target(target))
        self.asked: list[TileConfig] = []

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        self.asked += [config for _, config in candidates]
        return super().build(candidates, seconds)


def dense(rows: str | int = "M") -> ops.Graph:
    g = ops.Graph()
    g.output(ops.dense(g.input("x", [rows, 8]), g.input("w", [8, 16])))
    return g


def built(target: str, graph: ops.Graph, dims: dict[str, tuple[int, int]], **options: object) -> tuple[int, tw.CompiledFunction]:
    builder = Counted(target)
    fn = tw.compile(graph, dims, target, options={"builder": builder, **options})
    return len(builder.asked), fn


@pytest.mark.parametrize("ranges", [
    {"a": (2, 3), "b": (1, 6)}, {"a": (5, 9), "b": (5, 5)}, {"a": (1, 9), "b": (0, 9)}, {"a": (1, 1)}])
def test_shapes_within_are_dispatched_as_before(ranges: dict[str, tuple[int, int]]) -> None:
    tree = within(TREE, ranges)
    (a, b), (c, d) = ranges["a"], ranges.get("b", (0, 30))
    taken = {select(TREE, {"a": x, "b": y}) for x in range(a, b + 1) for y in range(c, d + 1)}
    assert all(select(tree, {"a": x, "b": y}) == select(TREE, {"a": x, "b": y}) for x in range(a, b + 1) for y in range(c, d + 1))
    assert taken <= set(leaves(tree))
    assert len(list(leaves(tree))) < len(list(leaves(TREE))) or ranges["a"] == (1, 9)


def test_what_no_shape_reaches_is_not_built() -> None:
    """On a GPU the last kernel stays: the guards of the others send operands there that are not aligned."""
    rows, w = np.ones((9, 8), np.float32), np.ones((8, 16), np.float32)
    for target, most in (("host", 1), ("emulator:sm_90a", 2)):
        few, fn = built(target, dense(), {"M": (9, 9)})
        every, wide = built(target, dense(), {"M": (1, 4096)})
        assert few == most < every
        assert [c.config for c in fn.explain(M=9).calls] == [c.config for c in wide.explain(M=9).calls]
        np.testing.assert_array_equal(fn(rows, w), wide(rows, w))


def test_shapes_outside_the_range_keep_their_kernels() -> None:
    few, fn = built("host", dense(), {"M": (9, 9)}, out_of_range="fallback")
    assert few == built("host", dense(), {"M": (1, 1 << 20)})[0]  # so many rows reach all of them
    np.testing.assert_array_equal(fn(np.ones((1, 8), np.float32), np.ones((8, 16), np.float32)), np.full((1, 16), 8))


def test_calls_of_one_operator_reach_together() -> None:
    g = ops.Graph()
    w = g.input("w", [8, 8])
    for name in ("x", "y"):
        g.output(ops.dense(g.input(name, [{"x": "M", "y": "N"}[name], 8]), w))
    count, fn = built("host", g, {"M": (1, 1), "N": (20, 30)})
    assert count == len(fn.program.tables[0].kernels) == 2 and len(fn.program.tables) == 1


def test_a_search_still_has_every_family() -> None:
    """A range that reaches no kernel of a family's leaves the family in the space."""
    found = []
    for dims in ({"M": (33, 64)}, {"M": (1, 4096)}):
        model = outline(Compilation(dense(), dims, full_target("emulator:sm_90a"), tw.CompileOptions()))
        tables = untuned_tables(model, Counted("emulator:sm_90a"))
        found.append((task_of(model.workloads[0], model, tables).families, {k.family for k in tables.tables[0].kernels}))
    assert found[0][0] == found[1][0] and found[0][1] < found[1][1]
