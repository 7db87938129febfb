"""An attention by tiles (AMX): 16 queries times 16 keys, then times 16 value columns, 32 values of the sum at once.

Denormal factors count as zero. The queries of a block are copied as words of two and continued with zeros up to whole tiles, as
the keys are. Scores go from tiles to the workspace; the softmax takes a few queries of the block at a time. Of the last 32 keys
of a block half a tile is taken where the block has no others. Mixed values pass through the workspace.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilewright.passes.codegen.emit import Memory, constant, integer_type, loop, when
from tilewright.passes.codegen.host_kernel import Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host import tile_registers
from tilewright.passes.families.host.host_attention_emitter import AttentionEmitter
from tilewright.passes.families.host.host_attention_range import KeySpan
from tilewright.passes.families.host.host_matmul_rows import Loops, row_blocks
from tilewright.passes.families.host.tile_registers import LINE
from tilewright.passes.mlir import arith, vector
from tilewright.passes.spaces.host.host_attention import MOST_SUMS
from tilewright.passes.spaces.host.host_matmul import TILE_ROWS
from tilewright.runtime.shape import Expr

_WORD = 4  # bytes
_WORDS = 16  # of a row of a tile
_QUERIES = 8  # whose softmax is taken side by side
_WHOLE = (MOST_SUMS, MOST_SUMS + 1)  # tiles of rows and of columns, beside those of sums
_HALF = (MOST_SUMS + 2, MOST_SUMS + 3)  # of 16 values of k
Note = Callable[[Index, tuple[Index, Index]], None]


class TilesAttention(AttentionEmitter):
    """`config.mr` is 16 or 32 queries, `config.nv` one to four vectors of 16 keys."""

    def _carve(self) -> None:
        self.words, self.depth = self.depth, self.depth.ceildiv(_WORDS) * _WORDS
        super()._carve()
        self.shapes = self._take(Expr.of(LINE // _WORD), 1)
        self.high = self.config.mr // TILE_ROWS
        if not self.config.online:
            self._carve_sums(self.config.mr)

    @property
    def _reads_queries(self) -> bool:
        return False

    def units(self, begin: Index, end: Index) -> Grid:
        half = [(TILE_ROWS, LINE // 2), (TILE_ROWS // 2, LINE)]
        tile_registers.shape(self.shapes.pointer, [(TILE_ROWS, LINE)] * (MOST_SUMS + 2) + half, self.index)
        grid = super().units(begin, end)
        tile_registers.release()
        return replace(grid, tiles=True)

    # -- copies

    def _copy(self, loops: Loops, span: KeySpan) -> None:
        """With zeros behind the last keys' values, up to half a tile of them."""
        super()._copy(loops, span)
        values, words = self.values, span.count.ceildiv(2)
        assert values is not None
        for j in range(self.value_vectors):
            self._clear_words(values, words, Index(j * self.config.lanes), TILE_ROWS // 2)

    def _copy_keys(self, loops: Loops, span: KeySpan, at: Index, panel: Memory) -> None:
        """With zeros behind the last words of a head."""
        super()._copy_keys(loops, span, at, panel)
        if self.words.divisible_by(_WORDS):
            return
        for j in range(self.config.nv):
            self._clear_words(panel, self.ev.emit(self.words), Index(j * self.config.lanes), _WORDS)

    def _clear_words(self, memory: Memory, row: Index, column: Index, rows: int) -> None:
        zero = constant(integer_type(32), 0, self.config.lanes)
        for i in range(rows):
            memory.store(zero, [row + i, Index.ramp(column, self.config.lanes)])

    def _copy_queries(self, memory: Memory, loops: Loops, row: Index, end: Index) -> None:
        """With zeros behind their last words."""
        self._query_copy(memory).copy(loops, row, end)
        if not self.words.divisible_by(_WORDS):
            words = self.ev.emit(self.words)
            loop(0, end - row, 1, lambda i: self._clear_words(memory, i, words, 1), index=self.index)

    # -- blocks of queries

    def _tall(self, low: Index, high: Index, run: Callable[[Index, Index], None]) -> None:
        """run(first query, end) of blocks of `mr` queries and of what is left."""
        mr = self.config.mr
        loop(low, high, mr, lambda row: run(row, (row + mr).min(high)), index=self.index)

    def _rows(self, low: Index, high: Index, run: Callable[[Index, int], None]) -> None:
        row_blocks(low, high, _QUERIES, False, self.index, run)

    def _survey(self, loops: Loops, low: Index, high: Index, note: Note) -> None:
        self._tall(low, high, lambda row, end: note(row, self._bounds(loops, row, end, row - low)))

    def _bounds(self, loops: Loops, row: Index, end: Index, at: Index) -> tuple[Index, Index]:
        """First and end of the keys that some query of a block sees, kept at a place of the ranges."""
        places = [[at, Index(i)] for i in range(2)]
        for place, value in zip(places, (self.ev.emit(self.view.keys), Index(0)), strict=True):
            self.ranges.store(value.value(self.index), place)

        def join(first: Index, height: int) -> None:
            found = self.range.bounds(self._points(loops, first, height))
            for place, value, joined in zip(places, found, (Index.min, Index.max), strict=True):
                self.ranges.store(joined(value, Index(self.ranges.load(place))).value(self.index), place)

        self._rows(row, end, join)
        start, stop = (Index(self.ranges.load(place)) for place in places)
        return start, stop

    def _limits(self, points: list[Loops], span: KeySpan) -> list[Index]:
        end = span.first + span.count
        return self._softmax().limits(points, end) if self.range.narrows else [end] * len(points)

    def _all_keys(self, loops: Loops, low: Index, high: Index, span: KeySpan) -> None:
        def block(row: Index, end: Index) -> None:
            seen = span
            if self.range.narrows:
                seen = span.within(*self._bounds(loops, row, end, Index(0)), self.config.panel, self.config.lanes)
            self._multiply(loops, row, end, seen)

            def some(first: Index, height: int) -> None:
                points, softmax = self._points(loops, first, height), self._softmax(first - row)
                greatest = softmax.logits(points, seen.first, seen.count, self._limits(points, seen))
                for i, total in enumerate(softmax.exponentials(greatest, seen.count)):
                    self.total.store(vector.extract(total, [], [0]), [first - row + i, Index(0)])

            self._rows(row, end, some)
            self._mix_tiles(Index(0), seen, False)
            self._rows(row, end, lambda first, height: self._finish(loops, first, height, row))

        self._tall(low, high, block)

    def _some_keys(self, loops: Loops, low: Index, high: Index, span: KeySpan) -> None:
        def joined(row: Index, end: Index, seen: KeySpan) -> None:
            self._multiply(loops, row, end, seen)

            def some(first: Index, height: int) -> None:
                points = self._points(loops, first, height)
                limits = self._limits(points, seen)
                factors = self._exponentials(self._softmax(first - row), points, first - low, seen, limits)
                for i, factor in enumerate(factors):
                    for j in range(self.value_vectors):
                        at = [first - low + i, Index.ramp(j * self.config.lanes, self.config.lanes)]
                        self.mixed.store(arith.mulf(self.mixed.load(at), factor), at)

            self._rows(row, end, some)
            self._mix_tiles(row - low, seen, True)

        def block(row: Index, end: Index) -> None:
            if not self.range.narrows:
                joined(row, end, span)
                return
            start, stop = (Index(self.ranges.load([row - low, Index(i)])) for i in range(2))
            seen = span.within(start, stop, self.config.panel, self.config.lanes)
            when(Index(0).lt(seen.count), lambda: joined(row, end, seen))

        self._tall(low, high, block)

    # -- products

    def _multiply(self, loops: Loops, row: Index, end: Index, span: KeySpan) -> None:
        """The scores of a block of queries."""
        queries, keys, c = self.queries, self.keys, self.config
        assert queries is not None and keys is not None
        self._copy_queries(queries, loops, row, end)

        def some(count: int, at: Index) -> None:
            panel, sums = self._panel(keys, span.skipped + at), self._sums(count)
            self._accumulate(sums, self.ev.emit(self.depth) // (_WORDS // 2), queries, panel)
            for m, line in enumerate(sums):
                for j, tile in enumerate(line):
                    to = self.scores.address([Index(m * TILE_ROWS), at + j * c.lanes])
                    tile_registers.store(tile, to, self.pitch * _WORD)

        whole = span.count - span.count % c.panel
        loop(0, whole, c.panel, partial(some, c.nv), index=self.index)
        vectors = (span.count - whole).ceildiv(c.lanes)
        for count in range(1, c.nv + 1):
            when(vectors.eq(count), partial(some, count, whole))

    def _mix_tiles(self, at: Index, span: KeySpan, add: bool) -> None:
        """Exponentials times values, to the mixed values from place `at` on; add: to what is there."""
        assert self.values is not None
        lanes, wide = self.config.lanes, self.mixed.strides[0] * _WORD
        groups = -(-self.value_vectors * self.high // MOST_SUMS)
        cuts = [self.value_vectors * i // groups for i in range(groups + 1)]
        for start, end in itertools.pairwise(cuts):
            sums = self._sums(end - start)
            places = [(tile, self.mixed.address([at + m * TILE_ROWS, Index((start + j) * lanes)]))
                      for m, line in enumerate(sums) for j, tile in enumerate(line)]
            values = self._values_at(self.values, span.skipped)
            values = replace(values, pointer=values.address([Index(0), Index(start * lanes)]))
            if add:
                for tile, to in places:
                    tile_registers.load(tile, to, wide)
            self._accumulate(sums, span.count.ceildiv(TILE_ROWS), self.weights, values, add)
            for tile, to in places:
                tile_registers.store(tile, to, wide)

    def _sums(self, count: int) -> list[list[int]]:
        """Tiles of sums for so many vectors of columns, [rows][columns]."""
        return [[m * count + j for j in range(count)] for m in range(self.high)]

    def _accumulate(self, sums: list[list[int]], halves: Index, rows: Memory, columns: Memory, add: bool = False) -> None:
        """Sums of so many times 16 values of k: tiles of rows, [row][word of k], times those of columns, [word of k][column]."""
        for tile in (t for line in sums for t in line if not add):
            tile_registers.clear(tile)

        def step(tiles: tuple[int, int], s: Index) -> None:
            for m, line in enumerate(sums):
                at = rows.address([Index(m * TILE_ROWS), s * _WORDS])
                tile_registers.load(tiles[0], at, rows.strides[0] * _WORD)
                for j, tile in enumerate(line):
                    at = columns.address([s * _WORDS, Index(j * TILE_ROWS)])
                    tile_registers.load(tiles[1], at, columns.strides[0] * _WORD)
                    tile_registers.multiply_add("tdpbf16ps", tile, *tiles)

        loop(0, halves // 2, 1, partial(step, _WHOLE), index=self.index)
        when((halves % 2).eq(1), partial(step, _HALF, halves // 2))
