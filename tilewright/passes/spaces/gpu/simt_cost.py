"""KernelCost of `simt` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.gpu.gpu_contraction import (
    contraction,
    extents,
    once_issue,
    result_bytes,
    step_issue,
    stored_bytes,
)
from tilewright.passes.spaces.gpu.simt import SimtConfig
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits

__all__ = ["extents", "kernel_cost"]

_A_COPY, _A_STORE = 9.0, 10.0  # instructions
# Issue slots of a multiply-add, whose registers lie in banks that others ask for too: in general, where blocks of large tiles say
# how many share a multiprocessor, and in blocks of two warps, which wait for each other more often
_A_PRODUCT, _SAID_PRODUCT, _SMALL_PRODUCT = 1.25, 1.14, 1.36
_LARGE, _FEW = 64, 64  # sums of a thread; threads
_WORDS = 0.62  # share of the words of shared memory that are read for a thread alone; lanes share the others
_SCATTERED = 16  # bytes of a store
_CHAIN = 90.0  # cycles: a barrier, and the first elements from shared memory


def kernel_cost(config: SimtConfig, workload: Workload, limits: GpuLimits) -> KernelCost:
    c = config
    size = max(4, *(o.dtype.bytes for o in (*workload.inputs, *workload.outputs)))
    warps = c.threads / WARP
    side = (c.bm + c.bn) * c.bk
    copies = side / c.vec / c.threads
    words = (c.tm + c.tn) * size / 4  # that a thread reads for one position of k
    slots = _A_PRODUCT
    if c.tm * c.tn >= _LARGE:
        slots = _SMALL_PRODUCT if c.threads <= _FEW else _SAID_PRODUCT if c.min_blocks_per_sm else _A_PRODUCT
    product = c.bk * (c.tm * c.tn * (2 if size == 8 else 1) * slots + words / 4)
    results = stored_bytes(c.bm * c.bn, result_bytes(workload), c.vec, c.split_k, _SCATTERED)
    stores = c.tm * c.tn / c.vec
    block = GpuBlock(
        threads=c.threads,
        registers=_registers(c, size, limits),
        shared_bytes=c.shared_bytes(size),
        step=Load(step_issue(warps, product, copies, _A_COPY), warps * c.bk * words * _WORDS + side * size / 128, side * size),
        once=Load(once_issue(warps, stores, _A_STORE), c.bm * c.bn * size / 64, results),
        along="depth",
        depth=c.bk,
        chain=_CHAIN,
        ahead=c.stages - 1,
        parts=c.split_k,
        launches=1 + (c.split_k > 1),
        partial=c.bm * c.bn * 4 if c.split_k > 1 else 0,
    )
    return contraction(c, limits, c.bm, c.bn, c.bk, block, {
        "sums": c.tm * c.tn,
        "fmas_a_word": c.tm * c.tn / words,
        "copies_a_step": copies,
    })


def _registers(c: SimtConfig, size: int, limits: GpuLimits) -> int:
    """About what ptxas gives a thread; `min_blocks_per_sm` bounds it."""
    wanted = (c.tm * c.tn + 2 * (c.tm + c.tn)) * size // 4 + 32 * (c.index // 32)
    return min(wanted, limits.registers_each(c.threads, c.min_blocks_per_sm))
