"""Models in f16, bf16 and tf32 on the emulated GPU: tensor cores serve them, they stay near the f32 reference, nothing spills."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.builder.ptxas import assemble_ptx, find_tool
from tilewright.compiler.reference import evaluate
from tilewright.runtime.gpu.gpu_image import GpuImage

pytestmark = pytest.mark.usefixtures("built_here")

DATA = Path(__file__).parent.parent / "data"


def smaller(text: str) -> str:
    """A layer of a quarter of the features and heads, a convolution of images of a quarter of the height and width: a part of
    the tiles, and all of what they are made of."""
    text = text.replace("7.680000e+02", "1.920000e+02").replace("x56x56x", "x14x14x").replace("x58x58x", "x16x16x")
    return re.sub(r"(?<![%\d_.a-wyz])(768|1536|2304|3072|12)(?![\d.])", lambda m: str(int(m[0]) // 4), text)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name,dims,shapes,precision,arch,families", [
    ("bert_layer_dyn_seq", {"arg0.1": (33, 64)}, [{"arg0_1": 40}], "f16", "sm_90a", {"wgmma", "wgmma_attention"}),
    ("bert_layer_dyn_seq", {"arg0.1": (1, 8)}, [{"arg0_1": 7}], "bf16", "sm_80", {"gemv", "gpu_attention"}),
    ("dense_768x2304_dyn_m", {"arg0.0": (0, 64)}, [{"arg0_0": m} for m in (9, 40)], "tf32", "sm_90a", {"mma"}),
    ("resnet_block_dyn_batch", {"arg0.0": (0, 1)}, [{"arg0_0": n} for n in (0, 1)], "bf16", "sm_90a", {"mma"}),
])
def test_model(name: str, dims: dict[str, tuple[int, int]], shapes: list[dict[str, int]], precision: str, arch: str,
               families: set[str]) -> None:
    text = smaller((DATA / f"{name}.mlir").read_text())
    fn = tw.compile(text, dims, target=f"emulator:{arch}", options=tw.CompileOptions(precision=precision))
    used = set()
    for shape in shapes:
        rng = np.random.default_rng(0)
        extents = [[d.evaluate(shape) for d in a.spec().dims] for a in fn.inputs]
        arrays = [(rng.standard_normal(e) * 0.1).astype(a.dtype.numpy) for a, e in zip(fn.inputs, extents, strict=True)]
        got, wanted = fn(*arrays), evaluate(text, arrays)[0]
        assert got.shape == wanted.shape
        assert np.linalg.norm(got - wanted) <= 2e-2 * np.linalg.norm(wanted)
        used |= {call.family for call in fn.explain(**shape).calls}
    assert families <= used
    assert "simt" not in used
    if find_tool("ptxas"):
        assert_no_spills(fn, arch)


_BY_CHOICE = 16  # bytes that ptxas stores and loads by itself, with 72 registers of 255: an address of a convolution


def assert_no_spills(fn: tw.CompiledFunction, arch: str) -> None:
    """ptxas assembles kernels of a model, one of three, and has registers enough."""
    for image in sorted({k.object for t in fn.program.tables for k in t.kernels})[::3]:
        report = assemble_ptx(GpuImage.of(bytes(fn._bundle.code[image])).ptx.decode(), arch)
        assert all(entry.spills <= _BY_CHOICE for entry in report.entries.values())


DENSE = """
func.func @main(%x: tensor<?x64xf32> {tw.dims = ["M", 64]},
    %w: tensor<64x2304xf32> {tw.dims = [64, 2304]}) -> tensor<?x2304xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %x, %c0 : tensor<?x64xf32>
  %e = tensor.empty(%m) : tensor<?x2304xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x2304xf32>) -> tensor<?x2304xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x64xf32>, tensor<64x2304xf32>) outs(%z : tensor<?x2304xf32>) -> tensor<?x2304xf32>
  return %y : tensor<?x2304xf32>
}
"""


def test_many_rows_are_multiplied_by_warpgroups() -> None:
    """An odd number of rows of tiles, more tiles than multiprocessors."""
    fn = tw.compile(DENSE, {"M": (1, 8192)}, target="emulator:sm_90a", options=tw.CompileOptions(precision="f16"))
    assert "wgmma" in {call.family for call in fn.explain(M=2312).calls}
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2312, 64), (64, 2304)))
    wanted = x.astype(np.float64) @ w
    assert np.linalg.norm(fn(x, w) - wanted) <= 1e-3 * np.linalg.norm(wanted)


def test_constants_of_tf32_are_turned_for_warpgroups() -> None:
    """Weights [k, n] as an argument stay with `mma`."""
    text = DENSE.replace("2304", "96")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((100, 64), (64, 96)))
    for constants, family in (({"arg1": w}, "wgmma"), ({}, "mma")):
        fn = tw.compile(text, {"M": (1, 128)}, target="emulator:sm_90a", constants=constants,
                        options=tw.CompileOptions(precision="tf32"))
        assert [call.family for call in fn.explain(M=100).calls] == [family]
        wanted = x.astype(np.float64) @ w
        assert np.linalg.norm(fn(x, *([] if constants else [w])) - wanted) <= 2e-3 * np.linalg.norm(wanted)


def test_a_saved_model_builds_its_tensor_maps(tmp_path: Path) -> None:
    text = smaller((DATA / "dense_768x2304_dyn_m.mlir").read_text())
    fn = tw.compile(text, {"arg0.0": (0, 64)}, target="emulator:sm_90a", options=tw.CompileOptions(precision="bf16"))
    fn.save(tmp_path / "dense.tw")
    loaded = tw.load(tmp_path / "dense.tw")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([d.evaluate({"arg0_0": 24}) for d in a.spec().dims]).astype(np.float32) for a in fn.inputs]
    assert "wgmma" in {call.family for call in loaded.explain(arg0_0=24).calls}
    np.testing.assert_array_equal(loaded(*arrays), fn(*arrays))
