"""KernelCost of `gemv` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.gpu.gemv import WIDEST, GemvConfig, operand_bytes
from tilewright.passes.spaces.gpu.gpu_contraction import contraction, extents, once_issue, result_bytes, stored_bytes
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits

__all__ = ["extents", "kernel_cost"]

_A_LOAD, _AROUND, _A_RESULT = 3.0, 40.0, 14.0  # instructions of a warp
_CHAIN = 700.0  # cycles: a step that nothing was loaded ahead for waits for memory once
_SCATTERED = 4  # bytes of a store


def kernel_cost(config: GemvConfig, workload: Workload, limits: GpuLimits) -> KernelCost:
    c = config
    size = operand_bytes(workload)
    positions = WIDEST // size  # of k, of a thread in a piece
    deep = c.around(size) * c.unroll
    warps = c.threads / WARP
    width = min(c.vec, positions)
    loads = (c.columns + (c.rows_each + 7) // 8 if c.tensor else c.columns + c.rows_each) * positions / width
    product = c.columns * positions * (0.25 if c.tensor else c.rows_each)
    results = c.rows * c.bn / c.threads
    moved = (c.bn + c.rows) * deep * size
    block = GpuBlock(
        threads=c.threads,
        registers=min(c.registers(size), limits.registers_each(c.threads, c.min_blocks_per_sm)),
        shared_bytes=c.shared_bytes(),
        step=Load(warps * (c.unroll * (product + loads * _A_LOAD) + _AROUND), 0.0, moved,
                  16.0 * c.bn * deep if c.tensor else 0.0),
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
    })
