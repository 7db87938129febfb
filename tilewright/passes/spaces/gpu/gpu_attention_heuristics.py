"""Default configurations of `gpu_attention`. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from tilewright.passes.spaces.gemm_operands import tensor_core_bytes, unaligned
from tilewright.passes.spaces.gpu.gpu_attention import (
    LONGEST_QUERY,
    LONGEST_VALUE,
    WIDEST,
    GpuAttentionConfig,
    heads_of,
    padded,
    why_illegal,
)
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, switch
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Thresholds:
    """None is measured: there was no GPU."""

    few_rows: int = threshold(16, unit="queries of a head up to which a block has 16", operator="attention",
                              results="not measured: the rows of one instruction")
    split_queries: int = threshold(16, unit="queries of all heads for each multiprocessor up to which keys are split",
                                   operator="attention",
                                   results="not measured: with more, a block of 16 queries has every multiprocessor busy")
    split_keys: int = threshold(512, unit="keys above which they may be split", operator="attention",
                                results="not measured: 8 steps of 64 keys, against a second launch")
    split_parts: int = threshold(8, unit="parts of the keys", operator="attention",
                                 results="not measured: one step of 64 keys and more for each part of what is split")
    large_waves: int = threshold(2, unit="waves of large blocks, one a multiprocessor, up to which a block has 64 queries",
                                 operator="attention",
                                 results="not measured: by occupancy arithmetic, fewer leave multiprocessors idle")
    tall_heads: int = threshold(64, unit="elements of a query and of a value up to which a warp has 32 queries",
                                operator="attention",
                                results="not measured: by ptxas, longer ones do not fit the registers of two blocks")
    named_copies: int = threshold(32, unit="copies of a thread and step of rows that a table names", operator="attention",
                                  results="ptxas 13.0: with 64 one warp of heads of 128 spills 384 bytes, with 32 none")
    named_registers: int = threshold(8, unit="registers left beside copies of rows that a table names", operator="attention",
                                     results="ptxas 13.0: with none, 128 queries of heads of 64 spill 24 bytes in 128")


_OPERANDS = 3  # queries, keys and values


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[GpuAttentionConfig, ...], Node]:
    """By queries and keys: the largest legal blocks for many queries, parts of the keys for few of them; copies of single
    elements where extents are no whole vectors. The last has no guards."""
    t, multiprocessors = thresholds, limits.multiprocessors
    size = tensor_core_bytes(workload) or 4
    vec, tf32 = WIDEST // size, size == 4
    depth, columns = heads_of(workload) or (LONGEST_QUERY, LONGEST_VALUE)
    walked = [bool(o.axes) for o in workload.inputs if o.dims]
    named = any(walked) and not all(walked)  # no loop runs along rows that a table names

    def legal(config: GpuAttentionConfig) -> GpuAttentionConfig:
        """With fewer keys in a step, queries in shared memory, or fewer queries, until it fits."""
        steps = [replace(config, min_blocks_per_sm=2)]
        for bm, kept, part in product((config.bm, config.bm // 2, config.bm // 4), (True, False), (1, 2, 4)):
            smaller = replace(config, bm=max(16, bm), bn=max(16, config.bn // part))
            steps.append(replace(smaller, queries_in_registers=kept, min_blocks_per_sm=1))
        fits = (c for c in steps if why_illegal(c, depth, columns, size, limits) is None and not (named and crowded(c)))
        return next(fits, steps[-1])

    def crowded(config: GpuAttentionConfig) -> bool:
        """Do the addresses of rows that a table names take more registers than are left?"""
        rows = config.bn * (padded(depth) + padded(columns)) * size // (WIDEST * config.threads)
        left = limits.registers_each(config.threads, config.min_blocks_per_sm) - config.registers(depth, columns, size)
        return rows > t.named_copies or left < t.named_registers

    few = legal(GpuAttentionConfig(16, 16, 64, 2, vec=vec, tf32=tf32))
    parts = replace(few, split_kv=t.split_parts)
    middle = legal(GpuAttentionConfig(64, 16, 64, 2, vec=vec, tf32=tf32))
    # 32 queries a warp read keys and values half as often; what is computed on the way to products takes the registers for it
    bare = len(workload.inputs) == _OPERANDS == sum(f.source is not None for f in workload.factors)
    tall = bare and size == 2 and max(depth, columns) <= t.tall_heads
    large = legal(GpuAttentionConfig(128, 32 if tall else 16, 64, 2, vec=vec, tf32=tf32))
    single = legal(GpuAttentionConfig(128, 16, 32, 2, vec=1, tf32=tf32))
    safe = legal(GpuAttentionConfig(128, 16, 32, 2, vec=1, tf32=tf32, index=64))
    configs = tuple(dict.fromkeys((few, parts, middle, large, single, safe)))

    def leaf(config: GpuAttentionConfig) -> Leaf:
        return Leaf(configs.index(config))

    rows, keys = workload.size("m"), workload.size("n")
    total: Expr = rows * workload.size("b")
    short = switch(str(keys), [(t.split_keys, leaf(few))], leaf(parts))
    few_rows = switch(str(total), [(t.split_queries * multiprocessors, short)], leaf(few))
    many = switch(str(total), [(t.large_waves * multiprocessors * large.bm, leaf(middle))], leaf(large))
    node = switch(str(rows), [(t.few_rows, few_rows)], many)
    left = unaligned(workload, vec)
    return configs, Split(str(left), 0, node, leaf(single)) if left.symbols else node
