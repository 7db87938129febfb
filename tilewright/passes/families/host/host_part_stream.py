"""Sums down the rows in parts by one thread, which reads rows from end to end and adds them up in the first cache.

A CPU reads ahead of what lies in one piece: on Zen 5 a line out of the second cache takes 1.35 cycles then, and 2 where columns
are read row by row, however many of them and however early they are asked for. On Zen 4, which computes on a line in two
halves, it takes longer than by columns. The sums of a part lie in the workspace, in whole lines, and are added to in the order
that units of columns have, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.codegen.emit import Memory, byte_width, constant, integer_type, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host.host_row_emitter import HostRowEmitter, are_joined
from tilewright.passes.families.row_emitter import At
from tilewright.passes.mlir import arith, ir
from tilewright.passes.spaces.host.host_rows import HostRowsConfig

_NEAR = 48 << 10  # bytes read that such a cache holds, nearly: 16 rows of 768 columns take three times as long as by columns
_BESIDE = 4  # vectors of a step


class PartStream(HostRowEmitter):
    """One axis of columns; nothing but parts."""

    def __init__(self, kernel: HostKernel, program: RowProgram, config: HostRowsConfig) -> None:
        super().__init__(kernel, program, config)
        [self._axis] = program.columns
        self._parts = program.sweeps[0].parts
        self._memories = [self.part_memory(op) for op in self._parts]
        self._bytes = sum(byte_width(memory.stored) for memory, _ in self._memories)  # of one column

    def is_far(self) -> ir.Value | bool:
        """Is more read than a first cache holds?"""
        read = Index(sum(byte_width(self.ev.memories[value].stored) for value in self.program.first_reads()) or self._bytes)
        for size in self.sizes:
            read = read * size
        return Index(_NEAR).lt(read)

    def emit(self, workspace: ir.Value) -> None:
        """All parts."""
        size, rows = self.program.part_rows, self.sizes[self.program.rows[0]]
        length = self.program.frame[self._axis].ceildiv(self.lanes) * self.lanes
        self.workspace = length * self._bytes
        sums, begin = list[Memory](), Index(0)
        for memory, _ in self._memories:
            pointer = self.host.offset_pointer(workspace, begin, 1)
            sums.append(Memory(pointer, memory.element, (self.ev.emit(length),), (Index(1),), self.index))
            begin = begin + self.ev.emit(length) * byte_width(memory.stored)

        def part(number: Index) -> None:
            self.part = number
            self._columns(lambda column, _: self._clear(sums, column))
            lo = number * size
            loop(lo, (lo + size).min(rows), 1, lambda i: self._rows(sums, {self.program.rows[0]: i}), index=self.index)
            self._columns(lambda column, mask: self._end(sums, column, mask))

        loop(0, (rows + (size - 1)) // size, 1, part, index=self.index)

    def _columns(self, step: Callable[[Index, ir.Value | None], None]) -> None:
        """A step at each vector of columns, of the last one with a mask."""
        extent, lanes = self.sizes[self._axis], self.lanes
        full, wide = extent - extent % lanes, extent - extent % (_BESIDE * lanes)

        def several(i: Index) -> None:
            for k in range(_BESIDE):
                step(Index.ramp(i + k * lanes, lanes), None)

        loop(0, wide, _BESIDE * lanes, several, index=self.index)
        loop(wide, full, lanes, lambda i: step(Index.ramp(i, lanes), None), index=self.index)
        last = lane_mask(extent - full, lanes, self.index)
        when(full.lt(extent), lambda: step(Index.ramp(full, lanes), last))

    def _clear(self, sums: Sequence[Memory], column: Index) -> None:
        for to, (_, joined) in zip(sums, self._memories, strict=True):
            to.store(joined.neutral(self.lanes), [column])

    def _rows(self, sums: Sequence[Memory], at: dict[int, Index]) -> None:
        """Adds the rows there, whose other axes are walked in order."""
        left = self.program.rows[len(at):]
        if left:
            loop(0, self.sizes[left[0]], 1, lambda i: self._rows(sums, {**at, left[0]: i}), index=self.index)
            return

        def add(column: Index, mask: ir.Value | None) -> None:
            with self.ev.kept():
                here = self._at(at, column)
                made = [joined(value, to.load([column]))
                        for to, (_, _, joined, value) in zip(sums, self.part_values(0, here, mask), strict=True)]
            for to, value in zip(sums, made, strict=True):
                to.store(value, [column])

        self._columns(add)

    def _end(self, sums: Sequence[Memory], column: Index, mask: ir.Value | None) -> None:
        """Stores what a part has, or adds it to the parts before."""
        flag = self.part.eq(0)
        first = constant(integer_type(1), int(flag)) if isinstance(flag, bool) else flag
        for op, made, (memory, joined) in zip(self._parts, sums, self._memories, strict=True):
            value, place = made.load([column]), self.part_coords(op, self._at({}, column))
            before = arith.select(first, joined.start(self.lanes), memory.load(place, mask))
            memory.store(arith.select(are_joined(memory), joined(value, before), value), place, mask)

    def _at(self, rows: dict[int, Index], column: Index) -> At:
        return [column if a == self._axis else rows.get(a, Index(0)) for a in range(len(self.sizes))]
