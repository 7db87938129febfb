"""Small models for the CUDA path."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import tilewright as tw

CHAIN = """
func.func @main(%x: tensor<?x40xf32> {tw.dims = ["M", 40]}, %w: tensor<40x24xf32> {tw.dims = [40, 24]},
    %v: tensor<24x16xf32> {tw.dims = [24, 16]}) -> tensor<?x16xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %x, %c0 : tensor<?x40xf32>
  %e = tensor.empty(%m) : tensor<?x24xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<?x24xf32>) -> tensor<?x24xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x40xf32>, tensor<40x24xf32>) outs(%i : tensor<?x24xf32>) -> tensor<?x24xf32>
  %f = tensor.empty(%m) : tensor<?x16xf32>
  %j = linalg.fill ins(%zero : f32) outs(%f : tensor<?x16xf32>) -> tensor<?x16xf32>
  %z = linalg.matmul ins(%y, %v : tensor<?x24xf32>, tensor<24x16xf32>) outs(%j : tensor<?x16xf32>) -> tensor<?x16xf32>
  return %z : tensor<?x16xf32>
}
"""
"""x @ w @ v: two kernels with a temporary between them."""

DONATED = """
func.func @main(%x: tensor<?xf32> {tw.dims = ["M"]}, %y: tensor<?xf32> {tw.dims = ["M"]}) -> tensor<?xf32> {
  %s = linalg.add ins(%x, %y : tensor<?xf32>, tensor<?xf32>) outs(%x : tensor<?xf32>) -> tensor<?xf32>
  return %s : tensor<?xf32>
}
"""


@cache
def chain(target: str = "cuda:sm_90a", **options: Any) -> tw.CompiledFunction:
    return tw.compile(CHAIN, {"M": (0, 4096)}, target=target, **options)


def inputs(rows: int, seed: int = 0) -> list[np.ndarray]:
    """Whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((rows, 40), (40, 24), (24, 16))]


def product(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    return x @ w @ v
