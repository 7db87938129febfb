"""Products with the work on their rows in one launch on the emulator, under all of its checks, against NumPy in f64."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.test_families import sweep
from kernel_harness import NUMPY
from product_rows_workloads import product_rows

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.reference import evaluate
from tilewright.passes.partition import stitching
from tilewright.runtime.target import Target

BUILDER = LocalBuilder(Target.parse("emulator:sm_80"))
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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_rows_of_products(name: str) -> None:
    case, config, sizes = CASES[name]
    rounded = case.results[0].element != "f32"
    tolerance = {"f16": 4e-3, "bf16": 3e-2}[case.results[0].element] if rounded else 2e-5
    assert sweep(case, config, "MK", sizes, seed=1, tolerance=tolerance) == len(sizes)


def test_vectors_are_guarded() -> None:
    case = product_rows("layernorm", 40)
    assert sweep(case, "mma_rows{bm=16 bn=64 bk=32 wm=16 wn=32 lanes=4 vectors-in-registers=1}", "MK", [(4, 7)]) == 0


def test_rows_of_two_axes_with_a_bias_gelu_and_a_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stitching, "GAIN", -np.inf)
    g = ops.Graph()
    x, w = g.input("x", ["B", "S", 48], dtype="f16"), g.input("w", [48, 64], dtype="f16")
    bias, other = g.input("bias", [64], dtype="f16"), g.input("other", ["B", "S", 64], dtype="f16")
    y = ops.gelu(ops.matmul(x, w) + bias) + other
    g.output(y / ops.sqrt(ops.mean(y * y, [-1], keepdims=True) + 1e-5))
    fn = tw.compile(g, {"B": (1, 3), "S": (1, 7)}, target="emulator:sm_80", options={"builder": BUILDER})
    assert [{k.family for k in t.kernels} for t in fn.program.tables] == [{"mma_rows"}] and len(fn.program.calls) == 1
    rng = np.random.default_rng(0)
    for shape in ({"B": 1, "S": 1}, {"B": 3, "S": 7}):
        given = [(rng.standard_normal([d.evaluate(shape) for d in a.spec().dims]) / 4).astype(a.dtype.numpy) for a in fn.inputs]
        got, want = fn(*given), evaluate(g.module_text(), given)[0]
        assert got.tobytes() == fn(*given).tobytes()
        assert np.abs(got.astype(np.float64) - want).max() <= 4e-3 * max(1.0, np.abs(want).max()), shape


def test_few_rows_are_two_launches_and_more_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stitching, "cycles", lambda shape, rows, limits: (32.0, 64.0 - rows))
    g = ops.Graph()
    g.output(ops.softmax(ops.matmul(g.input("x", ["T", 24], dtype="bf16"), g.input("w", [24, 16], dtype="bf16")), axis=1))
    fn = tw.compile(g, {"T": (1, 64)}, target="emulator:sm_80", options={"builder": BUILDER})
    assert [{k.family for k in t.kernels} for t in fn.program.tables if t.name == "matmul_softmax"] == [{"mma_rows"}]
    assert len(fn.program.calls) == 3
    for rows in (1, 33, 34, 60):
        rng = np.random.default_rng(rows)
        x, w = (rng.standard_normal(size).astype(NUMPY["bf16"]) for size in ((rows, 24), (24, 16)))
        assert np.abs(fn(x, w).astype(np.float64) - evaluate(g.module_text(), [x, w])[0]).max() <= 3e-2, rows
