"""KernelCost of `wgmma_attention` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.gpu.gpu_attention import LONGEST_QUERY, LONGEST_VALUE, heads_of
from tilewright.passes.spaces.gpu.gpu_attention_cost import attention_cost, extents
from tilewright.passes.spaces.gpu.wgmma import GROUP, ROW, STEP
from tilewright.passes.spaces.gpu.wgmma_attention import SIZE, WgmmaAttentionConfig, blocks, fragments
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits

__all__ = ["extents", "kernel_cost"]

_A_PRODUCT, _AROUND, _A_STORE, _PREAMBLE = 4.0, 60.0, 12.0, 500.0  # instructions of a warp
_A_SCORE = 5.0  # instructions for an element of the scores: scale, largest, exponential, sum, narrowing
_CHAIN = 300.0  # cycles: mbarriers, the wait for the scores, the joins of a row, behind which no product of this warpgroup is
_HIDDEN = 0.8  # of what a tile takes beside its steps, where those of the next one follow in its block: a guess, not measured
_ALONE = 112  # registers of a thread where a single warpgroup multiplies


def kernel_cost(config: WgmmaAttentionConfig, workload: Workload, limits: GpuLimits) -> KernelCost:
    c = config
    depth, columns = heads_of(workload) or (LONGEST_QUERY, LONGEST_VALUE)
    warps = c.consumers * GROUP / WARP
    products = (blocks(depth) * ROW + c.bn * SIZE) / STEP  # instructions of a warpgroup in a step
    scores = 16 * c.bn / WARP * _A_SCORE + 16 * fragments(columns) / WARP
    brought = c.bn * (blocks(depth) + blocks(columns)) * ROW
    reads = c.bm * depth * SIZE + c.consumers * brought  # bytes of shared memory that the products read
    results = c.bm * columns * (8 if c.split_kv > 1 else workload.outputs[0].dtype.bytes)
    given = limits.registers // c.threads // 8 * 8 if c.consumers > 1 else max(c.registers(columns), _ALONE)
    block = GpuBlock(
        threads=c.threads,
        registers=min(given, limits.thread_registers),
        shared_bytes=c.shared_bytes(depth, columns),
        step=Load(warps * (products * _A_PRODUCT + scores + _AROUND), (reads + brought) / 128,
                  c.bn * (depth + columns) * SIZE, c.bm * c.bn * (depth + fragments(columns)) * SIZE / 2),
        once=Load(warps * (_PREAMBLE + c.bm * columns / (warps * WARP) / c.vec * _A_STORE), c.bm * columns / 16,
                  results + c.bm * depth * SIZE),
        along="keys",
        depth=c.bn,
        chain=_CHAIN / c.consumers if c.pingpong else _CHAIN,
        ahead=c.stages - 1,
        parts=c.split_kv,
        launches=1 + (c.split_kv > 1),
        partial=c.bm * columns * 4 if c.split_kv > 1 else 0,
        most=c.blocks,
        hidden=_HIDDEN if c.blocks else 0.0,
    )
    return attention_cost(c, block, {
        "consumers": c.consumers,
        "pingpong": float(c.pingpong),
        "persistent": float(bool(c.blocks)),
        "matrix_over_issue": block.step.matrix / 2048 / (block.step.issue / 4),
        "shared_share": block.shared_bytes / limits.shared_bytes,
        "register_share": c.registers(columns) / limits.thread_registers,
    })
