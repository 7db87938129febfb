"""Family `host_winograd`: 3x3 convolutions with steps of one by Winograd's minimal filtering, with what is fused after them.

The result is cut into tiles of m x m pixels. A tile of the image, m + 2 on a side, and each filter are transformed; at each of
the (m + 2)^2 places the transformed tiles [tile][channel] are multiplied with the transformed filters [channel][filter], and
the products transform back to m x m pixels: (m + 2)^2 multiplications for the 9 m^2 of the definition.

A work unit is one point of the shared loops, some tiles and a group of panels of filters. It transforms its filters once; then,
a chunk of tiles at a time, it transforms the image, multiplies in register blocks of mr tiles by nv vectors of filters, and
stores. All three lie in the workspace. Every element is summed in an order that depends on the shape and the configuration.
Tiles may reach over the ends of the image: what they need from there is read from the last pixels, and not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
from tilewright.passes.families.host.winograd_matrices import matrices, on_both_sides
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig
from tilewright.passes.spaces.host.host_winograd import TAPS, HostWinogradConfig
from tilewright.runtime.shape import Expr

_APART = 16  # elements between tiles and between places, so that they do not share cache sets


def emit(kernel: HostKernel, config: HostWinogradConfig) -> Grid:
    """The whole kernel. ValueError when the region is no 3x3 convolution with steps of one."""

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
    other loops over rows."""

    images: tuple[int, ...]
    rows: tuple[int, int]
    taps: tuple[int, int]
    channel: int

    @staticmethod
    def of(plan: Plan) -> _Layer:
        view = plan.view
        where = f"{view.op.name} at {view.op.location}"
        pairs = [terms for e in view.maps[plan.narrow].results if (terms := linear_terms(e)) is not None and len(terms) == 2]
        windows = [(d, t) for terms in pairs for d in terms for t in terms if d in plan.rows and t in view.k and
                   set(terms.values()) == {1} and view.extents[t].constant == TAPS]
        channels = [d for d in view.k if d not in {t for _, t in windows}]
        if len(windows) != 2 or len(channels) != 1:
            raise ValueError(f"{where}: wanted two windows of {TAPS} with steps of one, and one loop over channels")
        if plan.column in view.loops_of(plan.narrow) or plan.side > 1 or not is_float(view.product.accumulator):
            raise ValueError(f"{where}: wanted an image of floats that does not vary with the filters, and no words of bf16")
        (y, a), (x, b) = windows
        return _Layer(tuple(d for d in plan.rows if d not in (y, x)), (y, x), (a, b), channels[0])


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
    def places(self) -> int:
        return self.config.side**2

    @property
    def depth(self) -> Expr:
        return self.plan.view.extents[self.layer.channel]

    def grid(self) -> list[Expr]:
        return self.layer.tiles(self.plan, self.config.m)

    def _areas(self) -> dict[str, tuple[Expr, ...]]:
        """Strides of what the workspace holds, in order; the first is that of the whole area.

        filters: [panel][place][channel][filter]; image: [tile][place][channel]; products: [tile][place][filter].
        """
        config, places = self.config, self.places
        channels = self.depth.ceildiv(config.lanes) * config.lanes + _APART
        wide, panel = Expr.of(config.columns * config.panels + _APART), self.depth * config.columns + _APART
        tile, product = channels * places + _APART, wide * places + _APART
        return {
            "filters": (panel * places * config.panels, panel * places, panel, Expr.of(config.columns), Expr.of(1)),
            "image": (tile * config.mc, tile, channels, Expr.of(1)),
            "products": (product * config.mc, product, wide, Expr.of(1)),
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
        self._each_panel(self._filters)

        def chunk(low: Index) -> None:
            tiles = (self.high - low).min(size)
            self._loop(0, tiles, 1, lambda tile: self._image(tile, low + tile))
            self._each_panel(lambda panel, vectors: self._products(panel, vectors, tiles))
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

    def _filters(self, panel: Index, vectors: int) -> None:
        """Transforms the filters of a panel."""
        emitter, config = self.emitter, self._config
        memory, (_, g, _) = emitter.memory("filters"), matrices(config.m, TAPS)
        block = Block(emitter.kernel.evaluator, emitter.plan, HostMatmulConfig(config.mr, config.nv, config.lanes), None)
        layer = emitter.layer

        def vector(c: Index, at: int) -> None:
            place = panel * config.columns + at
            mask = None if emitter.plan.tile else lane_mask(self.left - place, config.lanes, emitter.kernel.index)
            columns = Columns((self.first + place,), (mask,), (place,))

            def read(a: int, b: int) -> ir.Value:
                taps = dict(zip(layer.taps, (Index(a), Index(b)), strict=True))
                return block.wide(self._at({layer.channel: c, **taps}), columns, 0, Index(0))

            def write(a: int, b: int, value: ir.Value) -> None:
                memory.store(value, [panel, Index(a * config.side + b), c, Index.ramp(at, config.lanes)])

            on_both_sides(g, TAPS, TAPS, read, write)

        def channel(c: Index) -> None:
            for j in range(vectors):
                vector(c, j * config.lanes)

        self._loop(0, emitter.kernel.evaluator.emit(emitter.depth), 1, channel)

    def _image(self, place: Index, tile: Index) -> None:
        """Transforms the tile of the image that tile number `tile` of the result needs, to `place` of the chunk."""
        emitter, config, ev = self.emitter, self._config, self.emitter.kernel.evaluator
        plan, layer, lanes = emitter.plan, emitter.layer, config.lanes
        memory, (_, _, bt) = emitter.memory("image"), matrices(config.m, TAPS)
        point = self._corner(tile)
        ends = [ev.emit(plan.view.extents[d]) + (TAPS - 1) for d in layer.rows]
        whole = [plan.view.extents[d].divisible_by(config.m) for d in layer.rows]

        def reach(axis: int) -> list[Index]:
            corner = point[layer.rows[axis]]
            assert corner is not None
            return [corner + i if whole[axis] or i < TAPS else (corner + i).min(ends[axis] - 1) for i in range(config.side)]

        rows, columns = reach(0), reach(1)

        def vector(c: Index, mask: ir.Value | None) -> None:
            def read(i: int, j: int) -> ir.Value:
                at = list(point)
                at[layer.channel] = Index.ramp(c, lanes)
                for d, x in zip((*layer.rows, *layer.taps), (rows[i], columns[j], Index(0), Index(0)), strict=True):
                    at[d] = x
                value = ev.element(plan.view.operand(plan.narrow), coords_of(plan.view, plan.narrow, at), mask)
                return splat_to(ProductCode(plan.view.product).factor(plan.narrow, value), lanes)

            def write(i: int, j: int, value: ir.Value) -> None:
                memory.store(value, [place, Index(i * config.side + j), Index.ramp(c, lanes)])

            on_both_sides(bt, config.side, config.side, read, write)

        self._vectors(ev.emit(emitter.depth), vector)

    def _products(self, panel: Index, vectors: int, tiles: Index) -> None:
        """Multiplies the tiles of a chunk with a panel of filters at every place."""
        emitter, config, product = self.emitter, self._config, ProductCode(self.emitter.plan.view.product)
        filters, image, products = (emitter.memory(area) for area in ("filters", "image", "products"))
        depth = emitter.kernel.evaluator.emit(emitter.depth)

        def place(p: Index) -> None:
            def block(row: Index, height: int) -> None:
                def step(c: Index, *sums: ir.Value) -> list[ir.Value]:
                    wide = [filters.load([panel, p, c, Index.ramp(j * config.lanes, config.lanes)]) for j in range(vectors)]
                    done = []
                    for i in range(height):
                        shared = splat_to(image.load([row + i, p, c]), config.lanes)
                        done += [product.multiply_add(shared, b, sums[i * vectors + j]) for j, b in enumerate(wide)]
                    return done

                zero = [product.zero(config.lanes)] * (height * vectors)
                sums = loop(0, depth, 1, step, zero, emitter.kernel.index)
                for n, value in enumerate(sums):
                    at = panel * config.columns + n % vectors * config.lanes
                    products.store(value, [row + n // vectors, p, Index.ramp(at, config.lanes)])

            row_blocks(Index(0), tiles, config.mr, True, emitter.kernel.index, block)

        self._loop(0, emitter.places, 1, place)

    def _results(self, place: Index, tile: Index) -> None:
        """Stores the pixels of a tile of all filters of the unit, with what follows them."""
        emitter, config = self.emitter, self._config
        memory, (at, _, _) = emitter.memory("products"), matrices(config.m, TAPS)
        results, corner = PlacedResults(emitter.kernel, emitter.plan, config.lanes), self._corner(tile)

        def vector(f: Index, mask: ir.Value | None) -> None:
            def read(i: int, j: int) -> ir.Value:
                return memory.load([place, Index(i * config.side + j), Index.ramp(f, config.lanes)])

            def write(i: int, j: int, value: ir.Value) -> None:
                self._pixel(corner, i, j, lambda point: results.store(point, self.first + f, value, mask))

            on_both_sides(at, config.side, config.side, read, write)

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
