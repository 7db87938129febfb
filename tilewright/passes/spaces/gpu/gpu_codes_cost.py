"""KernelCost of `gpu_codes` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.gpu.gpu_codes import STEP, GpuCodesConfig, GpuFormat
from tilewright.passes.spaces.gpu.gpu_contraction import contraction, extents, once_issue, result_bytes, stored_bytes
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits

__all__ = ["extents", "kernel_cost"]

_A_LOAD, _AROUND, _A_RESULT = 3.0, 40.0, 14.0  # instructions of a warp
_A_VALUE, _ROUNDED = 2.5, 1.5  # to decode one, and to multiply it by its scale and round it
_A_VECTOR = 6.0  # to find one of a pool
_CHAIN = 700.0  # cycles: a step that nothing was loaded ahead for waits for memory once
_SCATTERED = 4  # bytes of a store


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
    results = c.rows * c.bn / c.threads
    codes = c.bn * form.books * c.bytes * 4 * c.warps * c.unroll
    moved = codes + 4 * c.bn * scales * 4 * c.warps * c.unroll
    block = GpuBlock(
        threads=c.threads,
        registers=min(c.registers_with(form), limits.registers_each(c.threads, c.min_blocks_per_sm)),
        shared_bytes=c.shared_bytes() + form.pool_bytes,
        step=Load(warps * (c.unroll * (product + loads * _A_LOAD) + _AROUND), values / STEP * 2 * warps if form.entries else 0.0,
                  moved, 16.0 * c.bn * deep if c.tensor else 0.0),
        once=Load(once_issue(warps, results * (c.warps + c.cluster_k), _A_RESULT), c.rows * c.bn * c.warps / WARP * 2,
                  stored_bytes(c.rows * c.bn, result_bytes(workload), 1, c.split_k, _SCATTERED)),
        along="depth",
        depth=deep,
        chain=0.0 if c.ahead else _CHAIN,
        ahead=int(c.ahead),
        parts=c.parts,
        launches=1 + (c.split_k > 1),
        partial=c.rows * c.bn * 4 if c.split_k > 1 else 0,
        cluster=c.cluster_k,
    )
    return contraction(c, limits, c.rows, c.bn, deep, block, {
        "loads_in_flight": loads * c.unroll,
        "cluster": c.cluster_k,
        "on_tensor_cores": float(c.tensor),
        "bytes_a_load": float(c.bytes),
    })
