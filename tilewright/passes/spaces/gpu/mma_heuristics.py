"""Default configurations of `mma`. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tilewright.passes.spaces.gemm_operands import (
    bytes_run_along_k,
    row_and_column_extents,
    tensor_core_bytes,
    unaligned,
    unaligned_operands,
)
from tilewright.passes.spaces.gpu import mma_cost
from tilewright.passes.spaces.gpu.default_tree import PartsOfK, reached
from tilewright.passes.spaces.gpu.gemv import ROWS
from tilewright.passes.spaces.gpu.gemv_heuristics import few_rows_first
from tilewright.passes.spaces.gpu.gpu_config import most_cluster
from tilewright.passes.spaces.gpu.mma import WIDEST, MmaConfig, why_illegal, why_invalid
from tilewright.passes.spaces.gpu.predicted import Wanted, by_rows
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, switch

# rows, columns and depth of a block, rows and columns of a warp, of f32 read as tf32
_TILES = ((16, 32, 16, 16, 16), (16, 64, 32, 16, 16), (32, 32, 32, 16, 16), (64, 32, 16, 64, 16), (64, 64, 32, 32, 32),
          (128, 64, 32, 64, 32), (128, 128, 32, 64, 64), (128, 128, 16, 64, 64))
_GAIN, _NEAR = 0.01, 0.03  # of the predicted time: what one more configuration saves on average, what a change of it saves
_GRAIN = 16  # rows
_LARGE = 64 * 64  # results of a warp


@dataclass(frozen=True)
class Thresholds:
    """The fewest rows of f32 are measured on an H200; the others are not."""

    swapped_rows: int = threshold(8, unit="rows up to which columns take the side of 16", operator="decode_4096x4096",
                                  results="not measured: the other side of an instruction is 8 long, more rows need another")
    few_rows: int = threshold(16, unit="rows up to which a block has 16", operator="decode_4096x4096",
                              results="not measured: the rows of one instruction")
    tf32_rows: int = threshold(4, unit="rows of f32 up to which weights are read into registers", operator="decode_4096x4096",
                               results="H200: gemv 26 us at 4 rows, 48 at 8, cuBLAS 24; 768x2304, 16 rows: 7.8, by mma 5.9")
    predicted_kernels: int = threshold(6, unit="configurations whose predicted times are compared", operator="dense_768x2304",
                                       results="H200: the fastest predicted of 16 took 1.00-1.36 of the fastest, at 10 sizes")
    split_depth: int = threshold(2048, unit="positions of k from above which few rows may be split", operator="decode_4096x4096",
                                 results="not measured: 32 steps of 64, against a second launch")
    split_columns: int = threshold(32, unit="columns for each multiprocessor up to which k is split", operator="decode_4096x4096",
                                   results="not measured: blocks of 64 columns then cover half of the multiprocessors")
    split_parts: int = threshold(4, unit="parts of k", operator="decode_4096x4096",
                                 results="not measured: by occupancy arithmetic, two blocks for each multiprocessor")
    part_steps: int = threshold(6, unit="steps of a part of k at least", operator="dense_3072x768",
                                results="not measured: the copies of three steps are waited for before the first, and sums added")
    resident: int = threshold(1, unit="blocks of a multiprocessor up to which k is cut", operator="dense_3072x768",
                              results="not measured: by wave arithmetic, a second one shortens no part that waits for copies")
    large_waves: int = threshold(1, unit="waves of large blocks, one a multiprocessor", operator="square_4096",
                                 results="not measured: by occupancy arithmetic, fewer leave multiprocessors idle")
    wide_waves: int = threshold(2, unit="waves of blocks of 128 x 256, up to which they have 128 columns", operator="square_4096",
                                results="not measured: warps of 64 x 64 read a third less of shared memory")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """By rows and results: few rows by `gemv` where it takes them (else up to 8 of them swapped, a long k in parts), blocks that
    fill the machine, with parts of k in a cluster where tiles alone do not, large blocks; of f32, where only rows are unknown,
    the least predicted time; copies of single elements where extents are no whole vectors. The last has no guards."""
    t = thresholds
    size = tensor_core_bytes(workload) or 4
    vec, depth, tf32 = WIDEST // size, 128 // size, size == 4
    rows, columns = row_and_column_extents(workload)

    def bounded(config: MmaConfig) -> MmaConfig:
        """Registers for two blocks of a multiprocessor where two have room; ptxas by itself spills for more of them."""
        two = replace(config, min_blocks_per_sm=2)
        return two if why_illegal(two, size, limits) is None else replace(config, min_blocks_per_sm=1)

    few = MmaConfig(16, 64, depth, 16, 16, 4, vec, tf32=tf32)
    fewest = MmaConfig(8, 64, depth, 8, 16, 4, vec, tf32=tf32, swapped=True)
    gathered = size == 1 and not bytes_run_along_k(workload)  # fragments come byte by byte, which takes registers
    fewest = bounded(fewest) if gathered else fewest
    parts = replace(fewest, split_k=t.split_parts)
    middle = bounded(MmaConfig(64, 64, depth, 32, 32, 3, vec, tf32=tf32))
    large = bounded(MmaConfig(128, 128, depth // 2, 64, 32, 4, vec, tf32=tf32))
    wide = bounded(MmaConfig(128, 256, depth // 2, 64, 64, 3, vec, tf32=tf32))
    if size != 2 or why_illegal(wide, size, limits) is not None:
        wide = large  # longer fragments take the registers
    if gathered:
        middle = bounded(replace(middle, bk=64))
        wide = large = MmaConfig(128, 64, 64, 32, 32, 4, vec, min_blocks_per_sm=1)
    single = bounded(MmaConfig(64, 64, min(depth // 2, 32), 32, 32, 2, 1, tf32=tf32))
    safe = replace(single, index=64)
    left = unaligned(workload, vec)
    narrow = [bounded(c) for c in _narrow(workload, middle, single, vec)] if size == 2 else [single]
    most = min(t.tf32_rows, ROWS) if tf32 else ROWS  # that gemv takes
    if tf32:
        wanted = Wanted(t.predicted_kernels, _GAIN, _NEAR, _GRAIN)
        fastest = by_rows([bounded(c) for c in _candidates(workload, limits)], workload, limits, mma_cost, wanted)
        if fastest is not None:
            configs = tuple(dict.fromkeys((*fastest.configs, *([single] if left.symbols else []), safe)))
            node = fastest.tree(rows, lambda config: Leaf(configs.index(config)))
            node = Split(str(left), 0, node, Leaf(configs.index(single))) if left.symbols else node
            return few_rows_first(workload, limits, *reached(configs, node), most)
    several = [replace(middle, cluster_k=n) for n in (2, 4, 8) if n <= most_cluster(limits)]
    configs = tuple(dict.fromkeys((few, fewest, parts, middle, *several, large, wide, *(narrow if left.symbols else []), safe)))

    def leaf(config: MmaConfig) -> Node:
        return Leaf(configs.index(config))

    batch = workload.size("b")
    wave = limits.multiprocessors * large.bm * large.bn
    parts_of_k = PartsOfK(limits.multiprocessors * t.resident, t.part_steps * middle.bk, most_cluster(limits))
    tiles = rows.ceildiv(middle.bm) * columns.ceildiv(middle.bn) * batch
    filled = parts_of_k.tree(tiles, workload.size("k"), lambda parts: leaf(replace(middle, cluster_k=parts)))
    long = switch(str(columns * batch), [(t.split_columns * limits.multiprocessors, leaf(parts))], leaf(fewest))
    thin = switch(str(workload.size("k")), [(t.split_depth, leaf(fewest))], long)
    waves: list[tuple[int, Node]] = [(t.large_waves * wave, filled)]
    largest = leaf(large)
    if wide != large:
        waves.append((t.wide_waves * limits.multiprocessors * wide.bm * wide.bn, leaf(large)))
        largest = switch(str(columns), [(large.bn, leaf(large))], leaf(wide))
    many = switch(str(rows * columns * batch), waves, largest)
    node = switch(str(rows), [(t.swapped_rows, thin), (t.few_rows, leaf(few))], many)
    if left.symbols:
        pairs = unaligned(workload, len(narrow))
        rest = Split(str(pairs), 0, leaf(narrow[1]), leaf(narrow[0])) if len(narrow) > 1 and pairs.symbols else leaf(narrow[-1])
        node = Split(str(left), 0, node, rest)
    return few_rows_first(workload, limits, *reached(configs, node), most)


def _narrow(workload: Workload, middle: MmaConfig, single: MmaConfig, vec: int) -> list[MmaConfig]:
    """What runs where extents are no whole vectors: element by element, and by pairs, but only those operands that may not be
    aligned; like other sizes where that is the result alone."""
    loose = unaligned_operands(workload, vec)
    if loose is None:
        return [single]
    kept = middle if not any(loose[:2]) else replace(single, vec=vec)
    found = []
    for n in (1, 2):
        row, column, result = (n if is_loose else 0 for is_loose in loose)
        found.append(replace(kept, row_vec=row, column_vec=column, result_vec=result))
    return found


def _candidates(workload: Workload, limits: GpuLimits) -> Iterator[MmaConfig]:
    """Tiles of f32 read as tf32 with as many steps in shared memory as have room, whole and in parts of k over a cluster; results
    of whole ones through shared memory and straight from registers, of the largest warps only so: they have none left."""
    parts = [n for n in (1, 2, 4, 8) if n <= most_cluster(limits)]
    for tile, stages, cut in product(_TILES, (4, 3, 2), parts):
        large = tile[3] * tile[4] >= _LARGE
        for staged in (True,) if cut > 1 else (False,) if large else (True, False):
            config = MmaConfig(*tile, stages, 4, staged, tf32=True, cluster_k=cut)
            if why_invalid(config, workload, limits) is None:
                yield config

