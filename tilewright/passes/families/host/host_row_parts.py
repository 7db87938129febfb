"""Rows with reductions in parts: what a part has so far lies in the result, and each row that passes by is added to it.

A work unit is one part, so a thread touches the parts of its own units only, and their bits depend on nobody else. Where rows
need no reduction of their own, several of them go by side by side, and a part is read and written once for all of these. One
part, whose stride to the next is 0, begins with what a sum begins with: it is the sum (compiler/host/joined_parts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.passes.codegen.emit import byte_width, gep, integer_type, lane_mask, loop, when
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host.host_row_columns import RowColumns, Walk
from tilewright.passes.families.host.host_row_emitter import first_of_parts
from tilewright.passes.families.row_emitter import Accumulators, At, Store
from tilewright.passes.mlir import ir, llvm
from tilewright.runtime.limits import LINE

_AHEAD = 2048  # bytes; gradients of GELU and a bias, beyond the caches: 512 gain nothing, 1024 half as much


class RowParts(RowColumns):
    """The number of a part is that of its work unit. beside: coordinates of the rows that a step takes; carried:
    what the parts have so far, while it does."""

    beside: Sequence[At] = ()
    carried: dict[ir.Operation, ir.Value] | None = None

    def walk_units(self, begin: Index, end: Index, walk: Walk) -> None:
        size, (first, *others) = self.program.part_rows, self.program.rows
        inner = Index(1)
        for a in others:
            inner = inner * self.sizes[a]

        def unit(number: Index) -> None:
            self.part = number
            for op in self.program.parts:
                self._clear(op)
            rows = (number * size + size).min(self.sizes[first])
            self.walk_rows(number * size * inner, rows * inner, walk)

        loop(begin, end, 1, unit, index=self.index)

    def walk_rows(self, lo: Index, hi: Index, walk: Walk) -> None:
        if self.program.has_row_work or self.config.vectors:
            super().walk_rows(lo, hi, walk)
            return
        rows = self.config.rows
        whole = hi - (hi - lo) % rows
        carried = self._stream(lo, whole, rows, self.neutral(0))
        carried = self._stream(whole, hi, 1, carried) if rows > 1 else carried
        for op, total in zip(self.program.sweeps[0].reductions, self.joined(0, carried), strict=True):
            self.add_total(op, [], total)

    def _stream(self, lo: Index, hi: Index, rows: int, carried: Sequence[ir.Value]) -> list[ir.Value]:
        """So many rows a step; what is reduced over the columns as well is carried along."""
        def block(first: Index, *accumulators: ir.Value) -> list[ir.Value]:
            self.beside = [self.row_at(first + k) for k in range(rows)]
            ends = self.nest(0, list(self.beside[0]), self.program.columns[:-1], accumulators)
            self.beside = ()
            return ends

        return loop(lo, hi, rows, block, carried, self.index)

    def step(self, number: int, at: At, mask: ir.Value | None, accumulators: Accumulators, held: bool = False) -> list[ir.Value]:
        if len(self.beside) < 2:
            if not self.config.vectors:
                self._fetch_ahead(number, at)
            return super().step(number, at, mask, accumulators, held)
        parts = {op: self.part_memory(op)[0] for op in self.program.sweeps[number].parts}
        places = {op: self.part_coords(op, at) for op in parts}
        self.carried = {op: memory.load(places[op], mask) for op, memory in parts.items()}
        ends = accumulators
        for row in self.beside:
            ends = super().step(number, [row[a] if a in self.program.rows else x for a, x in enumerate(at)], mask, ends, held)
        for op, memory in parts.items():
            memory.store(self.carried[op], places[op], mask)
        self.carried = None
        return list(ends or ())

    def _fetch_ahead(self, number: int, at: At) -> None:
        """Fetches what a sweep reads and writes first some lines ahead: there is so much work on an element that the CPU itself
        sees no further than the next."""
        program, reads = self.program, self.program.first_reads()
        ahead = [(self.ev.memories[value], place, 0) for value, (place, sweep) in reads.items() if sweep == number]
        ahead += [(self.kernel.outputs[n], program.result_places[n], 1) for n in program.sweeps[number].results]
        for memory, place, writes in ahead:
            address = memory.address([c.base for c in self.coords(place, at)])
            for line in range(0, self.lanes * byte_width(memory.stored), LINE):
                llvm.intr_prefetch(gep(address, Index(_AHEAD + line).value(self.index), integer_type(8)), writes, 3, 1)

    def _clear(self, op: ir.Operation) -> None:
        """The part starts from what changes nothing."""
        memory, joined = self.part_memory(op)
        if self.program.parts[op].whole:
            memory.store(joined.neutral(), [self.part])
            return

        start = first_of_parts(memory, joined, self.lanes)

        def store(at: list[Index], mask: ir.Value | None = None) -> None:
            memory.store(start, [self.part, *at], mask)

        def nest(at: list[Index], sizes: Sequence[Index]) -> None:
            if len(sizes) > 1:
                loop(0, sizes[0], 1, lambda i: nest([*at, i], sizes[1:]), index=self.index)
                return
            full = sizes[0] - sizes[0] % self.lanes
            mask = lane_mask(sizes[0] - full, self.lanes, self.index)
            loop(0, full, self.lanes, lambda i: store([*at, Index.ramp(i, self.lanes)]), index=self.index)
            when(full.lt(sizes[0]), partial(store, [*at, Index.ramp(full, self.lanes)], mask))

        nest([], [self.sizes[a] for a in self.program.places[op.results[0]][1:] if a is not None])

    def part_stores(self, number: int, at: At, mask: ir.Value | None) -> list[Store]:
        found: list[Store] = []
        for op, memory, joined, value in self.part_values(number, at, mask):
            if self.carried is not None:
                self.carried[op] = joined(value, self.carried[op])
                continue
            coords = self.part_coords(op, at)
            found.append((memory, coords, joined(value, memory.load(coords, mask)), mask))
        return found

    def add_total(self, op: ir.Operation, at: At, total: ir.Value) -> None:
        memory, joined = self.part_memory(op)
        memory.store(joined(total, memory.load([self.part])), [self.part])
