"""KernelCost of `gpu_codes` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.gpu.gemv_cost import A_LOAD, AROUND, cost_of_block, extents
from tilewright.passes.spaces.gpu.gpu_codes import STEP, GpuCodesConfig, GpuFormat
from tilewright.passes.spaces.kernel_cost import KernelCost, Load
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits

__all__ = ["extents", "kernel_cost"]

_A_VALUE, _ROUNDED = 2.5, 1.5  # instructions of a warp to decode one, and to multiply it by its scale and round it
_A_VECTOR = 6.0  # to find one of a pool


def kernel_cost(config: GpuCodesConfig, workload: Workload, limits: GpuLimits) -> KernelCost:
    c, form = config, GpuFormat.of(workload)
    assert form is not None
    positions, deep = c.positions(form), c.deep(form) * c.unroll
    warps = c.threads / WARP
    values = c.columns * positions
    decoded = values / STEP * _A_VECTOR * form.books if form.entries else values * _A_VALUE
    product = decoded + (values * (_ROUNDED + 0.25) if c.tensor else values * c.rows_each)
    lane_rows = max(1, c.rows // 8) if c.tensor else c.rows_each
    scales = 0 if form.entries else c.runs(form)
    loads = c.columns * (form.books + scales) + lane_rows * positions / c.vec
    codes = c.bn * form.books * c.bytes * 4 * c.warps * c.unroll
    moved = codes + 4 * c.bn * scales * 4 * c.warps * c.unroll
    step = Load(warps * (c.unroll * (product + loads * A_LOAD) + AROUND), values / STEP * 2 * warps if form.entries else 0.0,
                moved, 16.0 * c.bn * deep if c.tensor else 0.0)
    return cost_of_block(c, workload, limits, c.registers_with(form), c.shared_bytes() + form.pool_bytes, step, deep,
                         {"loads_in_flight": loads * c.unroll, "bytes_a_load": float(c.bytes)})
