"""Tables of whole numbers in 16 bits: products of 16 rows of few bits with all vectors of a pool of bytes, and their sums.

Of rows v below 2 ** bits in magnitude, u = v + 2 ** bits - 1 has no sign and up to 6 bits, so that vpmaddubsw, which adds two
products of u by a byte in 16 bits, never saturates: 2 * 62 * 128. Four of them and -(2 ** bits - 1) times the sum of the vector
are r = sum of v * p, which for up to 5 bits lies within 16 bits again (31 * 8 * 128), whatever was carried beyond them. Tables
of several groups are added in 16 bits as far as they stay there, then by vpmaddwd in 32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.pools import Pools
from tilewright.passes.codegen.emit import Memory, constant, integer_type, intrinsic, loop, vector_type
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.families.host.host_pools_tables import PoolTables, transposed
from tilewright.passes.mlir import arith, ir, vector
from tilewright.passes.spaces.host.host_pools import NARROW_ROWS, VECTOR, sums_in_16_bits

ENTRY = 8  # words of 32 bits that a vector of the pool takes: its four pairs, each twice, and what the sums start from
START, PAIRS = 4, 4  # the word of the start, and pairs of a vector
_PRODUCTS, _ADDED = "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"
LOW_ROWS = (0, 1, 2, 3, 8, 9, 10, 11)  # that unpacking the low halves leaves in the first vector of sums


def store_pairs(evaluator: Evaluator, pools: Pools, pool: Memory, entries: int, middle: int, wide: bool = False) -> None:
    """Fill `pool` with the pairs of every vector, as bytes, each twice, or, wide, as words of 16 bits, and with what its sums
    start from where `middle` was added to the rows. entries: of a book, in `pool`."""
    i32 = integer_type(32)
    for number, book in enumerate(pools.books):
        source, base = evaluator.memories[book.pool], number * entries * ENTRY

        def entry(s: Index, source: Memory = source, base: int = base) -> None:
            value, at = source.load([s, Index.ramp(Index(0), VECTOR)]), s * ENTRY + base
            pairs = arith.extsi(vector_type(integer_type(16), VECTOR), value) if wide else \
                vector.shuffle(value, value, [2 * p + i % 2 for p in range(PAIRS) for i in range(4)])
            pool.store(vector.bitcast(vector_type(i32, PAIRS), pairs), [Index.ramp(at, PAIRS)])
            whole = arith.extsi(vector_type(i32, VECTOR), value)
            start = arith.muli(vector.reduction(i32, vector.CombiningKind.ADD, whole), constant(i32, -middle))
            low = arith.andi(start, constant(i32, 0xFFFF))
            pool.store(arith.ori(low, arith.shli(low, constant(i32, 16))), [at + START])

        loop(0, pools.entries, 1, entry, index=evaluator.index_type)


@dataclass(frozen=True)
class NarrowTables:
    """bits: of the rows. pool: words of 32 bits, ENTRY an entry. tables: i16, [group][book][entry][row]."""

    evaluator: Evaluator
    plan: Plan
    pools: Pools
    bits: int
    pool: Memory
    tables: Memory

    @property
    def _entries(self) -> int:
        return PoolTables.padded(self.pools)

    @property
    def _middle(self) -> int:
        return (1 << self.bits) - 1

    def fill(self) -> None:
        """The pairs of every vector, and what its sums start from."""
        store_pairs(self.evaluator, self.pools, self.pool, self._entries, self._middle)

    def make(self, points: Sequence[Loops], group: Index) -> None:
        """The table of a group of the piece. points: of the rows, with a run of the channels."""
        view, which, i8, i16 = self.plan.view, self.plan.narrow, integer_type(8), integer_type(16)
        rows = []
        for point in points:
            value = splat_to(ProductCode(view.product).factor(which, self.evaluator.element(
                view.operand(which), coords_of(view, which, point))), VECTOR)
            whole = arith.fptosi(vector_type(integer_type(32), VECTOR), value)
            above = arith.addi(whole, constant(integer_type(32), self._middle, VECTOR))
            rows.append(vector.bitcast(vector_type(i16, PAIRS), arith.trunci(vector_type(i8, VECTOR), above)))
        pairs = [vector.bitcast(vector_type(i8, 2 * NARROW_ROWS), v) for v in transposed(rows)]
        kind = vector_type(i16, NARROW_ROWS)
        for book in range(len(self.pools.books)):
            base = book * self._entries * ENTRY

            def entry(s: Index, base: int = base, book: int = book) -> None:
                at = s * ENTRY + base
                total = self._spread(at + START, kind)
                for p, pair in enumerate(pairs):
                    made = intrinsic(_PRODUCTS, kind, [pair, self._spread(at + p, pair.type)])
                    total = arith.addi(total, made)
                place = ((group * len(self.pools.books) + book) * self._entries + s) * NARROW_ROWS
                self.tables.store(total, [Index.ramp(place, NARROW_ROWS)])

            loop(0, self.pools.entries, 1, entry, index=self.evaluator.index_type)

    def add(self, sums: Sequence[ir.Value], places: Sequence[Callable[[], ir.Value]]) -> list[ir.Value]:
        """Two vectors of sums with the tables at some places added; each gives an entry as an index."""
        some, low, high = sums_in_16_bits(self.bits), sums[0], sums[1]
        kind, ones = vector_type(integer_type(32), VECTOR), constant(integer_type(16), 1, NARROW_ROWS)
        zero = constant(integer_type(16), 0, NARROW_ROWS)
        parts = [self._run(places[first : first + some]) for first in range(0, len(places), some)]
        for n in range(0, len(parts), 2):
            a, b = parts[n], parts[n + 1] if n + 1 < len(parts) else zero
            first = vector.shuffle(a, b, _unpacked(0))
            second = vector.shuffle(a, b, _unpacked(4))
            low = arith.addi(low, intrinsic(_ADDED, kind, [first, ones]))
            high = arith.addi(high, intrinsic(_ADDED, kind, [second, ones]))
        return [low, high]

    def load(self, group: Index, book: int, entry: Index) -> ir.Value:
        """The products of the rows with a vector of a book."""
        place = (group * len(self.pools.books) + book) * self._entries + entry
        return self.tables.load([Index.ramp(place * NARROW_ROWS, NARROW_ROWS)])

    def _run(self, places: Sequence[Callable[[], ir.Value]]) -> ir.Value:
        total = places[0]()
        for place in places[1:]:
            total = arith.addi(total, place())
        return total

    def _spread(self, at: Index, kind: ir.Type) -> ir.Value:
        """A word of the pool in every lane."""
        return vector.bitcast(kind, splat_to(self.pool.load([at]), VECTOR))


def _unpacked(first: int) -> list[int]:
    """Four lanes of each half of two vectors by turns, from lane `first` of the halves on."""
    lanes = [half * 8 + first + i for half in (0, 1) for i in range(4)]
    return [x for lane in lanes for x in (lane, lane + NARROW_ROWS)]
