"""The vectors of pools of bytes as pairs of words of 32 bits, which permutations choose for 16 columns at once (AVX-512)."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.analysis.pools import Pools
from tilewright.passes.codegen.emit import Memory, constant, integer_type, intrinsic, loop, vector_type
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index
from tilewright.passes.mlir import arith, ir, vector
from tilewright.passes.spaces.host.host_pools import VECTOR

_WORDS = 16  # of a register
_PAIR = VECTOR // 4  # words of a vector of the pool
_PERMUTE_TWO = "llvm.x86.avx512.vpermi2var.d.512"


@dataclass(frozen=True)
class PoolPairs:
    """pool: words of 32 bits, [book][word of the vector][entry]."""

    evaluator: Evaluator
    pools: Pools
    pool: Memory

    @staticmethod
    def entries(pools: Pools) -> int:
        """Of a book, in whole pairs of registers."""
        return next(n for n in (32, 64, 128, 256) if n >= pools.entries)

    @staticmethod
    def words(pools: Pools) -> int:
        """Of a book."""
        return PoolPairs.entries(pools) * _PAIR

    def fill(self) -> None:
        """Takes the vectors apart."""
        entries, kind = self.entries(self.pools), vector_type(integer_type(32), _PAIR)
        for number, book in enumerate(self.pools.books):
            source, base = self.evaluator.memories[book.pool], number * self.words(self.pools)

            def entry(s: Index, source: Memory = source, base: int = base) -> None:
                both = vector.bitcast(kind, source.load([s, Index.ramp(Index(0), VECTOR)]))
                for n in range(_PAIR):
                    self.pool.store(vector.extract(both, [], [n]), [s + (base + n * entries)])

            loop(0, self.pools.entries, 1, entry, index=self.evaluator.index_type)

    def words_of(self, book: int, number: int, indices: ir.Value) -> ir.Value:
        """The `number`-th word of what 16 indices name."""
        entries = self.entries(self.pools)
        base = book * self.words(self.pools) + number * entries
        parts = [self.pool.load([Index.ramp(Index(base + n), _WORDS)]) for n in range(0, entries, _WORDS)]
        found = [intrinsic(_PERMUTE_TWO, indices.type, [parts[n], indices, parts[n + 1]]) for n in range(0, len(parts), 2)]
        bit = 2 * _WORDS
        while len(found) > 1:
            masked = arith.andi(indices, constant(integer_type(32), bit, _WORDS))
            high = arith.cmpi(arith.CmpIPredicate.ne, masked, constant(integer_type(32), 0, _WORDS))
            found = [arith.select(high, found[n + 1], found[n]) for n in range(0, len(found), 2)]
            bit *= 2
        return found[0]
