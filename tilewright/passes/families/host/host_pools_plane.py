"""Convolutions of whole numbers with filters out of pools: a strip of the image as one row of pixels, in whole vectors.

A work unit is some rows of pixels of the result by some filters. For some groups of eight channels at a time the pixels that are
read become bytes, then tables of their products with the pool, which all filters and places of the window read, a step further
along. All sums of a filter stay in registers, as far as they fit, while the places and groups are gone through, so that an index
is read once for many pixels. Source: Bit-serial Weight Pools (MLSys 2022), its second look-up, for vectors of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.passes.codegen.emit import constant, integer_type, loop
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.families.host.host_pools_narrow import ENTRY
from tilewright.passes.families.host.host_pools_plane_tables import PlaneTables
from tilewright.passes.families.host.host_pools_strips import StripEmitter
from tilewright.passes.mlir import arith, ir
from tilewright.passes.spaces.host.host_pools import FUSED, INDICES, MOST_BLOCKS, VECTOR, sums_in_16_bits
from tilewright.passes.spaces.host.pool_plane import Plane


@dataclass(frozen=True)
class PlaneEmitter(StripEmitter):
    """Of units of `config.mc` rows of pixels; `config.groups` counts vectors of channels."""

    @property
    def _plane(self) -> Plane:
        return self.config.plane_of(self._loops.shape)

    @property
    def _some(self) -> int:
        return min(self.config.groups, self._channels)

    @property
    def _size(self) -> int:
        """Sums of a filter."""
        return self._plane.blocks * self._plane.lanes

    def _areas(self) -> dict[str, int]:
        books, plane, words = len(self.pools.books), self._plane, PlaneTables.width(self.config.bits) // 16
        entries = len(plane.phases) * self._some * books * self.pools.entries + INDICES - self.pools.entries
        return {"pool": books * self.pools.entries * ENTRY, "pixels": plane.stride * VECTOR * words // 4,
                "tables": entries * plane.stride * words // 2, "sums": self._size * self.config.columns,
                "results": self.config.columns * self.config.rows}

    @property
    def _made(self) -> PlaneTables:
        width = PlaneTables.width(self.config.bits)
        memories = [self._memory(area, integer_type(bits)) for area, bits in
                    (("pixels", width // 2), ("pool", 32), ("tables", width))]
        config = self.config
        return PlaneTables(self.kernel.evaluator, self.pools, self._plane, config.bits, config.plane, config.dot == FUSED,
                           self._some, *memories)

    def _fill(self) -> None:
        self._made.fill()

    def _unit(self, low: Index, first: Index, count: Index) -> None:
        """The strip of rows of pixels from `low` on, by the columns from `first` on."""
        index, tile, shape, sums = self.kernel.index, self.pools.tile, self._loops.shape, self._memory("sums", self._sum)
        panels, panel = (count - first).min(self.config.columns).ceildiv(tile), first // tile
        lanes, zero = self.config.plane // 4, constant(self._sum, 0, self.config.plane // 4)
        loop(0, panels * (tile * self._size), lanes, lambda i: sums.store(zero, [Index.ramp(i, lanes)]), index=index)
        loops: Loops = [None for _ in self.plan.view.extents]
        point = self._point(loops, low * shape.width)

        def piece(g: Index, groups: int) -> None:
            loop(0, groups, 1, lambda i: self._make(point, g + i, i), index=index)
            loop(0, panels, 1, lambda p: loop(0, tile, 1, lambda j: self._of_column(
                (panel + p, j), p * tile + j, (g, groups)), index=index), index=index)

        some, channels = self._some, self._channels
        whole = channels // some * some
        loop(0, whole, some, lambda g: piece(g, some), index=index)
        if channels > whole:
            piece(Index(whole), channels - whole)
        self._put_in_order(panels * tile)

        def finish(r: Index) -> None:
            row, rows = low + r, self.config.rows
            loop(0, -(-shape.width // rows), 1, lambda q: self._results(
                loops, (row * shape.width + q * rows, (row + 1) * shape.width), first, count,
                r * self._plane.wide + q * rows, self._size), index=index)

        loop(0, self.config.mc, 1, finish, index=index)

    def _make(self, point: Loops, group: Index, number: Index) -> None:
        """The tables of a group of channels, the `number`-th that is kept."""
        tables, plane, loops, shape = self._made, self._plane, self._loops, self._loops.shape
        view, which, channel = self.plan.view, self.plan.narrow, self._channel_loop
        for phase, starts in enumerate(plane.phases):

            def pixel(y: Index, x: Index, starts: tuple[int, int] = starts) -> None:
                here = list(point)
                row = point[loops.row]
                assert row is not None
                for axis, (place, base) in enumerate(((y, row), (x, Index(0)))):
                    there = place.min((plane.rows, shape.width)[axis] - 1)
                    here[(loops.row, loops.pixel)[axis]] = base + there
                    tap = (place - there) * shape.steps[axis] + starts[axis]
                    here[(loops.down, loops.across)[axis]] = tap.min(shape.taps[axis] - 1)
                here[channel] = Index.ramp(group * VECTOR, VECTOR)
                value = self.kernel.evaluator.element(view.operand(which), coords_of(view, which, here))
                tables.put(splat_to(ProductCode(view.product).factor(which, value), VECTOR), y * plane.wide + x)

            def row(y: Index, pixel: Callable[[Index, Index], None] = pixel) -> None:
                loop(0, plane.wide, 1, lambda x: pixel(y, x), index=self.kernel.index)

            loop(0, plane.tall, 1, row, index=self.kernel.index)
            tables.make(phase, number)

    def _of_column(self, column: tuple[Index, Index], number: Index, piece: tuple[Index, int]) -> None:
        """Adds to the sums of a column, the `number`-th of the unit, what its indices name at every place of the window.
        column: its panel and its place in that."""
        tables, lanes, blocks = self._made, self._plane.lanes, self._plane.blocks
        sums, vector, (g, groups) = self._memory("sums", self._sum), self.config.plane // 4, piece
        parts = -(-blocks // (MOST_BLOCKS[self.config.plane] * (3 - tables.sums)))

        for part in range(parts):
            low, high = blocks * part // parts, blocks * (part + 1) // parts
            start = number * self._size + low * lanes
            at = [[Index.ramp(start + n * vector, vector)] for n in range((high - low) * tables.sums)]

            def group(i: Index, given: Sequence[ir.Value], low: int = low) -> list[ir.Value]:
                return tables.add(given, self._places(column, g, i, low * lanes), sums_in_16_bits(self.config.bits) or 1)

            carried = [sums.load(a) for a in at]
            carried = group(Index(0), carried) if groups == 1 else \
                loop(0, groups, 1, lambda i, *c, group=group: group(i, c), carried, self.kernel.index)
            for a, value in zip(at, carried, strict=True):
                sums.store(value, a)

    def _places(self, column: tuple[Index, Index], first: Index, group: Index, pixel: int) -> list[Callable[[], Index]]:
        """Where the tables hold what a column's indices name of a group, from a pixel on."""
        tables, plane, loops, found = self._made, self._plane, self._loops, list[Callable[[], Index]]()
        panel, j = column

        def place(book: int, down: int, across: int) -> Index:
            named = self._named(self.pools.books[book].index, panel, {loops.down: down, loops.across: across}, first + group)
            phase, along = plane.place(down, across)
            return tables.place(phase, group, book, Index(arith.extui(self.kernel.index, named.load([j])))) + (along + pixel)

        for down in range(plane.shape.taps[0]):
            for across in range(plane.shape.taps[1]):
                found += [partial(place, book, down, across) for book in range(len(self.pools.books))]
        return found

    def _put_in_order(self, columns: Index) -> None:
        """Sums by even and odd pixels as those of pixels side by side."""
        tables, sums, lanes = self._made, self._memory("sums", self._sum), self.config.plane // 4

        def block(i: Index) -> None:
            at = [[Index.ramp(i + n * lanes, lanes)] for n in range(tables.sums)]
            for a, value in zip(at, tables.in_order([sums.load(a) for a in at]), strict=True):
                sums.store(value, a)

        if tables.sums > 1:
            loop(0, columns * self._size, self._plane.lanes, block, index=self.kernel.index)
