"""KernelCost of `gpu_attention` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.gemm_operands import tensor_core_bytes
from tilewright.passes.spaces.gpu.gpu_attention import LONGEST_QUERY, LONGEST_VALUE, STEP, GpuAttentionConfig, heads_of, padded
from tilewright.passes.spaces.gpu.wgmma_attention import WgmmaAttentionConfig
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.shape import Expr

_LOOP, _A_COPY, _A_STORE, _PREAMBLE = 60.0, 15.0, 12.0, 400.0  # instructions of a warp
_A_SCORE = 6.0  # instructions for an element of the scores: scale, largest, exponential, sum, narrowing
_CHAIN = 500.0  # cycles: two barriers, two products that wait for each other, the joins of a row between them
_WAIT = 600.0 / 16  # cycles that a thread waits for each element that it copies by way of registers
_SHARE = 0.62  # of the rate of wgmma, where there is such


def extents(workload: Workload) -> dict[str, Expr]:
    """Queries, and the keys that they are compared with; each head of each batch is work of its own."""
    return {"batch": workload.size("b"), "queries": workload.size("m"), "keys": workload.size("n")}


def kernel_cost(config: GpuAttentionConfig, workload: Workload, limits: GpuLimits) -> KernelCost:
    c = config
    size = 4 if c.tf32 else tensor_core_bytes(workload) or 4
    depth, columns = heads_of(workload) or (LONGEST_QUERY, LONGEST_VALUE)
    warps = c.threads / WARP
    side = c.bn * (padded(depth) + padded(columns))
    copies = side / c.vec / c.threads
    deep, along = depth * size / STEP, c.bn * size / STEP  # instructions along k of either product
    products = c.wm / 16 * (c.bn / 8 * deep + columns / 8 * along)
    fragments = c.bn / 16 * deep + columns / 16 * along + (0 if c.queries_in_registers else c.wm / 16 * deep)
    scores = c.wm * c.bn / WARP * _A_SCORE
    matrix = c.bm * c.bn * (depth + columns) * size / 2 / (_SHARE if limits.arch == "sm_90a" else 1.0)
    results = c.bm * columns * (8 if c.split_kv > 1 else workload.outputs[0].dtype.bytes)
    block = GpuBlock(
        threads=c.threads,
        registers=min(c.registers(depth, columns, size), limits.thread_registers,
                      limits.registers // (c.threads * max(1, c.min_blocks_per_sm))),
        shared_bytes=c.shared_bytes(depth, columns, size),
        step=Load(warps * (products + fragments + scores + _LOOP + copies * _A_COPY),
                  warps * fragments * 4 + side * size / 128, c.bn * (depth + columns) * size, matrix),
        once=Load(warps * (_PREAMBLE + c.bm * columns / c.threads / c.vec * _A_STORE), c.bm * columns / 16,
                  results + c.bm * depth * size),
        along="keys",
        depth=c.bn,
        chain=_CHAIN if c.vec * size >= 4 else _CHAIN + copies * _WAIT,
        ahead=c.stages - 1,
        parts=c.split_kv,
        launches=1 + (c.split_kv > 1),
        partial=c.bm * columns * 4 if c.split_kv > 1 else 0,
    )
    return attention_cost(c, block, {
        "flops_an_instruction": 2.0 * c.bm * c.bn * (depth + columns) / block.step.issue,
        "flops_a_shared_cycle": 2.0 * c.bm * c.bn * (depth + columns) / block.step.shared,
        "copies_a_step": copies,
        "warps": warps,
        "shared_share": block.shared_bytes / limits.shared_bytes,
        "register_share": block.registers * c.threads / limits.registers,
    })


def attention_cost(config: GpuAttentionConfig | WgmmaAttentionConfig, block: GpuBlock, features: dict[str, float]) -> KernelCost:
    """Of a kernel whose blocks take bm queries and step over the keys, bn at a time."""
    return KernelCost(
        coordinates=fields_of(config),
        tiles={"queries": config.bm, "keys": config.bn},
        pads={"queries": config.bm, "keys": config.bn},
        units={"batch": 1, "queries": config.bm, "keys": 0},
        block=block,
        features=features,
    )
