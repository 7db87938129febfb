"""Default configurations of `wgmma`, and those of `mma` for what it leaves. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.passes.spaces.gemm_operands import row_and_column_extents, tensor_core_bytes, unaligned
from tilewright.passes.spaces.gpu import mma_heuristics
from tilewright.passes.spaces.gpu.default_tree import PartsOfK, decided, narrowed, reached
from tilewright.passes.spaces.gpu.wgmma import ROW, ROWS, WgmmaConfig
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, renumbered


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


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """Warpgroups where their tiles are filled and copies are aligned, with parts of k in a cluster where there are fewer tiles
    than multiprocessors and k is long; `mma` for the rest. The last has no guards."""
    t, multiprocessors = thresholds, limits.multiprocessors
    tf32 = tensor_core_bytes(workload) is None
    size = tensor_core_bytes(workload) or 4
    small = WgmmaConfig(64, 128, 6, 1, blocks=multiprocessors, tf32=tf32)
    middle = WgmmaConfig(128, 128, 5, 2, blocks=multiprocessors, tf32=tf32)
    large = WgmmaConfig(128, 256, 4, 2, blocks=multiprocessors, tf32=tf32)
    paired = WgmmaConfig(128, 256, 4, 2, blocks=multiprocessors - multiprocessors % 2, tf32=tf32, cluster_m=2)
    found = list[TileConfig]()

    def leaf(config: WgmmaConfig) -> Leaf:
        found.append(config)
        return Leaf(len(found) - 1)

    def cut(config: WgmmaConfig, parts: int) -> Leaf:
        stages = config.stages - (config.bm > ROWS)  # room for the sums beside them
        return leaf(replace(config, blocks=0, stages=stages, cluster_k=parts) if parts > 1 else config)

    rows, columns = row_and_column_extents(workload)
    batch, depth = workload.size("b"), workload.size("k")
    parts_of_k = PartsOfK(multiprocessors, t.part_steps * (ROW // size))
    few = parts_of_k.tree(rows.ceildiv(small.bm) * columns.ceildiv(small.bn) * batch, depth, lambda parts: cut(small, parts))
    most = parts_of_k.most
    tall = decided(depth, [(most * parts_of_k.least - 1, few)], cut(middle, most))
    tiles = rows.ceildiv(middle.bm) * columns.ceildiv(middle.bn) * batch
    few = decided(rows, [(small.bm, few)], decided(tiles, [(multiprocessors // most, tall)], few))
    results = rows * columns * batch
    wave = multiprocessors * middle.bm * middle.bn
    largest = decided(rows, [(t.cluster_rows, leaf(large))], leaf(paired))
    wide = decided(results, [(wave // t.small_parts, few), (t.large_waves * wave, leaf(middle))], largest)
    others, tree = mma_heuristics.default(workload, limits)
    rest = renumbered(tree, {i: i + len(found) for i in range(len(others))})
    node = decided(rows, [(t.mma_rows, narrowed(rest, str(rows), -1, t.mma_rows))], narrowed(wide, str(rows), t.mma_rows))
    left = unaligned(workload, 16 // size)
    return reached((*found, *others), Split(str(left), 0, node, rest) if left.symbols else node)
