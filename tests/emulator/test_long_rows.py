"""Rows of a vocabulary: a block of 1024 threads keeps one in registers where only sums are made of it."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import NUMPY

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.emulator.emulator_device import EmulatorDevice
from tilewright.runtime.gpu.gpu_caller import GpuCaller


def logs(columns: int, element: str, squares: bool = False) -> ops.Graph:
    """The logarithm of the sum of exponentials of each row, or what is as long and takes more registers."""
    g = ops.Graph()
    x = g.input("x", ["T", columns], dtype=element)
    shifted = x - ops.max(x, [1], keepdims=True)
    if squares:
        shifted = ops.gelu(shifted) * ops.gelu(shifted)
    g.output(ops.log(ops.sum(ops.exp(shifted), [1])))
    return g


def config_of(fn: tw.CompiledFunction) -> str:
    [table] = fn.program.tables
    return table.kernels[0].config


@pytest.mark.parametrize("columns,element,vectors", [(30522, "f32", "vec=2 vectors-in-registers=16"),
                                                     (30522, "bf16", "vec=2 vectors-in-registers=16"),
                                                     (17001, "f16", "vec=1 vectors-in-registers=32")])
def test_rows_are_kept(columns: int, element: str, vectors: str) -> None:
    fn = tw.compile(logs(columns, element), {"T": (1, 64)}, target="emulator:sm_90a")
    assert f"threads=1024 per-row=1024 {vectors}" in config_of(fn)
    x = np.random.default_rng(columns).standard_normal((2, columns)).astype(NUMPY[element])
    wide = x.astype(np.float64)
    wanted = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1))
    tolerance = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}[element]
    for seed in (None, 1):
        got = GpuCaller(fn.program, fn._bundle.code, fn._bundle.constants, EmulatorDevice("sm_90a", seed=seed))(x)
        np.testing.assert_allclose(got.astype(np.float64), wanted, tolerance)


@pytest.mark.parametrize("graph", [logs(30522, "f32", squares=True), logs(12000, "f32"), logs(40000, "f32")])
def test_rows_are_read_again_where_they_would_spill_or_are_of_another_length(graph: ops.Graph) -> None:
    fn = tw.compile(graph, {"T": (1, 64)}, target="emulator:sm_90a")
    assert "vectors-in-registers" not in config_of(fn)
