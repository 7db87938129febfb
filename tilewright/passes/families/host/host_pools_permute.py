"""One row times weights out of a pool of up to 256 vectors: 64 columns take what their indices name by vpermb (AVX-512 VBMI).

The products of a group with all vectors are planes of bytes, as of host_pools_shuffle.py, of 64, 128 or 256 entries: one
register, two (vpermi2b), or twice two and a blend on the highest bit of the indices. Of floats the planes are put together to
f32, so that sums have the bits that they have by loads. Of whole numbers, made positive by a bias, the bytes of a plane are added
in words of 16 bits: all of a word, and its high byte. Both are exact modulo 2 ** 16 for up to `MOST_ADDED` additions, and give
the sums of the even columns, less what was carried from the odd ones, and of the odd columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.pools import Pools
from tilewright.passes.codegen.emit import Memory, constant, integer_type, intrinsic, vector_type
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.families.host.host_pools_bytes import MANY, bytes_of_words
from tilewright.passes.families.host.host_pools_shuffle import ShuffleTables
from tilewright.passes.families.host.host_pools_tables import PoolTables
from tilewright.passes.mlir import arith, ir, vector
from tilewright.passes.spaces.host.host_pools import PERMUTED_COLUMNS

LANES = 16  # words of 32 bits of a register
_PERMUTE, _PERMUTE_TWO = "llvm.x86.avx512.permvar.qi.512", "llvm.x86.avx512.vpermi2var.qi.512"


@dataclass(frozen=True)
class PermuteTables:
    """products: makes those of a group in f32, MANY entries at once. bits: 0 of rows of f32, else those of whole numbers.
    tables: bytes, [group][book][plane][entry]."""

    products: PoolTables
    bits: int
    tables: Memory

    @staticmethod
    def entries(pools: Pools) -> int:
        """Of a plane: whole registers."""
        return next(n for n in (64, 128, 256) if n >= pools.entries)

    @property
    def _planes(self) -> int:
        return ShuffleTables.planes(self.bits)

    def fill(self) -> None:
        self.products.fill()

    def make(self, points: Sequence[Loops], group: Index) -> None:
        """The planes of a group of the piece."""
        books, planes, entries = len(self.products.pools.books), self._planes, self.entries(self.products.pools)

        def put(book: int, s: Index, total: ir.Value) -> None:
            for p, plane in enumerate(bytes_of_words(ShuffleTables.words_of(total, self.bits), range(planes))):
                place = ((group * books + book) * planes + p) * entries + s
                self.tables.store(plane, [Index.ramp(place, MANY)])

        self.products.of_row(points[0], put)

    def begin(self, sums: Sequence[ir.Value]) -> list[ir.Value]:
        """What a loop over groups carries, of four vectors of sums of consecutive columns."""
        if not self.bits:
            return _blocks(sums)
        zero = constant(integer_type(16), 0, PERMUTED_COLUMNS // 2)
        return [zero] * (2 * self._planes)

    def add(self, carried: Sequence[ir.Value], group: Index, named: Sequence[ir.Value]) -> list[ir.Value]:
        """With what 64 indices of each book name."""
        found = [[self._plane(group, book, p, index) for p in range(self._planes)] for book, index in enumerate(named)]
        if self.bits:
            return self._added_in_words(carried, found)
        total: list[ir.Value] | None = None
        for planes in found:
            values = [arith.bitcast(carried[0].type, word) for word in _words(planes)]
            total = values if total is None else [arith.addf(a, b) for a, b in zip(total, values, strict=True)]
        assert total is not None
        return [arith.addf(a, b) for a, b in zip(carried, total, strict=True)]

    def finish(self, sums: Sequence[ir.Value], carried: Sequence[ir.Value]) -> list[ir.Value]:
        """The four vectors of sums, of what `begin` made of them and `add` added to it."""
        if not self.bits:
            return _blocks(carried)
        count = PERMUTED_COLUMNS // 2
        words = vector_type(integer_type(32), LANES)
        total: list[ir.Value | None] = [None] * 4
        for p in range(self._planes):
            whole, odd = carried[2 * p : 2 * p + 2]
            even = arith.subi(whole, arith.shli(odd, constant(integer_type(16), 8, count)))
            parts = [vector.shuffle(v, v, list(range(half * LANES, (half + 1) * LANES))) for half in (0, 1) for v in (even, odd)]
            for n, part in enumerate(parts):
                wide = arith.extui(words, part)
                moved = arith.shli(wide, constant(integer_type(32), 8 * p, LANES)) if p else wide
                before = total[n]
                total[n] = moved if before is None else arith.addi(before, moved)
        turns = [[x for i in range(LANES // 2) for x in (first + i, first + i + LANES)] for first in (0, LANES // 2)]
        linear = [vector.shuffle(total[2 * half], total[2 * half + 1], turn) for half in (0, 1) for turn in turns]
        return [arith.addi(a, b) for a, b in zip(sums, linear, strict=True)]

    def _added_in_words(self, carried: Sequence[ir.Value], found: Sequence[Sequence[ir.Value]]) -> list[ir.Value]:
        count = PERMUTED_COLUMNS // 2
        kind, done = vector_type(integer_type(16), count), list(carried)
        for planes in found:
            for p, plane in enumerate(planes):
                pairs = vector.bitcast(kind, plane)
                done[2 * p] = arith.addi(done[2 * p], pairs)
                done[2 * p + 1] = arith.addi(done[2 * p + 1], arith.shrui(pairs, constant(integer_type(16), 8, count)))
        return done

    def _plane(self, group: Index, book: int, plane: int, index: ir.Value) -> ir.Value:
        """The bytes that 64 indices name."""
        pools = self.products.pools
        entries, books = self.entries(pools), len(pools.books)
        start = ((group * books + book) * self._planes + plane) * entries
        parts = [self.tables.load([Index.ramp(start + first, PERMUTED_COLUMNS)]) for first in range(0, entries, PERMUTED_COLUMNS)]
        if len(parts) == 1:
            return intrinsic(_PERMUTE, index.type, [parts[0], index])
        pairs = [intrinsic(_PERMUTE_TWO, index.type, [parts[n], index, parts[n + 1]]) for n in range(0, len(parts), 2)]
        if len(pairs) == 1:
            return pairs[0]
        high = arith.cmpi(arith.CmpIPredicate.slt, index, constant(integer_type(8), 0, PERMUTED_COLUMNS))
        return arith.select(high, pairs[1], pairs[0])


def _words(planes: Sequence[ir.Value]) -> list[ir.Value]:
    """Words of 32 bits of four planes of 64 bytes: vector q has of each 16 columns the fours from 4 q on."""
    low, high = (_unpacked(planes[n], planes[n + 1], 1) for n in (0, 2))
    return [vector.bitcast(vector_type(integer_type(32), LANES), word)
            for a, b in zip(low, high, strict=True)
            for word in _unpacked(vector.bitcast(vector_type(integer_type(16), 2 * LANES), a),
                                  vector.bitcast(vector_type(integer_type(16), 2 * LANES), b), 2)]


def _unpacked(a: ir.Value, b: ir.Value, width: int) -> list[ir.Value]:
    """The elements of `width` bytes of two registers side by side: of each 16 bytes the low half, and the high half."""
    each, lanes = 16 // width, 64 // width
    return [vector.shuffle(a, b, [x for block in range(0, lanes, each) for i in range(each // 2)
                                  for x in (block + first + i, block + first + i + lanes)]) for first in (0, each // 2)]


def _blocks(given: Sequence[ir.Value]) -> list[ir.Value]:
    """Four vectors of 16, each of four fours: four vectors of the fours at one place of all. Its own inverse."""
    fours = [[x for block in (first, first + 4) for x in (*range(block, block + 4), *range(block + LANES, block + LANES + 4))]
             for first in (0, 8)]
    halves = [[vector.shuffle(given[n], given[n + 1], lanes) for lanes in fours] for n in (0, 2)]
    return [vector.shuffle(halves[0][q // 2], halves[1][q // 2],
                           [*range(q % 2 * 8, q % 2 * 8 + 8), *range(q % 2 * 8 + LANES, q % 2 * 8 + LANES + 8)])
            for q in range(4)]
