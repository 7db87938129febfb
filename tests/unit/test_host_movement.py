"""Data movement, scans, updates and order on the host, at shapes of whole and partial vectors, tiles and rows, against NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.ops_harness import Checks, Given
from tilewright.compiler import ops
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.passes.analysis.gates import Running, Updates, gated
from tilewright.passes.analysis.ranks import ranks_of
from tilewright.passes.mlir import ir, walk
from tilewright.passes.spaces.host.generic import has_column_table
from tilewright.runtime.target import Target

Array = np.ndarray[Any, Any]
SHAPES = [{"B": 1, "S": 1}, {"B": 3, "S": 37}, {"B": 19, "S": 150}]
TARGETS = ("host", "host:x86-64-v3")


def coarse(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Many equal values, a NaN and both zeros here and there."""
    x = random.integers(-40, 41, shape).astype("f8")
    x[random.random(shape) < 0.02] = np.nan
    return np.where(random.random(shape) < 0.05, -0.0, x)


def places(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Some of them leave an axis of one element."""
    return random.integers(0, 7, shape)


def checks_of() -> Checks:
    return Checks({"x": Given(["B", "S"]), "c": Given(["B", "S"], "f32", coarse), "i": Given(["B", "S"], "i64"),
                   "b": Given(["B", "S"], "i8"), "r": Given([5], "i64", places)}, {"B": (1, 20), "S": (1, 160)})


@pytest.mark.parametrize("target", TARGETS)
def test_order_scans_and_updates(target: str) -> None:
    checks = checks_of()
    x, c, i = (checks[name] for name in "xci")
    values, order = ops.sort(c)
    checks.add("sort", values, lambda v, _: np.sort(v["c"], kind="stable"))
    checks.add("places", order, lambda v, _: np.argsort(v["c"], kind="stable"))
    checks.add("argsort down", ops.argsort(i, 1, descending=True), lambda v, _: np.argsort(-v["i"], 1, kind="stable"))
    checks.add("the first", ops.topk(c, 1)[1], lambda v, _: np.argsort(-_nan_last(v["c"]), 1, kind="stable")[:, :1])
    checks.add("sums down", ops.cumsum(x, 0), lambda v, _: np.cumsum(v["x"], 0))
    checks.add("sums up", ops.cumsum(x, 0, exclusive=True, reverse=True), lambda v, _: np.cumsum(v["x"][::-1], 0)[::-1] - v["x"])
    checks.add("least down", ops.cummin(c, 0)[0], lambda v, _: np.minimum.accumulate(v["c"], 0))
    checks.add("sums along", ops.cumsum(i, 1, exclusive=True), lambda v, _: np.cumsum(v["i"], 1) - v["i"])
    checks.add("sums back", ops.cumsum(x, 1, reverse=True), lambda v, _: np.cumsum(v["x"][:, ::-1], 1)[:, ::-1])
    most, where = ops.cummax(i, 1)
    checks.add("most", most, lambda v, _: np.maximum.accumulate(v["i"], 1))
    checks.add("its place", where, _last_most)
    checks.add("added rows", ops.index_put(x, [checks["r"]], 1.5, reduce="add"), _added)
    checks.add("last of rows", ops.index_put(i, [None, checks["r"]], ops.iota(checks.graph, [5], 0, "i64")), _put)
    checks.run(SHAPES, target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_are_moved(target: str) -> None:
    checks = checks_of()
    x, b = checks["x"], checks["b"]
    whole = [0, 0], [0, 0]

    def wide(v: Mapping[str, Array], mode: str) -> Array:
        return np.pad(v["x"], ((0, 0), (2, 3)), mode=mode)  # type: ignore[call-overload, no-any-return]

    checks.add("joined", ops.concat([x, ops.pad(x, [0, 1], [0, 2], 7), ops.flip(x, 1)], 1), lambda v, _: np.concatenate(
        [v["x"], np.pad(v["x"], ((0, 0), (1, 2)), constant_values=7), v["x"][:, ::-1]], 1))
    checks.add("joined in front", ops.concat([ops.unsqueeze(b, 1)] * 3, 1), lambda v, _: np.stack([v["b"]] * 3, 1))
    padded = ops.pad(x, [0, 1], [0, 0], 7)
    checks.add("a pad from both ends", padded - ops.flip(padded, 1), lambda v, _: _both_ends(v["x"]))
    checks.add("steps", ops.slice_axis(x, 1, 0, None, 3), lambda v, _: v["x"][:, ::3])
    checks.add("steps back", ops.slice_axis(b, 1, None, None, -2), lambda v, _: v["b"][:, ::-2])
    checks.add("the ends again", ops.pad(x, [0, 2], [0, 3], mode="replicate"), lambda v, _: wide(v, "edge"))
    checks.add("turned", ops.roll(x, [1, 5], [0, 1]), lambda v, _: np.roll(v["x"], (1, 5), (0, 1)))
    checks.add("turned back", ops.roll(x, [-2, -3], [0, 1]), lambda v, _: np.roll(v["x"], (-2, -3), (0, 1)))
    checks.add("rows by number", ops.gather(x, checks["r"]), lambda v, d: v["x"][np.minimum(v["r"], d["B"] - 1)])
    checks.add("twice as many", ops.interpolate(ops.reshape(x, [1, 1, "B", "S"]), ["2*B", "2*S"], "floor", "asymmetric"),
               lambda v, _: v["x"].repeat(2, 0).repeat(2, 1)[None, None])
    image, codes = ops.reshape(x, [1, 1, "B", "S"]), ops.reshape(b, [1, 1, "B", "S"])
    checks.add("three times as many", ops.interpolate(image, ["3*B", "3*S"], "floor", "asymmetric"),
               lambda v, _: v["x"].repeat(3, 0).repeat(3, 1)[None, None])
    checks.add("eight times along, codes", ops.interpolate(codes, ["B", "8*S"], "nearest"),
               lambda v, _: v["b"].repeat(8, 1)[None, None])
    larger = ops.interpolate(image * 2.0, ["4*B", "2*S"], "floor", "asymmetric")
    checks.add("four times and twice, then more", ops.relu(larger + 1.0),
               lambda v, _: np.maximum(v["x"] * 2 + 1, 0).repeat(4, 0).repeat(2, 1)[None, None])
    checks.add("down alone", ops.interpolate(image, ["2*B", "S"], "floor", "asymmetric"),
               lambda v, _: v["x"].repeat(2, 0)[None, None])
    checks.add("whole numbers", ops.sum(b, 1), lambda v, _: v["b"].sum(1, dtype="i4"))
    checks.add("the largest", ops.max(b, 1), lambda v, _: v["b"].max(1))
    checks.add("as it was", ops.pad(x, *whole), lambda v, _: v["x"])
    checks.run(SHAPES, target=target)


def test_places_that_rows_and_columns_share_are_a_table_of_columns() -> None:
    """Equal tables are one operand; vectors run along the columns."""
    g = ops.Graph()
    g.output(ops.interpolate(g.input("x", ["B", 8, 16, 16]), [48, 48], "floor", "asymmetric"))
    found = outline(Compilation(g, {"B": (1, 4)}, Target.parse("host"))).workloads
    assert [has_column_table(w) for w in found if len(w.loops) == 4] == [True]


def test_reductions_that_are_walks_are_seen() -> None:
    checks = checks_of()
    x, i = checks["x"], checks["i"]
    for made in (ops.cumprod(x, 1), *ops.cummin(x, 0), ops.scatter(x, ops.cast(i, "i32"), x, 1, reduce="max"), ops.argsort(x),
                 ops.sum(x, 1)):
        checks.graph.output(made)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(checks.graph.module_text())
        every = walk(module.operation)
        kinds = [type(gated(op)) for op in every]
        assert kinds.count(Running) == 3
        assert kinds.count(Updates) == 2  # the places of an order are updates of its ranks
        assert len([op for op in every if ranks_of(op) is not None]) == 1


def _both_ends(x: Array) -> Array:
    padded = np.pad(x, ((0, 0), (1, 0)), constant_values=7)
    return padded - padded[:, ::-1]


def _nan_last(x: Array) -> Array:
    """NaN as the largest."""
    return np.where(np.isnan(x), np.inf, x)


def _last_most(v: Mapping[str, Array], _: Mapping[str, int]) -> Array:
    most = np.maximum.accumulate(v["i"], 1)
    return np.maximum.accumulate(np.where(v["i"] == most, np.arange(v["i"].shape[1]), -1), 1)


def _added(v: Mapping[str, Array], dims: Mapping[str, int]) -> Array:
    found = v["x"].copy()
    np.add.at(found, v["r"][v["r"] < dims["B"]], np.float32(1.5))
    return found


def _put(v: Mapping[str, Array], dims: Mapping[str, int]) -> Array:
    found = v["i"].copy()
    for number, place in enumerate(v["r"]):
        if place < dims["S"]:
            found[:, place] = number
    return found
