"""Convolutions with filters out of pools: tables of the pixels that are read, which all places of the window share.

The products of a pixel's eight channels with the vectors of the pool do not depend on the place in the window. So a work unit,
some rows of pixels of the result, makes tables of whole rows of the image, pixels side by side, and each is read by every filter
and place, a step further along the row for the next column of the window. The rows of the image that a window covers lie in a
ring; the next row of the result makes those alone that are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.passes.analysis.contraction import linear_terms
from tilewright.passes.codegen.emit import constant, loop, when
from tilewright.passes.codegen.host_kernel import Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.families.host.host_pools_products import PoolsEmitter
from tilewright.passes.families.host.host_pools_tables import PoolTables
from tilewright.passes.mlir import arith, ir
from tilewright.passes.spaces.host.host_pools import INDICES, VECTOR

_BLOCKS = 4  # vectors of pixels whose sums stay in registers


def window_loops(plan: Plan) -> dict[int, tuple[int, int]]:
    """For the last two loops of rows the window's loop along each, and its steps; ValueError where none passes over them."""
    view, found = plan.view, dict[int, tuple[int, int]]()
    for e in view.maps[plan.narrow].results:
        terms = linear_terms(e) or {}
        rows, taps = [d for d in terms if d in plan.rows], [d for d in terms if d in view.k]
        if len(terms) == 2 and len(rows) == len(taps) == 1 and terms[taps[0]] == 1 and terms[rows[0]] > 0:
            found[rows[0]] = (taps[0], terms[rows[0]])
    if len(found) != 2 or [d for d in plan.rows if d in found] != list(plan.rows[-2:]):
        raise ValueError(f"{view.op.name} at {view.op.location}: wanted windows over the last two loops of rows")
    return found


@dataclass(frozen=True)
class PoolWindow:
    """Loops: row and pixel of the result, and the window's along them. taps: extents of the window; step: of rows; pixels: of a
    row of the result."""

    row: int
    pixel: int
    down: int
    across: int
    taps: tuple[int, int]
    step: int
    pixels: int

    @staticmethod
    def of(plan: Plan) -> PoolWindow:
        """ValueError where rows are no pixels that windows pass over with single steps along a row of known length."""
        view, where, found = plan.view, f"{plan.view.op.name} at {plan.view.op.location}", window_loops(plan)
        row, pixel = plan.rows[-2:]
        if found[pixel][1] != 1:
            raise ValueError(f"{where}: wanted windows with steps of one along the last loop of rows")
        extents = [view.extents[d].constant for d in (found[row][0], found[pixel][0], pixel)]
        if any(e is None for e in extents):
            raise ValueError(f"{where}: wanted a window and rows of known lengths")
        down, across, pixels = (e for e in extents if e is not None)
        return PoolWindow(row, pixel, found[row][0], found[pixel][0], (down, across), found[row][1], pixels)


