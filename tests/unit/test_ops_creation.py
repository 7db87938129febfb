"""Scalars, constants, counts and triangles of symbolic extents: compiled, at several shapes, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.ops_harness import Checks, Given
from tilewright.compiler import ops
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr

pytestmark = pytest.mark.usefixtures("built_here")

SHAPES = [{"B": 0, "S": 3}, {"B": 1, "S": 1}, {"B": 3, "S": 17}, {"B": 4, "S": 0}]


def test_constants_counts_and_triangles() -> None:
    checks = Checks({"x": Given(["B", "S"]), "i": Given(["B", "S"], "i32")}, {"B": (0, 8), "S": (0, 32)})
    g, (b, s) = checks.graph, checks["x"].dims
    checks.add("full of an expression", ops.full(g, [b, s, 2], s * 2 - b, "i64"),
               lambda v, d: np.full((d["B"], d["S"], 2), d["S"] * 2 - d["B"]))
    checks.add("full of a float", ops.full(g, [b], 0.1, "f16"), lambda v, d: np.full(d["B"], 0.1, "f2"))
    checks.add("full of a true", ops.full(g, [b], True, "i1"), lambda v, d: np.ones(d["B"], bool))
    checks.add("zeros", ops.zeros(g, [s, 0]), lambda v, d: np.zeros((d["S"], 0), "f4"))
    checks.add("ones", ops.ones(g, [s], "ui8"), lambda v, d: np.ones(d["S"], "u1"))
    checks.add("full_like", ops.full_like(checks["i"], s), lambda v, d: np.full_like(v["i"], d["S"]))
    checks.add("iota", ops.iota(g, [b, s], -1, "f32", start=b, step=0.5),
               lambda v, d: np.broadcast_to(d["B"] + 0.5 * np.arange(d["S"]), (d["B"], d["S"])).astype("f4"))
    checks.add("iota i1 axis 0", ops.iota(g, [b, 2], 0, "i8"), lambda v, d: np.stack([np.arange(d["B"], dtype="i1")] * 2, 1))
    checks.add("arange", ops.arange(g, s), lambda v, d: np.arange(d["S"]))
    checks.add("arange from to", ops.arange(g, b, s, 2, "i32"), lambda v, d: np.arange(d["B"], d["S"], 2, "i4"))
    checks.add("arange down", ops.arange(g, s, -2, -3), lambda v, d: np.arange(d["S"], -2, -3))
    checks.add("arange of floats", ops.arange(g, 0.5, 3, 0.25), lambda v, d: np.arange(0.5, 3, 0.25, "f4"))
    checks.add("arange to a float", ops.arange(g, 0.0, s), lambda v, d: np.arange(d["S"], dtype="f4"))
    checks.add("eye", ops.eye(g, b, s, diagonal=1), lambda v, d: np.eye(d["B"], d["S"], 1, dtype="f4"))
    checks.add("eye i1", ops.eye(g, s, dtype="i1"), lambda v, d: np.eye(d["S"], dtype=bool))
    checks.add("tril", ops.tril(checks["x"], -1), lambda v, d: np.tril(v["x"], -1))
    checks.add("triu", ops.triu(checks["i"], s - b), lambda v, d: np.triu(v["i"], d["S"] - d["B"]))
    checks.add("triangle", ops.triangle(g, s, s), lambda v, d: np.tri(d["S"], dtype=bool))
    checks.add("divided by an extent", checks["x"] / (s + 1), lambda v, d: v["x"] / np.float32(d["S"] + 1))
    checks.add("plus an extent", checks["i"] + s, lambda v, d: v["i"] + np.int32(d["S"]))
    checks.add("times a scalar", checks["x"] * g.scalar(b * s, "f32"), lambda v, d: v["x"] * np.float32(d["B"] * d["S"]))
    checks.add("a scalar", g.scalar(b * s, "i64"), lambda v, d: np.int64(d["B"] * d["S"]))
    checks.add("integers by a tensor's kind", checks["i"] * 0.5 + s, lambda v, d: (v["i"] * 0.5 + d["S"]).astype("f4"))
    checks.run(SHAPES)


def test_numbers_as_inputs() -> None:
    g = ops.Graph()
    x = g.input("x", ["N"])
    scale, shift, count = g.scalar_input("scale"), g.input("shift", [], "f32"), g.scalar_input("count", "i64")
    g.output(x * scale + shift, ops.cast(x, "i64") * count, count + 1)
    fn = tw.compile(g, {"N": (0, 16)})
    for n in (0, 1, 9):
        x = np.arange(n, dtype="f4")
        got = fn(x, 2.5, np.float32(0.5), 7)
        np.testing.assert_allclose(got[0], x * 2.5 + 0.5)
        assert np.array_equal(got[1], x.astype("i8") * 7) and got[2] == 8


def test_what_is_refused() -> None:
    g = ops.Graph()
    s = g.input("x", ["S"]).dims[0]
    with pytest.raises(OptionError, match="a step of 0"):
        ops.arange(g, 0, 4, 0)
    with pytest.raises(OptionError, match="a fraction beside an extent"):
        ops.arange(g, 0.5, s)
    with pytest.raises(OptionError, match="as start or step of i64"):
        ops.iota(g, [s], start=0.5)
    with pytest.raises(ShapeError, match="iota: axis 1 of 1 extents"):
        ops.iota(g, [s], 1)


def test_ranges_decide_extremes() -> None:
    g = ops.Graph(ranges={"S": (1, 8)})
    s = g.input("x", ["S"]).dims[0]
    assert g.larger(s - 1, Expr.of(0)) == s - 1 and g.smaller(s, Expr.of(8)) == s
    assert g.larger(s - 2, Expr.of(0)) == (s - 2).maximum(0)
    assert g.smaller(s // 2 * 2, s) == s // 2 * 2 and g.at_least(s, s // 3 + s // 2)


def test_a_stated_equality_is_checked_at_every_call() -> None:
    g = ops.Graph()
    x, y = g.input("x", ["S"]), g.input("y", ["T"])
    g.require_equal(x.dims[0] * 2, y.dims[0] * 3, "pairs and triples")
    g.output(x + 1)
    fn = tw.compile(g, {"S": (0, 9), "T": (0, 9)})
    assert len(fn(np.zeros(6, "f4"), np.zeros(4, "f4"))) == 6
    with pytest.raises(ShapeError, match=r'assert "pairs and triples" .* needs 2\*S = 3\*T'):
        fn(np.zeros(6, "f4"), np.zeros(5, "f4"))
    with pytest.raises(ShapeError, match="never: 2 against 3"):
        g.require_equal(Expr.of(2), Expr.of(3), "never")
