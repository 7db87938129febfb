"""Default configurations of `gemv`, which the other families of contractions run for few rows too. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from tilewright.passes.spaces.gemm_operands import Gemm, row_and_column_extents, unaligned
from tilewright.passes.spaces.gpu.gemv import (
    ALONG_K,
    ALONG_N,
    IN_FLIGHT,
    ROWS,
    WIDEST,
    GemvConfig,
    on_matrix_units,
    operand_bytes,
    takes,
)
from tilewright.passes.spaces.gpu.gpu_config import CLUSTERS
from tilewright.passes.spaces.numerics import PLAIN
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, leaves, renumbered, switch
from tilewright.runtime.shape import Expr

_DEEPEST = 4  # pieces of k of a thread that are on their way at once
Config = TypeVar("Config", bound=TileConfig)


@dataclass(frozen=True)
class Thresholds:
    """None is measured: there was no GPU."""

    few_rows: int = threshold(16, unit="rows up to which weights are read into registers", operator="decode_4096x4096",
                              results="not measured: the rows of one instruction; more of them want tiles in shared memory")
    some_rows: int = threshold(4, unit="rows up to which a thread multiplies 4 by fused multiply-adds",
                               operator="decode_4096x4096",
                               results="not measured: 16 rows need four times the registers and instructions")
    blocks_a_multiprocessor: int = threshold(
        4, unit="blocks of 128 threads that a multiprocessor holds at once", operator="decode_4096x4096",
        results="not measured: 64 KiB are on their way then; about 20 KiB of every multiprocessor fill the memory of an H100")
    launched_parts: int = threshold(4, unit="parts of k at most that a second launch sums", operator="decode_4096x4096",
                                    results="not measured: by occupancy arithmetic, two blocks for each multiprocessor")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[GemvConfig, ...], Node]:
    """By rows, and by the parts of k that give every multiprocessor its blocks; loads of single elements where extents are no whole
    vectors. The last has no guards."""
    t = thresholds
    rows, columns = row_and_column_extents(workload)
    size, tensor, gemm = operand_bytes(workload), on_matrix_units(workload), Gemm.of(workload)
    vec = WIDEST // size
    in_rows = gemm is not None and gemm.b_in_place
    bn = ALONG_N * (max(ALONG_K, vec) if in_rows else ALONG_K)
    loads = vec if in_rows else ALONG_K  # of a piece of k
    base = GemvConfig(1, bn, 4, -(-IN_FLIGHT // loads), vec, tensor=tensor, min_blocks_per_sm=t.blocks_a_multiprocessor)
    fewer = replace(base, rows=ROWS, min_blocks_per_sm=t.blocks_a_multiprocessor - 1)  # more registers for each
    several = replace(fewer, warps=2)
    by_rows = [(1, base), (t.some_rows, replace(base, rows=4))]
    if tensor:
        several = fewer if in_rows else replace(base, rows=ROWS)
        by_rows = [(ROWS // 2, replace(several, rows=ROWS // 2))]
    single = replace(several, vec=1, unroll=1, min_blocks_per_sm=2)
    found = list[GemvConfig]()

    def leaf(config: GemvConfig) -> Leaf:
        found.append(_unrolled(config, workload))
        return Leaf(len(found) - 1)

    def in_parts(config: GemvConfig) -> Node:
        """As many parts of k as give every multiprocessor its blocks, each of a piece for every warp at least."""
        tiles, depth = columns.ceildiv(bn) * workload.size("b"), workload.size("k")
        known = tiles.constant is not None and depth.constant is not None
        node: Node = leaf(config)
        for parts in (2, 4, 8) if known else (4,):
            cut = replace(config, cluster_k=parts) if limits.version >= CLUSTERS else replace(config, split_k=parts)
            most = limits.multiprocessors * t.blocks_a_multiprocessor // parts
            if cut.split_k > 1:
                most = min(most, limits.multiprocessors) if parts <= t.launched_parts else 0
            split = _switch(depth, [(parts * config.around(size) - 1, node)], leaf(cut))
            node = _switch(tiles, [(most, split)], node)
        return node

    node = in_parts(several)
    for bound, config in reversed(by_rows):
        node = _switch(rows, [(bound, in_parts(config))], node)
    left = unaligned(workload, vec)
    if left.symbols:
        node = Split(str(left), 0, node, leaf(single))
    return _reached((*found, replace(single, index=64)), node)


def few_rows_first(workload: Workload, limits: GpuLimits, configs: tuple[TileConfig, ...], node: Node,
                   thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """What another family runs, with this one for few rows where it takes the workload."""
    rows, most = row_and_column_extents(workload)[0], thresholds.few_rows
    if takes(workload, limits, PLAIN) is not None:
        return configs, node
    own, few = default(workload, limits, thresholds)
    more = renumbered(_beyond(node, str(rows), most), {i: i + len(own) for i in range(len(configs))})
    return _reached((*own, *configs), _switch(rows, [(most, few)], more))


def _unrolled(config: GemvConfig, workload: Workload) -> GemvConfig:
    """With as many pieces of k at once as part it without a rest, if a few more do."""
    depth, step = workload.size("k").constant, config.parts * config.around(operand_bytes(workload))
    exact = [u for u in range(config.unroll, _DEEPEST + 1) if depth and depth % (step * u) == 0]
    fewer = config.unroll if depth is None else max(1, min(config.unroll, -(-depth // step)))
    return replace(config, unroll=exact[0] if exact else fewer)


def _switch(expr: Expr, cases: list[tuple[int, Node]], otherwise: Node) -> Node:
    """`switch`, decided here where the extent is known."""
    known = expr.constant
    if known is None:
        return switch(str(expr), cases, otherwise)
    return next((node for bound, node in cases if known <= bound), otherwise)


def _beyond(node: Node, expr: str, bound: int) -> Node:
    """What is left of a tree where `expr` is above `bound`."""
    if isinstance(node, Leaf):
        return node
    below, above = (_beyond(n, expr, bound) for n in (node.below, node.above))
    return above if node.expr == expr and node.bound <= bound else Split(node.expr, node.bound, below, above)


def _reached(configs: tuple[Config, ...], node: Node) -> tuple[tuple[Config, ...], Node]:
    """Without configurations that the tree leads to nowhere, but for the last; equal ones once."""
    used = dict.fromkeys([*(configs[leaf.kernel] for leaf in leaves(node)), configs[-1]])
    kept = [*(c for c in used if c != configs[-1]), configs[-1]]
    return tuple(kept), renumbered(node, {i: kept.index(c) for i, c in enumerate(configs) if c in used})