@dataclass(frozen=True)
class WindowEmitter(PoolsEmitter):
    """Of units of whole rows of pixels; `config.groups` counts vectors of channels."""

    @property
    def _window(self) -> PoolWindow:
        return PoolWindow.of(self.plan)

    @property
    def _some(self) -> int:
        return min(self.config.groups, self._channels)

    @property
    def _blocks(self) -> int:
        """Vectors of pixels of a row of the result."""
        return -(-self._window.pixels // self.config.rows)

    @property
    def _read(self) -> int:
        """Pixels of a row of the image that are read, in whole vectors."""
        rows = self.config.rows
        return -(-(self._blocks * rows + self._window.taps[1] - 1) // rows) * rows

    def _areas(self) -> dict[str, int]:
        books, entries, wide = len(self.pools.books), PoolTables.padded(self.pools), self._read
        tables = self._window.taps[0] * self._some * books * entries + INDICES - entries
        sums = self._blocks * self.config.rows * self.config.columns
        return {"pool": books * entries * VECTOR, "tables": tables * wide, "sums": sums * self.config.mc,
                "results": self.config.columns * self.config.rows}

    @property
    def _tables(self) -> PoolTables:
        tables = self._memory("tables", self._sum)
        return PoolTables(self.kernel.evaluator, self.plan, self.pools, self.config.rows, self._memory("pool", ir.F32Type.get()),
                          tables, self._read)

    def units(self, begin: Index, end: Index) -> Grid:
        ev, plan, index = self.kernel.evaluator, self.plan, self.kernel.index
        count, at = ev.emit(plan.view.extents[plan.column]), self.kernel.loops[0].numbers(ev)

        def unit(u: Index) -> None:
            here = at(u)
            (low, high), first = here.span("rows"), here.first("columns")
            self._unit(low // self._window.pixels, high // self._window.pixels, first, count)

        when(begin.lt(end), self._tables.fill)
        loop(begin, end, 1, unit, index=index)
        return self._grid

    def _unit(self, low: Index, high: Index, first: Index, count: Index) -> None:
        """Rows of pixels [low, high) by the columns from `first` on."""
        index, rows, config, window = self.kernel.index, self.config.rows, self.config, self._window
        sums = self._memory("sums", self._sum)
        row_size = self._blocks * rows * config.columns
        panels = (count - first).min(config.columns).ceildiv(self.pools.tile)
        zero = constant(self._sum, 0, VECTOR)
        loop(0, (high - low) * row_size, VECTOR, lambda i: sums.store(zero, [Index.ramp(i, VECTOR)]), index=index)
        loops: Loops = [None for _ in self.plan.view.extents]

        def piece(g: Index, groups: int) -> None:
            def row(r: Index) -> None:
                point = self._point(loops, r * window.pixels)
                self._make(point, (g, groups), r.eq(low))
                panel, start, wide = first // self.pools.tile, (r - low) * row_size, self.pools.tile * self._blocks * rows
                loop(0, panels, 1, lambda p: self._of_panel(panel + p, point, (g, groups), start + p * wide), index=index)

            loop(low, high, 1, row, index=index)

        whole = self._channels // self._some * self._some
        loop(0, whole, self._some, lambda g: piece(g, self._some), index=index)
        if self._channels > whole:
            piece(Index(whole), self._channels - whole)

        def finish(r: Index) -> None:
            end = (r + 1) * window.pixels
            loop(0, self._blocks, 1, lambda q: self._results(
                loops, (r * window.pixels + q * rows, end), first, count, (r - low) * row_size + q * rows, self._blocks * rows),
                index=index)

        loop(low, high, 1, finish, index=index)

    def _slot(self, point: Loops, down: int) -> Index:
        """Where the tables of a row of the image lie in the ring."""
        window = self._window
        row = point[window.row]
        assert row is not None
        return (row * window.step + down) % window.taps[0]

    def _make(self, point: Loops, piece: tuple[Index, int], begins: ir.Value | bool) -> None:
        """The tables of the rows of the image that the window covers at a row of the result, those that are new unless the unit
        or the image begins."""
        window, index, rows = self._window, self.kernel.index, self.config.rows
        (g, groups), image = piece, point[window.row]
        assert image is not None
        last = window.pixels + window.taps[1] - 2

        def tables(down: int) -> None:
            slot = self._slot(point, down)

            def pixels(x: Index, i: Index) -> None:
                points = []
                for n in range(rows):
                    here = list(point)
                    here[window.pixel], here[window.across], here[window.down] = (x + n).min(last), Index(0), Index(down)
                    here[self._channel_loop] = Index.ramp((g + i) * VECTOR, VECTOR)
                    points.append(here)
                self._tables.make(points, slot * self._some + i, x)

            def group(i: Index) -> None:
                loop(0, self._read, rows, lambda x: pixels(x, i), index=index)

            loop(0, groups, 1, group, index=index)

        top = image.eq(0)
        for down in range(window.taps[0]):
            if down >= window.taps[0] - window.step:
                tables(down)
                continue
            flags = [arith.constant(ir.IntegerType.get_signless(1), int(f)) if isinstance(f, bool) else f for f in (begins, top)]
            when(arith.ori(*flags), partial(tables, down))

    def _of_panel(self, panel: Index, point: Loops, piece: tuple[Index, int], start: Index) -> None:
        """Adds to a row of pixels of a panel's columns what their indices name at every place of the window."""
        blocks = self._blocks

        def column(j: Index) -> None:
            at = start + j * (blocks * self.config.rows)
            if blocks <= _BLOCKS:
                self._of_column(panel, point, piece, (j, at, Index(0), blocks))
                return
            whole = blocks // _BLOCKS * _BLOCKS
            loop(0, whole, _BLOCKS, lambda q: self._of_column(panel, point, piece, (j, at, q, _BLOCKS)), index=self.kernel.index)
            if blocks > whole:
                self._of_column(panel, point, piece, (j, at, Index(whole), blocks - whole))

        loop(0, self.pools.tile, 1, column, index=self.kernel.index)

    def _of_column(self, panel: Index, point: Loops, piece: tuple[Index, int], place: tuple[Index, Index, Index, int]) -> None:
        """place: the column of the panel, where its sums begin, the first vector of pixels and how many there are."""
        (j, start, first, blocks), (g, groups) = place, piece
        rows, window, books = self.config.rows, self._window, self.pools.books
        sums = self._memory("sums", self._sum)
        at = [[Index.ramp(start + (first + q) * rows, rows)] for q in range(blocks)]
        add = arith.addi if self.config.bits else arith.addf

        def group(i: Index, given: Sequence[ir.Value]) -> list[ir.Value]:
            done = list(given)
            for down in range(window.taps[0]):
                slot = self._slot(point, down) * self._some + i
                for across in range(window.taps[1]):
                    for book in range(len(books)):
                        named = self._named(books[book].index, panel, {window.down: down, window.across: across}, g + i)
                        entry = Index(arith.extui(self.kernel.index, named.load([j])))
                        for q in range(blocks):
                            found = self._tables.load(slot, book, entry, (first + q) * rows + across)
                            done[q] = add(done[q], found)
            return done

        carried = [sums.load(a) for a in at]
        if groups == 1:
            carried = group(Index(0), carried)
        else:
            carried = loop(0, groups, 1, lambda i, *c: group(i, c), carried, self.kernel.index)
        for a, value in zip(at, carried, strict=True):
            sums.store(value, a)
