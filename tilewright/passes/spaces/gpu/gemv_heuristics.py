"""Default configurations of `gemv`, which the other families of contractions run for few rows too. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.passes.spaces.gemm_operands import Gemm, row_and_column_extents, unaligned
from tilewright.passes.spaces.gpu.default_tree import PartsOfK, decided, narrowed, reached
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
from tilewright.passes.spaces.gpu.gpu_config import most_cluster
from tilewright.passes.spaces.gpu.gpu_rates import reached as filled
from tilewright.passes.spaces.numerics import PLAIN
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, renumbered

_DEEPEST = 4  # pieces of k of a thread that are on their way at once
_FEWEST = 2  # blocks that share a multiprocessor at least


@dataclass(frozen=True)
class Thresholds:
    """Measured on an H200 where they say so."""

    few_rows: int = threshold(16, unit="rows up to which weights are read into registers", operator="decode_4096x4096",
                              results="not measured: the rows of one instruction; more of them want tiles in shared memory")
    some_rows: int = threshold(4, unit="rows up to which a thread multiplies 4 by fused multiply-adds",
                               operator="decode_4096x4096",
                               results="not measured: 16 rows need four times the registers and instructions")
    blocks_a_multiprocessor: int = threshold(
        4, unit="blocks of 128 threads that a multiprocessor holds at once", operator="decode_4096x4096",
        results="H200: of 512 blocks, 3 a multiprocessor take two turns and 15.2 us, 4 take one and 14.0")
    room: int = threshold(36, unit="tenths of a block for each multiprocessor, up to which k is cut for more blocks",
                          operator="decode_4096x4096",
                          results="H200, one row of f16 by multiply-adds: 256 blocks 12.8 us, 512 13.3")
    launched_parts: int = threshold(4, unit="parts of k at most that a second launch sums", operator="decode_4096x4096",
                                    results="not measured: by occupancy arithmetic; the launch takes what more parts would save")
    parted_blocks: int = threshold(2, unit="blocks of a multiprocessor up to which they are made", operator="decode_4096x4096",
                                   results="not measured: 32 KiB are on their way in them; more would only be summed again")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[GemvConfig, ...], Node]:
    """By rows, and by the parts of k that give every multiprocessor its blocks; loads of single elements where extents are no
    whole vectors. The last has no guards."""
    t = thresholds
    rows, columns = row_and_column_extents(workload)
    size, tensor, gemm = operand_bytes(workload), on_matrix_units(workload), Gemm.of(workload)
    vec = WIDEST // size
    in_rows = gemm is not None and gemm.b_in_place
    bn = ALONG_N * (max(ALONG_K, vec) if in_rows else ALONG_K)
    loads = vec if in_rows else ALONG_K  # of a piece of k
    follows = len(workload.inputs) > 2 or workload.transcendentals > 0
    each = t.blocks_a_multiprocessor // (2 if follows else 1)  # what follows takes registers too
    base = GemvConfig(1, bn, 4, -(-IN_FLIGHT // loads), vec, min_blocks_per_sm=each, ahead=True)
    several = replace(base, rows=ROWS, warps=2, unroll=1)
    four = replace(base, rows=4, ahead=False)  # H200: 25.9 us, ahead 27.6: two steps of rows take registers that loads want
    by_rows = [(1, base), (t.some_rows, four), (ROWS // 2, replace(base, rows=ROWS // 2, unroll=1))]
    if tensor:
        several = replace(base, rows=ROWS, tensor=True, unroll=1 if in_rows else base.unroll)
        by_rows = [(ROWS // 2, replace(several, rows=ROWS // 2))]
    single = replace(several, vec=1, unroll=1, min_blocks_per_sm=2, ahead=False)
    found = list[GemvConfig]()

    def leaf(config: GemvConfig) -> Leaf:
        found.append(_unrolled(config, workload))
        return Leaf(len(found) - 1)

    def in_parts(config: GemvConfig) -> Node:
        """As many parts of k as give every multiprocessor its blocks, each of a piece for every warp at least."""
        launched = most_cluster(limits) == 1
        tiles = columns.ceildiv(bn) * workload.size("b")

        def cut(parts: int) -> Node:
            units = limits.multiprocessors if launched else filled(parts, limits)
            blocks = -(-(tiles.constant or 0) * parts // units)  # of a multiprocessor, where that is known
            held = config.min_blocks_per_sm if not blocks else max(_FEWEST, min(config.min_blocks_per_sm, blocks))
            deeper = 2 if config.rows == 1 and held == _FEWEST else 1  # H200, f32: 18.8 us of 4096 x 4096, not 20.9
            made = replace(config, min_blocks_per_sm=held, unroll=config.unroll * deeper)
            return leaf(replace(made, split_k=parts) if launched else replace(made, cluster_k=parts))

        tenths = 10 * t.parted_blocks if launched else t.room if config.ahead else 10 * each
        room = limits.multiprocessors * min(tenths, 10 * each) // 10
        known = PartsOfK(room, config.around(size), t.launched_parts if launched else most_cluster(limits))
        return known.tree(tiles, workload.size("k"), cut)

    node = in_parts(several)
    for bound, config in reversed(by_rows):
        node = decided(rows, [(bound, in_parts(config))], node)
    left = unaligned(workload, vec)
    if left.symbols:
        node = Split(str(left), 0, node, leaf(single))
    return reached((*found, replace(single, index=64)), node)


def few_rows_first(workload: Workload, limits: GpuLimits, configs: tuple[TileConfig, ...], node: Node, most: int = ROWS,
                   thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """What another family runs, with this one for up to `most` rows where it takes the workload."""
    rows, most = row_and_column_extents(workload)[0], min(most, thresholds.few_rows)
    if takes(workload, limits, PLAIN) is not None:
        return configs, node
    own, few = default(workload, limits, thresholds)
    more = renumbered(narrowed(node, str(rows), most), {i: i + len(own) for i in range(len(configs))})
    return reached((*own, *configs), decided(rows, [(most, few)], more))


def _unrolled(config: GemvConfig, workload: Workload) -> GemvConfig:
    """With as many pieces of k at once as part it without a rest: a few more, or fewer where they take registers twice."""
    depth, step = workload.size("k").constant, config.parts * config.around(operand_bytes(workload))
    tried = range(config.unroll, 0, -1) if config.ahead else range(config.unroll, _DEEPEST + 1)
    exact = [u for u in tried if depth and depth % (step * u) == 0]
    fewer = config.unroll if depth is None else max(1, min(config.unroll, -(-depth // step)))
    return replace(config, unroll=exact[0] if exact else fewer)
