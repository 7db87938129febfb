"""Products with the work on their rows in one launch on the emulator, under all of its checks, against NumPy in f64."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.test_families import sweep
from product_rows_workloads import product_rows

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.reference import evaluate
from tilewright.passes.partition import stitching

SMALL = "bm=16 bn=64 bk=32 wm=16 wn=32 stages=3"
CASES = {
    "layernorm": (product_rows("layernorm", 40), "mma_rows{bm=16 bn=64 bk=32 wm=16 wn=32 lanes=4 vectors-in-registers=1}",
                  [(1, 8), (17, 40), (33, 96)]),
    "layernorm of two panels, rounded": (product_rows("layernorm", 136, out="f16", kept="f16"),
                                         f"mma_rows{{{SMALL} lanes=8 vectors-in-registers=1}}", [(5, 72), (16, 0)]),
    "softmax read again": (product_rows("softmax", 100, "bf16", "bf16"), f"mma_rows{{{SMALL} lanes=4}}", [(9, 40), (35, 64)]),
    "softmax, any": (product_rows("softmax", 37), "mma_rows{index=64 bm=16 bn=64 bk=32 wm=16 wn=32 stages=2 vec=1 lanes=1 "
                     "vectors-in-registers=2}", [(1, 1), (18, 33), (3, 7)]),
    "tf32, taller blocks": (product_rows("layernorm", 24, "f32"), "mma_rows{bm=64 bn=32 bk=16 wm=32 wn=32 stages=2 vec=4 "
                            "tf32=true lanes=1 vectors-in-registers=1}", [(70, 20), (2, 4)]),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_of_products(name: str) -> None:
    case, config, sizes = CASES[name]
    rounded = case.results[0].element != "f32"
    tolerance = {"f16": 4e-3, "bf16": 3e-2}[case.results[0].element] if rounded else 2e-5
    assert sweep(case, config, "MK", sizes, seed=1, tolerance=tolerance) == len(sizes)


def test_vectors_are_guarded() -> None:
    case = product_rows("layernorm", 40)
    assert sweep(case, "mma_rows{bm=16 bn=64 bk=32 wm=16 wn=32 lanes=4 vectors-in-registers=1}", "MK", [(4, 7)]) == 0


def blocks(dtype: str, rows: tuple[str, ...]) -> ops.Graph:
    """A product with a bias, GELU and a residual, normalised; of plain rows that is read by another product, with a softmax."""
    g = ops.Graph()
    x, w = g.input("x", [*rows, 48], dtype=dtype), g.input("w", [48, 64], dtype=dtype)
    bias, other = g.input("bias", [64], dtype=dtype), g.input("other", [*rows, 64], dtype=dtype)
    y = ops.gelu(ops.matmul(x, w) + bias) + other
    scaled = y / ops.sqrt(ops.mean(y * y, [-1], keepdims=True) + 1e-5)
    g.output(scaled)
    if len(rows) == 1:
        g.output(ops.softmax(ops.matmul(scaled, g.input("v", [64, 37], dtype=dtype)), axis=1))
    return g


@pytest.mark.parametrize("dtype,rows", [("f16", ("B", "S")), ("bf16", ("S",))])
def test_a_model_takes_a_launch_for_each_product(dtype: str, rows: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stitching, "GAIN", -np.inf)
    dims = {"B": (1, 3), "S": (1, 7)}
    ranges = {name: dims[name] for name in rows}
    graph = blocks(dtype, rows)
    fn = tw.compile(graph, ranges, target="emulator:sm_80")
    products = 3 - len(rows)
    assert [k.family for t in fn.program.tables for k in t.kernels if not k.guards] == ["mma_rows"] * products
    assert len(fn.program.calls) == products
    rng = np.random.default_rng(0)
    for shape in ({"B": 1, "S": 1}, {"B": 3, "S": 7}):
        given = [(rng.standard_normal([d.evaluate(shape) for d in a.spec().dims]) / 4).astype(a.dtype.numpy) for a in fn.inputs]
        calls = (r if isinstance(r, tuple) else (r,) for r in (fn.call_flat(*given), fn.call_flat(*given)))
        for got, again, want in zip(*calls, evaluate(graph.module_text(), given), strict=True):
            wide, reference = (x.astype(np.float64) for x in (got, want))
            assert got.tobytes() == again.tobytes()
            assert np.abs(wide - reference).max() <= (4e-3 if dtype == "f16" else 3e-2) * max(1.0, np.abs(reference).max()), shape
