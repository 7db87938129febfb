"""Tables of products of rows with all vectors of a pool, in the workspace: [group][book][entry][row]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.pools import Pools
from tilewright.passes.codegen.emit import Memory, constant, element_type, is_float, lanes_of, loop, vector_type
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.mlir import arith, ir, llvm, vector
from tilewright.passes.spaces.host.host_pools import VECTOR

_BESIDE = 4  # entries whose products hide the latency of each other


@dataclass(frozen=True)
class PoolTables:
    """rows: that lie side by side. pool: the vectors in f32, [book][entry][place] where rows are several, [book][place][entry] of
    one; entries are padded to whole vectors. tables: what is made, in f32, or in i32 where products are whole numbers, which f32
    holds as they are: eight of 8 by 8 bits. wide: elements of an entry of the tables, where it holds more rows than one block; 0
    where it is one. lanes: entries of one row that are multiplied at once."""

    evaluator: Evaluator
    plan: Plan
    pools: Pools
    rows: int
    pool: Memory
    tables: Memory
    wide: int = 0
    lanes: int = VECTOR

    @staticmethod
    def padded(pools: Pools, lanes: int = VECTOR) -> int:
        """Entries of a book in whole vectors."""
        return -(-pools.entries // lanes) * lanes

    @property
    def _entries(self) -> int:
        return self.padded(self.pools, self.lanes)

    def fill(self) -> None:
        """The pools as f32, with zeros for what they are padded with."""
        index, entries = self.evaluator.index_type, self._entries
        for number, book in enumerate(self.pools.books):
            source, base = self.evaluator.memories[book.pool], number * entries * VECTOR
            zero = constant(ir.F32Type.get(), 0.0, VECTOR)
            for e in range(self.pools.entries - self.pools.entries % VECTOR, entries) if self.pools.entries % VECTOR else ():
                if self.rows > 1:
                    self.pool.store(zero, [Index.ramp(Index(base + e * VECTOR), VECTOR)])
            if self.rows == 1 and self.pools.entries % self.lanes:
                for c in range(VECTOR):
                    self.pool.store(constant(ir.F32Type.get(), 0.0, self.lanes),
                                    [Index.ramp(Index(base + (c + 1) * entries - self.lanes), self.lanes)])

            def entry(s: Index, source: Memory = source, base: int = base) -> None:
                value = _as_f32(source.load([s, Index.ramp(Index(0), VECTOR)]))
                if self.rows > 1:
                    self.pool.store(value, [Index.ramp(s * VECTOR + base, VECTOR)])
                    return
                for c in range(VECTOR):
                    self.pool.store(vector.extract(value, [], [c]), [s + (base + c * entries)])

            loop(0, self.pools.entries, 1, entry, index=index)

    def load(self, group: Index, book: int, entry: Index, row: Index | int = 0) -> ir.Value:
        """The products of the rows, from number `row` of an entry on, with a vector of a book."""
        place = (group * len(self.pools.books) + book) * self._entries + entry
        return self.tables.load([Index.ramp(place * (self.wide or self.rows) + row, self.rows)])

    def make(self, points: Sequence[Loops], group: Index, row: Index | int = 0) -> None:
        """The table of a group of the piece, of rows from number `row` of the entries on. points: of the rows, with a run of the
        channels."""
        if self.rows == 1:
            books, entries = len(self.pools.books), self._entries
            self.of_row(points[0], lambda book, s, total: self._store(
                total, [Index.ramp((group * books + book) * entries + s, VECTOR)]))
            return
        values = [self._values(point) for point in points]
        for book in range(len(self.pools.books)):
            self._of_rows(transposed(values), group, book, row)

    def _values(self, point: Loops) -> ir.Value:
        """The eight values of a row at a group, as they are multiplied."""
        view, which = self.plan.view, self.plan.narrow
        value = self.evaluator.element(view.operand(which), coords_of(view, which, point))
        return splat_to(ProductCode(view.product).factor(which, value), VECTOR)

    def of_row(self, point: Loops, put: Callable[[int, Index, ir.Value], None]) -> None:
        """The products of one row with the vectors, `lanes` entries at a time: put(book, first entry, products)."""
        entries, index, value, lanes = self._entries, self.evaluator.index_type, self._values(point), self.lanes
        parts = [splat_to(vector.extract(value, [], [c]), lanes) for c in range(VECTOR)]
        for book in range(len(self.pools.books)):
            base = book * entries * VECTOR

            def several(s: Index, book: int = book, base: int = base) -> None:
                total = arith.mulf(parts[0], self.pool.load([Index.ramp(s + base, lanes)]))
                for c, part in enumerate(parts[1:], 1):
                    there = self.pool.load([Index.ramp(s + (base + c * entries), lanes)])
                    total = llvm.intr_fmuladd(part, there, total)
                put(book, s, total)

            loop(0, entries, lanes, several, index=index)

    def _store(self, total: ir.Value | None, at: Sequence[Index]) -> None:
        assert total is not None
        whole = isinstance(self.tables.element, ir.IntegerType)
        self.tables.store(arith.fptosi(vector_type(self.tables.element, lanes_of(total)), total) if whole else total, at)

    def _of_rows(self, places: Sequence[ir.Value], group: Index, book: int, row: Index | int) -> None:
        """Several rows side by side, entry by entry. places: the rows' values at each place of a vector."""
        entries, index, rows = self._entries, self.evaluator.index_type, self.rows
        base = book * entries * VECTOR

        def several(s: Index) -> None:
            totals: list[ir.Value | None] = [None] * _BESIDE
            for c, here in enumerate(places):
                for b in range(_BESIDE):
                    factor = splat_to(self.pool.load([(s + b) * VECTOR + (base + c)]), rows)
                    before = totals[b]
                    totals[b] = arith.mulf(here, factor) if before is None else llvm.intr_fmuladd(here, factor, before)
            for b, total in enumerate(totals):
                place = (group * len(self.pools.books) + book) * entries + s + b
                self._store(total, [Index.ramp(place * (self.wide or rows) + row, rows)])

        loop(0, entries, _BESIDE, several, index=index)


def transposed(rows: Sequence[ir.Value]) -> list[ir.Value]:
    """R vectors of L lanes to L vectors of R, both powers of two, by rounds that interleave the first half with the second."""
    count, lanes = len(rows), lanes_of(rows[0])
    found = list(rows)
    low = [lane // 2 + lane % 2 * lanes for lane in range(lanes)]
    high = [lane + lanes // 2 for lane in low]
    for _ in range(count.bit_length() - 1):
        half = count // 2
        found = [vector.shuffle(found[i // 2], found[i // 2 + half], low if i % 2 == 0 else high) for i in range(count)]
    if lanes == count:
        return found
    if lanes > count:  # each vector holds several of the result
        each = lanes // count
        return [vector.shuffle(v, v, list(range(e * count, (e + 1) * count))) for v in found for e in range(each)]
    joined = found
    while lanes_of(joined[0]) < count:
        width = lanes_of(joined[0])
        joined = [vector.shuffle(joined[i], joined[i + 1], list(range(2 * width))) for i in range(0, len(joined), 2)]
    return joined


def _as_f32(value: ir.Value) -> ir.Value:
    """A vector of a pool's values."""
    kind = vector_type(ir.F32Type.get(), lanes_of(value))
    if not is_float(element_type(value.type)):
        return arith.sitofp(kind, value)
    return value if isinstance(element_type(value.type), ir.F32Type) else arith.extf(kind, value)
