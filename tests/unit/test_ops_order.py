"""Places of extremes, order, running reductions and statistics: compiled, at several shapes, against NumPy and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops_harness import Checks, Given
from tilewright.compiler import ops
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr

Array = np.ndarray[Any, Any]


def coarse(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Many equal values, a NaN here and there."""
    x = random.integers(-3, 4, shape).astype("f8")
    x[random.random(shape) < 0.05] = np.nan
    return x


INPUTS = {"x": Given(["B", "S"]), "c": Given(["B", "S"], "f32", coarse), "i": Given(["B", "S"], "i32"),
          "h": Given(["B", "S"], "f16"), "m": Given(["B", "S"], "i1"), "u": Given(["B", "S"], "ui8"),
          "e": Given([7], "f32", lambda r, s: np.sort(r.integers(-3, 3, s)))}
SHAPES = [{"B": 1, "S": 1}, {"B": 3, "S": 23}, {"B": 7, "S": 8}]


def checks_of(torch: Any) -> tuple[Checks, Callable[..., None]]:
    checks = Checks(INPUTS, {"B": (1, 8), "S": (1, 32)})

    def add(name: str, got: ops.Tensor, source: str, want: Callable[[Any], Any]) -> None:
        checks.add(name, got, lambda v, _: np.asarray(want(torch.from_numpy(v[source]))))

    return checks, add


