"""Tables of whole numbers for pixels side by side (spaces/host/pool_plane.py), in 16 bits for rows of few bits, else in 32.

Pixels of a group of eight channels lie as bytes, or as words of 16 bits, so that a pair of channels is an element of the tables'
width. An instruction multiplies such pairs by a pair of a vector of the pool: vpmaddubsw of bytes made positive, as of
host_pools_narrow.py, or vpmaddwd. Sums of 16 bits are added in 32 by vpmaddwd as well, those of even pixels by (1, 0), those of
odd ones by (0, 1), so that nothing is moved between lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.pools import Pools
from tilewright.passes.codegen.emit import Memory, constant, integer_type, intrinsic, lanes_of, loop, vector_type
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.families.host.host_pools_narrow import ENTRY, PAIRS, START, store_pairs
from tilewright.passes.mlir import arith, ir, vector
from tilewright.passes.spaces.host.host_pools import VECTOR
from tilewright.passes.spaces.host.pool_plane import Plane

_BESIDE = 2  # entries whose products hide the latency of each other
_BYTES = {32: "llvm.x86.avx2.pmadd.ub.sw", 64: "llvm.x86.avx512.pmaddubs.w.512"}
_FUSED = "llvm.x86.avx512.vpdpwssd.512"
_WORDS = {32: "llvm.x86.avx2.pmadd.wd", 64: "llvm.x86.avx512.pmaddw.d.512"}


@dataclass(frozen=True)
class PlaneTables:
    """bits: of the pixels, 8 for tables of 32 bits. size: bytes of a vector. fused: is there vpdpwssd, which adds the products of
    vpmaddwd to words of 32 bits? groups: of channels whose tables are kept.
    pixels: [pixel][channel] of one group. pool: words of 32 bits, ENTRY an entry. tables: [phase][group][book][entry][pixel]."""

    evaluator: Evaluator
    pools: Pools
    plane: Plane
    bits: int
    size: int
    fused: bool
    groups: int
    pixels: Memory
    pool: Memory
    tables: Memory

    @staticmethod
    def width(bits: int) -> int:
        """Bits of an element of the tables."""
        return 32 if bits == 8 else 16

    @property
    def _width(self) -> int:
        return self.width(self.bits)

    @property
    def _element(self) -> ir.Type:
        return integer_type(self._width)

    @property
    def _middle(self) -> int:
        """What makes pixels positive that are bytes."""
        return (1 << self.bits) - 1 if self._width == 16 else 0

    def fill(self) -> None:
        """The pairs of every vector, twice where they are bytes, and what its sums start from."""
        store_pairs(self.evaluator, self.pools, self.pool, self.pools.entries, self._middle, wide=self._width == 32)

    def put(self, value: ir.Value, pixel: Index) -> None:
        """The eight channels of a pixel, whole numbers as f32."""
        whole = arith.fptosi(vector_type(integer_type(32), VECTOR), value)
        if self._middle:
            whole = arith.addi(whole, constant(integer_type(32), self._middle, VECTOR))
        narrow = arith.trunci(vector_type(integer_type(self._width // 2), VECTOR), whole)
        self.pixels.store(narrow, [Index.ramp(pixel * VECTOR, VECTOR)])

    def make(self, phase: int, group: Index) -> None:
        """The tables of the pixels that were put."""
        lanes = self.plane.lanes
        loop(0, self.plane.vectors, 1, lambda v: self._vector(v * lanes, phase, group), index=self.evaluator.index_type)

    def _vector(self, pixel: Index, phase: int, group: Index) -> None:
        pairs, kind = self._pairs(pixel), vector_type(self._element, self.plane.lanes)
        entries = self.pools.entries
        for book in range(len(self.pools.books)):
            base = book * entries * ENTRY

            def several(s: Index, many: int, book: int = book, base: int = base) -> None:
                for b in range(many):
                    at = (s + b) * ENTRY + base
                    total = self._spread(at + START, kind) if self._middle else None
                    for p, pair in enumerate(pairs):
                        total = self._multiplied(total, pair, self._spread(at + p, pair.type), kind)
                    self.tables.store(total, [Index.ramp(self.place(phase, group, book, s + b) + pixel, lanes_of(total))])

            whole = entries - entries % _BESIDE
            loop(0, whole, _BESIDE, lambda s: several(s, _BESIDE), index=self.evaluator.index_type)
            if entries > whole:
                several(Index(whole), entries - whole)

    def _multiplied(self, total: ir.Value | None, a: ir.Value, b: ir.Value, kind: ir.Type) -> ir.Value:
        """total + the products of pairs; of bytes in words of 16 bits, of those in 32."""
        words = ir.VectorType(a.type).element_type == integer_type(16)
        if words and self.fused:
            zero = constant(integer_type(32), 0, self.size // 4)
            return intrinsic(_FUSED, kind, [zero if total is None else total, a, b])
        made = intrinsic((_WORDS if words else _BYTES)[self.size], kind, [a, b])
        return made if total is None else arith.addi(total, made)

    def place(self, phase: int, group: Index, book: int, entry: Index | int) -> Index:
        """Of the products with an entry."""
        books, entries = len(self.pools.books), self.pools.entries
        return (((group + phase * self.groups) * books + book) * entries + entry) * self.plane.stride

    def _pairs(self, pixel: Index) -> list[ir.Value]:
        """Of `lanes` pixels each pair of channels, as what is multiplied."""
        lanes, kind = self.plane.lanes, vector_type(self._element, self.plane.lanes)
        part = vector_type(integer_type(self._width // 2), 2 * lanes)
        loaded = [vector.bitcast(kind, self.pixels.load([Index.ramp(pixel * VECTOR + n * 2 * lanes, 2 * lanes)]))
                  for n in range(PAIRS)]
        found = []
        for p in range(PAIRS):
            halves = [vector.shuffle(loaded[n], loaded[n + 1], [i * PAIRS + p for i in range(lanes // 2)]) for n in (0, 2)]
            found.append(vector.bitcast(part, vector.shuffle(*halves, list(range(lanes)))))
        return found

    def _spread(self, at: Index, kind: ir.Type) -> ir.Value:
        """A word of the pool all along a vector."""
        return vector.bitcast(kind, splat_to(self.pool.load([at]), self.size // 4))

    @property
    def sums(self) -> int:
        """Vectors of i32 of a vector of pixels."""
        return 32 // self._width

    def add(self, sums: Sequence[ir.Value], places: Sequence[Callable[[], Index]], some: int) -> list[ir.Value]:
        """Sums of blocks of pixels, `sums` vectors of each, with what the tables hold from some places on. some: entries that may
        be added in the tables' width."""
        done, lanes, blocks = list(sums), self.plane.lanes, len(sums) // self.sums
        for first in range(0, len(places), some):
            run: list[ir.Value | None] = [None] * blocks
            for place in places[first : first + some]:
                start = place()
                for q in range(blocks):
                    found, before = self.tables.load([Index.ramp(start.displace(q * lanes), lanes)]), run[q]
                    run[q] = found if before is None else arith.addi(before, found)
            for q, total in enumerate(run):
                if self._width == 32:
                    done[q] = arith.addi(done[q], total)
                    continue
                for odd in (0, 1):
                    before = done[2 * q + odd]
                    done[2 * q + odd] = self._multiplied(before, total, self._picks(odd), before.type)
        return done

    def _picks(self, odd: int) -> ir.Value:
        """1 in the even or the odd lanes."""
        return vector.bitcast(vector_type(integer_type(16), self.size // 2),
                              constant(integer_type(32), 1 << 16 if odd else 1, self.size // 4))

    def in_order(self, sums: Sequence[ir.Value]) -> list[ir.Value]:
        """The sums of a vector of pixels by even and odd ones as they lie side by side."""
        if self._width == 32:
            return list(sums)
        lanes = self.size // 4
        return [vector.shuffle(sums[0], sums[1], [x for i in range(lanes // 2) for x in (first + i, first + i + lanes)])
                for first in (0, lanes // 2)]
