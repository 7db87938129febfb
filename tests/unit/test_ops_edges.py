"""Builders at extents of 0 and 1, and of element types beside f32: compiled, against NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.ops_harness import Checks, Given
from tilewright.compiler import ops
from tilewright.runtime.errors import DTypeError

Array = np.ndarray[Any, Any]


def test_extents_of_nothing_and_of_one() -> None:
    checks = Checks({"x": Given(["B", "S"]), "i": Given(["K"], "i64", lambda r, s: np.zeros(s)), "q": Given(["B", 2, "S", 8]),
                     "w": Given([8, 8]), "m": Given(["B", 3, 5, 5])}, {"B": (0, 8), "S": (0, 20), "K": (0, 4)})
    x, i, q, w, m = (checks[n] for n in "xiqwm")

    def put(v: Mapping[str, Array], _: object) -> Array:
        out = v["x"].copy()
        out[:, v["i"]] = 1
        return out

    def added(v: Mapping[str, Array], _: object) -> Array:
        out = v["x"].copy()
        np.add.at(out, (np.s_[:], v["i"]), 1)
        return out

    def attention(v: Mapping[str, Array], _: object) -> Array:
        scores = v["q"] @ v["q"].swapaxes(2, 3) / 8**0.5
        power = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e30))
        return (power / power.sum(-1, keepdims=True) @ v["q"]).astype("f4")

    checks.add("gather", ops.gather(x, i, 1), lambda v, d: v["x"][:, v["i"]])
    checks.add("index_put", ops.index_put(x, [None, i], 1.0), put)
    checks.add("index_put add", ops.index_put(x, [None, i], 1.0, reduce="add"), added)
    checks.add("sort", ops.sort(x)[0], lambda v, d: np.sort(v["x"], 1))
    checks.add("cumsum", ops.cumsum(x, 0), lambda v, d: np.cumsum(v["x"], 0))
    checks.add("all", ops.all(x, 1), lambda v, d: v["x"].astype(bool).all(1))
    checks.add("logsumexp", ops.logsumexp(x, 1), lambda v, d: np.log(np.exp(v["x"]).sum(1)))
    checks.add("flip", ops.flip(x, 0), lambda v, d: v["x"][::-1])
    checks.add("roll", ops.roll(x, 1, 1), lambda v, d: np.roll(v["x"], 1, 1))
    checks.add("einsum", ops.einsum("bs,ts->bt", x, x), lambda v, d: v["x"] @ v["x"].T)
    checks.add("dense", ops.dense(q, w, transposed=True), lambda v, d: v["q"] @ v["w"].T)
    checks.add("pool", ops.max_pool2d(m, 5), lambda v, d: v["m"].max((2, 3), keepdims=True))
    checks.add("attention", ops.attention(q, q, q), attention)
    checks.run([{"B": 0, "S": 3, "K": 2}, {"B": 2, "S": 0, "K": 0}, {"B": 2, "S": 1, "K": 1}, {"B": 3, "S": 17, "K": 4}])


def test_element_types() -> None:
    kinds = ["i1", "ui8", "bf16"]
    checks = Checks({
        **{k: Given(["B", "S"], k) for k in kinds}, "i": Given(["B", "S"], "i64", lambda r, s: r.integers(0, 2, s)),
        "p": Given([3], "i32", lambda r, s: r.integers(-2, 2, s)),
    }, {"B": (2, 8), "S": (2, 20)})
    i, p = checks["i"], checks["p"]
    for k in kinds:
        x = checks[k]
        checks.add(f"roll {k}", ops.roll(x, 1, 0), lambda v, _, k=k: np.roll(v[k], 1, 0))
        checks.add(f"reflect {k}", ops.pad(x, [0, 1], [1, 0], mode="reflect"),
                   lambda v, _, k=k: np.pad(v[k], ((0, 1), (1, 0)), mode="reflect"))
        checks.add(f"concat {k}", ops.concat([x, x], 1), lambda v, _, k=k: np.concatenate([v[k]] * 2, 1))
        checks.add(f"gather {k}", ops.gather(x, p, 1, negative=True), lambda v, _, k=k: v[k][:, v["p"]])
        checks.add(f"gather_elements {k}", ops.gather_elements(x, i, 1), lambda v, _, k=k: np.take_along_axis(v[k], v["i"], 1))
        checks.add(f"sort {k}", ops.sort(x, 1)[0], lambda v, _, k=k: np.sort(v[k], 1))

        def written(v: Mapping[str, Array], _: object, k: str = k) -> Array:
            out = v[k].copy()
            out[:, v["p"]] = v[k][:, [0]]
            return out

        checks.add(f"index_put {k}", ops.index_put(x, [None, p], ops.narrow(x, 1, 0, 1)), written)
        if k != "i1":
            def added(v: Mapping[str, Array], _: object, k: str = k) -> Array:
                out = v[k].astype("f8")
                for row, places, values in zip(out, v["i"], v[k].astype("f8"), strict=True):
                    np.add.at(row, places, values)
                return out.astype(v[k].dtype)

            checks.add(f"scatter {k}", ops.scatter(x, i, x, 1, reduce="add"), added)
    checks.run([{"B": 2, "S": 2}, {"B": 5, "S": 17}])


def test_an_array_is_no_tensor_of_a_graph() -> None:
    g = ops.Graph()
    with pytest.raises(DTypeError, match=r"matmul: wanted tensors of a graph, got ndarray; make one by graph.constant"):
        ops.matmul(g.input("x", ["M", 4]), np.ones((4, 4), np.float32))  # type: ignore[arg-type]