def test_places_and_order() -> None:
    torch = pytest.importorskip("torch")
    checks, add = checks_of(torch)
    for name, axes in (("c", (0, -1)), ("i", (0,)), ("u", (-1,))):
        t = checks[name]
        for axis in axes:
            add(f"argmax {name} {axis}", ops.argmax(t, axis), name, lambda x, a=axis: x.argmax(a))
            add(f"argmin {name} {axis}", ops.argmin(t, axis, True), name, lambda x, a=axis: x.argmin(a, True))
    add("argmax of all", ops.argmax(checks["c"]), "c", lambda x: x.argmax())
    add("argmin of all", ops.argmin(checks["i"], keepdims=True), "i", lambda x: x.argmin().reshape(1, 1))
    add("last argmax", ops.argmax(checks["i"], 1, last=True), "i", lambda x: x.shape[1] - 1 - x.flip(1).argmax(1))
    for name in "ci":
        for down in (False, True):
            values, places = ops.sort(checks[name], descending=down)
            add(f"sort {name} {down}", values, name, lambda x, d=down: x.sort(dim=-1, descending=d, stable=True).values)
            add(f"places {name} {down}", places, name, lambda x, d=down: x.sort(dim=-1, descending=d, stable=True).indices)
    add("argsort f16", ops.argsort(checks["h"], 0), "h", lambda x: x.argsort(dim=0, stable=True))
    add("argsort i1", ops.argsort(checks["m"]), "m", lambda x: x.argsort(dim=-1, stable=True))
    half = checks["x"].dims[1].ceildiv(2)
    for largest in (True, False):
        values, places = ops.topk(checks["x"], half, largest=largest)
        add(f"topk {largest}", values, "x", lambda x, b=largest: x.topk(-(-x.shape[1] // 2), largest=b).values)
        add(f"topk places {largest}", places, "x", lambda x, b=largest: x.topk(-(-x.shape[1] // 2), largest=b).indices)
    for right in (False, True):
        got = ops.searchsorted(checks["e"], checks["c"], right)
        checks.add(f"searchsorted {right}", got, lambda v, _, r=right: np.searchsorted(v["e"], v["c"], "right" if r else "left"))
    checks.run(SHAPES)


def test_order_of_rows_of_any_length() -> None:
    """Short ones by counting, one and four vectors at a time; longer ones by selection and merging."""
    torch = pytest.importorskip("torch")
    inputs = {"c": Given(["B", "S"], "f32", coarse), "i": Given(["B", "S"], "i64"), "d": Given(["B", "S"], "f64", coarse)}
    checks = Checks(inputs, {"B": (1, 3), "S": (5, 2000)})
    for name in "cid":
        for down in (False, True):
            for number, got in enumerate(ops.sort(checks[name], descending=down)):
                checks.add(f"sort {name} {down} {number}", got, lambda v, _, n=name, d=down, k=number: np.asarray(
                    torch.from_numpy(v[n]).sort(dim=-1, descending=d, stable=True)[k]))
        checks.add(f"topk {name}", ops.topk(checks[name], 5)[1], lambda v, _, n=name: np.asarray(
            torch.from_numpy(v[n]).sort(dim=-1, descending=True, stable=True)[1][:, :5]))
    checks.run([{"B": 2, "S": s} for s in (5, 16, 31, 64, 65, 130, 512, 513, 2000)])


@pytest.mark.parametrize("kind", ["f32", "i32", "ui8"])
def test_the_first_few_in_rounds(kind: str) -> None:
    """Of rows with ties, without numbers, and with the ends of a type; rounds and counting by how many are wanted of how many."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    dtype: Any = {"f32": np.float32, "i32": np.int32, "ui8": np.uint8}[kind]
    for count in (3, 24):
        g = ops.Graph()
        x = g.input("x", ["B", "S"], kind)
        for largest in (True, False):
            for t in ops.topk(x, count, largest=largest):
                g.output(t)
        fn = tw.compile(g, {"B": (1, 9), "S": (count, 700)})
        for length in (count, 24, 31, 64, 65, 100, 333, 512, 513):
            rows = rng.integers(-4, 4, (7, length)).astype(dtype)
            if kind == "f32":
                rows[0], rows[1, ::2], rows[2, :3], rows[3, 1::3] = np.nan, np.nan, (np.inf, -np.inf, -0.0)[: length], -np.inf
                rows[4] = rng.standard_normal(length)
            else:
                ends = np.iinfo(dtype)
                rows[0], rows[1], rows[2, ::2], rows[3, 1::3] = ends.max, ends.min, ends.max, ends.min
            for got, largest in zip(np.split(np.array(fn(rows), dtype=object), 2), (True, False), strict=True):
                order = torch.from_numpy(rows).sort(dim=1, descending=largest, stable=True)
                for found, want in zip(got, order, strict=True):
                    np.testing.assert_array_equal(np.asarray(found, want.numpy().dtype), want[:, :count].numpy())


@pytest.mark.parametrize("kind", ["f32", "i32"])
def test_one_rank(kind: str) -> None:
    """By halves of the values: a rank that is known, and one for each row; ties, what is not finite, the ends of a type."""
    dtype: Any = {"f32": np.float32, "i32": np.int32}[kind]
    g = ops.Graph()
    x, ranks = g.input("x", ["B", "S"], kind), g.input("r", ["B"], "i64")
    for k in (Expr.dim("S") // 2 + 1, ranks):
        for t in ops.kthvalue(x, k):
            g.output(t)
    fn, rng = tw.compile(g, {"B": (1, 9), "S": (1, 700)}), np.random.default_rng(3)
    for length in (1, 2, 64, 65, 333, 700):
        rows = rng.integers(-4, 4, (7, length)).astype(dtype)
        if kind == "f32":
            rows[0], rows[1, ::2], rows[2, ::3], rows[3, 1::3] = np.nan, np.nan, np.inf, -np.inf
            rows[4] = rng.standard_normal(length)
        else:
            ends = np.iinfo(dtype)
            rows[0], rows[1], rows[2, ::2], rows[3, 1::3] = ends.max, ends.min, ends.max, ends.min
        asked, order = rng.integers(0, length, 7), np.sort(rows, 1)
        found = [np.asarray(v) for v in fn(rows, asked + 1)]
        for (value, place), rank in zip((found[:2], found[2:]), (np.full(7, length // 2), asked), strict=True):
            np.testing.assert_array_equal(value, order[np.arange(7), rank])
            np.testing.assert_array_equal(rows[np.arange(7), place], value)


def test_running_reductions() -> None:
    torch = pytest.importorskip("torch")
    checks, add = checks_of(torch)
    x, c, i, h, m = (checks[n] for n in "xcihm")
    add("cumsum", ops.cumsum(x), "x", lambda x: x.cumsum(-1))
    add("cumsum 0", ops.cumsum(i, 0, dtype="i64"), "i", lambda x: x.cumsum(0))
    add("cumsum f16", ops.cumsum(h), "h", lambda x: x.float().cumsum(-1).half())
    add("cumsum of truth", ops.cumsum(m, 1), "m", lambda x: x.cumsum(1))
    add("cumsum reverse", ops.cumsum(x, reverse=True), "x", lambda x: x.flip(-1).cumsum(-1).flip(-1))
    add("cumsum exclusive", ops.cumsum(x, exclusive=True), "x", lambda x: x.cumsum(-1) - x)
    add("cumsum both", ops.cumsum(i, exclusive=True, reverse=True), "i", lambda x: (x.flip(-1).cumsum(-1).flip(-1) - x).int())
    add("cumprod", ops.cumprod(x), "x", lambda x: x.cumprod(-1))
    add("cummax", ops.cummax(c)[0], "c", lambda x: x.cummax(-1).values)
    add("cummax places", ops.cummax(c)[1], "c", lambda x: x.cummax(-1).indices)
    add("cummin", ops.cummin(i, 0)[0], "i", lambda x: x.cummin(0).values)
    add("cummin places", ops.cummin(i, 0)[1], "i", lambda x: x.cummin(0).indices)
    add("logcumsumexp", ops.logcumsumexp(x * 30), "x", lambda x: (x * 30).logcumsumexp(-1))
    add("logcumsumexp down", ops.logcumsumexp(x, 0), "x", lambda x: x.logcumsumexp(0))
    add("logcumsumexp f16", ops.logcumsumexp(h), "h", lambda x: x.float().logcumsumexp(-1).half())
    checks.run(SHAPES)


def test_running_logarithms_of_what_is_not_finite() -> None:
    torch = pytest.importorskip("torch")
    inf, nan = np.inf, np.nan
    x = np.array([[-inf, -inf, 1, 2, -inf, inf, 3], [inf, -inf, inf, 2, 3, 4, 5], [nan, 1, 2, 3, inf, 4, 5],
                  [1, 2, nan, inf, -inf, 0, 0], [-inf] * 7, [-1e38, 1e38, -3e38, 3e38, -3e38, 0, 0]], np.float32)  # fmt: skip
    g = ops.Graph()
    g.output(ops.logcumsumexp(g.input("x", ["B", 7])))
    fn = tw.compile(g, {"B": (1, 40)})
    for rows in (x, x[:1], np.concatenate([x] * 5)):
        np.testing.assert_allclose(np.asarray(fn(rows)), torch.from_numpy(rows).logcumsumexp(1).numpy(), rtol=1e-6)


def test_statistics() -> None:
    torch = pytest.importorskip("torch")
    checks, add = checks_of(torch)
    x, c, i, h, m = (checks[n] for n in "xcihm")
    for axis, dims in ((-1, -1), (None, (0, 1))):
        add(f"any {axis}", ops.any(m, axis), "m", lambda x, d=dims: x.any(d) if isinstance(d, int) else x.any())
        add(f"all {axis}", ops.all(i, axis, True), "i", lambda x, d=dims: x.bool().amin(d, True))
        add(f"any of floats {axis}", ops.any(c, axis), "c", lambda x, d=dims: x.bool().amax(d))
        add(f"var {axis}", ops.var(x, axis, correction=0), "x", lambda x, d=dims: x.var(d, correction=0))
        add(f"std {axis}", ops.std(x, axis, True), "x", lambda x, d=dims: x.std(d, keepdim=True))
        add(f"logsumexp {axis}", ops.logsumexp(x * 50, axis), "x", lambda x, d=dims: (x * 50).logsumexp(d))
    for p in (2, 1, 0, 3, float("inf"), float("-inf")):
        add(f"norm {p}", ops.norm(x, p, 0), "x", lambda x, p=p: torch.linalg.vector_norm(x, p, 0))
    add("var f16", ops.var(h, 1, correction=0), "h", lambda x: x.float().var(1, correction=0).half())
    add("count", ops.count_nonzero(i, 0), "i", lambda x: x.count_nonzero(0))
    add("logsumexp of -inf", ops.logsumexp(ops.masked_fill(x, m, -np.inf), 1, True), "m", lambda m: m)
    checks.wants[-1] = lambda v, _: np.asarray(torch.from_numpy(np.where(v["m"], np.float32(-np.inf), v["x"])).logsumexp(1, True))
    checks.run(SHAPES)


def test_mistakes_are_named() -> None:
    g = ops.Graph()
    x = g.input("x", ["S", 0, 3])
    with pytest.raises(ShapeError, match=r"argmax: axis 1 of .* has no element"):
        ops.argmax(x, 1)
    with pytest.raises(ShapeError, match="topk: 4 elements of axis 2"):
        ops.topk(x, 4)
    with pytest.raises(OptionError, match="norm: p is nan"):
        ops.norm(x, float("nan"))
    with pytest.raises(ShapeError, match="wanted one axis"):
        ops.searchsorted(x, x)
