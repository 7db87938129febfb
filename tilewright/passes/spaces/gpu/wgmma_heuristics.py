"""Default configurations of `wgmma`, and those of `mma` for what it leaves. MLIR-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from tilewright.passes.spaces.gemm_operands import row_and_column_extents, tensor_core_bytes, unaligned
from tilewright.passes.spaces.gpu import default_tree, mma_heuristics, wgmma_cost
from tilewright.passes.spaces.gpu.default_tree import PartsOfK, decided, narrowed
from tilewright.passes.spaces.gpu.gpu_rates import reached
from tilewright.passes.spaces.gpu.predicted import Wanted, by_rows
from tilewright.passes.spaces.gpu.wgmma import CLUSTERS, ROW, ROWS, WgmmaConfig, promoted, why_invalid
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, renumbered
from tilewright.runtime.shape import Expr

_COLUMNS = (32, 64, 96, 128, 160, 192, 224, 256)
_STAGES = 6
_FEW = ROWS * 192  # sums of a warpgroup: with fewer, a tenth of the issue slots of a step of one row is for other than products
_GAIN, _NEAR = 0.005, 0.03  # of the predicted time: what one more configuration saves on average, what a change of it saves


@dataclass(frozen=True)
class Thresholds:
    """Measured on an H200 where they say so."""

    mma_rows: int = threshold(16, unit="rows up to which mma.sync multiplies", operator="decode_4096x4096",
                              results="H200, 16 rows: 5.5 us against 5.8 of 3072x768, 5.3 against 4.3 of 768x2304")
    batched_rows: int = threshold(64, unit="rows up to which it does where there are more products than multiprocessors",
                                  operator="scores", results="H200: 24 rows 2.9 us against 4.7, 128 rows 8.8 against 6.7")
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
    predicted_kernels: int = threshold(10, unit="configurations whose predicted times are compared where only rows are unknown",
                                       operator="dense_768x2304",
                                       results="not measured: by gpu-table, each further one saves less than .5 %")


class _Made:
    """The default configurations of a workload, their results by copies where they can. Where sums are promoted there are
    registers for 128 columns."""

    def __init__(self, workload: Workload, limits: GpuLimits) -> None:
        self._workload, self._limits = workload, limits
        even, eight = limits.multiprocessors // 2 * 2, promoted(workload)
        self.small, self.middle = self._made(64, 128, 1), self._made(128, 128, 2)
        self.large = self.middle if eight else self._made(128, 256, 2)
        self.paired = replace(self.large, blocks=even, cluster_m=2)
        turns = replace(self.middle, blocks=even, cluster_m=2, pingpong=True, deep=1)
        self.turns = self.paired if eight else self.fitting(turns)
        self.exact = self.middle if eight else self._made(192, 192, 3)

    def _made(self, bm: int, bn: int, consumers: int) -> WgmmaConfig:
        tf32 = tensor_core_bytes(self._workload) is None
        return self.fitting(WgmmaConfig(bm, bn, 2, consumers, blocks=self._limits.multiprocessors, tf32=tf32))

    def fitting(self, config: WgmmaConfig) -> WgmmaConfig:
        """With as many stages as have room, of steps two rows deep where products are few."""
        found = (_fitting(replace(config, deep=deep), self._workload, self._limits) for deep in _depths(config))
        return next((made for made in found if made is not None), config)


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """Warpgroups where their tiles are filled and copies are aligned: those of the least predicted time where only rows are
    unknown, else by rules; `mma` for the rest. The last has no guards."""
    t = thresholds
    size = tensor_core_bytes(workload) or 4
    found = list[TileConfig]()

    def leaf(config: WgmmaConfig) -> Leaf:
        found.append(config)
        return Leaf(len(found) - 1)

    rows, _ = row_and_column_extents(workload)
    wanted = Wanted(t.predicted_kernels, _GAIN, _NEAR)
    fastest = by_rows(list(candidates(workload, limits)), workload, limits, wgmma_cost, wanted)
    wide = _by_rules(workload, limits, t, leaf) if fastest is None else fastest.tree(rows, leaf)
    others, tree = mma_heuristics.default(workload, limits)
    rest = renumbered(tree, {i: i + len(found) for i in range(len(others))})
    batched = fastest is None and (workload.size("b").constant or 0) >= limits.multiprocessors
    few = t.batched_rows if batched else t.mma_rows
    node = decided(rows, [(few, narrowed(rest, str(rows), -1, few))], narrowed(wide, str(rows), few))
    left = unaligned(workload, 16 // size)
    return default_tree.reached((*found, *others), Split(str(left), 0, node, rest) if left.symbols else node)


def candidates(workload: Workload, limits: GpuLimits) -> Iterator[WgmmaConfig]:
    """Tiles with as many stages as have room, in the forms that differ most: blocks that take tile after tile, by themselves or
    in clusters, their warpgroups together or in turn, or that share all steps evenly, and parts of k over a cluster. Steps are
    two rows deep too where the products of one are few."""
    tf32 = tensor_core_bytes(workload) is None
    tiles = ((64, 1, False), (64, 2, True), (128, 2, False), (128, 2, True), (192, 3, False), (256, 2, False))
    clusters = [(0 if k > 1 else reached(m * n, limits), m, n, k) for m, n, k in CLUSTERS]
    for (bm, consumers, turns), bn, (blocks, m, n, k) in product(tiles, _COLUMNS, [*clusters, (0, 1, 1, 1)]):
        if turns and not blocks:
            continue
        plain = WgmmaConfig(bm, bn, 2, consumers, blocks=blocks, tf32=tf32, cluster_m=m, cluster_n=n, cluster_k=k,
                            pingpong=turns)
        for deep, streamed in product(_depths(plain), (False, True)):
            if streamed and (turns or not blocks):
                continue
            config = _fitting(replace(plain, deep=deep, streamed=streamed), workload, limits)
            if config is not None:
                yield config


def _depths(config: WgmmaConfig) -> tuple[int, ...]:
    return (2, 1) if config.rows * config.bn < _FEW else (1,)


def _fitting(config: WgmmaConfig, workload: Workload, limits: GpuLimits) -> WgmmaConfig | None:
    """With results by copies where they can, and as many stages as have room."""
    for copied, stages in product((True, False), range(_STAGES, 2, -1)):
        made = replace(config, copied=copied, stages=stages)
        if why_invalid(made, workload, limits) is None:
            return made
    return None


def _by_rules(workload: Workload, limits: GpuLimits, thresholds: Thresholds, leaf: Callable[[WgmmaConfig], Leaf]) -> Node:
    """By numbers of tiles and waves, whatever extents are unknown; parts of k in a cluster where there are fewer tiles than
    multiprocessors and k is long."""
    t, multiprocessors = thresholds, limits.multiprocessors
    size = tensor_core_bytes(workload) or 4
    made = _Made(workload, limits)
    small, middle, large, exact = made.small, made.middle, made.large, made.exact

    def cut(config: WgmmaConfig, parts: int) -> Leaf:
        return leaf(made.fitting(replace(config, blocks=0, copied=False, cluster_k=parts)) if parts > 1 else config)

    rows, columns = row_and_column_extents(workload)
    batch, depth = workload.size("b"), workload.size("k")
    parts_of_k = PartsOfK(multiprocessors, t.part_steps * (ROW // size))
    few = parts_of_k.tree(rows.ceildiv(small.bm) * columns.ceildiv(small.bn) * batch, depth, lambda parts: cut(small, parts))
    most = parts_of_k.most
    tall = decided(depth, [(most * parts_of_k.least - 1, few)], cut(middle, most))

    def tiles(config: WgmmaConfig) -> Expr:
        return rows.ceildiv(config.bm) * columns.ceildiv(config.bn) * batch

    def area(config: WgmmaConfig) -> Expr:
        """Results that a multiprocessor computes, padding too, in all of its waves."""
        return tiles(config).ceildiv(multiprocessors) * (config.bm * config.bn)

    few = decided(rows, [(small.bm, few)], decided(tiles(middle), [(multiprocessors // most, tall)], few))
    results = rows * columns * batch
    wave = multiprocessors * middle.bm * middle.bn
    largest = decided(rows, [(t.cluster_rows, leaf(large))], leaf(made.paired))
    several = decided(rows, [(2 * made.turns.bm, largest)], decided(depth, [(t.turns_depth, leaf(made.turns))], largest))
    wide = decided(results, [(t.large_waves * wave, leaf(middle))], several)
    saved = area(exact) * t.exact_gain - area(middle).minimum(area(large)) * (t.exact_gain - 1)
    return decided(results, [(wave // t.small_parts, few)], decided(saved, [(0, leaf(exact))], wide))
