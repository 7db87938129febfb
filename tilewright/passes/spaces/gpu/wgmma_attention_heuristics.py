"""Default configurations of `wgmma_attention`. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tilewright.passes.spaces.gemm_operands import unaligned
from tilewright.passes.spaces.gpu import gpu_attention, gpu_attention_heuristics
from tilewright.passes.spaces.gpu.default_tree import decided, reached
from tilewright.passes.spaces.gpu.gpu_attention import LONGEST_QUERY, LONGEST_VALUE, GpuAttentionConfig, heads_of
from tilewright.passes.spaces.gpu.wgmma import ROWS
from tilewright.passes.spaces.gpu.wgmma_attention import (
    ALIGNED,
    BLOCK,
    SIZE,
    WgmmaAttentionConfig,
    row_loop,
    why_illegal,
    why_invalid,
)
from tilewright.passes.spaces.segments import Segments
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, renumbered
from tilewright.runtime.shape import Expr

_ON = "H200, f16, 96 heads of 128 elements, queries as many as keys"


@dataclass(frozen=True)
class Thresholds:
    """Measured where the results say so, elsewhere by arithmetic."""

    mma_rows: int = threshold(16, unit="queries of a head up to which mma.sync multiplies", operator="attention",
                              results="not measured: a quarter of the 64 rows of an instruction")
    short_rows: int = threshold(32, unit="queries of a head, and keys, up to which two warps multiply by mma.sync",
                                operator="attention", results=f"{_ON}: 16 in 2.7 us; 32 in 4.9 us by warpgroups")
    short_keys: int = threshold(320, unit="keys up to which a step has 64", operator="attention",
                                results=f"{_ON}: 128 in 7.5 us, not 8.2; 240 in 16.4 us, not 17.5; from 384 on 128 are better")
    mma_keys: int = threshold(128, unit="keys, and queries, of heads of up to 64, up to which mma.sync multiplies where tiles of "
                                        "128 queries are more than a wave", operator="attention",
                              results="H200, 192 heads of 64: 119 in 7.2 us, by warpgroups 8.2; 165 in 13.2, by those 11.6")
    small_waves: int = threshold(1, unit="waves of tiles of 64 queries, one a multiprocessor, up to which they are blocks",
                                 operator="attention",
                                 results=f"{_ON}: 80, of 192 such tiles, in 6.9 us, in 6.3 us as 96 of 128")

    batch_keys: int = threshold(512, unit="keys of a sequence up to which four warps multiply by mma.sync, where a launch serves "
                                "many sequences of heads of 64", operator="attention",
                                results="H200, f16, 32 sequences of 12 heads of 64: 9.7, 49.5, 20.2 and 7.0 us for lengths up to "
                                "93, 512, 281 and 19, by warpgroups 12.9, 55.6, 24.8 and 11.1; longer not measured")
    one_wave: int = threshold(1, unit="waves of tiles of 128 queries, one a multiprocessor, from which on blocks take several",
                              operator="attention",
                              results="not measured: a tile's first copies and its results take as long as three steps, H200")
    three_faster: int = threshold(
        7, unit="one part of so many of the queries that three warpgroups of a block may have more than two, in the same time",
        operator="attention", results="H200, 192 heads of 64: 2048 queries in 412 us, not 487; 612 in 52.9 us, not 55.2, with a "
                                      "ninth more; 512 in 38.2 us, not 36.4, with a quarter more")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """Warpgroups where their rows are filled and copies are aligned, `gpu_attention` for the rest, for which heads that share
    their keys are rows too. The last has no guards."""
    t = thresholds
    depth, columns = heads_of(workload) or (LONGEST_QUERY, LONGEST_VALUE)

    def legal(config: WgmmaAttentionConfig) -> WgmmaAttentionConfig:
        """With fewer keys in a step until it fits."""
        smaller: Iterator[WgmmaAttentionConfig] = (replace(config, bn=bn, consumers=consumers) for consumers, bn in product(
            range(config.consumers, 0, -1), range(config.bn, 0, -BLOCK)))
        return next(c for c in smaller if why_illegal(c, depth, columns, limits) is None)

    large, small, brief = (legal(WgmmaAttentionConfig(consumers, bn)) for consumers, bn in ((2, 128), (1, 128), (2, 64)))
    pairs = (GpuAttentionConfig(32, 16, 16, 2, queries_in_registers=kept) for kept in (True, False))
    short = next(c for c in pairs if gpu_attention.why_illegal(c, depth, columns, SIZE, limits) is None)
    again, briefly = _several(large, workload, limits), _several(brief, workload, limits)
    three = _several(replace(large, consumers=3), workload, limits)
    if not three.blocks or large.consumers < 2:
        three = again
    others, tree = gpu_attention_heuristics.default(workload, limits)
    configs: tuple[TileConfig, ...] = (*dict.fromkeys((large, small, brief, short, again, three, briefly)), *others)
    own = len(configs) - len(others)

    def by_keys(few: TileConfig, many: Node) -> Node:
        leaf = Leaf(configs.index(few))
        return leaf if leaf == many else decided(keys, [(t.short_keys, leaf)], many)

    rest = renumbered(tree, {i: i + own for i in range(len(others))})
    left = unaligned(workload, ALIGNED)

    def whole(node: Node) -> tuple[tuple[TileConfig, ...], Node]:
        return reached(configs, Split(str(left), 0, node, rest) if left.symbols else node)

    if _serves_sequences(workload):
        middle = next((c for c in others if c.bm == ROWS and max(depth, columns) <= BLOCK), None)
        few, least = (brief, t.short_keys) if middle is None else (middle, t.batch_keys)
        several = decided(workload.size("n"), [(least, Leaf(configs.index(few)))], Leaf(configs.index(large)))
        queries = workload.size("m").constant
        return whole(rest if queries is not None and queries <= t.mma_rows else several)
    loops = [loop.extent for loop in workload.loops if loop.role == "m"]
    rows, keys, heads = loops[row_loop(loops)], workload.size("n"), workload.size("b")
    for d, extent in enumerate(loops):
        heads = heads if d == row_loop(loops) else heads * extent

    def area(config: WgmmaAttentionConfig) -> Expr:
        """Queries that a multiprocessor has in all of its waves, padding too."""
        return (heads * rows.ceildiv(config.bm)).ceildiv(limits.multiprocessors) * config.bm

    many: Node = Leaf(configs.index(again))
    if three != again:
        more = area(three) * t.three_faster - area(again) * (t.three_faster + 1)
        many = decided(more, [(0, Leaf(configs.index(three)))], many)
    several = by_keys(briefly, many)
    if max(depth, columns) <= BLOCK:
        several = decided(rows, [(t.mma_keys, decided(keys, [(t.mma_keys, rest)], several))], several)
    wave = decided(heads * rows.ceildiv(large.bm),
                   [(t.one_wave * limits.multiprocessors, by_keys(brief, Leaf(configs.index(large))))], several)
    blocks = decided(heads * rows.ceildiv(small.bm), [(t.small_waves * limits.multiprocessors, Leaf(configs.index(small)))], wave)
    node = decided(rows, [(t.mma_rows, rest)], blocks)
    both = decided(workload.size("m"), [(t.short_rows, Leaf(configs.index(short)))], node)
    return whole(decided(keys, [(t.short_rows, both)], node))


def _serves_sequences(workload: Workload) -> bool:
    """Are there the tiles of many sequences in a launch, each kernel of which is a launch? Its tree sees one sequence."""
    return bool(workload.segments) and not Segments.parse(workload.segments).members


def _several(config: WgmmaAttentionConfig, workload: Workload, limits: GpuLimits) -> WgmmaAttentionConfig:
    """Blocks that take several tiles, with as many stages as have room up to four, since the last warpgroup in turn leaves one
    late; their results leave by copies where they can; the configuration itself where two tiles of queries have no room."""
    several = replace(config, blocks=limits.multiprocessors, pingpong=config.consumers > 1)
    wanted = (replace(several, stages=stages, copied=copied) for copied, stages in product((True, False), (4, 3, 2)))
    return next((c for c in wanted if why_invalid(c, workload, limits) is None), config)
