"""Family `host_winograd`: convolutions by Winograd's minimal filtering, with what is fused after them.

The result is cut into tiles of m x m pixels. With steps of one a tile of the image and each filter are transformed to squares of
m + window - 1 on a side; at each of its places the transformed tiles [tile][channel] are multiplied with the transformed filters
[channel][filter], and the products transform back to m x m pixels: of 3x3 windows (m + 2)^2 multiplications for the 9 m^2 of the
definition. With steps of two the image and the window fall apart into the four phases of even and odd rows and columns, which
are convolutions with steps of one over half as many places; they are transformed to the same points and are summed over there,
as channels are. A phase of one place less has no product at infinity: (2 m + 1)^2 multiplications for the 9 m^2.

A work unit is one point of the shared loops, some tiles and a group of panels of filters. It transforms its filters once; then,
a chunk of tiles at a time, it transforms the image, multiplies in register blocks of mr tiles by nv vectors of filters, and
stores. All three lie in the workspace. Every element is summed in an order that depends on the shape and the configuration.
Tiles may reach over the ends of the image: what they need from there is read from the last pixels, and not stored.
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
from tilewright.passes.families.host.winograd_matrices import corner, matrices, on_both_sides
from tilewright.passes.mlir import ir, llvm
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig
from tilewright.passes.spaces.host.host_winograd import Form, HostWinogradConfig
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
    for extent in layer.tiles(plan, config.m):
        tiles = tiles * extent

    def parts(place: list[Index]) -> dict[str, Part]:
        return {**{f"d{d}": Part(x) for d, x in zip(plan.shared, place, strict=False)},
                "columns": tiler.span(place[-1], step, columns)}

    some = tiles.ceildiv(config.mc * config.chunks) if config.chunks else tiles.minimum(1)
    counts = [*(plan.view.extents[d] for d in plan.shared), some, columns.ceildiv(step)]
    tiler.loop(counts, parts, plan.view.cut({**{f"d{d}": (d,) for d in plan.shared}, "columns": (plan.column,)}))


@dataclass(frozen=True)
class _Layer:
    """Loops of a convolution by what they are. rows: of pixels, along two axes; taps: of the window along them; images: the
    other loops over rows. form: of its windows."""

    images: tuple[int, ...]
    rows: tuple[int, int]
    taps: tuple[int, int]
    channel: int
    form: Form

    @staticmethod
    def of(plan: Plan) -> _Layer:
        view = plan.view
        where = f"{view.op.name} at {view.op.location}"
        pairs = [terms for e in view.maps[plan.narrow].results if (terms := linear_terms(e)) is not None and len(terms) == 2]
        windows = [(d, t, terms[d]) for terms in pairs for d in terms for t in terms
                   if d in plan.rows and t in view.k and terms[t] == 1]
        channels = [d for d in view.k if d not in {t for _, t, _ in windows}]
        forms = {Form.of(view.extents[t].constant, step) for _, t, step in windows}
        form = forms.pop() if len(windows) == 2 and len(forms) == 1 else None
        if form is None or len(channels) != 1:
            raise ValueError(f"{where}: wanted two windows of {Form.wanted()}, and one loop over channels")
        if plan.column in view.loops_of(plan.narrow) or plan.side > 1 or not is_float(view.product.accumulator):
            raise ValueError(f"{where}: wanted an image of floats that does not vary with the filters, and no words of bf16")
        (y, a, _), (x, b, _) = windows
        return _Layer(tuple(d for d in plan.rows if d not in (y, x)), (y, x), (a, b), channels[0], form)

    def tiles(self, plan: Plan, m: int) -> list[Expr]:
        """Tiles of m x m pixels along each loop over images and along the two axes of pixels."""
        extents = plan.view.extents
        return [*(extents[d] for d in self.images), *(extents[d].ceildiv(m) for d in self.rows)]


@dataclass(frozen=True)
class _WinogradEmitter:
    kernel: HostKernel
    config: HostWinogradConfig
    plan: Plan
    layer: _Layer
    workspace: ir.Value

    @property
    def side(self) -> int:
        """Places along an axis of a transformed tile."""
        return self.layer.form.side(self.config.m)

    @property
    def places(self) -> int:
        return self.side**2

    @property
    def channels(self) -> Expr:
        return self.plan.view.extents[self.layer.channel]

    @property
    def depth(self) -> Expr:
        """Channels that are transformed at a time."""
        return Expr.of(self.config.kc) if self.config.kc else self.channels

    def reach(self, phase: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of a phase: taps along the two axes, and places of a transformed tile that it has products at."""
        (a, b), off = map(self.layer.form.taps_of, phase), self.config.m - 1
        return (a, b), (a + off, b + off)

    def grid(self) -> list[Expr]:
        return self.layer.tiles(self.plan, self.config.m)

    def _areas(self) -> dict[str, tuple[Expr, ...]]:
        """Strides of what the workspace holds, in order; the first is that of the whole area.

        filters: [panel][place][phase][channel][filter]; image: [place][tile][phase][channel]; products: [place][tile][filter], so
        that the products at a place read and write memory from end to end.
        """
        config, places, phases = self.config, self.places, len(self.layer.form.phases)
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
        memory, layer = emitter.memory("filters"), emitter.layer
        _, g, _ = matrices(config.m, layer.form.taps)
        block = Block(emitter.kernel.evaluator, emitter.plan, HostMatmulConfig(config.mr, config.nv, config.lanes), None)

        def vector(c: Index, at: int, number: int, phase: tuple[int, int]) -> None:
            place = panel * config.columns + at
            mask = None if emitter.plan.tile else lane_mask(self.left - place, config.lanes, emitter.kernel.index)
            columns = Columns((self.first + place,), (mask,), (place,))
            taps, sides = emitter.reach(phase)

            def read(a: int, b: int) -> ir.Value:
                here = (Index(p + x * layer.form.step) for p, x in zip(phase, (a, b), strict=True))
                return block.wide(self._at({layer.channel: channels.first + c, **dict(zip(layer.taps, here, strict=True))}),
                                  columns, 0, Index(0))

            def write(a: int, b: int, value: ir.Value) -> None:
                k = channels.count * number + c
                memory.store(value, [panel, Index(a * emitter.side + b), k, Index.ramp(at, config.lanes)])

            left, right = (corner(g, s, t) for s, t in zip(sides, taps, strict=True))
            on_both_sides(left, right, read, write)

        def channel(c: Index) -> None:
            for j, (number, phase) in product(range(vectors), enumerate(layer.form.phases)):
                vector(c, j * config.lanes, number, phase)

        self._loop(0, channels.count, 1, channel)

    def _image(self, place: Index, tile: Index, channels: _Channels) -> None:
        """Transforms some channels of what tile number `tile` of the result needs of the image, to `place` of the chunk."""
        emitter, config, ev = self.emitter, self._config, self.emitter.kernel.evaluator
        plan, layer, lanes = emitter.plan, emitter.layer, config.lanes
        form, image = layer.form, plan.view.operand(plan.narrow)
        memory_of = ev.memories.get(image)
        memory, (_, _, bt) = emitter.memory("image"), matrices(config.m, form.taps)
        point = self._corner(tile)

        def reach(axis: int) -> list[Index]:
            extent, first = plan.view.extents[layer.rows[axis]], point[layer.rows[axis]]
            assert first is not None
            first, last = first * form.step, (ev.emit(extent) - 1) * form.step + (form.window - 1)
            sure = form.tile(config.m) if extent.divisible_by(config.m) else form.window
            return [first + i if i < sure else (first + i).min(last) for i in range(form.tile(config.m))]

        rows, columns = reach(0), reach(1)

        def vector(number: int, phase: tuple[int, int], c: Index, mask: ir.Value | None) -> None:
            _, sides = emitter.reach(phase)

            def pixel(i: int, j: int, channel: Index, beside: int = 0) -> list[Index]:
                at = list(point)
                here = (rows[phase[0] + i * form.step], columns[phase[1] + j * form.step] + beside)
                for d, x in zip((*layer.rows, *layer.taps, layer.channel), (Index(0), Index(0), *here, channel), strict=True):
                    at[d] = x
                return coords_of(plan.view, plan.narrow, at)

            def read(i: int, j: int) -> ir.Value:
                if memory_of is not None and phase[1] + j * form.step >= form.window - form.step:
                    ahead = pixel(i, j, channels.first + c, form.step * config.m * _AHEAD)
                    llvm.intr_prefetch(memory_of.address(ahead), 0, 3, 1)
                value = ev.element(image, pixel(i, j, Index.ramp(channels.first + c, lanes)), mask)
                return splat_to(ProductCode(plan.view.product).factor(plan.narrow, value), lanes)

            def write(i: int, j: int, value: ir.Value) -> None:
                memory.store(value, [place, Index(i * emitter.side + j), Index.ramp(channels.count * number + c, lanes)])

            left, right = (corner(bt, s, s) for s in sides)
            on_both_sides(left, right, read, write)

        for number, phase in enumerate(form.phases):  # a vector may run over into the next phase
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
        form, last = self.emitter.layer.form, self.emitter.side - 1
        if form.window % form.step == 0:
            return Index(0), Index(len(form.phases))
        down, along = place // (last + 1) // last, place % (last + 1) // last  # 1 at infinity
        return along, (Index(4) - down * 2).min(Index(4) - along)

    def _results(self, place: Index, tile: Index) -> None:
        """Stores the pixels of a tile of all filters of the unit, with what follows them."""
        emitter, config = self.emitter, self._config
        memory, (at, _, _) = emitter.memory("products"), matrices(config.m, emitter.layer.form.taps)
        results, corner = PlacedResults(emitter.kernel, emitter.plan, config.lanes), self._corner(tile)

        def vector(f: Index, mask: ir.Value | None) -> None:
            def read(i: int, j: int) -> ir.Value:
                return memory.load([place, Index(i * emitter.side + j), Index.ramp(f, config.lanes)])

            def write(i: int, j: int, value: ir.Value) -> None:
                self._pixel(corner, i, j, lambda point: results.store(point, self.first + f, value, mask))

            on_both_sides(at, at, read, write)

        self._vectors(self.left.min(config.columns * config.panels), vector)

    def _pixel(self, corner: Loops, i: int, j: int, store: Callable[[Loops], None]) -> None:
        """store(point of the loops) where the pixel (i, j) of a tile is one of the result's."""
        emitter = self.emitter
        point, inside = list(corner), []
        for d, offset in zip(emitter.layer.rows, (i, j), strict=True):
            here, extent = corner[d], emitter.plan.view.extents[d]
            assert here is not None
            point[d] = here + offset
            if offset and not extent.divisible_by(self._config.m):
                inside.append((here + offset).lt(emitter.kernel.evaluator.emit(extent)))

        def under(conditions: list[ir.Value | bool]) -> None:
            if conditions:
                when(conditions[0], lambda: under(conditions[1:]))
            else:
                store(point)

        under(inside)

    def _corner(self, tile: Index) -> Loops:
        """The loops at the first pixel of a tile."""
        emitter, layer = self.emitter, self.emitter.layer
        *images, y, x = delinearize(tile, [emitter.kernel.evaluator.emit(e) for e in emitter.grid()])
        rows = (y * self._config.m, x * self._config.m)
        return self._at(dict(zip((*layer.images, *layer.rows), (*images, *rows), strict=True)))

    def _at(self, coordinates: dict[int, Index]) -> Loops:
        return [coordinates.get(d, x) for d, x in enumerate(self.loops)]

    def _vectors(self, count: Index, body: Callable[[Index, ir.Value | None], None]) -> None:
        """body(first, mask) for whole vectors, then for the last one under a mask."""
        lanes = self._config.lanes
        whole = count - count % lanes
        self._loop(0, whole, lanes, lambda c: body(c, None))
        over = count - whole
        when(Index(0).lt(over), lambda: body(whole, lane_mask(over, lanes, self.emitter.kernel.index)))
