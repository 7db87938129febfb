"""Rows with reductions in parts on a GPU: a block of threads passes over the rows of a part, one after the other.

A thread has the same columns of every row. So what a part has so far is its own: in registers where rows fit these, else where
the result lies. Totals over the columns of several rows are joined once, at the end, where rows need none of their own. The order
of every sum follows from the part's size and the configuration; another kernel joins the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.codegen.emit import Memory, loop, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.gpu.gpu_rows_of_threads import RowsOfThreads
from tilewright.passes.families.row_emitter import At, Store
from tilewright.passes.families.row_reduction import Combiner, combiners, pick
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.gpu.gpu_rows import GpuRowsConfig
from tilewright.runtime.limits import WARP
from tilewright.runtime.shape import Expr


class PartRows(RowsOfThreads):
    """The number of a part is that of its block. carried: (operation, chunk of columns) -> what the part has so
    far, where it is in registers; chunk: the one that a step is at."""

    def __init__(self, kernel: GpuKernel, program: RowProgram, config: GpuRowsConfig) -> None:
        super().__init__(kernel, program, config)
        self.carried: dict[tuple[ir.Operation, int], ir.Value] | None = None
        self.chunk = 0
        self.along = [op for op in program.parts if not program.parts[op].whole]  # whose parts have columns

    def emit(self) -> Grid:
        kernel, program = self.gpu, self.program
        kernel.bound(self.rows.size)
        kernel.bound(self.columns.size)
        self.part, self.row = kernel.block_id(), Index(0)
        self.column = self.thread * self.lanes
        self.first = self.column.eq(0)
        axis, *others = program.rows
        inner = Index(1)
        for a in others:
            inner = inner * self.sizes[a]
        size = program.part_rows
        low, high = self.part * size, (self.part * size + size).min(self.sizes[axis])
        chunks = self._kept_chunks() if self.config.vectors_in_registers else []
        self._clear(bool(chunks))
        if program.has_row_work:
            self._row_by_row(low * inner, high * inner, chunks)
        else:
            self._stream(low * inner, high * inner, chunks)
        return self._blocks(), Expr.of(1), Expr.of(1)

    def _row_by_row(self, low: Index, high: Index, chunks: Sequence[tuple[Index, ir.Value | None]]) -> None:
        """Every sweep of a row, then the next row."""
        def row(number: Index, *sums: ir.Value) -> list[ir.Value]:
            self.forget()
            at = self._frame(self.rows.point(number))
            self._take(chunks, sums)
            with self.ev.kept():
                for sweep in range(len(self.program.sweeps)):
                    whole = Index(0), self.columns.extent
                    self.finish(sweep, at, self._unrolled(sweep, at, chunks) if chunks else self._looped(sweep, at, *whole))
            if self.config.per_row > WARP and any(s.reductions for s in self.program.sweeps):
                self.gpu.barrier()  # before the next row's totals lie where this one's did
            return self._given(chunks)

        self._store_parts(chunks, loop(low, high, 1, row, self._neutral(chunks), self.index))

    def _stream(self, low: Index, high: Index, chunks: Sequence[tuple[Index, ir.Value | None]]) -> None:
        """Rows that need nothing of their own: totals over columns are carried from row to row."""
        joins = self.joins(0)
        count = len(joins)

        def row(number: Index, *sums: ir.Value) -> list[ir.Value]:
            at = self._frame(self.rows.point(number))
            self._take(chunks, sums[count:])
            totals = list(sums[:count])
            if chunks:
                for self.chunk, (column, inside) in enumerate(chunks):
                    totals = self.step(0, self._with(at, column), inside, totals)
            else:
                step = self.config.per_row * self.lanes
                totals = loop(self.column, self.columns.extent, step,
                              lambda i, *s: self.step(0, self._with(at, i.known_multiple(self.lanes)), None, list(s)), totals,
                              self.index)
            return [*totals, *self._given(chunks)]

        starts = [*(c.neutral(self.lanes) for c in joins), *self._neutral(chunks)]
        ends = loop(low, high, 1, row, starts, self.index)
        self._store_parts(chunks, ends[count:])
        totals = self._join(joins, ends[:count])
        for op, total in zip(self.program.sweeps[0].reductions, totals, strict=True):
            self.add_total(op, [], total)

    def _unrolled(self, number: int, at: At, chunks: Sequence[tuple[Index, ir.Value | None]]) -> list[ir.Value]:
        joins = self.joins(number)
        sums = [c.neutral(self.lanes) for c in joins]
        for self.chunk, (column, inside) in enumerate(chunks):
            sums = self.step(number, self._with(at, column), inside, sums, held=True)
        return self._join(joins, sums)

    # -- what a part has so far

    def _neutral(self, chunks: Sequence[object]) -> list[ir.Value]:
        return [combiners(op)[0].neutral(self.lanes) for op in self.along for _ in chunks]

    def _take(self, chunks: Sequence[object], values: Sequence[ir.Value]) -> None:
        """From here on, parts are these values."""
        places = [(op, n) for op in self.along for n in range(len(chunks))]
        self.carried = dict(zip(places, values, strict=True)) if chunks else None

    def _given(self, chunks: Sequence[object]) -> list[ir.Value]:
        return [] if self.carried is None else [self.carried[op, n] for op in self.along for n in range(len(chunks))]

    def _clear(self, in_registers: bool) -> None:
        """Parts that lie in memory start from what changes nothing."""
        for op in self.program.parts:
            memory, joined = self.part_memory(op)
            if self.program.parts[op].whole:
                when(self.first, partial(memory.store, joined.narrow(joined.neutral()), [self.part]))
            elif not in_registers:
                def store(column: Index, op: ir.Operation = op, memory: Memory = memory, joined: Combiner = joined) -> None:
                    at = self._with(self._frame(), column.known_multiple(self.lanes))
                    memory.store(joined.narrow(joined.neutral(self.lanes)), self.part_coords(op, at))

                loop(self.column, self.columns.extent, self.config.per_row * self.lanes, store, index=self.index)

    def _store_parts(self, chunks: Sequence[tuple[Index, ir.Value | None]], values: Sequence[ir.Value]) -> None:
        """What registers have of each part, where the part lies."""
        left = iter(values)
        for op in self.along if chunks else ():
            memory, joined = self.part_memory(op)
            for column, inside in chunks:
                at = self._with(self._frame(), column)
                memory.store(joined.narrow(next(left)), self.part_coords(op, at), inside)

    def part_stores(self, number: int, at: At, mask: ir.Value | None) -> list[Store]:
        found: list[Store] = []
        for op, memory, joined, value in self.part_values(number, at, mask):
            if self.carried is not None:
                before = self.carried[op, self.chunk]
                self.carried[op, self.chunk] = pick(mask, joined(value, before), before)
                continue
            coords = self.part_coords(op, at)
            found.append((memory, coords, joined.narrow(joined(value, joined.widen(memory.load(coords, mask)))), mask))
        return found

    def add_total(self, op: ir.Operation, at: At, total: ir.Value) -> None:
        memory, joined = self.part_memory(op)

        def add() -> None:
            memory.store(joined.narrow(joined(total, joined.widen(memory.load([self.part])))), [self.part])

        when(self.first, add)
