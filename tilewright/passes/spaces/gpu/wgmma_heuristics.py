"""Default configurations of `wgmma`, and those of `mma` for what it leaves. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.passes.spaces.gemm_operands import row_and_column_extents, tensor_core_bytes, unaligned
from tilewright.passes.spaces.gpu import mma_heuristics
from tilewright.passes.spaces.gpu.wgmma import WgmmaConfig, promoted, why_invalid
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, switch
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Thresholds:
    """None is measured: there was no GPU."""

    mma_rows: int = threshold(16, unit="rows up to which mma.sync multiplies", operator="decode_4096x4096",
                              results="not measured: three quarters of the 64 rows of a wgmma would be padding")
    small_parts: int = threshold(2, unit="blocks of 128 x 128 a wave, over this, up to which blocks have 64 rows",
                                 operator="dense_768x768",
                                 results="not measured: by occupancy arithmetic, half of the multiprocessors would be idle")
    large_waves: int = threshold(2, unit="waves of 128 x 128 results up to which blocks have 128 columns", operator="square_4096",
                                 results="not measured: by occupancy arithmetic, one wave of blocks of 128 x 256")
    cluster_rows: int = threshold(2048, unit="rows above which two blocks below each other share their columns",
                                  operator="square_4096",
                                  results="not measured: 16 rows of tiles, of which a cluster adds one at most")
    turns_depth: int = threshold(1024, unit="positions of k up to which warpgroups take turns where blocks have several tiles",
                                 operator="dense_768x2304",
                                 results="not measured: storing a tile takes a tenth of the time of 16 steps, by count")
    exact_gain: int = threshold(20, unit="one part of so many of the waves' area that tiles of 192 x 192 save at least",
                                operator="dense_768x2304",
                                results="not measured: 132 tiles of 2048 x 2304 are one wave of 36864 results, not of 49152")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """Warpgroups where their tiles are filled and copies are aligned, `mma` for the rest. The last has no guards."""
    t, multiprocessors = thresholds, limits.multiprocessors
    even = multiprocessors - multiprocessors % 2
    eight = promoted(workload)

    def made(bm: int, bn: int, stages: int, consumers: int, **other: int) -> WgmmaConfig:
        """As it is given, its results by copies where they can."""
        given = {"blocks": multiprocessors, **other}
        config = WgmmaConfig(bm, bn, stages, consumers, tf32=tensor_core_bytes(workload) is None, **given)
        copied = replace(config, copied=True)
        return copied if why_invalid(copied, workload, limits) is None else config

    small, middle = made(64, 128, 6, 1), made(128, 128, 5, 2)
    large = middle if eight else made(128, 256, 4, 2)
    paired = replace(large, blocks=even, cluster_m=2)
    turns = paired if eight else replace(made(128, 128, 5, 2, blocks=even, cluster_m=2), pingpong=True)
    exact = middle if eight else made(192, 192, 4, 3)
    others, tree = mma_heuristics.default(workload, limits)
    configs: tuple[TileConfig, ...] = (small, middle, large, paired, turns, exact, *others)
    rest = _shifted(tree, len(configs) - len(others))
    rows, columns = row_and_column_extents(workload)
    batch = workload.size("b")
    results = rows * columns * batch
    wave = multiprocessors * middle.bm * middle.bn

    def area(config: WgmmaConfig) -> Expr:
        """Results that a multiprocessor computes, padding too, in all of its waves."""
        tiles = rows.ceildiv(config.bm) * columns.ceildiv(config.bn) * batch
        return tiles.ceildiv(multiprocessors) * (config.bm * config.bn)

    largest = switch(str(rows), [(t.cluster_rows, Leaf(2))], Leaf(3))
    deep = switch(str(workload.size("k")), [(t.turns_depth, Leaf(4))], largest)
    several = switch(str(rows), [(2 * turns.bm, largest)], deep)
    wide = switch(str(results), [(t.large_waves * wave, Leaf(1))], several)
    saved = area(exact) * t.exact_gain - area(middle).minimum(area(large)) * (t.exact_gain - 1)
    filled = Split(str(saved), 0, Leaf(5), wide)
    node = switch(str(rows), [(t.mma_rows, rest)], switch(str(results), [(wave // t.small_parts, Leaf(0))], filled))
    size = tensor_core_bytes(workload) or 4
    left = unaligned(workload, 16 // size)
    return configs, Split(str(left), 0, node, rest) if left.symbols else node


def _shifted(node: Node, by: int) -> Node:
    """The tree with its kernels numbered from `by` on."""
    if isinstance(node, Leaf):
        return Leaf(node.kernel + by, node.threads)
    return Split(node.expr, node.bound, _shifted(node.below, by), _shifted(node.above, by))
