"""One row times weights out of a pool of up to 256 vectors: 64 columns take what their indices name by vpermb (AVX-512 VBMI).

The products of a group with all vectors are planes of bytes, as of host_pools_shuffle.py, of 64, 128 or 256 entries: one
register, two or four, of which each but the first is permuted under a mask of the indices that name it. (vpermi2b does two, but
as three instructions.) Of floats the planes are put together to f32, so that sums have the bits that they have by loads: by
shifts and masks, since the one port that shuffles is the one that permutes. The masks are read from memory: LLVM would make
shuffles of those that it knows. Of whole numbers, made positive by a bias, the bytes of a plane are added
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
_PERMUTE = "llvm.x86.avx512.permvar.qi.512"
_SHIFTED = 256  # entries from which planes are put together by shifts
_MASKS = (0x00FF00FF, 0x0000FFFF)  # bytes and words of even numbers


@dataclass(frozen=True)
class PermuteTables:
    """products: makes those of a group in f32, MANY entries at once. bits: 0 of rows of f32, else those of whole numbers.
    tables: bytes, [group][book][plane][entry]. masks: words, those of `_MASKS` one behind the other, where they are
    used."""

    products: PoolTables
    bits: int
    tables: Memory
    masks: Memory

    @staticmethod
    def entries(pools: Pools) -> int:
        """Of a plane: whole registers."""
        return next(n for n in (64, 128, 256) if n >= pools.entries)

    @property
    def _planes(self) -> int:
        return ShuffleTables.planes(self.bits)

    @staticmethod
    def mask_words(pools: Pools, bits: int) -> int:
        """Words of the masks."""
        return 0 if bits or PermuteTables.entries(pools) < _SHIFTED else len(_MASKS) * LANES

    def fill(self) -> None:
        self.products.fill()
        for n, mask in enumerate(_MASKS if self.mask_words(self.products.pools, self.bits) else ()):
            self.masks.store(constant(integer_type(32), mask, LANES), [Index.ramp(Index(n * LANES), LANES)])

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
            return self._blocks(sums)
        zero = constant(integer_type(16), 0, PERMUTED_COLUMNS // 2)
        return [zero] * (2 * self._planes)

    def add(self, carried: Sequence[ir.Value], group: Index, named: Sequence[ir.Value]) -> list[ir.Value]:
        """With what 64 indices of each book name."""
        beyond = [self._beyond(index) for index in named]
        found = [[self._plane(group, book, p, index, beyond[book]) for p in range(self._planes)]
                 for book, index in enumerate(named)]
        if self.bits:
            return self._added_in_words(carried, found)
        total: list[ir.Value] | None = None
        for planes in found:
            values = [arith.bitcast(carried[0].type, word) for word in self._words(planes)]
            total = values if total is None else [arith.addf(a, b) for a, b in zip(total, values, strict=True)]
        assert total is not None
        return [arith.addf(a, b) for a, b in zip(carried, total, strict=True)]

    def finish(self, sums: Sequence[ir.Value], carried: Sequence[ir.Value]) -> list[ir.Value]:
        """The four vectors of sums, of what `begin` made of them and `add` added to it."""
        if not self.bits:
            return self._columns(carried)
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

    def _beyond(self, index: ir.Value) -> list[ir.Value]:
        """For each register of entries but the first, which of 64 indices take it, where none after it does."""
        count = self.entries(self.products.pools) // PERMUTED_COLUMNS
        if count == 1:
            return []
        zero = constant(integer_type(8), 0, PERMUTED_COLUMNS)
        odd = arith.cmpi(arith.CmpIPredicate.slt, arith.addi(index, index), zero)  # by their bit of 64
        if count == 2:
            return [odd]
        upper = arith.cmpi(arith.CmpIPredicate.slt, index, zero)
        return [odd, upper, arith.andi(odd, upper)]

    def _plane(self, group: Index, book: int, plane: int, index: ir.Value, beyond: Sequence[ir.Value]) -> ir.Value:
        """The bytes that 64 indices name."""
        pools = self.products.pools
        entries, books = self.entries(pools), len(pools.books)
        start = ((group * books + book) * self._planes + plane) * entries
        parts = [self.tables.load([Index.ramp(start + first, PERMUTED_COLUMNS)]) for first in range(0, entries, PERMUTED_COLUMNS)]
        found, *others = (intrinsic(_PERMUTE, index.type, [part, index]) for part in parts)
        for mask, other in zip(beyond, others, strict=True):
            found = arith.select(mask, other, found)
        return found

    def _words(self, planes: Sequence[ir.Value]) -> list[ir.Value]:
        """Words of 32 bits of four planes of 64 bytes, in the order of `_place`."""
        split = self._unpacked if self._shuffles else self._apart
        low, high = (split(planes[n], planes[n + 1], 1) for n in (0, 2))
        kind = vector_type(integer_type(32), LANES)
        return [vector.bitcast(kind, word) for a, b in zip(low, high, strict=True) for word in split(a, b, 2)]

    @property
    def _shuffles(self) -> bool:
        """Are bytes put together by 8 shuffles, and not by 8 shifts and 8 masks? For four registers of entries the port that
        shuffles has 18 others (one row by a pool of 64, 2048 x 2048: 43 us by shuffles, 53 by shifts)."""
        return self.entries(self.products.pools) < _SHIFTED

    def _place(self, half: int, number: int, odd: int) -> int:
        """Of each 16 columns the one whose word is in vector 2 half + odd, at a number from 0 to 3."""
        return 8 * half + 4 * odd + number if self._shuffles else 4 * number + 2 * odd + half

    def _blocks(self, given: Sequence[ir.Value]) -> list[ir.Value]:
        """Four vectors of consecutive columns, in the order of `_place`."""
        halves = [[vector.shuffle(given[n], given[n + 1], [16 * block + self._place(half, i, odd) for odd in (0, 1)
                                                           for block in (0, 1) for i in range(4)]) for half in (0, 1)]
                  for n in (0, 2)]
        return [vector.shuffle(halves[0][half], halves[1][half], _eights(odd)) for half in (0, 1) for odd in (0, 1)]

    def _columns(self, given: Sequence[ir.Value]) -> list[ir.Value]:
        """The inverse of `_blocks`."""
        halves = [[vector.shuffle(given[2 * half], given[2 * half + 1], _eights(n)) for half in (0, 1)] for n in (0, 1)]
        places = sorted((self._place(half, i, odd), 16 * half + 8 * odd + i)
                        for half in (0, 1) for odd in (0, 1) for i in range(4))
        return [vector.shuffle(*pair, [lane + 4 * block for _, lane in places]) for pair in halves for block in (0, 1)]

    @staticmethod
    def _unpacked(left: ir.Value, right: ir.Value, size: int) -> list[ir.Value]:
        """The elements of `size` bytes of two registers side by side: of each 16 bytes the low half, and the high half."""
        each, count = 16 // size, PERMUTED_COLUMNS // size
        a, b = (vector.bitcast(vector_type(integer_type(8 * size), count), v) for v in (left, right))
        return [vector.shuffle(a, b, [x for block in range(0, count, each) for i in range(first, first + each // 2)
                                      for x in (block + i, block + i + count)]) for first in (0, each // 2)]

    def _apart(self, left: ir.Value, right: ir.Value, size: int) -> list[ir.Value]:
        """The elements of even numbers of two registers side by side, and those of odd ones, of `size` bytes."""
        wide, count = integer_type(16 * size), PERMUTED_COLUMNS // (2 * size)
        a, b, lower = (vector.bitcast(vector_type(wide, count), v) for v in (
            left, right, self.masks.load([Index.ramp(Index((size - 1) * LANES), LANES)])))
        moved, upper = constant(wide, 8 * size, count), arith.xori(lower, constant(wide, -1, count))
        return [arith.ori(arith.andi(a, lower), arith.shli(b, moved)), arith.ori(arith.shrui(a, moved), arith.andi(b, upper))]


def _eights(half: int) -> list[int]:
    """That half of each of two vectors."""
    return [*range(8 * half, 8 * half + 8), *range(8 * half + LANES, 8 * half + LANES + 8)]
