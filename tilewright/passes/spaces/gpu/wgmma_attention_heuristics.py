"""Default configurations of `wgmma_attention`. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tilewright.passes.spaces.gemm_operands import unaligned
from tilewright.passes.spaces.gpu import gpu_attention_heuristics
from tilewright.passes.spaces.gpu.gpu_attention import LONGEST_QUERY, LONGEST_VALUE, heads_of
from tilewright.passes.spaces.gpu.wgmma_attention import ALIGNED, BLOCK, WgmmaAttentionConfig, row_loop, why_illegal
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, renumbered, switch


@dataclass(frozen=True)
class Thresholds:
    """None is measured: there was no GPU."""

    mma_rows: int = threshold(16, unit="queries of a head up to which mma.sync multiplies", operator="attention",
                              results="not measured: a quarter of the 64 rows of an instruction")
    large_waves: int = threshold(1, unit="waves of large blocks, one a multiprocessor, up to which a block has 64 queries",
                                 operator="attention",
                                 results="not measured: by occupancy arithmetic, fewer leave multiprocessors idle")


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

    large, small = legal(WgmmaAttentionConfig()), legal(WgmmaAttentionConfig(consumers=1))
    others, tree = gpu_attention_heuristics.default(workload, limits)
    configs: tuple[TileConfig, ...] = (large, small, *others)
    rest = renumbered(tree, {i: i + 2 for i in range(len(others))})
    loops = [loop.extent for loop in workload.loops if loop.role == "m"]
    rows, total = loops[row_loop(loops)], workload.size("m") * workload.size("b")
    blocks = switch(str(total), [(t.large_waves * limits.multiprocessors * large.bm, Leaf(1))], Leaf(0))
    node = switch(str(rows), [(t.mma_rows, rest)], blocks)
    left = unaligned(workload, ALIGNED)
    return configs, Split(str(left), 0, node, rest) if left.symbols else node
