"""KernelCost of `wgmma` configurations. MLIR-free."""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.spaces.gemm_operands import tensor_core_bytes
from tilewright.passes.spaces.gpu.gpu_contraction import (
    contraction,
    extents,
    once_issue,
    result_bytes,
    stored_bytes,
    summed_cycles,
)
from tilewright.passes.spaces.gpu.gpu_rates import GpuRates
from tilewright.passes.spaces.gpu.wgmma import GROUP, REGISTERS, ROW, ROWS, STEP, WgmmaConfig, promoted, stage_bytes
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits

__all__ = ["extents", "kernel_cost"]

_A_PRODUCT, _AROUND, _A_STORE = 3.0, 22.0, 12.0  # instructions of a warp; the first two as in the SASS of main loops
_SCATTERED = 8  # bytes of a store
_CHAIN = 160.0  # cycles: an mbarrier, a fence, the wait for the products of the step before
_LEAST = 0.5  # steps ahead of two stages, where copies and products take turns
_UNTRIED = 1.05  # factor of the time of products of blocks that share steps: what it takes beside others was not measured
_PART = 1.06  # of those that read a part of the rows that copies bring: H200, 160 columns 2 to 8 %, 144 up to 12
_HIDDEN = 0.8  # of what storing takes, where another warpgroup multiplies meanwhile: a guess, not measured
_ALONE = 96  # registers of a thread where a single warpgroup multiplies


def kernel_cost(config: WgmmaConfig, workload: Workload, limits: GpuLimits) -> KernelCost:
    c = config
    size = tensor_core_bytes(workload) or 4
    depth = ROW // size * c.deep
    warps = c.readers * GROUP / WARP
    products = c.rows // ROWS * (ROW // STEP) * c.deep  # instructions of a warpgroup in a step
    stores = c.bm * c.bn / (c.readers * GROUP) / (c.vec if not c.copied else 8)
    reads = c.bm / ROWS * (ROWS + c.bn) * c.deep  # rows of 128 bytes that the products read
    stage = stage_bytes(c, workload)
    columns = stage / (ROW * c.deep) - c.bm  # that copies bring
    brought = (c.bm / c.cluster_n + columns / c.cluster_m) * ROW * c.deep  # blocks of a cluster share what they have in common
    matrix, rates = c.bm * c.bn * depth * size / 2, GpuRates.of(limits)
    slower = (_UNTRIED if c.streamed else 1.0) * (_PART if stage > c.stage_bytes else 1.0)
    registers = max(c.registers(promoted(workload)), _ALONE)
    given = limits.registers // c.threads // 8 * 8 if c.consumers in REGISTERS else registers
    block = GpuBlock(
        threads=c.threads,
        registers=min(given, limits.thread_registers),
        shared_bytes=c.shared_bytes() + c.stages * (stage - c.stage_bytes),
        step=Load(warps * (products * _A_PRODUCT + _AROUND), reads + stage / 128, brought,
                  matrix / rates.wgmma * slower),
        once=Load(once_issue(warps, stores, _A_STORE), summed_cycles(c.bm * c.bn, c.cluster_k, limits),
                  stored_bytes(c.bm * c.bn, result_bytes(workload), 8 if c.copied else c.vec, c.split_k, _SCATTERED)),
        along="depth",
        depth=depth,
        chain=max(0.0, _CHAIN - matrix / rates.matrix),  # the products of a step run meanwhile
        ahead=max(_LEAST, c.stages - (1 if promoted(workload) else 2)),  # a stage is free when the step behind it has begun
        parts=c.split_k * c.cluster_k,
        launches=1 + (c.split_k > 1 or c.streamed),
        partial=c.bm * c.bn * 4 if c.split_k > 1 or c.streamed else 0,
        most=c.blocks,
        beside=c.cluster,
        cluster=c.cluster * c.cluster_k,
        hidden=_HIDDEN if c.pingpong else 0.0,
        streamed=c.streamed,
        together=True,
    )
    cost = contraction(c, limits, c.bm, c.bn, depth, block, {
        "consumers": c.consumers,
        "rows_a_consumer": c.bm / c.consumers,
        "matrix_over_shared": matrix / 2048 / reads,
        "pingpong": float(c.pingpong),
        "persistent": float(bool(c.blocks)),
        "cluster": c.cluster_m * c.cluster_n,
    })
    return replace(cost, units={**cost.units, "rows": c.bm * c.cluster_m, "columns": c.bn * c.cluster_n})
