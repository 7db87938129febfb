"""Family `host_winograd`: convolutions by Winograd's minimal filtering, with what is fused after them.

The result is cut into tiles of m pixels along each axis of the windows, of which there are two or one. With steps of one a tile
of the image and each filter are transformed to m + window - 1 places along each axis; at each place the transformed tiles
[tile][channel] are multiplied with the transformed filters [channel][filter], and the products transform back to the pixels: of
3x3 windows (m + 2)^2 multiplications for the 9 m^2 of the definition. With steps of two the image and the window fall apart into
the phases of even and odd rows and columns, which are convolutions with steps of one over half as many places; they are
transformed to the same points and are summed over there, as channels are. A phase of one place less has no product at infinity:
(2 m + 1)^2 multiplications for the 9 m^2.

A work unit is one point of the shared loops, some tiles and a group of panels of filters. It transforms its filters once; then,
a chunk of tiles at a time, it transforms the image, multiplies in register blocks of mr tiles by nv vectors of filters, and
stores. With kc it transforms so many channels of both at a time, anew for each chunk, and adds up the products. All three lie
in the workspace. Every element is summed in an order that depends on the shape and the configuration. Tiles may reach over the
ends of the image: what they need from there is read from the last pixels, and not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from tilewright.passes.analysis.contraction import linear_terms
from tilewright.passes.codegen.emit import Memory, byte_width, is_float, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index, delinearize, splat_to
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.families.host.host_matmul_block import Block, Columns, Loops
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import row_blocks
from tilewright.passes.families.host.host_matmul_store import PlacedResults
from tilewright.passes.families.host.winograd_matrices import Matrix, corner, matrices, on_both_sides
from tilewright.passes.mlir import ir, llvm
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig
from tilewright.passes.spaces.host.host_winograd import HostWinogradConfig
from tilewright.passes.spaces.host.winograd_form import Axis, Form
from tilewright.runtime.shape import Expr

_APART = 16  # elements behind all channels of a tile, and behind a place, so that they do not share cache sets
_AHEAD = 2  # tiles: the image's lines are fetched


def emit(kernel: HostKernel, config: HostWinogradConfig) -> Grid:
    """The whole kernel. ValueError when the region is no convolution of a form that the family takes."""

    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        plan = Plan.of(kernel)
        return _WinogradEmitter(kernel, config, plan, _Layer.of(plan), workspace).units(begin, end)

    return kernel.build(body)


def tile(frame: KernelFrame, config: HostWinogradConfig, tiler: Tiler) -> None:
    """Units of one point of the shared loops, some tiles of pixels and a group of panels of filters. Consecutive tiles are no
    slice of the result: those that share the rest put in the same pixels, of which each computes some."""
    plan = Plan.of(frame)
    layer = _Layer.of(plan)
    if plan.tile % config.columns:
        raise ValueError(f"panels of {plan.tile} filters cannot be read in blocks of {config.columns}")
    columns, tiles, step = plan.view.extents[plan.column], Expr.of(1), config.columns * config.panels
    for extent in layer.grid(plan, config.m):
        tiles = tiles * extent

    def parts(place: list[Index]) -> dict[str, Part]:
        return {**{f"d{d}": Part(x) for d, x in zip(plan.shared, place, strict=False)},
                "columns": tiler.span(place[-1], step, columns)}

    some = tiles.ceildiv(config.mc * config.chunks) if config.chunks else tiles.minimum(1)
    counts = [*(plan.view.extents[d] for d in plan.shared), some, columns.ceildiv(step)]
    tiler.loop(counts, parts, plan.view.cut({**{f"d{d}": (d,) for d in plan.shared}, "columns": (plan.column,)}))


@dataclass(frozen=True)
class _Layer:
    """Loops of a convolution by what they are. rows: of pixels, along two axes, the first None where windows lie along one; taps:
    of the window along them; axes: what the windows are like there; images: the other loops over rows; idle: over windows of
    one place."""

    images: tuple[int, ...]
    rows: tuple[int | None, int]
    taps: tuple[int | None, int]
    axes: tuple[Axis, Axis]
    idle: tuple[int, ...]
    channel: int

    @staticmethod
    def of(plan: Plan) -> _Layer:
        view = plan.view
        where = f"{view.op.name} at {view.op.location}"
        pairs = [terms for e in view.maps[plan.narrow].results if (terms := linear_terms(e)) is not None and len(terms) == 2]
        every = [(d, t, terms) for terms in pairs for d in terms for t in terms if d in plan.rows and t in view.k]
        windows = [(d, t, terms) for d, t, terms in every if view.extents[t].constant != 1]
        channels = [d for d in view.k if d not in {t for _, t, _ in every}]
        form = Form.of([(view.extents[t].constant if terms[t] == 1 else None, terms[d]) for d, t, terms in windows])
        if form is None or len(channels) != 1:
            raise ValueError(f"{where}: wanted one or two windows of {Form.wanted()}, and one loop over channels")
        if plan.column in view.loops_of(plan.narrow) or plan.side > 1 or not is_float(view.product.accumulator):
            raise ValueError(f"{where}: wanted an image of floats that does not vary with the filters, and no words of bf16")
        (y, x), (a, b) = (tuple([None, *found][-2:]) for found in ([d for d, _, _ in windows], [t for _, t, _ in windows]))
        assert x is not None and b is not None
        above, along = (Axis(), *form.axes)[-2:]
        idle = tuple(t for d, t, _ in every if (d, t) not in {(d, t) for d, t, _ in windows})
        return _Layer(tuple(d for d in plan.rows if d not in (y, x)), (y, x), (a, b), (above, along), idle, channels[0])

    @property
    def phases(self) -> list[tuple[int, int]]:
        """Remainders along both axes."""
        form = Form(self.axes if self.rows[0] is not None else self.axes[1:])
        return [(0, phase[0]) if len(phase) == 1 else (phase[0], phase[1]) for phase in form.phases]

    def sizes(self, m: int) -> tuple[int, int]:
        """Pixels of a tile along both axes."""
        return (1 if self.rows[0] is None else m, m)

    def grid(self, plan: Plan, m: int) -> list[Expr]:
        """Tiles along each loop over images and along the axes of pixels."""
        extents = plan.view.extents
        return [*(extents[d] for d in self.images), *(extents[d].ceildiv(m) for d in self.rows if d is not None)]


@dataclass(frozen=True)
class _WinogradEmitter:
    kernel: HostKernel
    config: HostWinogradConfig
    plan: Plan
    layer: _Layer
    workspace: ir.Value

    @property
    def sides(self) -> tuple[int, int]:
        """Places of a transformed tile along both axes."""
        (a, b), (m, n) = self.layer.axes, self.layer.sizes(self.config.m)
        return a.side(m), b.side(n)

    @property
    def places(self) -> int:
        return self.sides[0] * self.sides[1]

    def matrices(self, which: int) -> tuple[Matrix, Matrix]:
        """A^T, G or B^T along both axes."""
        (a, b), (m, n) = self.layer.axes, self.layer.sizes(self.config.m)
        return matrices(m, a.taps)[which], matrices(n, b.taps)[which]

    def place(self, i: int, j: int) -> Index:
        return Index(i * self.sides[1] + j)

    @property
    def channels(self) -> Expr:
        return self.plan.view.extents[self.layer.channel]

    @property
    def depth(self) -> Expr:
        """Channels that are transformed at a time."""
        return Expr.of(self.config.kc) if self.config.kc else self.channels

    def reach(self, phase: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of a phase: taps along both axes, and places of a transformed tile that it has products at."""
        a, b = (axis.taps_of(r) for axis, r in zip(self.layer.axes, phase, strict=True))
        m, n = self.layer.sizes(self.config.m)
        return (a, b), (a + m - 1, b + n - 1)

    def grid(self) -> list[Expr]:
        return self.layer.grid(self.plan, self.config.m)

    def _areas(self) -> dict[str, tuple[Expr, ...]]:
        """Strides of what the workspace holds, in order; the first is that of the whole area.

        filters: [panel][place][phase][channel][filter]; image: [place][tile][phase][channel]; products: [place][tile][filter], so
        that the products at a place read and write memory from end to end.
        """
        config, places, phases = self.config, self.places, len(self.layer.phases)
        values = self.depth * (phases - 1) + self.depth.ceildiv(config.lanes) * config.lanes
        values = values if config.kc else values + _APART
        wide, panel = Expr.of(config.columns * config.panels), self.depth * config.columns * phases + _APART
        image, products = (tile * config.mc + _APART for tile in (values, wide))
        return {
            "filters": (panel * places * config.panels, panel * places, panel, Expr.of(config.columns), Expr.of(1)),
            "image": (image * places, values, image, Expr.of(1)),
            "products": (products * places, wide, products, Expr.of(1)),
        }

    def memory(self, area: str) -> Memory:
        start, ev, element = Expr.of(0), self.kernel.evaluator, self.plan.view.product.accumulator
        for name, strides in self._areas().items():
            if name == area:
                break
            start = start + strides[0]
        at = self.kernel.offset_pointer(self.workspace, ev.emit(start), byte_width(element))
        steps = tuple(ev.emit(s) for s in self._areas()[area][1:])
        return Memory(at, element, steps, steps, self.kernel.index)

    def units(self, begin: Index, end: Index) -> Grid:
        ev, plan = self.kernel.evaluator, self.plan
        units, tiles = self.kernel.loops[0], Expr.of(1)
        for extent in self.grid():
            tiles = tiles * extent
        count, every, at = ev.emit(plan.view.extents[plan.column]), ev.emit(tiles), units.numbers(ev)
        size = every.ceildiv(ev.emit(units.counts[-2]).max(1))  # units of about as many tiles

        def unit(u: Index) -> None:
            here = at(u)
            loops: Loops = [here.first(f"d{d}") if d in plan.shared else None for d in range(len(plan.view.extents))]
            first, low = here.first("columns"), (here.place[-2] * size).min(every)
            _WinogradUnit(self, loops, first, count - first, low, (low + size).min(every)).run()

        loop(begin, end, 1, unit, index=self.kernel.index)
        space = Expr.of(0)
        for strides in self._areas().values():
            space = space + strides[0]
        return Grid(space * byte_width(plan.view.product.accumulator))


