"""Family `simt`: contractions by fused multiply-adds of single threads, tiles in a ring of stages in shared memory.

Blocks of bm rows by bn columns; a step is bk deep. While a step is computed the next ones are copied. Threads of a warp lie
4 x 8 over the block where they can. Rows and columns of a thread are interleaved with its neighbours', so that a warp reads
every bank of shared memory once. Every element is summed in the order of k.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.passes.analysis.contraction import LHS
from tilewright.passes.codegen.emit import lanes_of, loop
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.gpu_space import Point
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.gpu.gpu_operand import Side
from tilewright.passes.families.gpu.gpu_pointwise import tile_elements
from tilewright.passes.families.gpu.gpu_tile import Stages, TileLoader
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.gpu.simt_store import Result, SplitSum
from tilewright.passes.families.gpu.stage_ring import StageRing, Store
from tilewright.passes.families.gpu.tile_grid import TileGrid, part_of, tile_contraction
from tilewright.passes.families.gpu.whole_tiles import by_wholeness
from tilewright.passes.mlir import ir, vector
from tilewright.passes.spaces.gpu.simt import SimtConfig
from tilewright.runtime.limits import WARP

_FRAGMENT = 4  # elements of one access of shared memory
_WARP_ROWS = 4


def emit(kernel: GpuKernel, config: SimtConfig) -> None:
    """The whole kernel. ValueError when the region is no contraction that this family computes."""
    plan = SimtPlan.of(kernel)
    split = SplitSum(kernel, plan, config.split_k) if config.split_k > 1 else None
    if split is not None:
        kernel.use_workspace(split.bytes())
    kernel.launch(config.threads, lambda: _SimtBlock(kernel, plan, config, split).emit(),
                  min_blocks_per_sm=config.min_blocks_per_sm)
    if split is not None:
        kernel.launch(256, lambda: split.finish(config.vec), "_sum")


def tile(frame: KernelFrame, config: SimtConfig, tiler: Tiler) -> None:
    """Units of bm rows by bn columns."""
    tile_contraction(SimtPlan.of(frame), config.bm, config.bn, tiler)
    if config.split_k > 1:
        tile_elements(frame, tiler, config.vec, 256)


@dataclass(frozen=True)
class _ThreadTile:
    """How a thread's rows (or columns) lie in its tile: runs of `run`, `count` of them, one every `every`, from `first` on."""

    loader: TileLoader
    run: int
    count: int
    every: int
    first: Index

    @staticmethod
    def of(loader: TileLoader, mine: int, threads: int, thread: Index) -> _ThreadTile:
        run = 1 if loader.deep else gcd(mine, _FRAGMENT)
        return _ThreadTile(loader, run, mine // run, threads * run, thread * run)

    def window(self, stage: Index) -> GpuMemory:
        """The tile of a stage from the thread's first element on."""
        at = [stage, self.first, Index(0)] if self.loader.deep else [stage, Index(0), self.first]
        return self.loader.tile.window(at)

    def position(self, number: int) -> Index:
        """Where run `number` starts in the tile."""
        return self.first + number * self.every


class _SimtBlock:
    """What one block of threads does."""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, config: SimtConfig, split: SplitSum | None) -> None:
        self.kernel, self.plan, self.config, self.split = kernel, plan, config, split
        self.view, self.product = plan.view, ProductCode(plan.view.product)
        self.rows, self.columns, self.depth, self.batch = plan.groups(kernel)

    def emit(self) -> Grid:
        c, kernel = self.config, self.kernel
        grid = TileGrid(kernel, c.group_m)
        kernel.bound(self.depth.size)
        tile = grid.place(kernel.block_id())
        self._emit_at(self.batch.point(tile.batch), tile.batch, tile.row, tile.column)
        return grid.blocks(c.split_k)

    def _emit_at(self, batch: Point, batch_number: Index, row: Index, column: Index) -> None:
        c, kernel, view, plan = self.config, self.kernel, self.view, self.plan
        stages = Stages(c.bk, c.stages, c.vec, c.transpose_on_copy)
        row_tile = TileLoader(kernel, Side(view, plan.row_side, self.rows, self.depth, c.bm, batch), stages)
        column_tile = TileLoader(kernel, Side(view, plan.column_side, self.columns, self.depth, c.bn, batch), stages)
        thread = kernel.thread()
        y, x = self._thread_place(thread)
        down = _ThreadTile.of(row_tile, c.tm, c.bm // c.tm, y)
        across = _ThreadTile.of(column_tile, c.tn, c.bn // c.tn, x)

        def compute(whole: bool) -> None:
            sums = self._steps((down, row), (across, column), thread, whole)
            if self.split is None:
                result = Result(kernel, plan, batch, self.rows, self.columns)
                result.whole = whole
                self._store(result, row, column, down, across, sums)
            else:
                self._keep(batch_number, row, column, down, across, sums)

        by_wholeness(kernel, [(self.rows, row, c.bm), (self.columns, column, c.bn)], compute)

    def _steps(self, rows: tuple[_ThreadTile, Index], columns: tuple[_ThreadTile, Index], thread: Index,
               whole: bool) -> list[ir.Value]:
        """The sums of a thread. rows, columns: its own, and the first of the block. whole: none of the block's lies outside."""
        c, kernel, (down, row), (across, column) = self.config, self.kernel, rows, columns
        steps, end = part_of(kernel, self.depth, c.bk, c.split_k)
        exact = whole and self.depth.size.divisible_by(c.bk) and down.loader.is_async and across.loader.is_async
        until = None if exact else end

        def copy(stage: Index, k: Index) -> list[Store]:
            return [*down.loader.begin(stage, row, k, until, thread, whole),
                    *across.loader.begin(stage, column, k, until, thread, whole)]

        ring = StageRing(kernel, c.stages, steps, copy, bounded=exact)

        def body(step: Index, *sums: ir.Value) -> list[ir.Value]:
            return ring.step(step, lambda stage: self._multiply(down, across, stage, sums))

        ring.fill()
        zeros = [self.product.zero(across.run)] * (c.tm * across.count)
        found = loop(0, steps.end, 1, body, zeros, kernel.index)
        ring.drain()
        return found

    def _thread_place(self, thread: Index) -> tuple[Index, Index]:
        """Row and column of the thread among the block's threads."""
        down, across = self.config.bm // self.config.tm, self.config.bn // self.config.tn
        wide = WARP // _WARP_ROWS
        if down % _WARP_ROWS or across % wide:
            return thread // across, thread % across
        warp, lane = thread // WARP, thread % WARP
        warps = across // wide
        return (warp // warps) * _WARP_ROWS + lane // wide, (warp % warps) * wide + lane % wide

    # -- products

    def _multiply(self, down: _ThreadTile, across: _ThreadTile, stage: Index, sums: tuple[ir.Value, ...]) -> list[ir.Value]:
        """Adds the products of one step; sums[i * across.count + j] is of row i and the run j of columns."""
        found = list(sums)
        depth = min(self.config.fragment_k, self.config.bk)
        left, right = down.window(stage), across.window(stage)
        for k in range(0, self.config.bk, depth):
            a = [self._fragment(down, self.plan.row_side, g, left, k, depth) for g in range(down.count)]
            rows = [[x for run in a for x in _lanes(run[kk])] for kk in range(depth)]
            for j in range(across.count):
                b = self._fragment(across, self.plan.column_side, j, right, k, depth)
                for kk in range(depth):
                    for i, a_one in enumerate(rows[kk]):
                        at = i * across.count + j
                        factor = splat_to(a_one, across.run)
                        x, y = (factor, b[kk]) if self.plan.row_side == LHS else (b[kk], factor)
                        found[at] = self.product.multiply_add(x, y, found[at])
        return found

    def _fragment(self, side: _ThreadTile, which: int, number: int, window: GpuMemory, k: int, depth: int) -> list[ir.Value]:
        """Run `number` of the thread's elements of a tile, as what is multiplied, for each of `depth` positions of k."""
        stage, first = Index(0), Index(number * side.every)
        if side.loader.deep:
            return _lanes(self.product.factor(which, window.load([stage, first, Index.ramp(k, depth)])))
        runs = [[stage, Index(k + i), Index.ramp(first, side.run)] for i in range(depth)]
        return [self.product.factor(which, window.load(at)) for at in runs]

    # -- results

    def _keep(self, batch: Index, row: Index, column: Index, down: _ThreadTile, across: _ThreadTile,
              sums: list[ir.Value]) -> None:
        """The sums as a part of k."""
        assert self.split is not None
        for i, at in enumerate(self._own_rows(row, down)):
            for j in range(across.count):
                self.split.keep(batch, at, column + across.position(j), sums[i * across.count + j])

    @staticmethod
    def _own_rows(row: Index, down: _ThreadTile) -> list[Index]:
        return [row + down.position(g) + i for g in range(down.count) for i in range(down.run)]

    def _store(self, result: Result, row: Index, column: Index, down: _ThreadTile, across: _ThreadTile,
               sums: list[ir.Value]) -> None:
        c, rows = self.config, self._own_rows(row, down)
        scattered = across.run == 1 and c.tn > 1
        if c.tm * across.count <= _FRAGMENT or not (self.plan.heavy or scattered):
            width = result.width(min(c.vec, across.run))
            for i, at in enumerate(rows):
                for j in range(across.count):
                    value, first = sums[i * across.count + j], column + across.position(j)
                    for lane in range(0, across.run, width):
                        result.store(at, first + lane, _part(value, lane, width))
            return
        self._staged(result, row, column, down, across, sums)

    def _staged(self, result: Result, row: Index, column: Index, down: _ThreadTile, across: _ThreadTile,
                sums: list[ir.Value]) -> None:
        """Through shared memory, over the tiles: stores are wide though a thread's columns lie apart, and the code of a costly
        epilogue is there once, in a loop."""
        c, kernel = self.config, self.kernel
        tile = kernel.shared(self.view.product.accumulator, [c.bm, c.bn + _FRAGMENT], at=0)
        kernel.barrier()
        for g in range(down.count):
            for i in range(down.run):
                for j in range(across.count):
                    at = [down.position(g) + i, Index.ramp(across.position(j), across.run)]
                    tile.store(sums[(g * down.run + i) * across.count + j], at)
        kernel.barrier()
        width = result.width(min(c.vec, c.bn))
        per_row, thread = c.bn // width, kernel.thread()
        total = c.bm * per_row

        def chunk(number: Index) -> None:
            y, x = number // per_row, (number % per_row) * width
            result.store(row + y, column + x, tile.load([y, Index.ramp(x, width)]))

        loop(thread, total, kernel.threads, chunk, index=kernel.index)


def _lanes(value: ir.Value) -> list[ir.Value]:
    """The elements of a vector, or the scalar itself."""
    if lanes_of(value) == 1:
        return [value]
    return [vector.extract(value, [], [i]) for i in range(lanes_of(value))]


def _part(value: ir.Value, first: int, width: int) -> ir.Value:
    """Some neighbouring lanes of a vector."""
    if width == lanes_of(value):
        return value
    if width == 1:
        return vector.extract(value, [], [first])
    return vector.shuffle(value, value, list(range(first, first + width)))
