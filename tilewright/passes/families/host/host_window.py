"""Family `host_window`: reductions over the windows of an image (pooling, convolutions of each channel by itself or in groups of
few), with what is fused after them.

The result's unit-stride loop runs along the vectors: channels, or pixels of a row. A work unit is one point of the outer loops
and a chunk of the pixel loop, that of another axis with a window. In it, blocks of so many pixels by nv vectors keep their
results in registers over the window; taps of the pixel loop and of the vectors are unrolled while they are few, so that pixels
that overlap share their loads.
Where the vectors are channels, windows at the border leave out the taps in the padding. Where they are pixels, the rows of a unit
are copied to the workspace with their padding, places a stride apart beside each other, so that a tap is one contiguous load,
which a block of filters of a group shares. Rows of less than a vector may be laid end to end for that (`flat`); what a vector
holds of each is stored by itself. Without such filters `flat` copies nothing (host_window_plane.py).
Every element is joined in the order of its window, whatever the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby, product
from operator import itemgetter

from tilewright.passes.analysis.contraction import product_of
from tilewright.passes.codegen.affine_index import evaluate
from tilewright.passes.codegen.emit import lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index, select, splat_to
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.families.host.host_matmul_rows import Loops, forget_memory
from tilewright.passes.families.host.host_matmul_store import store_placed
from tilewright.passes.families.host.host_window_plan import WindowPlan
from tilewright.passes.families.host.host_window_plane import PlaneVectors
from tilewright.passes.families.host.host_window_rows import PaddedRows, known
from tilewright.passes.families.row_reduction import Combiner, combiners, values_of
from tilewright.passes.mlir import ir, maps_of
from tilewright.passes.spaces.host.host_window import HostWindowConfig
from tilewright.runtime.shape import Expr

NEAR_BYTES = 24 << 10  # of copied rows that filters pass over together: three quarters of the smallest first-level cache
IN_FLIGHT = 8  # results whose joins a CPU has in flight together: two a cycle, of which each takes four
REPEATED = 256  # unrolled steps at most of a block that is there in smaller sizes, too
_Sums = list[ir.Value]  # of a block: pixel by pixel, vector by vector


def tile(frame: KernelFrame, config: HostWindowConfig, tiler: Tiler) -> None:
    """Units of one point of the outer loops and a chunk of the pixel loop."""
    plan = WindowPlan.of(frame)
    pixels = Expr.of(1) if plan.across is None else plan.extents[plan.across]

    def parts(place: list[Index]) -> dict[str, Part]:
        found = {f"d{d}": Part(x) for d, x in zip(plan.outer, place, strict=False)}
        if plan.across is not None:
            whole = Part(Index(0), tiler.size(pixels))
            found["pixels"] = tiler.span(place[-1], config.chunk, pixels) if config.chunk else whole
        return found

    chunks = pixels.ceildiv(config.chunk) if config.chunk else Expr.of(1)
    axes = {f"d{d}": (d,) for d in plan.outer} | ({"pixels": (plan.across,)} if plan.across is not None else {})
    tiler.loop([*(plan.extents[d] for d in plan.outer), chunks], parts, plan.cut(axes))


def emit(kernel: HostKernel, config: HostWindowConfig) -> Grid:
    """The whole kernel. ValueError when the region is no reduction over windows."""

    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        plan, plane = WindowPlan.of(kernel), None
        if config.flat and plan.filters is None:
            plane = PlaneVectors(kernel, plan, combiners(plan.root)[0], config.lanes)
        rows = PaddedRows(kernel, plan, config, workspace) if plan.copied and plane is None else None
        emitter = _WindowEmitter(kernel, config, plan, combiners(plan.root)[0], rows)
        at = kernel.loops[0].numbers(kernel.evaluator)
        if rows is not None:
            rows.clear()

        def unit(u: Index) -> None:
            here = at(u)
            loops: Loops = [here.first(f"d{d}") if d in plan.outer else None for d in range(len(plan.extents))]
            low, high = here.span("pixels")
            if plane is not None:
                plane.unit(loops, low, high)
                return
            if rows is not None:
                rows.copy(loops, low, high)
            emitter.filters(_Block(tuple(loops), low, low, low, high))

        loop(begin, end, 1, unit, index=kernel.index)
        return Grid() if rows is None else Grid(workspace=rows.bytes)

    return kernel.build(body, spills=True)


@dataclass(frozen=True)
class _Block:
    """Results at some pixels from `first` on and at the vectors that begin at `starts`; mask: of their lanes.

    Of flat rows a vector begins at so many places behind the first of the row `first`, and goes on into the next ones.

    loops: coordinates of the outer loops, and that of the first filter. copied: the first pixel of the unit, from whose rows on
    these are copied. low, high: pixels to compute. bordered: may the windows reach over the image?
    """

    loops: tuple[Index | None, ...]
    first: Index
    copied: Index
    low: Index
    high: Index
    pixels: int = 1
    starts: tuple[Index, ...] = ()
    mask: ir.Value | None = None
    bordered: bool = False


@dataclass(frozen=True)
class _WindowEmitter:
    """join: how the reduction joins values. rows: the copied rows that it reads, where they are copied."""

    kernel: HostKernel
    config: HostWindowConfig
    plan: WindowPlan
    join: Combiner
    rows: PaddedRows | None

    def filters(self, unit: _Block) -> None:
        """All filters of a unit, `filters` of them at a time, for the rows of one block after the other: these stay in the
        first-level cache while the filters pass."""
        d, index = self.plan.filters, self.kernel.index
        if d is None:
            self.vectors(unit)
            return

        step = self._step()

        def rows(low: Index) -> None:
            part = replace(unit, first=low, low=low, high=(low + step).min(unit.high))

            def some(f: Index) -> None:
                self.vectors(replace(part, loops=tuple(f if n == d else x for n, x in enumerate(unit.loops))))

            loop(0, self.kernel.evaluator.emit(self.plan.extents[d]), self.config.filters, some, index=index)

        loop(unit.low, unit.high, step, rows, index=index)

    def _step(self) -> Index:
        """Rows that all filters pass over in turn: those that stay in the first-level cache, at least a block; of less than a
        vector as many more as the block has vectors."""
        pixels, ev = self.config.pixels, self.kernel.evaluator
        block = pixels * self.config.nv
        if self.config.flat and self.rows is not None:
            least = Index(block * self.config.lanes).ceildiv(ev.emit(self.rows.pitch).max(1))
            return ev.emit(self.rows.pixels_within(NEAR_BYTES)).max(least)
        narrow = ev.emit(self.plan.extents[self.plan.along]).le(self.config.lanes)
        least = select(narrow, Index(block), Index(pixels), type_=self.kernel.index)
        if self.rows is None:
            return least
        return (ev.emit(self.rows.pixels_within(NEAR_BYTES) // block) * block).max(least)

    def vectors(self, unit: _Block) -> None:
        """All vectors of a unit. Where their number is known and enough, the last ones begin early enough to be whole."""
        lanes, index, extent = self.config.lanes, self.kernel.index, self.plan.extents[self.plan.along]
        if self.config.flat and self.rows is not None:
            self._flat_vectors(unit, self.rows)
            return
        known, count = extent.constant, self.kernel.evaluator.emit(extent)

        def whole(vectors: int) -> Callable[[Index], None]:
            return lambda at: self._pixels(replace(unit, starts=tuple((at + j * lanes).min(count - lanes)
                                                                       for j in range(vectors))))

        def masked(at: Index) -> None:
            self._pixels(replace(unit, starts=(at,), mask=lane_mask(count - at, lanes, index)))

        if known is not None and known >= lanes:
            vectors = min(self.config.nv, -(-known // lanes))
            loop(0, known, vectors * lanes, whole(vectors), index=index)
            return
        if known is None and (self.plan.filters is not None or self.config.nv > 1):
            self._some_vectors(unit, count, whole, masked)
            return
        full = count - count % (self.config.nv * lanes)
        if known is None:
            loop(0, full, self.config.nv * lanes, whole(self.config.nv), index=index)
        loop(full if known is None else 0, count, lanes, masked, index=index)

    def _flat_vectors(self, unit: _Block, rows: PaddedRows) -> None:
        """Over all rows of a unit, as many vectors at a time as a block has, then one by one."""
        ev, lanes, index, nv = self.kernel.evaluator, self.config.lanes, self.kernel.index, self.config.nv
        count = (unit.high - unit.low - 1) * ev.emit(rows.pitch) + ev.emit(self.plan.extents[self.plan.along])
        full = count - count % (nv * lanes)

        def some(vectors: int) -> Callable[[Index], None]:
            return lambda at: self._block(replace(unit, first=unit.low, starts=tuple(at + j * lanes for j in range(vectors))))

        loop(0, full, nv * lanes, some(nv), index=index)
        loop(full, count, lanes, some(1), index=index)

    def _some_vectors(self, unit: _Block, count: Index, whole: Callable[[int], Callable[[Index], None]],
                      masked: Callable[[Index], None]) -> None:
        """An unknown number of elements: whole blocks while more than a vector is left, the last of them from early enough on,
        then one vector. Less than a vector is masked."""
        lanes, nv, index = self.config.lanes, self.config.nv, self.kernel.index

        def many() -> None:
            blocks = (count + (nv - 1) * lanes - 1) // (nv * lanes) if nv > 1 else count // lanes
            loop(0, blocks * (nv * lanes), nv * lanes, whole(nv), index=index)
            when((blocks * (nv * lanes)).lt(count), lambda: whole(1)(count - lanes))

        when(count.ge(lanes), many, lambda: when(Index(0).lt(count), lambda: masked(Index(0))))

    def _pixels(self, unit: _Block) -> None:
        """Blocks of pixels whose windows lie within the image, and the others one by one. Fewer vectors than a block of filters
        takes leave registers for more pixels."""
        index, pixels = self.kernel.index, self.config.pixels if self.plan.across is not None else 1
        if self.plan.filters is not None and self.plan.across is not None:
            pixels *= self.config.nv // len(unit.starts)
        bordered, low, high = self.rows is None and self.plan.padded_across, unit.low, unit.high
        if bordered:
            low, high = self.plan.interior(self.kernel.evaluator, low, high)

        def some(count: int) -> Callable[[Index], None]:
            return lambda at: self._block(replace(unit, first=at, pixels=count, bordered=bordered and count == 1))

        if bordered:
            loop(unit.low, low, 1, some(1), index=index)
        whole = high - (high - low) % pixels
        loop(low, whole, pixels, some(pixels), index=index)
        if pixels > 1 and (bordered or not self._whole_blocks(pixels)):
            if self._few_in_flight(pixels):
                when(whole.lt(high), lambda: self._last_pixels(low, high, pixels, some))
            else:
                loop(whole, high, 1, some(1), index=index)
        if bordered:
            loop(high, unit.high, 1, some(1), index=index)

    def _whole_blocks(self, pixels: int) -> bool:
        """Are the pixels of every unit a multiple of a block, for certain?"""
        extent = self.plan.extents[self.plan.across].constant if self.plan.across is not None else 1
        chunk = self.config.chunk or extent
        return extent is not None and chunk is not None and chunk % pixels == extent % chunk % pixels == 0

    def _few_in_flight(self, pixels: int) -> bool:
        """Does a block, of not too many steps to be there in three sizes, take no longer than one result does?"""
        taps = [len(self.plan.unrolled(t)) for t in (self.plan.tap_across, self.plan.tap_along)]
        results = pixels * self.config.nv
        return self.plan.filters is None and results <= IN_FLIGHT and results * taps[0] * taps[1] <= REPEATED

    def _last_pixels(self, low: Index, high: Index, pixels: int, some: Callable[[int], Callable[[Index], None]]) -> None:
        """The pixels that whole blocks leave over, in a block that begins early enough, or in two of half the pixels where there
        are fewer than a block: one by one they take as long as a block each, since joins wait for the ones before them."""
        half, count = (pixels + 1) // 2, high - low

        def few() -> None:
            some(half)(low)
            when(Index(half).lt(count), lambda: some(half)(high - half))

        def one_by_one() -> None:
            loop(low, high, 1, some(1), index=self.kernel.index)

        fewer = (lambda: when(count.ge(half), few, one_by_one)) if half > 1 else one_by_one
        when(count.ge(pixels), lambda: some(pixels)(high - pixels), fewer)

    def _block(self, block: _Block) -> None:
        ev, lanes, plan = self.kernel.evaluator, self.config.lanes, self.plan
        flat = self.rows if self.config.flat else None
        members = self._members(block)
        points = [self._point(block, member) for member in members]
        masks = [block.mask] * len(members)
        if flat is not None and plan.across is not None:  # as the lanes lie: what a sum starts from seldom depends on it
            spots = [flat.spot(block.first, block.high, start) for start in block.starts]
            masks = [spots[member.vector].inside for member in members]
            for point, member in zip(points, members, strict=True):
                point[plan.across], point[plan.along] = spots[member.vector].row, spots[member.vector].column
        with ev.kept():
            sums = [splat_to(self.join.widen(ev.element(plan.root.operands[self.join.number], at, mask)), lanes)
                    for at, mask in zip(map(self._written, points), masks, strict=True)]
        sums = self._deep(block, list(plan.deep), list(block.loops), sums)
        if flat is None:
            self._store(points, sums, block.mask)
            return
        for j, start in enumerate(block.starts):
            mine = [n for n, member in enumerate(members) if member.vector == j]
            some = [points[n] for n in mine]
            flat.pieces(block.first, block.high, start, partial(self._store_piece, some, [sums[n] for n in mine]))

    def _store_piece(self, points: Sequence[Loops], sums: _Sums, row: Index, columns: Index, mask: ir.Value) -> None:
        """What vectors over flat rows hold of one row."""
        plan = self.plan
        own = {plan.across: row, plan.along: columns}
        self._store([[own.get(d, x) for d, x in enumerate(point)] for point in points], sums, mask)

    def _store(self, points: Sequence[Loops], sums: _Sums, mask: ir.Value | None) -> None:
        ev, reduction = self.kernel.evaluator, self.plan.reduction
        for point, value in zip(points, sums, strict=True):
            with ev.kept():
                store_placed(self.kernel, reduction.root, reduction.places, (self._written(point), self.join.narrow(value), mask))

    def _written(self, point: Loops) -> list[Index]:
        """Where the root's result lies at a point of the parallel loops."""
        return [evaluate(e, point) for e in maps_of(self.plan.root)[-1].results]

    def _members(self, block: _Block) -> list[_Member]:
        """The results of a block, vectors fastest."""
        return [_Member(f, p, j) for f in range(self.config.filters) for p in range(block.pixels)
                for j in range(len(block.starts))]

    def _point(self, block: _Block, member: _Member) -> Loops:
        """The parallel loops of a result."""
        point, plan = list(block.loops), self.plan
        if plan.filters is not None:
            point[plan.filters] = known(point[plan.filters]) + member.filter
        if plan.across is not None:
            point[plan.across] = block.first + member.pixel
        point[plan.along] = Index.ramp(block.starts[member.vector], self.config.lanes)
        return point

    def _deep(self, block: _Block, dims: list[int], loops: Loops, sums: Sequence[ir.Value]) -> _Sums:
        """Loops over the taps that are not unrolled, those in the padding left out."""
        ev = self.kernel.evaluator
        if not dims:
            return self._taps(block, loops, list(sums))
        d = dims[0]
        low, high = self.plan.taps(ev, d, [block.first if block.bordered and n == self.plan.across else x
                                           for n, x in enumerate(loops)])

        def body(t: Index, *carried: ir.Value) -> _Sums:
            with ev.kept():
                return self._deep(block, dims[1:], [t if n == d else x for n, x in enumerate(loops)], carried)

        return loop(low, high, 1, body, sums, self.kernel.index)

    def _taps(self, block: _Block, loops: Loops, sums: _Sums) -> _Sums:
        """The unrolled taps: those of the pixel loop, in one loop at the border, then those along the vectors. Products of
        each channel with a filter of its own go by rows of the image: LLVM would load elements of several rows before their
        products, and keep on the stack what is more than registers hold."""
        ev, plan = self.kernel.evaluator, self.plan
        tap = plan.tap_across
        if block.bordered and tap is not None and loops[tap] is None:
            return self._deep(block, [tap], loops, sums)
        reader = _Reader(self, block, loops)
        image, members = plan.root.operands[plan.reduction.image], self._members(block)
        points = [self._point(block, member) for member in members]
        parts = dict[tuple[int, int], ir.Value]()

        def tapped(n: int, a: int | None, b: int | None) -> ir.Value:
            """What a tap gives to be joined."""
            here = [x if x is not None else y for x, y in zip(loops, points[n], strict=True)]
            if plan.filters is not None:
                here[plan.filters] = points[n][plan.filters]
            for d, t in ((tap, a), (plan.tap_along, b)):
                if d is not None and t is not None:
                    here[d] = Index(t)
            reader.place = (members[n].pixel, members[n].vector, a or 0, b or 0)
            full = [x for x in here if x is not None]
            return values_of(ev, plan.root, [self.join], full, self.config.lanes, block.mask)[0]

        def part(n: int, a: int | None) -> ir.Value:
            """What the taps along the vectors join to, in their order, for a tap of the pixel loop."""
            values = [tapped(n, a, b) for b in plan.unrolled(plan.tap_along)]
            return reduce(lambda found, value: self.join(value, found), values)

        across = plan.unrolled(tap) if tap is None or loops[tap] is None else [None]
        steps = [(plan.step_across(member.pixel, a or 0), n, a) for a in across for n, member in enumerate(members)]
        with ev.kept():
            ev.known[image] = lambda _: reader.read()
            if product_of(plan.root) is None:
                for row, n, a in steps:
                    key = (row, members[n].vector)
                    if key not in parts:
                        parts[key] = part(n, a)
                    sums[n] = self.join(parts[key], sums[n])
            elif plan.filters is not None:  # an element of the image meets all filters while it is in a register
                for a, b, n in product(across, plan.unrolled(plan.tap_along), range(len(members))):
                    sums[n] = self.join(tapped(n, a, b), sums[n])
            else:
                for _, pixels in groupby(sorted(steps), key=itemgetter(0)):
                    met = list(pixels)
                    forget_memory()
                    for b, (_, n, a) in product(plan.unrolled(plan.tap_along), met):
                        sums[n] = self.join(tapped(n, a, b), sums[n])
            del ev.known[image]
        return sums


