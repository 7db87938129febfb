"""KernelCost of `mma` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.gpu.gpu_contraction import (
    contraction,
    extents,
    once_issue,
    result_bytes,
    step_issue,
    stored_bytes,
    summed_cycles,
)
from tilewright.passes.spaces.gpu.mma import STEP, MmaConfig, element_bytes
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits

__all__ = ["extents", "kernel_cost"]

A_COPY, A_STORE = 15.0, 12.0  # instructions
_MEETING = 0.95  # of it, where the blocks of a cluster wait for each other: nothing multiplies meanwhile
_SCATTERED = 8  # bytes of a store
_WAIT = 600.0 / 16  # cycles that a thread waits for each element that it copies by way of registers
CHAIN = 120.0  # cycles: a barrier, the first fragments, the first product
SHARE, TF32_SHARE = 0.62, 0.42  # of the rate of wgmma, where there is such; f32 is rounded on the way to the tensor cores


def kernel_cost(config: MmaConfig, workload: Workload, limits: GpuLimits) -> KernelCost:
    c = config
    size = element_bytes(workload, c.tf32) or 4
    warps = c.threads / WARP
    side = (c.bm + c.bn) * c.bk
    row_vec, column_vec, result_vec = c.vecs
    copies = c.bk * (c.bm / row_vec + c.bn / column_vec) / c.threads
    gathered = c.bk * (c.bm * (row_vec * size < 4) + c.bn * (column_vec * size < 4)) / c.threads  # element by element
    deep = c.bk * size / STEP  # instructions along k
    fragments = (c.wm + c.wn) / 16 * deep  # loads of a warp
    product = c.wm / 16 * c.wn / 8 * deep + fragments
    share = (TF32_SHARE if c.tf32 else SHARE) * (_MEETING if c.cluster_k > 1 else 1.0)
    matrix = c.bm * c.bn * c.bk * size / 2 / (share if limits.arch == "sm_90a" else 1.0)
    store = result_vec if c.staged else min(result_vec, 2)
    stores = c.bm * c.bn / c.threads / store
    block = GpuBlock(
        threads=c.threads,
        registers=min(c.registers(), limits.registers_each(c.threads, c.min_blocks_per_sm)),
        shared_bytes=c.shared_bytes(size),
        step=Load(step_issue(warps, product, copies, A_COPY), warps * fragments * 4 + side * size / 128, side * size, matrix),
        once=Load(once_issue(warps, stores, A_STORE), summed_cycles(c.bm * c.bn, c.cluster_k, limits) if c.staged else 0.0,
                  stored_bytes(c.bm * c.bn, result_bytes(workload), store, c.split_k, _SCATTERED)),
        along="depth",
        depth=c.bk,
        chain=CHAIN + gathered * _WAIT,
        ahead=c.stages - 1,
        parts=c.split_k * c.cluster_k,
        launches=1 + (c.split_k > 1),
        partial=c.bm * c.bn * 4 if c.split_k > 1 else 0,
        cluster=c.cluster_k,
    )
    return contraction(c, limits, c.bm, c.bn, c.bk, block, {
        "warp_flops_a_byte": 2.0 * c.wm * c.wn / ((c.wm + c.wn) * size),
        "products_a_fragment": c.wm * c.wn / 128 / ((c.wm + c.wn) / 16),
        "copies_a_step": copies,
    })
