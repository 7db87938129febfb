"""Gathers and scatters of symbolic extents: compiled, at several shapes, against NumPy and torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.ops_harness import Checks, Given
from tilewright.compiler import ops
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError

Array = np.ndarray[Any, Any]


def below(limit: int, low: int = 0) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    return lambda random, shape: random.integers(low, limit, shape)


def test_gathers() -> None:
    checks = Checks({
        "x": Given(["B", 7, "S"]), "h": Given([7, 4], "f16"), "i": Given(["S", 2], "i64", below(7)),
        "n": Given(["S"], "i32", below(7, -7)), "j": Given(["B", 3, "S"], "i64", below(7)),
        "u": Given(["S"], "ui8", below(7)), "k": Given(["B", 3, 2], "i64", below(3)),
    }, {"B": (1, 8), "S": (1, 32)})
    x, h, i, n, j, u, k = (checks[name] for name in "xhinjuk")
    checks.add("gather", ops.gather(x, i, 1), lambda v, d: np.take(v["x"], v["i"], 1))
    checks.add("gather from the end", ops.gather(h, n, 0, negative=True), lambda v, d: v["h"][v["n"]])
    checks.add("gather by bytes", ops.gather(h, u), lambda v, d: v["h"][v["u"]])
    checks.add("gather_elements", ops.gather_elements(x, j, 1), lambda v, d: np.take_along_axis(v["x"], v["j"], 1))
    checks.add("gather_elements of a part", ops.gather_elements(x, ops.narrow(j, 2, 0, 1), 1),
               lambda v, d: np.take_along_axis(v["x"][:, :, :1], v["j"][:, :, :1], 1))
    checks.add("index one", ops.index(x, [None, n]), lambda v, d: v["x"][:, v["n"]])
    checks.add("index neighbours", ops.index(ops.transpose(x, (1, 0, 2)), [i, ops.iota(checks.graph, [x.dims[2], 1]) * 0]),
               lambda v, d: v["x"].transpose(1, 0, 2)[v["i"], np.zeros((d["S"], 1), int)])
    checks.add("index apart", ops.index(ops.unsqueeze(h, 1), [n, None, ops.gather(n, n * 0) * 0 + 3]),
               lambda v, d: v["h"][:, None][v["n"], :, np.zeros(d["S"], int) + 3])
    checks.add("index inner", ops.index(x, [None, i, ops.broadcast_to(ops.arange(checks.graph, 1), [1])]),
               lambda v, d: v["x"][:, v["i"], np.zeros(1, int)])
    checks.add("gather_nd", ops.gather_nd(ops.transpose(h), ops.cast(k, "i32")),
               lambda v, d: v["h"].T[v["k"][..., 0], v["k"][..., 1]])
    checks.add("gather_nd in batches", ops.gather_nd(x, ops.narrow(k, 2, 0, 1), 1),
               lambda v, d: np.stack([v["x"][b][v["k"][b, :, 0]] for b in range(d["B"])]))
    checks.add("one_hot", ops.one_hot(n, 7, "f32"), lambda v, d: np.eye(7, dtype="f4")[np.where(v["n"] < 0, 0, v["n"])] * (
        v["n"] >= 0)[:, None])
    checks.add("one_hot ahead", ops.one_hot(i, x.dims[2], axis=0, values=(-1, 5)),
               lambda v, d: np.where(np.arange(d["S"])[:, None, None] == v["i"], 5, -1))
    checks.run([{"B": 1, "S": 1}, {"B": 3, "S": 17}])


def test_scatters_are_torch_s() -> None:
    torch = pytest.importorskip("torch")
    checks = Checks({
        "x": Given(["B", 5, "S"]), "i": Given(["B", "K", "S"], "i64", below(5)), "u": Given(["B", "K", "S"]),
        "xi": Given(["B", 5, "S"], "i32"), "ui": Given(["B", "K", "S"], "i32"), "xh": Given(["B", 5, "S"], "f16"),
    }, {"B": (1, 6), "S": (1, 16), "K": (0, 8)})
    x, i, u, xi, ui, xh = (checks[n] for n in ("x", "i", "u", "xi", "ui", "xh"))
    names = {"add": "sum", "multiply": "prod", "max": "amax", "min": "amin", "mean": "mean"}

    def by_torch(v: Mapping[str, Array], a: str, b: str, reduce: str, include: bool) -> Array:
        given = torch.from_numpy(v[a]), 1, torch.from_numpy(v["i"]), torch.from_numpy(v[b])
        return np.asarray(torch.scatter_reduce(*given, names[reduce], include_self=include))

    for reduce in names:
        for include in (True, False):
            checks.add(f"{reduce} {include}", ops.scatter(x, i, u, 1, reduce=reduce, include_self=include),
                       lambda v, d, r=reduce, n=include: by_torch(v, "x", "u", r, n))
            if reduce in ("max", "mean"):
                checks.add(f"{reduce} {include} i32", ops.scatter(xi, i, ui, 1, reduce=reduce, include_self=include),
                           lambda v, d, r=reduce, n=include: by_torch(v, "xi", "ui", r, n))

    def halves(v: Mapping[str, Array], _: object) -> Array:
        wide = {"i": v["i"], "x": v["xh"].astype("f4"), "u": v["u"].astype("f2").astype("f4")}
        return by_torch(wide, "x", "u", "add", True).astype("f2")

    checks.add("add f16", ops.scatter(xh, i, u, 1, reduce="add"), halves)

    def last_wins(v: Mapping[str, Array], s: int) -> Array:
        out = v["x"].copy()
        for b, k, t in np.ndindex(*v["i"][:, :, :s].shape):
            out[b, v["i"][b, k, t], t] = v["u"][b, k, t]
        return out

    checks.add("set", ops.scatter(x, i, u, 1), lambda v, d: last_wins(v, d["S"]))
    checks.add("set a part", ops.scatter(x, ops.narrow(i, 2, 0, 1), u, 1), lambda v, d: last_wins(v, 1))
    checks.add("set a number", ops.scatter(xi, i, 3, 1),
               lambda v, d: np.asarray(torch.from_numpy(v["xi"]).scatter(1, torch.from_numpy(v["i"]), 3)))
    checks.run([{"B": 1, "S": 1, "K": 1}, {"B": 3, "S": 5, "K": 8}, {"B": 2, "S": 3, "K": 0}])


def test_writes_at_indices() -> None:
    checks = Checks({
        "x": Given(["B", 6, "S"]), "n": Given([4], "i64", below(6, -6)), "r": Given(["B", 4, "S"]), "i": Given(["B"], "i32"),
        "m": Given(["B", 6, "S"], "i1"), "p": Given(["K"], "i64", below(6)), "q": Given(["K"], "i64", below(1)),
        "w": Given(["K", "S"]),
    }, {"B": (1, 6), "S": (1, 16), "K": (1, 9)})
    g, x, n, r, p, q, w = checks.graph, *(checks[k] for k in "xnrpqw")
    b, _, s = x.dims

    def put(v: Mapping[str, Array], place: Any, value: Any, add: bool = False) -> Array:
        out = v["x"].astype("f8")
        if add:
            np.add.at(out, place, value)
        else:
            out[place] = value
        return out.astype("f4")

    rows, here = np.s_[:], ops.iota(g, [b], dtype="i64")
    checks.add("copy", ops.index_put(x, [None, n], r), lambda v, d: put(v, (rows, v["n"]), v["r"]))
    checks.add("add", ops.index_put(x, [None, n], r, reduce="add"), lambda v, d: put(v, (rows, v["n"]), v["r"], True))
    checks.add("two axes", ops.index_put(x, [q, p], w), lambda v, d: put(v, (v["q"], v["p"]), v["w"]))
    checks.add("two axes add", ops.index_put(x, [q, p], w, reduce="add"), lambda v, d: put(v, (v["q"], v["p"]), v["w"], True))
    checks.add("apart", ops.index_put(x, [q, None, q], 2.5), lambda v, d: put(v, (v["q"], rows, v["q"]), 2.5))
    checks.add("apart add", ops.index_put(x, [q, None, q], ops.ones(g, [w.dims[0], 6]), reduce="add"),
               lambda v, d: put(v, (v["q"], rows, v["q"]), np.ones((d["K"], 6)), True))
    checks.add("a grid", ops.index_put(x, [ops.unsqueeze(here, 1), n], 1.0),
               lambda v, d: put(v, (np.arange(d["B"])[:, None], v["n"]), 1.0))
    checks.add("slice_scatter", ops.slice_scatter(x, r, 1, 1, 5), lambda v, d: put(v, (rows, np.s_[1:5]), v["r"]))
    checks.add("slice_scatter by steps", ops.slice_scatter(x, ops.narrow(r, 1, 0, 2), 1, -5, None, 3),
               lambda v, d: put(v, (rows, np.s_[1::3]), v["r"][:, :2]))
    checks.add("slice_scatter of an extent", ops.slice_scatter(x, ops.full(g, [b, 6, s // 2], 4.0), 2, s - s // 2),
               lambda v, d: put(v, (rows, rows, np.s_[d["S"] - d["S"] // 2:]), 4.0))
    checks.add("select_scatter", ops.select_scatter(x, ops.select(r, 1, 0), 1, -1), lambda v, d: put(v, (rows, -1), v["r"][:, 0]))
    checks.add("masked_fill", ops.masked_fill(x, checks["m"], -np.inf),
               lambda v, d: np.where(v["m"], np.float32(-np.inf), v["x"]))
    corner = ops.select(ops.select(checks["m"], 1, 0), 1, 0)
    checks.add("masked_fill with a tensor", ops.masked_fill(checks["i"], corner, g.scalar(b, "f32")),
               lambda v, d: np.where(v["m"][:, 0, 0], d["B"], v["i"]).astype("i4"))
    checks.run([{"B": 1, "S": 1, "K": 1}, {"B": 3, "S": 8, "K": 7}, {"B": 4, "S": 5, "K": 2}])


@pytest.mark.parametrize(("build", "error", "words"), [
    (lambda x, i, m: ops.index(x, [m]), DTypeError, r"a mask of i1 as index .* where\(\) or masked_fill\(\)"),
    (lambda x, i, m: ops.gather(x, x), DTypeError, "wanted integer indices, came f32"),
    (lambda x, i, m: ops.index(x, [None]), OptionError, "wanted 1 to 2, one of them a tensor"),
    (lambda x, i, m: ops.gather_elements(x, ops.select(i, 0, 0)), ShapeError, "wanted the same rank"),
    (lambda x, i, m: ops.gather_nd(x, i), ShapeError, "a last axis of a fixed extent"),
    (lambda x, i, m: ops.scatter(x, i, x, reduce="sum"), OptionError, "unknown reduction 'sum'; use one of set, add"),
    (lambda x, i, m: ops.scatter(x, ops.select(i, 0, 0), x), ShapeError, "wanted one rank"),
    (lambda x, i, m: ops.slice_scatter(x, i, 0, 0, 2), ShapeError, "slice_scatter"),
    (lambda x, i, m: ops.select_scatter(x, x, 0, 0), ShapeError, "wanted one axis less"),
    (lambda x, i, m: ops.one_hot(i, 3, axis=4), ShapeError, "axis 4 of a result of rank 3"),
])
def test_mistakes_are_named(build: Callable[..., Any], error: type[Exception], words: str) -> None:
    g = ops.Graph()
    x, i, m = g.input("x", [3, "S"]), g.input("i", [3, "S"], "i64"), g.input("m", [3, "S"], "i1")
    with pytest.raises(error, match=words):
        build(x, i, m)