@dataclass(frozen=True)
class _Member:
    """A result of a block: numbers of its filter, pixel and vector."""

    filter: int
    pixel: int
    vector: int


class _Reader:
    """Elements of the image for one pass over the unrolled taps of a block, each loaded once.

    place: pixel, vector, tap of the pixel loop and tap along the vectors that are read next.
    """

    def __init__(self, emitter: _WindowEmitter, block: _Block, loops: Loops) -> None:
        self._emitter, self._block, self._loops = emitter, block, loops
        self._seen: dict[tuple[int, int, int], ir.Value] = {}
        self.place = (0, 0, 0, 0)

    def read(self) -> ir.Value:
        plan = self._emitter.plan
        pixel, vector, a, b = self.place
        across = plan.step_across(pixel, a)
        along = b * plan.window_along.dilation if plan.window_along is not None else 0
        key = (across, along, vector)
        if key not in self._seen:
            self._seen[key] = self._load(across, along, vector)
        return self._seen[key]

    def _load(self, across: int, along: int, vector: int) -> ir.Value:
        """The image so many places on along both axes."""
        emitter, plan, block = self._emitter, self._emitter.plan, self._block
        point = emitter._point(block, _Member(0, 0, vector))
        loops = [x if x is not None else y for x, y in zip(self._loops, point, strict=True)]
        if emitter.rows is not None:
            return emitter.rows.load(loops, block.first - block.copied, across, along)
        ev = emitter.kernel.evaluator
        at = plan.image_place(ev, [Index(0) if x is None else x for x in loops])
        for window, step in ((plan.window_across, across), (plan.window_along, along)):
            if window is not None:
                axis = plan.axis_of(window)
                at[axis] = at[axis] + step
        image = plan.root.operands[plan.reduction.image]
        here = ev.known.pop(image)  # which may be the source itself
        found = ev.element(plan.reduction.source, at, block.mask)
        ev.known[image] = here
        return found
