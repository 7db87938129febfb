"""Row reductions with one row per lane: vectors along a row axis of unit stride, a loop along the columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from passes.emit import lane_mask, loop, when
from passes.families.host_row_emitter import HostRowEmitter
from passes.host_kernel import Grid
from passes.index import Index, delinearize
from passes.mlir import ir, maps_of, position
from runtime.shape import Expr


class RowLanes(HostRowEmitter):
    """`unroll` vectors of rows side by side, an accumulator each; the last rows one masked vector at a time."""

    def emit(self, begin: Index, end: Index, workspace: ir.Value) -> Grid:
        c, program = self.config, self.program
        if not program.rows:
            raise ValueError("the region has no row axis to put on lanes")
        self.axis = self._lane_axis()
        wide = c.lanes * c.unroll
        others = [a for a in program.rows if a != self.axis]
        length = program.frame[self.axis]
        pieces = length.ceildiv(wide)
        total = pieces
        for a in others:
            total = total * program.frame[a]
        columns = Expr.of(wide)
        for a in program.columns:
            columns = columns * program.frame[a]
        self.base = Index(0)
        self.keep_values(workspace, columns, lambda at: self._column(at) * wide + (at[self.axis] - self.base))
        count, extent = self.ev.emit(pieces), self.sizes[self.axis]

        def piece(number: Index) -> None:
            at = [Index(0)] * len(self.sizes)
            for a, x in zip(others, delinearize(number // count, [self.sizes[a] for a in others]), strict=False):
                at[a] = x
            first = (number % count) * wide
            self.base = first

            def whole() -> None:
                self._chunk([self._with(at, self.axis, Index.ramp(first + k * c.lanes, c.lanes)) for k in range(c.unroll)], None)

            def rest() -> None:
                def vector(i: Index) -> None:
                    self._chunk([self._with(at, self.axis, Index.ramp(i, c.lanes))], lane_mask(extent - i, c.lanes, self.index))

                loop(first, extent, c.lanes, vector, index=self.index)

            when((first + wide).le(extent), whole, rest)

        hi = (end * c.block).min(self.ev.emit(total))
        loop(begin * c.block, hi, 1, piece, index=self.index)
        return Grid(total.ceildiv(c.block), self.workspace)

    def _lane_axis(self) -> int:
        """The row axis that most operands have unit stride along; the last one when none has."""
        votes = dict.fromkeys(self.program.rows, 0)
        for op, axes in self.program.loops.items():
            for value, m in zip(op.operands, maps_of(op), strict=True):
                memory = self.ev.memories.get(value)
                if memory is None:
                    continue
                for e, stride in zip(m.results, memory.strides, strict=True):
                    at = position(e)
                    if stride.const == 1 and at is not None and axes[at] in votes:
                        votes[axes[at]] += len(m.results)
        return max(reversed(self.program.rows), key=lambda a: votes[a])

    def _column(self, at: Sequence[Index]) -> Index:
        linear = Index(0)
        for a in self.program.columns:
            linear = linear * self.sizes[a] + at[a]
        return linear

    def _with(self, at: Sequence[Index], axis: int, coordinate: Index) -> list[Index]:
        here = list(at)
        here[axis] = coordinate
        return here

    def _chunk(self, places: Sequence[list[Index]], mask: ir.Value | None) -> None:
        """All sweeps of the rows at `places`, one vector each."""
        self.forget()
        with self.ev.kept():
            for number in range(len(self.program.sweeps)):
                joins = self.joins(number)
                ends = self._walk(number, places, mask) if self.program.sweeps[number].walks else []
                for k, at in enumerate(places):
                    self.finish(number, at, ends[k * len(joins) : (k + 1) * len(joins)], mask)

    def _walk(self, number: int, places: Sequence[list[Index]], mask: ir.Value | None) -> list[ir.Value]:
        joins = self.joins(number)

        def nest(columns: Sequence[int], fixed: dict[int, Index]) -> Callable[..., list[ir.Value]]:
            def body(i: Index, *carried: ir.Value) -> list[ir.Value]:
                at = {**fixed, columns[0]: i}
                if len(columns) > 1:
                    inner = nest(columns[1:], at)
                    return loop(0, self.sizes[columns[1]], 1, inner, carried, self.index)
                made: list[ir.Value] = []
                for k, place in enumerate(places):
                    here = [at.get(a, x) for a, x in enumerate(place)]
                    made += self.step(number, here, mask, list(carried[k * len(joins) : (k + 1) * len(joins)]))
                return made

            return body

        columns = self.program.columns
        start = [c.neutral(self.lanes) for _ in places for c in joins]
        return loop(0, self.sizes[columns[0]], 1, nest(columns, {}), start, self.index)
