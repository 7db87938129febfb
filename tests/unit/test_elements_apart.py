"""Elements a few places apart, as in every other column, are taken out of whole vectors within the memory that they span."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import NUMPY, T, guarded, load, workload

import tilewright as tw
from tilewright.compiler import ops


def text(element: str) -> str:
    x, y = T(element, ("M", "N"), None), T(element, ("M", "N"))
    same = "affine_map<(d0, d1) -> (d0, d1)>"
    body = f"""%e = tensor.empty(%M, %N) : {y.type()}
      %y = linalg.generic {{indexing_maps = [{same}, {same}], iterator_types = ["parallel", "parallel"]}}
        ins(%x : {x.type()}) outs(%e : {y.type()}) {{
        ^bb0(%a: {element}, %o: {element}): linalg.yield %a : {element} }} -> {y.type()}"""
    return workload({"x": x}, ("M", "N"), body, {"y": y})


@pytest.mark.parametrize("element,lanes,target", [
    ("f32", 16, "host"), ("f64", 8, "host"), ("f16", 16, "host"), ("i8", 16, "host"), ("f32", 8, "host:x86-64-v3")])
def test_every_step(element: str, lanes: int, target: str) -> None:
    kernel, kind = load(text(element), f"generic{{lanes={lanes} chunk=128}}", target), np.dtype(NUMPY[element])
    for step in (1, 2, 3, 4, 5, 7):
        for rows, columns in ((1, 1), (3, 15), (2, 16), (1, 17), (2, 67), (0, 4)):
            pitch = max(0, columns - 1) * step + 1
            base = guarded((rows, pitch), kind, front=step % 2 == 1)
            base[...] = np.random.default_rng(step).integers(-9, 9, base.shape)
            out = guarded((rows, columns), kind)
            kernel([base[:, ::step]], {"M": rows, "N": columns}, [out], 2)
            np.testing.assert_array_equal(out, base[:, ::step])


def test_rows_that_are_read_across_few_columns() -> None:
    """A transposed operand of rows, whose elements lie as many places apart as it has columns."""
    g = ops.Graph()
    x, y = g.input("x", ["B", "N", 70]), g.input("y", ["B", 70, "N"])
    g.output(ops.softmax(x + ops.transpose(y, (0, 2, 1)), -1))
    fn = tw.compile(g, {"B": (1, 9), "N": (1, 9)}, options=tw.CompileOptions(threads=1))
    rng = np.random.default_rng(3)
    for columns in range(1, 10):
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((3, columns, 70), (3, 70, columns)))
        e = np.exp(a + b.transpose(0, 2, 1) - (a + b.transpose(0, 2, 1)).max(-1, keepdims=True))
        np.testing.assert_allclose(fn(a, b), e / e.sum(-1, keepdims=True), rtol=2e-5, atol=1e-7)
