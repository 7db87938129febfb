"""One row times weights out of a pool of up to 64 vectors: 32 columns take what their indices name by shuffles of bytes.

The products of a group with all vectors are kept as planes of bytes, [plane][entry]: the first bytes of all, then the second
ones. vpshufb takes a byte of each of 32 indices out of 16; blends on bits 4 and 5 of the indices choose among four such. The
planes are then put together again, so that sums of f32 have the bits that they have by loads. Whole numbers are made positive by
a bias and need three planes, those of up to 5 bits two. """

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.pools import Pools
from tilewright.passes.codegen.emit import Memory, constant, integer_type, intrinsic, lanes_of, vector_type
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.families.host.host_pools_tables import PoolTables
from tilewright.passes.mlir import arith, ir, llvm, vector
from tilewright.passes.spaces.host.host_pools import NARROW_BITS, SHUFFLED_COLUMNS, VECTOR

_SIXTEEN = 16  # entries that a shuffle chooses from
_SHUFFLE, _BLEND = "llvm.x86.avx2.pshuf.b", "llvm.x86.avx2.pblendvb"


@dataclass(frozen=True)
class ShuffleTables:
    """products: makes those of a group in f32. bits: 0 of rows of f32, else those of whole numbers. tables: bytes."""

    products: PoolTables
    bits: int
    tables: Memory

    @staticmethod
    def entries(pools: Pools) -> int:
        """Of a plane."""
        return -(-pools.entries // _SIXTEEN) * _SIXTEEN

    @staticmethod
    def planes(bits: int) -> int:
        """Bytes of a product."""
        return 4 if not bits else 2 if bits <= NARROW_BITS else 3

    @staticmethod
    def bias(bits: int) -> int:
        """What makes whole products positive: eight of a number below 2 ** bits by a byte are below it."""
        return 0 if not bits else 1 << (15 if bits <= NARROW_BITS else 18)

    @staticmethod
    def words_of(product: ir.Value, bits: int) -> ir.Value:
        """The words of a vector of f32 products, or whole numbers made positive."""
        word, lanes = integer_type(32), lanes_of(product)
        words = vector_type(word, lanes)
        if not bits:
            return arith.bitcast(words, product)
        return arith.addi(arith.fptosi(words, product), constant(word, ShuffleTables.bias(bits), lanes))

    @staticmethod
    def bytes_of(product: ir.Value, bits: int, lanes: int) -> list[ir.Value]:
        """The planes of a vector of f32 products: bytes of their words, lowest first."""
        word, whole = integer_type(32), ShuffleTables.words_of(product, bits)
        i8 = vector_type(integer_type(8), lanes)
        moved = (arith.shrui(whole, constant(word, 8 * p, lanes)) if p else whole for p in range(ShuffleTables.planes(bits)))
        return [arith.trunci(i8, m) for m in moved]

    def fill(self) -> None:
        self.products.fill()

    def make(self, points: Sequence[Loops], group: Index) -> None:
        """The planes of a group of the piece."""
        books, planes, entries = len(self.products.pools.books), self.planes(self.bits), self.entries(self.products.pools)

        def put(book: int, s: Index, total: ir.Value) -> None:
            for p, plane in enumerate(self.bytes_of(total, self.bits, VECTOR)):
                place = ((group * books + book) * planes + p) * entries + s
                self.tables.store(plane, [Index.ramp(place, VECTOR)])

        self.products.of_row(points[0], put)

    def add(self, sums: Sequence[ir.Value], group: Index, named: Sequence[ir.Value]) -> list[ir.Value]:
        """Four vectors of sums, of 32 columns in the order of `split`, with what the indices of each book name."""
        done = list(sums)
        kind = vector_type(integer_type(32), VECTOR)
        total: list[ir.Value] | None = None
        for book, index in enumerate(named):
            found = [arith.bitcast(sums[0].type, v) if not self.bits else v for v in self._words(group, book, index, kind)]
            total = found if total is None else [self._add(a, b) for a, b in zip(total, found, strict=True)]
        assert total is not None
        return [self._add(a, b) for a, b in zip(done, total, strict=True)]

    def _add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        added: ir.Value = arith.addi(a, b) if self.bits else arith.addf(a, b)
        return added

    def _words(self, group: Index, book: int, index: ir.Value, kind: ir.Type) -> list[ir.Value]:
        """The products that 32 indices name, put together from their planes."""
        found = [self._plane(group, book, p, index) for p in range(self.planes(self.bits))]
        zero = constant(integer_type(8), 0, SHUFFLED_COLUMNS)
        low = found[0], found[1]
        high = (found[2], found[3] if len(found) > 3 else zero) if len(found) > 2 else (zero, zero)
        words = []
        for half in (0, 1):
            first = self._pairs(*low, half)
            second = self._pairs(*high, half) if len(found) > 2 else constant(integer_type(16), 0, _SIXTEEN)
            for quarter in (0, 1):
                lanes = [lane for part in (0, 1) for i in range(4) for lane in (part * 8 + quarter * 4 + i,)]
                joined = vector.shuffle(first, second, [x for lane in lanes for x in (lane, lane + _SIXTEEN)])
                words.append(vector.bitcast(kind, joined))
        return words

    def _pairs(self, a: ir.Value, b: ir.Value, half: int) -> ir.Value:
        """Bytes of two planes side by side: the low or high eight of each 16."""
        lanes = [part * _SIXTEEN + half * 8 + i for part in (0, 1) for i in range(8)]
        joined = vector.shuffle(a, b, [x for lane in lanes for x in (lane, lane + SHUFFLED_COLUMNS)])
        return vector.bitcast(vector_type(integer_type(16), _SIXTEEN), joined)

    def _plane(self, group: Index, book: int, plane: int, index: ir.Value) -> ir.Value:
        pools, planes = self.products.pools, self.planes(self.bits)
        entries = self.entries(pools)
        start = ((group * len(pools.books) + book) * planes + plane) * entries
        parts = [intrinsic(_SHUFFLE, index.type, [self._sixteen(start + part), index]) for part in range(0, entries, _SIXTEEN)]
        for bit in (4, 5):
            if len(parts) > 1:
                chosen = self._moved(index, 7 - bit)
                pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
                parts = [intrinsic(_BLEND, index.type, [*pair, chosen]) if len(pair) == 2 else pair[0] for pair in pairs]
        return parts[0]

    def _moved(self, index: ir.Value, places: int) -> ir.Value:
        """The indices with a bit where blends look for it."""
        wide = vector_type(integer_type(16), lanes_of(index) // 2)
        moved = arith.shli(vector.bitcast(wide, index), constant(integer_type(16), places, lanes_of(index) // 2))
        return vector.bitcast(index.type, moved)

    def _sixteen(self, start: Index) -> ir.Value:
        """Sixteen bytes of a plane, in both halves of a register."""
        there = llvm.LoadOp(vector_type(integer_type(8), _SIXTEEN), self.tables.address([start]), alignment=1).result
        return vector.shuffle(there, there, [*range(_SIXTEEN), *range(_SIXTEEN)])


def split(columns: Sequence[ir.Value]) -> list[ir.Value]:
    """Four vectors of consecutive columns as `add` has them: each fours of both halves of 32."""
    a, b, c, d = columns
    low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    return [vector.shuffle(a, c, low), vector.shuffle(a, c, high), vector.shuffle(b, d, low), vector.shuffle(b, d, high)]


def joined(sums: Sequence[ir.Value]) -> list[ir.Value]:
    """The inverse of `split`."""
    a, b, c, d = sums
    low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    return [vector.shuffle(a, b, low), vector.shuffle(c, d, low), vector.shuffle(a, b, high), vector.shuffle(c, d, high)]
