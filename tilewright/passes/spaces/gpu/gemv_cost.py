"""KernelCost of `gemv` configurations. MLIR-free."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.passes.spaces.gpu.gemv import WIDEST, GemvConfig, operand_bytes
from tilewright.passes.spaces.gpu.gpu_contraction import contraction, extents, once_issue, result_bytes, stored_bytes
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits

__all__ = ["AROUND", "A_LOAD", "cost_of_block", "extents", "kernel_cost"]

A_LOAD, AROUND, _A_RESULT = 3.0, 40.0, 14.0  # instructions of a warp
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
    moved = (c.bn + c.rows) * deep * size
    step = Load(warps * (c.unroll * (product + loads * A_LOAD) + AROUND), 0.0, moved, 16.0 * c.bn * deep if c.tensor else 0.0)
    return cost_of_block(c, workload, limits, c.registers(size), c.shared_bytes(), step, deep,
                         {"loads_in_flight": loads * c.unroll})


def cost_of_block(c: GemvConfig, workload: Workload, limits: GpuLimits, registers: int, shared_bytes: int, step: Load, deep: int,
                  features: Mapping[str, float]) -> KernelCost:
    """Of blocks whose warps share k: what follows from the configuration alone, around a step of `deep` values of k."""
    warps, results = c.threads / WARP, c.rows * c.bn / c.threads
    block = GpuBlock(
        threads=c.threads,
        registers=min(registers, limits.registers_each(c.threads, c.min_blocks_per_sm)),
        shared_bytes=shared_bytes,
        step=step,
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
    own = {"cluster": c.cluster_k, "on_tensor_cores": float(c.tensor)}
    return contraction(c, limits, c.rows, c.bn, deep, block, {**features, **own})
