"""One row times weights out of a pool of up to 256 vectors: 64 columns take what their indices name by vpermb (AVX-512 VBMI).

The products of a group with all vectors are planes of bytes, as of host_pools_shuffle.py, of 64, 128 or 256 entries: one
register, two or four, of which each but the first is permuted under a mask of the indices that name it. (vpermi2b does two, but
as three instructions.) Of floats the planes are put together to f32, so that sums have the bits that they have by loads: by
shifts through two registers and choices of bits, since the one port that shuffles is the one that permutes. The masks of these
are read from memory: LLVM would make shuffles of those that it knows. Sums keep the order of their bytes until all are added.

Of whole numbers, made positive by a bias, the bytes of a plane are added in words of 16 bits: all of a word, and its high byte.
Both are exact modulo 2 ** 16 for up to `MOST_ADDED` additions, and give the sums of the even columns, less what was carried from
the odd ones, and of the odd columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_BITS, _CHOICE = "llvm.x86.avx512.pternlog.d.512", 0xCA  # of the second where the first has ones, else of the third
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

    @property
    def turn(self) -> int:
        """Groups of one turn of a loop. What follows the last permutations of a turn has none beside it, so that long turns are
        faster where both ports are busy."""
        return 4 if self.bits or self._shuffles else max(1, 8 // len(self.products.pools.books))

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
        """What a loop over groups carries, of the four vectors of sums of 64 columns, whose order is that of their bytes."""
        if not self.bits:
            return list(sums)
        zero = constant(integer_type(16), 0, PERMUTED_COLUMNS // 2)
        return [zero] * (2 * self._planes)

    def add(self, carried: Sequence[ir.Value], group: Index, named: Sequence[Sequence[ir.Value]]) -> list[ir.Value]:
        """With what 64 indices of each book name, of as many groups from `group` on. What follows the permutations of one is put
        among those of the next, so that neither waits for the other's ports: a core looks no farther ahead than about two."""
        done, kept = list(carried), list[ir.Value]()
        behind: Iterator[None] = iter(())
        for n, indices in enumerate(named):
            for book, index in enumerate(indices):
                planes = list[ir.Value]()
                _alternate(self._permuted(group + n, book, index, planes), behind)
                if self.bits:
                    behind = self._added_in_words(done, planes)
                else:
                    behind = self._added(done, kept, planes, book == len(indices) - 1)
        _alternate(behind, iter(()))
        return done

    def finish(self, sums: Sequence[ir.Value], carried: Sequence[ir.Value]) -> list[ir.Value]:
        """The four vectors of sums, of what `begin` made of them and `add` added to it."""
        if not self.bits:
            return list(carried)
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
        return [arith.addi(a, b) for a, b in zip(sums, total, strict=True)]

    def columns(self, sums: Sequence[ir.Value]) -> list[ir.Value]:
        """The four vectors of sums in the order of the columns."""
        if self.bits:  # each two of even columns, and of odd ones
            turns = [[x for i in range(LANES // 2) for x in (first + i, first + i + LANES)] for first in (0, LANES // 2)]
            return [vector.shuffle(sums[2 * half], sums[2 * half + 1], turn) for half in (0, 1) for turn in turns]
        halves = [[vector.shuffle(sums[2 * half], sums[2 * half + 1], _eights(n)) for half in (0, 1)] for n in (0, 1)]
        places = sorted((self._place(half, i, odd), 16 * half + 8 * odd + i)
                        for half in (0, 1) for odd in (0, 1) for i in range(4))
        return [vector.shuffle(*pair, [lane + 4 * block for _, lane in places]) for pair in halves for block in (0, 1)]

    def _added_in_words(self, sums: list[ir.Value], planes: Sequence[ir.Value]) -> Iterator[None]:
        """Adds planes to sums of whole numbers; a step is one plane."""
        count = PERMUTED_COLUMNS // 2
        kind = vector_type(integer_type(16), count)
        for p, plane in enumerate(planes):
            pairs = vector.bitcast(kind, plane)
            sums[2 * p] = arith.addi(sums[2 * p], pairs)
            sums[2 * p + 1] = arith.addi(sums[2 * p + 1], arith.shrui(pairs, constant(integer_type(16), 8, count)))
            yield

    def _added(self, sums: list[ir.Value], kept: list[ir.Value], planes: Sequence[ir.Value], last: bool) -> Iterator[None]:
        """Puts planes together to f32 and adds them to what is kept of the books before, and for the last book to the sums; a
        step is a register."""
        halves = list[ir.Value]()
        for pair in (0, 2):
            for half in self._split(planes[pair], planes[pair + 1], 1):
                halves.append(half)
                yield
        words = (word for n in (0, 1) for word in self._split(halves[n], halves[2 + n], 2))
        for number, word in enumerate(words):
            value = arith.bitcast(sums[0].type, vector.bitcast(vector_type(integer_type(32), LANES), word))
            if len(kept) > number:
                value = arith.addf(kept[number], value)
            kept[number : number + 1] = [value]
            if last:
                sums[number] = arith.addf(sums[number], value)
            yield
        if last:
            kept.clear()

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

    def _permuted(self, group: Index, book: int, index: ir.Value, planes: list[ir.Value]) -> Iterator[None]:
        """Makes the planes of bytes that 64 indices name; a step is a permutation, of one plane after the other."""
        pools, beyond = self.products.pools, self._beyond(index)
        entries, books = self.entries(pools), len(pools.books)
        for first in range(0, entries, PERMUTED_COLUMNS):
            for p in range(self._planes):
                start = ((group * books + book) * self._planes + p) * entries
                part = self.tables.load([Index.ramp(start + first, PERMUTED_COLUMNS)])
                found = intrinsic(_PERMUTE, index.type, [part, index])
                if first:
                    planes[p] = arith.select(beyond[first // PERMUTED_COLUMNS - 1], found, planes[p])
                else:
                    planes.append(found)
                yield

    @property
    def _shuffles(self) -> bool:
        """Are bytes put together by 8 shuffles, and not by 4 shifts and 8 choices? For four registers of entries the port that
        shuffles has 18 others (one row by a pool of 64, 2048 x 2048: 43 us by shuffles, 53 by shifts)."""
        return self.entries(self.products.pools) < _SHIFTED

    def _place(self, half: int, number: int, odd: int) -> int:
        """Of each 16 columns the one whose word is in vector 2 half + odd, at a number from 0 to 3."""
        return 8 * half + 4 * odd + number if self._shuffles else 4 * number + 2 * odd + half

    def _split(self, left: ir.Value, right: ir.Value, size: int) -> Iterator[ir.Value]:
        """The elements of `size` bytes of two registers side by side, in two registers, each made when it is asked for."""
        return self._unpacked(left, right, size) if self._shuffles else self._apart(left, right, size)

    @staticmethod
    def _unpacked(left: ir.Value, right: ir.Value, size: int) -> Iterator[ir.Value]:
        """Of each 16 bytes the low half, and the high half."""
        each, count = 16 // size, PERMUTED_COLUMNS // size
        a, b = (vector.bitcast(vector_type(integer_type(8 * size), count), v) for v in (left, right))
        for first in (0, each // 2):
            yield vector.shuffle(a, b, [x for block in range(0, count, each) for i in range(first, first + each // 2)
                                        for x in (block + i, block + i + count)])

    def _apart(self, left: ir.Value, right: ir.Value, size: int) -> Iterator[ir.Value]:
        """The elements of even numbers, and those of odd ones. A shift through both registers (VBMI2) puts the left one of odd
        number below the right one of even number; each of both results takes half of it."""
        wide, count = integer_type(16 * size), PERMUTED_COLUMNS // (2 * size)
        words = vector_type(integer_type(32), LANES)
        a, b = (vector.bitcast(vector_type(wide, count), v) for v in (left, right))
        between = intrinsic("llvm.fshl", a.type, [b, a, constant(wide, 8 * size, count)])
        lower = self.masks.load([Index.ramp(Index((size - 1) * LANES), LANES)])
        for even, odd in ((a, between), (between, b)):
            parts = (vector.bitcast(words, v) for v in (even, odd))
            yield intrinsic(_BITS, words, [lower, *parts, constant(integer_type(32), _CHOICE)])


def _alternate(first: Iterator[None], second: Iterator[None]) -> None:
    """Takes steps of both in turns, to the end of both."""
    for _ in first:
        next(second, None)
    for _ in second:
        pass


def _eights(half: int) -> list[int]:
    """That half of each of two vectors."""
    return [*range(8 * half, 8 * half + 8), *range(8 * half + LANES, 8 * half + LANES + 8)]
