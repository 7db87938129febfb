"""Dispatch of GPU kernels: 32-bit coordinates serve what fits them, 64-bit ones the rest."""

from __future__ import annotations

import pytest

import tilewright as tw

pytestmark = pytest.mark.usefixtures("built_here")

MODEL = """
func.func @main(%x: tensor<?x1024xf32> {tw.dims = ["M", 1024]}, %w: tensor<1024x64xf32> {tw.dims = [1024, 64]})
    -> (tensor<?x1024xf32>, tensor<?x64xf32>) {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %x, %c0 : tensor<?x1024xf32>
  %e = tensor.empty(%m) : tensor<?x1024xf32>
  %y = linalg.exp ins(%x : tensor<?x1024xf32>) outs(%e : tensor<?x1024xf32>) -> tensor<?x1024xf32>
  %f = tensor.empty(%m) : tensor<?x64xf32>
  %i = linalg.fill ins(%zero : f32) outs(%f : tensor<?x64xf32>) -> tensor<?x64xf32>
  %z = linalg.matmul ins(%x, %w : tensor<?x1024xf32>, tensor<1024x64xf32>) outs(%i : tensor<?x64xf32>) -> tensor<?x64xf32>
  return %y, %z : tensor<?x1024xf32>, tensor<?x64xf32>
}
"""


@pytest.fixture(scope="module")
def model() -> tw.CompiledFunction:
    return tw.compile(MODEL, {"M": (1, 1 << 22)}, target="cuda:sm_80")


@pytest.mark.parametrize(("rows", "wide"), [(1000, False), ((1 << 21) - 1024, False), (1 << 21, True), (1 << 22, True)])
def test_operands_of_2_to_the_31_elements_go_to_64_bit_kernels(model: tw.CompiledFunction, rows: int, wide: bool) -> None:
    configs = [call.config for call in model.explain(M=rows).calls]
    assert [c.split("{")[0] for c in configs] == ["gpu_pointwise", "simt"]
    assert ["index=64" in c for c in configs] == [wide, wide]
