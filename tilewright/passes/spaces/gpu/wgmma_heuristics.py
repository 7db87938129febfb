"""Default configurations of `wgmma`, and those of `mma` for what it leaves. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.spaces.gemm_operands import row_and_column_extents, tensor_core_bytes, unaligned
from tilewright.passes.spaces.gpu import mma_heuristics
from tilewright.passes.spaces.gpu.wgmma import WgmmaConfig
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, switch


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


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """Warpgroups where their tiles are filled and copies are aligned, `mma` for the rest. The last has no guards."""
    t, multiprocessors = thresholds, limits.multiprocessors
    tf32 = tensor_core_bytes(workload) is None
    small = WgmmaConfig(64, 128, 6, 1, blocks=multiprocessors, tf32=tf32)
    middle = WgmmaConfig(128, 128, 5, 2, blocks=multiprocessors, tf32=tf32)
    large = WgmmaConfig(128, 256, 4, 2, blocks=multiprocessors, tf32=tf32)
    paired = WgmmaConfig(128, 256, 4, 2, blocks=multiprocessors - multiprocessors % 2, tf32=tf32, cluster_m=2)
    others, tree = mma_heuristics.default(workload, limits)
    configs: tuple[TileConfig, ...] = (small, middle, large, paired, *others)
    rest = _shifted(tree, 4)
    rows, columns = row_and_column_extents(workload)
    results = rows * columns * workload.size("b")
    wave = multiprocessors * middle.bm * middle.bn
    largest = switch(str(rows), [(t.cluster_rows, Leaf(2))], Leaf(3))
    wide = switch(str(results), [(wave // t.small_parts, Leaf(0)), (t.large_waves * wave, Leaf(1))], largest)
    node = switch(str(rows), [(t.mma_rows, rest)], wide)
    size = tensor_core_bytes(workload) or 4
    left = unaligned(workload, 16 // size)
    return configs, Split(str(left), 0, node, rest) if left.symbols else node


def _shifted(node: Node, by: int) -> Node:
    """The tree with its kernels numbered from `by` on."""
    if isinstance(node, Leaf):
        return Leaf(node.kernel + by, node.threads)
    return Split(node.expr, node.bound, _shifted(node.below, by), _shifted(node.above, by))
