"""Sums down the rows in parts, and what is made of each element, by columns: a work unit has some vectors of columns, all parts.

A part is summed up in registers and written once, in the same order as by units of a part each (host_row_parts.py), so the bits
are the same. What is read stays in the caches of the thread that has these columns, and so do the parts. Where the stride from a
part to the next is 0 they are joined meanwhile, in the order that a kernel of its own has.

A thread that has all columns may read rows from end to end instead (held, host_part_stream.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.codegen.emit import all_of, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.families.host.host_part_stream import PartStream
from tilewright.passes.families.host.host_row_emitter import HostRowEmitter, are_joined
from tilewright.passes.families.row_emitter import At, Store
from tilewright.passes.mlir import arith, ir
from tilewright.passes.spaces.host.host_rows import HostRowsConfig


def tile_columns(program: RowProgram, config: HostRowsConfig, tiler: Tiler) -> None:
    """Units of some vectors of columns."""
    [axis], wide = program.columns, config.lanes * config.unroll
    extent = program.frame[axis]

    def parts(place: list[Index]) -> dict[str, Part]:
        return {"lanes": tiler.span(place[0], wide, extent)}

    tiler.loop([extent.ceildiv(wide)], parts, program.cut({"lanes": program.columns}))


class PartColumns(HostRowEmitter):
    """`unroll` vectors of columns side by side, an accumulator each; the last columns one masked vector at a time."""

    def emit(self, begin: Index, end: Index, workspace: ir.Value) -> Grid:
        program, c = self.program, self.config
        if len(program.columns) != 1 or program.has_row_work or any(p.whole for p in program.parts.values()):
            raise ValueError("wanted sums down the rows of one axis of columns, and no work on rows")
        if c.held and program.sweeps[0].results:
            raise ValueError("held: wanted sums down the rows alone, without what is made of each element")
        [axis], wide = program.columns, c.lanes * c.unroll
        extent = self.sizes[axis]

        def unit(number: Index) -> None:
            first = number * wide

            def rest() -> None:
                loop(first, extent, c.lanes, lambda i: self._parts([Index.ramp(i, c.lanes)],
                                                                  lane_mask(extent - i, c.lanes, self.index)), index=self.index)

            when((first + wide).le(extent),
                 lambda: self._parts([Index.ramp(first + k * c.lanes, c.lanes) for k in range(c.unroll)], None), rest)

        def across() -> None:
            loop(begin, end, 1, unit, index=self.index)

        if not c.held:
            across()
        else:
            stream = PartStream(self.host, program, c)
            whole = all_of([begin.eq(0), extent.le(end * wide), stream.is_far()])
            when(whole, lambda: stream.emit(workspace), across)
            self.workspace = stream.workspace
        return Grid(self.workspace, joins="all")

    def _parts(self, vectors: Sequence[Index], mask: ir.Value | None) -> None:
        """All parts of these columns."""
        size, rows = self.program.part_rows, self.sizes[self.program.rows[0]]
        memories = [self.part_memory(op) for op in self.program.sweeps[0].parts]
        added = [are_joined(memory) for memory, _ in memories]

        def part(number: Index, *before: ir.Value) -> list[ir.Value]:
            self.part = number
            made = self._rows(number * size, (number * size + size).min(rows), vectors, mask)
            for k, column in enumerate(vectors):
                for n, (op, (memory, joined)) in enumerate(zip(self.program.sweeps[0].parts, memories, strict=True)):
                    at = k * len(memories) + n
                    made[at] = arith.select(added[n], joined(made[at], before[at]), made[at])
                    memory.store(made[at], self.part_coords(op, self._at({}, column)), mask)
            return made

        start = [joined.start(self.lanes) for _ in vectors for _, joined in memories]
        loop(0, (rows + (size - 1)) // size, 1, part, start, self.index)

    def _rows(self, lo: Index, hi: Index, vectors: Sequence[Index], mask: ir.Value | None) -> list[ir.Value]:
        """What rows [lo, hi) of the first row axis add up to."""
        neutral = [self.part_memory(op)[1].neutral(self.lanes) for op in self.program.sweeps[0].parts]

        def nest(axes: Sequence[int], fixed: dict[int, Index]) -> Callable[..., list[ir.Value]]:
            def body(i: Index, *carried: ir.Value) -> list[ir.Value]:
                at = {**fixed, axes[0]: i}
                if len(axes) > 1:
                    return loop(0, self.sizes[axes[1]], 1, nest(axes[1:], at), carried, self.index)
                left, made = iter(carried), list[ir.Value]()
                for column in vectors:
                    with self.ev.kept():
                        here = self._at(at, column)
                        made += [joined(value, next(left)) for _, _, joined, value in self.part_values(0, here, mask)]
                        self._results(here, mask)
                return made

            return body

        return loop(lo, hi, 1, nest(self.program.rows, {}), neutral * len(vectors), self.index)

    def _results(self, at: At, mask: ir.Value | None) -> None:
        """Stores what is made of the elements there, after all of it is made: it may lie over them."""
        program, stores = self.program, list[Store]()
        for n in program.sweeps[0].results:
            coords = self.coords(program.result_places[n], at)
            stores.append((self.kernel.outputs[n], coords, self.ev.element(program.results[n], coords, mask), mask))
        for memory, coords, element, lanes in stores:
            self.store(memory, element, coords, lanes)

    def _at(self, rows: dict[int, Index], column: Index) -> list[Index]:
        [axis] = self.program.columns
        return [column if a == axis else rows.get(a, Index(0)) for a in range(len(self.sizes))]
