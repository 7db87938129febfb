"""Row reductions with one row per lane: vectors along a row axis of unit stride, a loop along the columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.codegen.emit import lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.families.host.host_row_emitter import HostRowEmitter
from tilewright.passes.mlir import ir, maps_of, position
from tilewright.passes.spaces.host.host_rows import HostRowsConfig
from tilewright.runtime.shape import Expr


def lane_axis(frame: KernelFrame, program: RowProgram) -> int:
    """The row axis that most operands have unit stride along; the last one when none has."""
    if not program.rows:
        raise ValueError("the region has no row axis to put on lanes")
    votes = dict.fromkeys(program.rows, 0)
    for op, axes in program.loops.items():
        for value, m in zip(op.operands, maps_of(op), strict=True):
            unit = frame.unit_axis(value)
            at = None if unit is None else position(list(m.results)[unit])
            if at is not None and axes[at] in votes:
                votes[axes[at]] += len(m.results)
    return max(reversed(program.rows), key=lambda a: votes[a])


def tile_lanes(frame: KernelFrame, program: RowProgram, config: HostRowsConfig, tiler: Tiler) -> None:
    """Units of some vectors of rows at a point of the other row axes, `block` of them at once."""
    axis, wide = lane_axis(frame, program), config.lanes * config.unroll
    others = [a for a in program.rows if a != axis]

    def parts(place: list[Index]) -> dict[str, Part]:
        return {**{f"d{a}": Part(x) for a, x in zip(others, place, strict=False)},
                "lanes": tiler.span(place[-1], wide, program.frame[axis])}

    counts = [*(program.frame[a] for a in others), program.frame[axis].ceildiv(wide)]
    tiler.loop(counts, parts, program.cut({**{f"d{a}": (a,) for a in others}, "lanes": (axis,)}), config.block)


class RowLanes(HostRowEmitter):
    """`unroll` vectors of rows side by side, an accumulator each; the last rows one masked vector at a time."""

    def emit(self, begin: Index, end: Index, workspace: ir.Value) -> Grid:
        c, program = self.config, self.program
        self.axis = lane_axis(self.kernel, program)
        wide = c.lanes * c.unroll
        others = [a for a in program.rows if a != self.axis]
        columns = Expr.of(wide)
        for a in program.columns:
            columns = columns * program.frame[a]
        self.base = Index(0)
        self.keep_values(workspace, columns, lambda at: self._column(at) * wide + (at[self.axis] - self.base))
        units = self.kernel.loops[0]
        extent, unit = self.sizes[self.axis], units.numbers(self.ev)

        def piece(number: Index) -> None:
            here = unit(number)
            at = [here.first(f"d{a}") if a in others else Index(0) for a in range(len(self.sizes))]
            first = here.first("lanes")
            self.base = first

            def whole() -> None:
                self._chunk([self._with(at, self.axis, Index.ramp(first + k * c.lanes, c.lanes)) for k in range(c.unroll)], None)

            def rest() -> None:
                def vector(i: Index) -> None:
                    self._chunk([self._with(at, self.axis, Index.ramp(i, c.lanes))], lane_mask(extent - i, c.lanes, self.index))

                loop(first, extent, c.lanes, vector, index=self.index)

            when((first + wide).le(extent), whole, rest)

        hi = (end * units.block).min(self.ev.emit(units.total))
        loop(begin * units.block, hi, 1, piece, index=self.index)
        return Grid(self.workspace)

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
