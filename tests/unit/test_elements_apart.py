"""Elements a few places apart, as in every other column, are taken out of whole vectors within the memory that they span."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import NUMPY, T, guarded, load, workload


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