@dataclass(frozen=True)
class _Channels:
    first: Index
    count: Index


@dataclass(frozen=True)
class _WinogradUnit:
    """Tiles [low, high) and the filters from `first` on, of which `left` are there; loops: coordinates of the shared loops."""

    emitter: _WinogradEmitter
    loops: Loops
    first: Index
    left: Index
    low: Index
    high: Index

    @property
    def _config(self) -> HostWinogradConfig:
        return self.emitter.config

    def _loop(self, low: Index | int, high: Index | int, step: Index | int, body: Callable[[Index], None]) -> None:
        loop(low, high, step, body, index=self.emitter.kernel.index)

    def run(self) -> None:
        config, count = self._config, self.high - self.low
        chunks = count.ceildiv(config.mc).max(1)
        size = count.ceildiv(chunks).ceildiv(config.mr).max(1) * config.mr  # chunks of about as many tiles
        depth, kc = self.emitter.kernel.evaluator.emit(self.emitter.channels), config.kc
        if not kc:
            self._each_panel(lambda panel, vectors: self._filters(panel, vectors, _Channels(Index(0), depth)))

        def chunk(low: Index) -> None:
            tiles = (self.high - low).min(size)

            def some(first: Index) -> None:
                channels = _Channels(first, (depth - first).min(kc) if kc else depth)
                if kc:
                    self._each_panel(lambda panel, vectors: self._filters(panel, vectors, channels))
                self._loop(0, tiles, 1, lambda tile: self._image(tile, low + tile, channels))
                self._each_panel(lambda panel, vectors: self._products(panel, vectors, tiles, channels))

            if kc:
                self._loop(0, depth.max(1), kc, some)
            else:
                some(Index(0))
            self._loop(0, tiles, 1, lambda tile: self._results(tile, low + tile))

        self._loop(self.low, self.high, size, chunk)

    def _each_panel(self, body: Callable[[Index, int], None]) -> None:
        """body(panel, vectors of filters in it) for the panels of the unit; those of a part of a panel only where their number
        is known."""
        config, extent = self._config, self.emitter.plan.view.extents[self.emitter.plan.column].constant
        over = 0 if extent is None else -(-(extent % config.columns) // config.lanes)
        panels = ((self.left + (config.columns - 1)) // config.columns).min(config.panels)
        if not over:
            self._loop(0, panels, 1, lambda panel: body(panel, config.nv))
            return
        whole = (self.left // config.columns).min(config.panels)
        self._loop(0, whole, 1, lambda panel: body(panel, config.nv))
        self._loop(whole, panels, 1, lambda panel: body(panel, over))

    def _filters(self, panel: Index, vectors: int, channels: _Channels) -> None:
        """Transforms some channels of the filters of a panel."""
        emitter, config = self.emitter, self._config
        memory, layer, g = emitter.memory("filters"), emitter.layer, emitter.matrices(1)
        block = Block(emitter.kernel.evaluator, emitter.plan, HostMatmulConfig(config.mr, config.nv, config.lanes), None)

        def vector(c: Index, at: int, number: int, phase: tuple[int, int]) -> None:
            place = panel * config.columns + at
            mask = None if emitter.plan.tile else lane_mask(self.left - place, config.lanes, emitter.kernel.index)
            columns = Columns((self.first + place,), (mask,), (place,))
            taps, sides = emitter.reach(phase)

            def read(a: int, b: int) -> ir.Value:
                here = (Index(p + x * axis.step) for axis, p, x in zip(layer.axes, phase, (a, b), strict=True))
                return block.wide(self._at(channels.first + c, layer.taps, tuple(here)), columns, 0, Index(0))

            def write(a: int, b: int, value: ir.Value) -> None:
                k = channels.count * number + c
                memory.store(value, [panel, emitter.place(a, b), k, Index.ramp(at, config.lanes)])

            left, right = (corner(x, s, t) for x, s, t in zip(g, sides, taps, strict=True))
            on_both_sides(left, right, read, write)

        def channel(c: Index) -> None:
            for j, (number, phase) in product(range(vectors), enumerate(layer.phases)):
                vector(c, j * config.lanes, number, phase)

        self._loop(0, channels.count, 1, channel)

    def _image(self, place: Index, tile: Index, channels: _Channels) -> None:
        """Transforms some channels of what tile number `tile` of the result needs of the image, to `place` of the chunk."""
        emitter, config, ev = self.emitter, self._config, self.emitter.kernel.evaluator
        plan, layer, lanes = emitter.plan, emitter.layer, config.lanes
        image, bt = plan.view.operand(plan.narrow), emitter.matrices(2)
        memory, source = emitter.memory("image"), ev.memories.get(image)
        above, along = layer.axes
        point, first = self._corner(tile)

        def reach(n: int) -> list[Index]:
            """Places of the image along an axis."""
            axis, d, m = layer.axes[n], layer.rows[n], layer.sizes(config.m)[n]
            if d is None:
                return [Index(0)]
            extent, start = plan.view.extents[d], first[n] * axis.step
            last = (ev.emit(extent) - 1) * axis.step + (axis.window - 1)
            sure = axis.tile(m) if extent.divisible_by(m) else axis.window
            return [start + i if i < sure else (start + i).min(last) for i in range(axis.tile(m))]

        rows, columns = reach(0), reach(1)

        def vector(number: int, phase: tuple[int, int], c: Index, mask: ir.Value | None) -> None:
            _, sides = emitter.reach(phase)

            def pixel(i: int, j: int, channel: Index, beside: int = 0) -> list[Index]:
                here = (rows[phase[0] + i * above.step], columns[phase[1] + j * along.step] + beside)
                at = self._at(channel, layer.taps, here, point)
                return coords_of(plan.view, plan.narrow, [Index(0) if d in layer.rows else x for d, x in enumerate(at)])

            def read(i: int, j: int) -> ir.Value:
                if source is not None and phase[1] + j * along.step >= along.window - along.step:
                    ahead = pixel(i, j, channels.first + c, along.step * config.m * _AHEAD)
                    llvm.intr_prefetch(source.address(ahead), 0, 3, 1)
                value = ev.element(image, pixel(i, j, Index.ramp(channels.first + c, lanes)), mask)
                return splat_to(ProductCode(plan.view.product).factor(plan.narrow, value), lanes)

            def write(i: int, j: int, value: ir.Value) -> None:
                memory.store(value, [place, emitter.place(i, j), Index.ramp(channels.count * number + c, lanes)])

            left, right = (corner(x, s, s) for x, s in zip(bt, sides, strict=True))
            on_both_sides(left, right, read, write)

        for number, phase in enumerate(layer.phases):  # a vector may run over into the next phase
            self._vectors(channels.count, partial(vector, number, phase))

    def _products(self, panel: Index, vectors: int, tiles: Index, channels: _Channels) -> None:
        """Multiplies some channels of the tiles of a chunk with those of a panel of filters at every place, and adds that to the
        products of the channels before."""
        emitter, config, code = self.emitter, self._config, ProductCode(self.emitter.plan.view.product)
        filters, image, products = (emitter.memory(area) for area in ("filters", "image", "products"))
        more = Index(0).lt(channels.first)

        def place(p: Index) -> None:
            low, high = self._phases_at(p)

            def block(row: Index, height: int) -> None:
                def step(c: Index, *sums: ir.Value) -> list[ir.Value]:
                    wide = [filters.load([panel, p, c, Index.ramp(j * config.lanes, config.lanes)]) for j in range(vectors)]
                    done = []
                    for i in range(height):
                        shared = splat_to(image.load([row + i, p, c]), config.lanes)
                        done += [code.multiply_add(shared, b, sums[i * vectors + j]) for j, b in enumerate(wide)]
                    return done

                places = [[row + n // vectors, p, Index.ramp(panel * config.columns + n % vectors * config.lanes, config.lanes)]
                          for n in range(height * vectors)]
                mask = None if isinstance(more, bool) else splat_to(more, config.lanes)
                begin = [code.zero(config.lanes) if mask is None else products.load(at, mask) for at in places]
                sums = loop(low * channels.count, high * channels.count, 1, step, begin, emitter.kernel.index)
                for at, value in zip(places, sums, strict=True):
                    products.store(value, at)

            row_blocks(Index(0), tiles, config.mr, True, emitter.kernel.index, block)

        self._loop(0, emitter.places, 1, place)

    def _phases_at(self, place: Index) -> tuple[Index, Index]:
        """The first phase with products at a place, and the one behind the last."""
        layer, (height, width) = self.emitter.layer, self.emitter.sides
        ends = [at // (side - 1) if axis.uneven else None  # 1 at infinity
                for axis, at, side in zip(layer.axes, (place // width, place % width), (height, width), strict=True)]
        down, along = ends
        count = len(layer.phases)
        if down is not None and along is not None:
            return along, (Index(count) - down * 2).min(Index(count) - along)
        end = down if along is None else along
        return Index(0), Index(count) if end is None else Index(count) - end * (count // 2)

    def _results(self, place: Index, tile: Index) -> None:
        """Stores the pixels of a tile of all filters of the unit, with what follows them."""
        emitter, config = self.emitter, self._config
        memory, (left, right) = emitter.memory("products"), emitter.matrices(0)
        results, (point, first) = PlacedResults(emitter.kernel, emitter.plan, config.lanes), self._corner(tile)

        def vector(f: Index, mask: ir.Value | None) -> None:
            def read(i: int, j: int) -> ir.Value:
                return memory.load([place, emitter.place(i, j), Index.ramp(f, config.lanes)])

            def write(i: int, j: int, value: ir.Value) -> None:
                self._pixel(point, first, (i, j), lambda at: results.store(at, self.first + f, value, mask))

            on_both_sides(left, right, read, write)

        self._vectors(self.left.min(config.columns * config.panels), vector)

    def _pixel(self, point: Loops, first: tuple[Index, Index], pixel: tuple[int, int], store: Callable[[Loops], None]) -> None:
        """store(point of the loops) where a pixel of a tile is one of the result's."""
        emitter, at = self.emitter, list(point)
        inside: list[ir.Value | bool] = []
        for d, start, offset in zip(emitter.layer.rows, first, pixel, strict=True):
            if d is None:
                continue
            extent = emitter.plan.view.extents[d]
            at[d] = start + offset
            if offset and not extent.divisible_by(self._config.m):
                inside.append((start + offset).lt(emitter.kernel.evaluator.emit(extent)))

        def under(conditions: list[ir.Value | bool]) -> None:
            if conditions:
                when(conditions[0], lambda: under(conditions[1:]))
            else:
                store(at)

        under(inside)

    def _corner(self, tile: Index) -> tuple[Loops, tuple[Index, Index]]:
        """The loops over images at a tile, and its first pixel along both axes."""
        emitter, layer = self.emitter, self.emitter.layer
        places = delinearize(tile, [emitter.kernel.evaluator.emit(e) for e in emitter.grid()])
        images, along = dict(zip(layer.images, places, strict=False)), places[len(layer.images):]
        y, x = (Index(0), *along)[-2:]
        m = self._config.m
        return [images.get(d, x) for d, x in enumerate(self.loops)], (y * m, x * m)

    def _at(self, channel: Index, axes: tuple[int | None, int], places: tuple[Index, ...], point: Loops | None = None) -> Loops:
        """Coordinates of a channel at places along two loops; those of the others as at `point`."""
        layer = self.emitter.layer
        known = {layer.channel: channel, **dict.fromkeys(layer.idle, Index(0)),
                 **{d: place for d, place in zip(axes, places, strict=True) if d is not None}}
        return [known.get(d, x) for d, x in enumerate(point or self.loops)]

    def _vectors(self, count: Index, body: Callable[[Index, ir.Value | None], None]) -> None:
        """body(first, mask) for whole vectors, then for the last one under a mask."""
        lanes = self._config.lanes
        whole = count - count % lanes
        self._loop(0, whole, lanes, lambda c: body(c, None))
        over = count - whole
        when(Index(0).lt(over), lambda: body(whole, lane_mask(over, lanes, self.emitter.kernel.index)))
