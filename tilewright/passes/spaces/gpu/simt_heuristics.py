"""Default configurations of `simt`. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tilewright.passes.spaces.gemm_operands import row_and_column_extents
from tilewright.passes.spaces.gpu import simt_cost
from tilewright.passes.spaces.gpu.default_tree import reached
from tilewright.passes.spaces.gpu.gemv import ROWS
from tilewright.passes.spaces.gpu.gemv_heuristics import few_rows_first
from tilewright.passes.spaces.gpu.predicted import Wanted, by_rows
from tilewright.passes.spaces.gpu.simt import SimtConfig, why_invalid, widest_bytes
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, switch
from tilewright.runtime.shape import Expr

# rows, columns and depth of a block, rows and columns of a thread
_TILES = ((16, 64, 32, 2, 4), (16, 128, 32, 4, 4), (32, 64, 32, 4, 4), (64, 32, 32, 4, 8), (64, 64, 16, 4, 4), (64, 64, 32, 8, 8),
          (64, 128, 16, 8, 8), (128, 64, 16, 8, 8), (128, 128, 16, 8, 8))
_PARTS = (1, 2, 4, 8)
# A thread with so many sums says how many blocks share a multiprocessor: ptxas by itself takes 127 registers for 128 x 128 and
# lays all operands of a tenth of its multiply-adds into one bank (H200, square_4096: 3.30 ms, with 2 blocks said 3.06)
_SAID, _BLOCKS = 64, 2
_GAIN, _NEAR = 0.005, 0.03  # of the predicted time: what one more configuration saves on average, what a change of it saves
_GRAIN = 16  # rows


@dataclass(frozen=True)
class Thresholds:
    """Of extents that are not known but for the rows."""

    few_rows: int = threshold(32, unit="rows up to which a block has 16", operator="decode_4096x4096",
                              results="not measured: half of a block of 64 rows and more would be padding")
    large_waves: int = threshold(2, unit="waves of 128 x 128 results, one block a multiprocessor", operator="square_4096",
                                 results="not measured: by occupancy arithmetic, fewer leave multiprocessors idle")
    predicted_kernels: int = threshold(6, unit="configurations whose predicted times are compared where only rows are unknown",
                                       operator="dense_768x2304",
                                       results="H200: the fastest predicted of 12 took 1.00-1.09 of the fastest, at 9 sizes")
    large_weights: int = threshold(4, unit="2^20 weights, over which more than rows_of_large rows have tiles in shared memory",
                                   operator="decode_4096x4096",
                                   results="H200, 16 rows: 24.6 us of 4096 x 4096, not 50.9; of 768 x 2304 10.1, by gemv 7.1")
    rows_of_large: int = threshold(4, unit="rows, likewise", operator="decode_4096x4096",
                                   results="H200, 4096 x 4096: 6 rows 23.9 us, not 29.2; x 14336: 4 rows 58.9 by gemv")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """The fewest rows by `gemv` where it takes them; the least predicted time where only rows are unknown, else small blocks for
    few rows and large ones where they fill the machine; copies of single elements where extents are no whole vectors. The last
    has no guards."""
    widest = widest_bytes(workload)
    vec = 4 if widest == 4 else 2
    rows, columns = row_and_column_extents(workload)
    results = rows * columns * workload.size("b")
    windows = sum(loop.role == "k" for loop in workload.loops) > 1
    blocks = 1 if windows else 0  # addresses of windows need registers, which ptxas would rather spill than lose a block
    few = SimtConfig(16, 64, 32, 2, 4, 3, vec, min_blocks_per_sm=blocks)
    middle = SimtConfig(64, 64, 16, 4, 4, 3, vec, min_blocks_per_sm=blocks)
    large = SimtConfig(128, 128, 16, 8, 8, 3, vec, min_blocks_per_sm=blocks or _BLOCKS) if widest == 4 else middle
    safe = SimtConfig(64, 64, 16, 4, 4, 3, 1, transpose_on_copy=True, min_blocks_per_sm=blocks, index=64)
    wave = limits.multiprocessors * 128 * 128
    single = SimtConfig(64, 64, 16, 4, 4, 3, 1, transpose_on_copy=True, min_blocks_per_sm=blocks)
    left = Expr.of(0)
    for extent in (workload.size("k"), columns):
        if extent.constant is None and not extent.divisible_by(vec):
            left = left + extent % vec
    wanted = Wanted(thresholds.predicted_kernels, _GAIN, _NEAR, _GRAIN)
    made = [] if windows or widest > 4 else list(candidates(workload, limits))
    fastest = by_rows(made, workload, limits, simt_cost, wanted)
    own = (few, middle, large) if fastest is None else fastest.configs
    configs = tuple(dict.fromkeys((*own, *([single] if left.symbols else []), safe)))

    def leaf(config: SimtConfig) -> Node:
        return Leaf(configs.index(config))

    if fastest is None:
        many = switch(str(results), [(thresholds.large_waves * wave, leaf(middle))], leaf(large))
        node = switch(str(rows), [(thresholds.few_rows, leaf(few))], many)
    else:
        node = fastest.tree(rows, leaf)
    node = Split(str(left), 0, node, leaf(single)) if left.symbols else node
    weights = (workload.size("k") * workload.size("n")).constant or 0
    most = thresholds.rows_of_large if fastest is not None and weights > thresholds.large_weights << 20 else ROWS
    return few_rows_first(workload, limits, *reached(configs, node), most)


def candidates(workload: Workload, limits: GpuLimits) -> Iterator[SimtConfig]:
    """Tiles in rings of two steps or three, whole and in parts of k."""
    for tile, stages, parts in product(_TILES, (2, 3), _PARTS):
        blocks = _BLOCKS if tile[3] * tile[4] >= _SAID else 0
        config = SimtConfig(*tile, stages, 4, min_blocks_per_sm=blocks, split_k=parts)
        if why_invalid(config, workload, limits) is None:
            yield config
