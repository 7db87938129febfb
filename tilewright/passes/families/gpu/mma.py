"""Family `mma`: contractions by mma.sync, tiles in a ring of stages in shared memory.

Blocks of bm rows by bn columns, warps of wm by wn; a step is bk deep. While a step is computed the next ones are copied. What is
contiguous along k is stored row by row, ldmatrix transposes anything else, so that every layout of the operands is the same code.
Convolutions are contractions whose points the evaluator addresses; operands that are computed go through registers. Where there
are few rows, columns take the 16-wide side of the instructions (`swapped`), so that 8 rows are enough to fill them. Blocks of a
cluster may share a tile of the result, each with a part of k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import lanes_of, loop, vector_type
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_space import Point
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.gpu.cluster_sum import ClusterSum
from tilewright.passes.families.gpu.gpu_operand import Side
from tilewright.passes.families.gpu.gpu_pointwise import tile_elements
from tilewright.passes.families.gpu.gpu_tile import Stages
from tilewright.passes.families.gpu.mma_product import TensorProduct
from tilewright.passes.families.gpu.mma_tile import MmaLoader
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.gpu.simt_store import Result, SplitSum
from tilewright.passes.families.gpu.stage_ring import StageRing, Store
from tilewright.passes.families.gpu.tile_grid import TileGrid, part_of, tile_contraction
from tilewright.passes.families.gpu.whole_tiles import by_wholeness
from tilewright.passes.mlir import ir, vector
from tilewright.passes.spaces.gpu.mma import STAGED_PAD, MmaConfig
from tilewright.runtime.limits import WARP

_ROWS, _COLUMNS = 16, 8  # of an instruction
Place = tuple[Index, Index, ir.Value]


def emit(kernel: GpuKernel, config: MmaConfig) -> None:
    """The whole kernel. ValueError when the region is no contraction that this family computes."""
    plan = SimtPlan.of(kernel)
    product = TensorProduct.of(plan.view, config.tf32)
    split = SplitSum(kernel, plan, config.split_k) if config.split_k > 1 else None
    if split is not None:
        kernel.use_workspace(split.bytes())
    kernel.launch(config.threads, lambda: MmaBlock(kernel, plan, product, config, split).emit(),
                  min_blocks_per_sm=config.min_blocks_per_sm, cluster=config.cluster_k)
    if split is not None:
        kernel.launch(256, lambda: split.finish(min(config.vecs[2], 4)), "_sum")


@dataclass(frozen=True)
class _WarpTile:
    """A warp's rows or columns. start: the first of the block in the result; at: the first of the warp in the block's tile."""

    loader: MmaLoader
    start: Index
    at: Index


def tile(frame: KernelFrame, config: MmaConfig, tiler: Tiler) -> None:
    """Units of bm rows by bn columns."""
    tile_contraction(SimtPlan.of(frame), config.bm, config.bn, tiler)
    if config.split_k > 1:
        tile_elements(frame, tiler, min(config.vecs[2], 4), 256)


class MmaBlock:
    """What one block of threads does."""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, product: TensorProduct, config: MmaConfig,
                 split: SplitSum | None) -> None:
        self.kernel, self.plan, self.product, self.config, self.split = kernel, plan, product, config, split
        self.rows, self.columns, self.depth, self.batch = plan.groups(kernel)
        tall, wide = (config.wn, config.wm) if config.swapped else (config.wm, config.wn)
        self.down, self.across = tall // _ROWS, wide // _COLUMNS
        self.cluster = ClusterSum(kernel, ProductCode(plan.view.product), config.cluster_k)

    def loaders(self, batch: Point) -> tuple[MmaLoader, MmaLoader]:
        """Of rows and of columns."""
        c, plan, kernel = self.config, self.plan, self.kernel
        row_stages, column_stages = (Stages(c.bk, c.stages, vec) for vec in c.vecs[:2])
        rows = Side(plan.view, plan.row_side, self.rows, self.depth, c.bm, batch)
        columns = Side(plan.view, plan.column_side, self.columns, self.depth, c.bn, batch)
        return MmaLoader(kernel, rows, row_stages), MmaLoader(kernel, columns, column_stages)

    def places(self, loaders: tuple[MmaLoader, MmaLoader], row: Index, column: Index, whole: bool = False) -> list[Place]:
        """The sums of the tile at (row, column), as far as the thread has them. whole: no row or column lies outside."""
        c, thread = self.config, self.kernel.thread()
        warp, lane = thread // WARP, thread % WARP
        y, x = warp // (c.bn // c.wn) * c.wm, warp % (c.bn // c.wn) * c.wn
        sums = self._steps(_WarpTile(loaders[0], row, y), _WarpTile(loaders[1], column, x), lane, thread, whole)
        if c.swapped:
            return list(self._singles(y + lane % 4 * 2, x + lane // 4, sums))
        return list(self._pairs(y + lane // 4, x + lane % 4 * 2, sums))

    def emit(self) -> Grid:
        c, kernel, plan = self.config, self.kernel, self.plan
        grid = TileGrid(kernel, c.group_m)
        kernel.bound(self.depth.size)
        tile = grid.place(self.cluster.tile)
        batch = self.batch.point(tile.batch)
        loaders = self.loaders(batch)

        def compute(whole: bool) -> None:
            places = self.places(loaders, tile.row, tile.column, whole)
            if self.split is not None:
                for row, column, value in places:
                    self.split.keep(tile.batch, tile.row + row, tile.column + column, value)
            else:
                result = Result(kernel, plan, batch, self.rows, self.columns)
                result.whole = whole
                store = self._staged if c.staged else self._direct
                store(result, tile.row, tile.column, places)

        by_wholeness(kernel, [(self.rows, tile.row, c.bm), (self.columns, tile.column, c.bn)], compute)
        return self.cluster.grid(grid.blocks(c.split_k))

    def _steps(self, left: _WarpTile, right: _WarpTile, lane: Index, thread: Index, whole: bool) -> list[ir.Value]:
        """The sums of a warp, four for each of its instructions. whole: no row or column lies outside."""
        c, kernel = self.config, self.kernel
        steps, end = part_of(kernel, self.depth, c.bk, c.split_k * c.cluster_k, self.cluster.rank)
        exact = whole and self.depth.size.divisible_by(c.bk) and left.loader.is_async and right.loader.is_async
        until = None if exact else end

        def copy(stage: Index, k: Index) -> list[Store]:
            return [x for side in (left, right) for x in side.loader.begin(stage, side.start, k, until, thread, whole)]

        ring = StageRing(kernel, c.stages, steps, copy, bounded=exact)

        def body(step: Index, *sums: ir.Value) -> list[ir.Value]:
            return ring.step(step, lambda stage: self._multiply(left, right, stage, lane, sums))

        ring.fill()
        zeros = [ProductCode(self.plan.view.product).zero(1)] * (4 * self.down * self.across)
        found = loop(0, steps.end, 1, body, zeros, kernel.index)
        ring.drain()
        return found

    def _multiply(self, left: _WarpTile, right: _WarpTile, stage: Index, lane: Index, sums: Sequence[ir.Value]) -> list[ir.Value]:
        """Adds the products of one step."""
        found = list(sums)
        sides, tall, wide = (self.plan.row_side, self.plan.column_side), left, right
        if self.config.swapped:
            sides, tall, wide = (sides[1], sides[0]), wide, tall
        for k in range(0, self.config.bk, self.product.depth):
            a = [tall.loader.fragment(stage, tall.at, i * _ROWS, k, lane, True) for i in range(self.down)]
            b = self._wide_factors(wide, stage, k, lane)
            for i in range(self.down):
                for j in range(self.across):
                    at = 4 * (i * self.across + j)
                    found[at : at + 4] = self.product.mma(sides, a[i], b[j], found[at : at + 4])
        return found

    def _wide_factors(self, wide: _WarpTile, stage: Index, k: int, lane: Index) -> list[list[ir.Value]]:
        """Two registers for each instruction across."""
        if self.across == 1:
            deep = self.product.depth
            both = wide.loader.narrow_fragment(stage, wide.at, k // (2 * deep) * 2 * deep, lane)
            return [both[2 * (k // deep % 2) : 2 * (k // deep % 2) + 2]]
        found = []
        for j in range(0, self.across, 2):
            two = wide.loader.fragment(stage, wide.at, j * _COLUMNS, k, lane, False)
            found += [two[:2], two[2:]]
        return found

    # -- results

    def _pairs(self, y: Index, x: Index, sums: list[ir.Value]) -> Iterator[Place]:
        """Row, first column and two neighbouring sums, in the block; y and x are those of the thread."""
        pair = vector_type(self.product.sum, 2)
        for i in range(self.down):
            for h in range(2):
                for j in range(self.across):
                    at = 4 * (i * self.across + j) + 2 * h
                    yield y + (_ROWS * i + 8 * h), x + _COLUMNS * j, vector.from_elements(pair, sums[at : at + 2])

    def _singles(self, y: Index, x: Index, sums: list[ir.Value]) -> Iterator[Place]:
        """Row, column and one sum, where columns take the 16-wide side."""
        for i in range(self.down):
            for j in range(self.across):
                for q in range(4):
                    yield y + (_COLUMNS * j + q % 2), x + (_ROWS * i + 8 * (q // 2)), sums[4 * (i * self.across + j) + q]

    def _direct(self, result: Result, row: Index, column: Index, places: list[Place]) -> None:
        width = result.width(1 if self.config.swapped else min(2, self.config.vecs[2]))
        for y, x, value in places:
            parts = [value] if lanes_of(value) == width else [vector.extract(value, [], [i]) for i in range(2)]
            for i, part in enumerate(parts):
                result.store(row + y, column + x + i, part)

    def _staged(self, result: Result, row: Index, column: Index, places: list[Place]) -> None:
        """Through shared memory, over the tiles, where the blocks of a cluster add up what they have."""
        c, kernel = self.config, self.kernel
        tile = kernel.shared(self.product.sum, [c.bm, c.bn + STAGED_PAD], at=0)
        kernel.barrier()
        for y, x, value in places:
            tile.store(value, [y, x if lanes_of(value) == 1 else Index.ramp(x.known_multiple(2), 2)])
        width = result.width(min(c.vecs[2], 8))
        per_row = c.bn // width
        self.cluster.over(tile, c.bm * per_row, lambda n: [n // per_row, Index.ramp((n % per_row) * width, width)],
                          lambda at, value: result.store(row + at[0], column + at[1].base, value))
