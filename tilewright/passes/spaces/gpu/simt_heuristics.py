"""Default configurations of `simt`. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.spaces.gemm_operands import row_and_column_extents
from tilewright.passes.spaces.gpu.gemv_heuristics import few_rows_first
from tilewright.passes.spaces.gpu.simt import SimtConfig, widest_bytes
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, switch
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Thresholds:
    """None is measured: there was no GPU."""

    few_rows: int = threshold(32, unit="rows up to which a block has 16", operator="decode_4096x4096",
                              results="not measured: half of a block of 64 rows and more would be padding")
    large_waves: int = threshold(2, unit="waves of 128 x 128 results, one block a multiprocessor", operator="square_4096",
                                 results="not measured: by occupancy arithmetic, fewer leave multiprocessors idle")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """By rows: the fewest by `gemv` where it takes them, small blocks for few, large ones where they fill the machine; copies of
    single elements where extents are no whole vectors. The last has no guards."""
    widest = widest_bytes(workload)
    vec = 4 if widest == 4 else 2
    rows, columns = row_and_column_extents(workload)
    results = rows * columns * workload.size("b")
    windows = sum(loop.role == "k" for loop in workload.loops) > 1
    blocks = 1 if windows else 0  # addresses of windows need registers, which ptxas would rather spill than lose a block
    few = SimtConfig(16, 64, 32, 2, 4, 3, vec, min_blocks_per_sm=blocks)
    middle = SimtConfig(64, 64, 16, 4, 4, 3, vec, min_blocks_per_sm=blocks)
    large = SimtConfig(128, 128, 16, 8, 8, 3, vec, min_blocks_per_sm=blocks) if widest == 4 else middle
    safe = SimtConfig(64, 64, 16, 4, 4, 3, 1, transpose_on_copy=True, min_blocks_per_sm=blocks, index=64)
    wave = limits.multiprocessors * 128 * 128
    single = SimtConfig(64, 64, 16, 4, 4, 3, 1, transpose_on_copy=True, min_blocks_per_sm=blocks)
    left = Expr.of(0)
    for extent in (workload.size("k"), columns):
        if extent.constant is None and not extent.divisible_by(vec):
            left = left + extent % vec
    configs = tuple(dict.fromkeys((few, middle, large, *([single] if left.symbols else []), safe)))
    many = switch(str(results), [(thresholds.large_waves * wave, Leaf(configs.index(middle)))], Leaf(configs.index(large)))
    node = switch(str(rows), [(thresholds.few_rows, Leaf(configs.index(few)))], many)
    node = Split(str(left), 0, node, Leaf(configs.index(single))) if left.symbols else node
    return few_rows_first(workload, limits, configs, node)
