"""Family `gpu_rows`: row reductions and the elementwise work around them, a group of threads on each row.

Threads take vectors of columns in turn. A sweep ends with the threads of a row joining what they have in a fixed order. Rows that
fit are read once and stay in registers. Threads of rows beyond the last compute the last row again and store nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from passes.emit import Memory, all_of, lanes_of, loop
from passes.families.gpu_join import join_threads
from passes.families.row_emitter import At, RowEmitter
from passes.families.row_program import RowProgram
from passes.families.row_reduction import Combiner
from passes.gpu_kernel import GpuKernel, Grid
from passes.gpu_space import Point, Space
from passes.index import Index
from passes.mlir import ir, vector
from passes.spaces.gpu_rows import GpuRowsConfig
from runtime.shape import Expr


def emit(kernel: GpuKernel, config: GpuRowsConfig) -> None:
    """The whole kernel; ValueError when the region is no program over rows and columns."""
    program = RowProgram(kernel.ops(), kernel.results, kernel.shapes)
    kernel.launch(config.threads, lambda: _Rows(kernel, program, config).emit())


class _Rows(RowEmitter):
    def __init__(self, kernel: GpuKernel, program: RowProgram, config: GpuRowsConfig) -> None:
        super().__init__(kernel, program, config.vec)
        self.gpu, self.config = kernel, config
        rows, columns = (Space(kernel, axes, program.frame) for axes in (program.rows, program.columns))
        self.lanes = self._lanes(columns)
        columns.guard(self.lanes)
        self.rows, self.columns = rows, columns.assume_multiple(self.lanes)
        self.thread = kernel.thread()
        self.live: ir.Value | bool = True
        self.first: ir.Value | bool = True

    def _lanes(self, columns: Space) -> int:
        lanes = self.config.vec
        while lanes > 1 and not columns.may_be_multiple(lanes):
            lanes //= 2
        return lanes

    def emit(self) -> Grid:
        c, kernel = self.config, self.gpu
        together = c.threads // c.per_row
        blocks = self.rows.size.ceildiv(together)
        kernel.bound(self.rows.size)
        kernel.bound(self.columns.size)
        row = kernel.block_id() * together + self.thread // c.per_row
        self.live = row.lt(self.rows.extent)
        self.column = (self.thread % c.per_row) * self.lanes
        self.first = True if c.per_row == 1 else self.column.eq(0)
        at = self._frame(self.rows.point(row.min(self.rows.extent - 1)))
        chunks = self._held_chunks() if c.held else []
        with self.ev.kept():
            for number in range(len(self.program.sweeps)):
                totals = self._held(number, at, chunks) if c.held else self._looped(number, at)
                self.finish(number, at, totals)
        return blocks, Expr.of(1), Expr.of(1)

    def _frame(self, *points: Point) -> list[Index]:
        at = [Index(0)] * len(self.sizes)
        for point in points:
            for axis, c in point.items():
                at[axis] = c
        return at

    def _with(self, at: At, column: Index) -> list[Index]:
        here = list(at)
        for axis, c in self.columns.point(Index.ramp(column, self.lanes)).items():
            here[axis] = c
        return here

    # -- sweeps

    def _held_chunks(self) -> list[tuple[Index, ir.Value | None]]:
        """Columns of each vector that a thread holds, and the condition under which it is in the row."""
        c, size = self.config, self.columns.size
        step = c.per_row * self.lanes
        capacity = c.held * step
        self.gpu.require((size - capacity).maximum(0), f"rows of at most {capacity} columns")
        count = c.held if size.constant is None else -(-size.constant // step)
        found: list[tuple[Index, ir.Value | None]] = []
        for i in range(count):
            column = self.column + i * step
            whole = size.constant is not None and (i + 1) * step <= size.constant
            inside = True if whole else column.lt(self.columns.extent)
            found.append((column, None if isinstance(inside, bool) else inside))
        return found

    def _held(self, number: int, at: At, chunks: Sequence[tuple[Index, ir.Value | None]]) -> list[ir.Value]:
        joins = self.joins(number)
        sums = [c.neutral(self.lanes) for c in joins]
        for column, inside in chunks:
            sums = self.step(number, self._with(at, column), inside, sums, held=True)
        return self._join(joins, sums)

    def _looped(self, number: int, at: At) -> list[ir.Value]:
        if not self.program.sweeps[number].walks:
            return []
        c, joins, extent = self.config, self.joins(number), self.columns.extent
        step = c.per_row * self.lanes
        wide = step * c.unroll

        def steps(count: int, first: Index, *sums: ir.Value) -> list[ir.Value]:
            found = list(sums)
            for i in range(count):
                column = (first + i * step).known_multiple(self.lanes)
                found = self.step(number, self._with(at, column), None, found)
            return found

        sums = [c.neutral(self.lanes) for c in joins]
        whole = Index(0)
        if c.unroll > 1:
            whole = extent - extent % wide
            sums = loop(self.column, whole, wide, lambda i, *s: steps(c.unroll, i, *s), sums, self.index)
        sums = loop(self.column + whole, extent, step, lambda i, *s: steps(1, i, *s), sums, self.index)
        return self._join(joins, sums)

    def _join(self, joins: Sequence[Combiner], sums: Sequence[ir.Value]) -> list[ir.Value]:
        """The sums of all lanes and threads of the row."""
        found = []
        for c, value in zip(joins, sums, strict=True):
            lanes = [vector.extract(value, [], [i]) for i in range(lanes_of(value))] if lanes_of(value) > 1 else [value]
            found.append(join_threads(self.gpu, c, c.join(lanes), self.config.per_row, self.thread))
        return found

    # -- stores

    def store(self, memory: Memory, element: ir.Value, coords: Sequence[Index], mask: ir.Value | None) -> None:
        """Threads of rows that there are."""
        self._store(memory, element, coords, all_of([mask, self.live]))

    def store_once(self, memory: Memory, element: ir.Value, coords: Sequence[Index], mask: ir.Value | None) -> None:
        """The first thread of a row."""
        self._store(memory, element, coords, all_of([mask, self.live, self.first]))

    def _store(self, memory: Memory, element: ir.Value, coords: Sequence[Index], mask: ir.Value | bool) -> None:
        memory.store(element, coords, None if isinstance(mask, bool) else mask)
