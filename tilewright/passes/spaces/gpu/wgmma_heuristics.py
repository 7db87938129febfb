"""Default configurations of `wgmma`, and those of `mma` for what it leaves. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.passes.spaces.gemm_operands import row_and_column_extents, tensor_core_bytes, unaligned
from tilewright.passes.spaces.gpu import mma_heuristics
from tilewright.passes.spaces.gpu.default_tree import PartsOfK, decided, narrowed, reached
from tilewright.passes.spaces.gpu.wgmma import ROW, ROWS, WgmmaConfig, promoted, why_invalid
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, renumbered
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Thresholds:
    """None is measured: there was no GPU."""

    mma_rows: int = threshold(16, unit="rows up to which mma.sync multiplies", operator="decode_4096x4096",
                              results="not measured: three quarters of the 64 rows of a wgmma would be padding")
    small_parts: int = threshold(2, unit="blocks of 128 x 128 a wave, over this, up to which blocks have 64 rows",
                                 operator="dense_768x768",
                                 results="not measured: by occupancy arithmetic, half of the multiprocessors would be idle")
    part_steps: int = threshold(6, unit="steps of a part of k at least", operator="dense_3072x768",
                                results="not measured: as many as there are stages; the sums of parts take about as long again")
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
    """Warpgroups where their tiles are filled and copies are aligned, with parts of k in a cluster where there are fewer tiles
    than multiprocessors and k is long; `mma` for the rest. The last has no guards."""
    t, multiprocessors = thresholds, limits.multiprocessors
    even = multiprocessors - multiprocessors % 2
    eight = promoted(workload)

    def made(bm: int, bn: int, stages: int, consumers: int, **other: int) -> WgmmaConfig:
        """As it is given, its results by copies where they can."""
        given: dict[str, Any] = {"blocks": multiprocessors, **other}
        config = WgmmaConfig(bm, bn, stages, consumers, tf32=tensor_core_bytes(workload) is None, **given)
        copied = replace(config, copied=True)
        return copied if why_invalid(copied, workload, limits) is None else config

    small, middle = made(64, 128, 6, 1), made(128, 128, 5, 2)
    large = middle if eight else made(128, 256, 4, 2)
    paired = replace(large, blocks=even, cluster_m=2)
    turns = paired if eight else replace(made(128, 128, 5, 2, blocks=even, cluster_m=2), pingpong=True)
    exact = middle if eight else made(192, 192, 4, 3)
    rows, columns = row_and_column_extents(workload)
    batch, depth, size = workload.size("b"), workload.size("k"), tensor_core_bytes(workload) or 4
    found = list[TileConfig]()

    def leaf(config: WgmmaConfig) -> Leaf:
        found.append(config)
        return Leaf(len(found) - 1)

    def cut(config: WgmmaConfig, parts: int) -> Leaf:
        stages = config.stages - (config.bm > ROWS)  # room for the sums beside them
        return leaf(replace(config, blocks=0, stages=stages, copied=False, cluster_k=parts) if parts > 1 else config)

    def tiles(config: WgmmaConfig) -> Expr:
        return rows.ceildiv(config.bm) * columns.ceildiv(config.bn) * batch

    def area(config: WgmmaConfig) -> Expr:
        """Results that a multiprocessor computes, padding too, in all of its waves."""
        return tiles(config).ceildiv(multiprocessors) * (config.bm * config.bn)

    parts_of_k = PartsOfK(multiprocessors, t.part_steps * (ROW // size))
    few, most = parts_of_k.tree(tiles(small), depth, lambda parts: cut(small, parts)), parts_of_k.most
    tall = decided(depth, [(most * parts_of_k.least - 1, few)], cut(middle, most))
    few = decided(rows, [(small.bm, few)], decided(tiles(middle), [(multiprocessors // most, tall)], few))
    results, wave = rows * columns * batch, multiprocessors * middle.bm * middle.bn
    largest = decided(rows, [(t.cluster_rows, leaf(large))], leaf(paired))
    deep = decided(depth, [(t.turns_depth, leaf(turns))], largest)
    several = decided(rows, [(2 * turns.bm, largest)], deep)
    wide = decided(results, [(t.large_waves * wave, leaf(middle))], several)
    saved = area(exact) * t.exact_gain - area(middle).minimum(area(large)) * (t.exact_gain - 1)
    filled = decided(saved, [(0, leaf(exact))], wide)
    many = decided(results, [(wave // t.small_parts, few)], filled)
    others, tree = mma_heuristics.default(workload, limits)
    rest = renumbered(tree, {i: i + len(found) for i in range(len(others))})
    node = decided(rows, [(t.mma_rows, narrowed(rest, str(rows), -1, t.mma_rows))], narrowed(many, str(rows), t.mma_rows))
    left = unaligned(workload, 16 // size)
    return reached((*found, *others), Split(str(left), 0, node, rest) if left.symbols else node)
