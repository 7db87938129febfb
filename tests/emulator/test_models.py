"""Whole models through the compiler and the emulated GPU, against the float64 reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.reference import compare, evaluate
from tilewright.runtime.cuda.driver import unavailable

pytestmark = pytest.mark.usefixtures("built_here")

DATA = Path(__file__).parent.parent / "data"
SMALL = """
func.func @main(%x: tensor<?x40xf32> {tw.dims = ["M", 40]}, %w: tensor<40x24xf32> {tw.dims = [40, 24]},
    %b: tensor<24xf32> {tw.dims = [24]}) -> tensor<?x24xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %x, %c0 : tensor<?x40xf32>
  %empty = tensor.empty(%m) : tensor<?x24xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x24xf32>) -> tensor<?x24xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x40xf32>, tensor<40x24xf32>) outs(%init : tensor<?x24xf32>) -> tensor<?x24xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%y, %b : tensor<?x24xf32>, tensor<24xf32>) outs(%empty : tensor<?x24xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %s = arith.addf %a, %c : f32
    %t = math.tanh %s : f32
    linalg.yield %t : f32
  } -> tensor<?x24xf32>
  return %z : tensor<?x24xf32>
}
"""


def check(fn: object, text: str, shapes: list[dict[str, int]]) -> None:
    rng = np.random.default_rng(0)
    for shape in shapes:
        arrays = []
        for argument in fn.inputs:  # type: ignore[attr-defined]
            extents = [d.evaluate(shape) for d in argument.spec().dims]
            arrays.append((rng.standard_normal(extents) * 0.1).astype(argument.dtype.numpy))
        got, want = fn(*arrays), evaluate(text, arrays)[0]  # type: ignore[operator]
        assert got.shape == want.shape
        if got.size:
            assert compare(got, want).ok(2e-5, 1e-4), shape


@pytest.mark.parametrize("name,dims,shapes", [
    ("dense_768x2304_dyn_m", {"arg0.0": (0, 64)}, [{"arg0_0": m} for m in (0, 1, 9)]),
    ("resnet_block_dyn_batch", {"arg0.0": (0, 1)}, [{"arg0_0": n} for n in (0, 1)]),
])
def test_model_matches_reference(name: str, dims: dict[str, tuple[int, int]], shapes: list[dict[str, int]]) -> None:
    text = (DATA / f"{name}.mlir").read_text().replace("x56x56x", "x14x14x").replace("x58x58x", "x16x16x")
    check(tw.compile(text, dims, target="emulator:sm_90a"), text, shapes)


def test_a_long_row_is_shared_by_blocks() -> None:
    text = """
    func.func @main(%x: tensor<?x?xf32> {tw.dims = ["M", "N"]}) -> tensor<?xf32> {
      %c0 = arith.constant 0 : index
      %zero = arith.constant 0.0 : f32
      %m = tensor.dim %x, %c0 : tensor<?x?xf32>
      %e = tensor.empty(%m) : tensor<?xf32>
      %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
      %s = linalg.reduce ins(%x : tensor<?x?xf32>) outs(%z : tensor<?xf32>) dimensions = [1] (%a: f32, %b: f32) {
        %t = arith.addf %a, %b : f32
        linalg.yield %t : f32 }
      return %s : tensor<?xf32>
    }
    """
    fn = tw.compile(text, {"M": (1, 4), "N": (1, 1 << 20)}, target="emulator:sm_80")
    assert ["blocks=16" in call.config for n in (1000, 70001) for call in fn.explain(M=2, N=n).calls] == [False, True]
    check(fn, text, [{"M": 2, "N": 70001}])


def test_save_and_load(tmp_path: Path) -> None:
    fn = tw.compile(SMALL, {"M": (1, 64)}, target="emulator:sm_80", constants={"arg2": np.ones(24, np.float32)})
    fn.save(tmp_path / "small.tw")
    loaded = tw.load(tmp_path / "small.tw")
    x, w = np.ones((7, 40), np.float32), np.full((40, 24), 0.01, np.float32)
    np.testing.assert_array_equal(loaded(x, w), fn(x, w))
    np.testing.assert_allclose(loaded(x, w), np.tanh(x @ w + 1), rtol=1e-5)


@pytest.mark.skipif(not unavailable(), reason="there is a GPU")
def test_cuda_target_compiles_without_a_gpu_and_says_so_when_called() -> None:
    fn = tw.compile(SMALL, {"M": (1, 64)}, target="cuda:sm_90a")
    assert "gemv" in str(fn.explain(M=7))
    assert "simt" in str(fn.explain(M=64))
    with pytest.raises(tw.errors.DeviceError, match="cuda:sm_90a"):
        fn(*(np.ones(s, np.float32) for s in ((7, 40), (40, 24), (24,))))
