"""Rows of an image in the workspace, with their padding: what windows along vectors of pixels read.

Where the window steps by more than one, the places that are as many apart lie beside each other, so that one tap of consecutive
windows is one contiguous run. Rows of less than a vector may lie end to end (`flat`): vectors run on into the rows of the next
pixels, and leave out the places between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.passes.codegen.emit import WIDEST_STEP, Memory, all_of, byte_width, constant, lane_mask, loop, picked, when
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.families.host.host_window_plan import WindowPlan
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.host.host_window import HostWindowConfig
from tilewright.passes.spaces.workload import Window
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Spot:
    """Rows and columns of the lanes of a vector over flat rows, and which lanes are pixels of the result."""

    row: Index
    column: Index
    inside: ir.Value


@dataclass(frozen=True)
class PaddedRows:
    """[deep loops...][row][place modulo the step][place over the step] of what a work unit reads; of flat ones [deep
    loops...][row modulo the step of rows][place modulo the step][row over its step][place over the step]."""

    kernel: HostKernel
    plan: WindowPlan
    config: HostWindowConfig
    workspace: ir.Value

    @property
    def _window(self) -> Window:
        assert self.plan.window_along is not None
        return self.plan.window_along

    @property
    def _deep(self) -> list[int]:
        """The loops that what is copied depends on, besides those over places of the two windows."""
        own = (self.plan.tap_along, self.plan.tap_across)
        return [d for d in self.plan.deep if d not in own]

    def _sizes(self) -> list[Expr]:
        plan, window, lanes = self.plan, self._window, self.config.lanes
        deep = [plan.extents[d] for d in self._deep]
        width = plan.extents[plan.along].ceildiv(lanes) * lanes + self._reach // window.stride
        rows, across = Expr.of(1), plan.window_across
        if across is not None:
            pixels = Expr.of(self.config.chunk) if self.config.chunk else plan.extents[across.row]
            rows = (pixels - 1) * across.stride + (plan.extents[across.tap] - 1) * across.dilation + 1
            if self.config.flat:
                places = rows.maximum(0).ceildiv(across.stride) * self.pitch
                return [*deep, Expr.of(across.stride), Expr.of(window.stride), places.ceildiv(lanes) * lanes + lanes]
        return [*deep, rows.maximum(0), Expr.of(window.stride), width.ceildiv(lanes) * lanes]

    @property
    def _reach(self) -> Expr:
        """Places from the first tap along a row to the last."""
        return (self.plan.extents[self._window.tap] - 1) * self._window.dilation

    @property
    def pitch(self) -> Expr:
        """Places from a row of flat ones to the next."""
        return self.plan.extents[self.plan.along] + (self._reach // self._window.stride).maximum(0)

    @property
    def _total(self) -> Expr:
        total = Expr.of(1)
        for size in self._sizes():
            total = total * size.maximum(0)
        return total

    @property
    def bytes(self) -> Expr:
        return self._total * byte_width(self._element)

    def pixels_within(self, size: int) -> Expr:
        """How many pixels of the pixel loop the copied rows of `size` bytes serve."""
        across, sizes = self.plan.window_across, self._sizes()
        count = len(self._deep)
        row = Expr.of(byte_width(self._element))
        of_row = (Expr.of(self._window.stride), self.pitch) if self.config.flat else sizes[count + 1 :]
        for extent in (*sizes[:count], *of_row):
            row = row * extent.maximum(1)
        if across is None:
            return Expr.of(1)
        rest = (Expr.of(size) // row) - (self.plan.extents[across.tap] - 1) * across.dilation - 1
        return rest.maximum(0) // across.stride + 1

    @property
    def _element(self) -> ir.Type:
        return ir.RankedTensorType(self.plan.reduction.source.type).element_type

    def _memory(self) -> Memory:
        ev, sizes = self.kernel.evaluator, self._sizes()
        strides = [Expr.of(1)]
        for size in reversed(sizes[1:]):
            strides.insert(0, strides[0] * size)
        return Memory(self.workspace, self._element, tuple(map(ev.emit, sizes)), tuple(map(ev.emit, strides)), self.kernel.index)

    def _fill(self) -> ir.Value:
        """A vector of the padding's value, or where there is none of what lanes beyond the image may hold."""
        pad = self.plan.reduction.pad
        if pad is None:
            return constant(self._element, 0, self.config.lanes)
        return splat_to(self.kernel.evaluator.clone(pad.regions[0].blocks[0], {}, [])[0], self.config.lanes)

    def clear(self) -> None:
        """Padding everywhere: copies leave what lies beside the image as it is."""
        memory, fill, lanes = self._memory(), self._fill(), self.config.lanes
        flat = Memory(memory.pointer, memory.element, (memory.sizes[-1],), (Index(1),), memory.index)
        loop(0, self.kernel.evaluator.emit(self._total), lanes, lambda i: flat.store(fill, [Index.ramp(i, lanes)]),
             index=self.kernel.index)

    def load(self, loops: Loops, pixel: Index, across: int, along: int) -> ir.Value:
        """A vector of places. pixel: of the unit; across, along: places from the first taps of it."""
        plan, window = self.plan, self._window
        at = [known(loops[d]) for d in self._deep]
        row, place = Index(across), Index(along)
        if plan.window_across is not None:
            row = pixel * plan.window_across.stride + row + self._tap(loops, plan.window_across)
        place = place + self._tap(loops, window)
        pixels = known(loops[plan.along]) + place // window.stride
        return self._memory().load([*at, *self._at(row, place % window.stride, pixels)])

    def _at(self, row: Index, phase: Index, place: Index) -> list[Index]:
        """Coordinates behind the deep loops."""
        across = self.plan.window_across
        if not self.config.flat or across is None:
            return [row, phase, place]
        return [row % across.stride, phase, row // across.stride * self.kernel.evaluator.emit(self.pitch) + place]

    def spot(self, first: Index, high: Index, start: Index) -> Spot:
        """Of flat rows: where the lanes of a vector lie that begins `start` places behind the first of the row `first`."""
        ev, lanes, index = self.kernel.evaluator, self.config.lanes, self.kernel.index
        lane = Index(Index.ramp(start, lanes).value(index))
        pitch = Index(splat_to(ev.emit(self.pitch).value(index), lanes))
        row, column = lane // pitch, lane % pitch
        inside = all_of([column.lt(ev.emit(self.plan.extents[self.plan.along])), row.lt(high - first)], lanes)
        return Spot(row + first, column, inside)

    def pieces(self, first: Index, high: Index, start: Index, body: Callable[[Index, Index, ir.Value], None]) -> None:
        """body(row, columns, mask) for each row that such a vector has lanes of."""
        ev, lanes, index = self.kernel.evaluator, self.config.lanes, self.kernel.index
        pitch, width = ev.emit(self.pitch), ev.emit(self.plan.extents[self.plan.along])

        def piece(row: Index) -> None:
            columns = Index.ramp(start - row * pitch, lanes)
            body(first + row, columns, all_of([columns.ge(0), columns.lt(width)], lanes))

        loop(start // pitch, ((start + (lanes - 1)) // pitch + 1).min(high - first), 1, piece, index=index)

    def _tap(self, loops: Loops, window: Window) -> Index:
        """Places to a tap that is not unrolled."""
        return known(loops[window.tap]) * window.dilation if window.tap in self.plan.deep else Index(0)

    def copy(self, loops: Loops, low: Index, high: Index) -> None:
        """The rows of the pixels [low, high) of a unit."""
        self._each(list(self._deep), loops, lambda inner: self._rows(inner, low, high))

    def _each(self, dims: list[int], loops: Loops, body: Callable[[Loops], None]) -> None:
        if not dims:
            body(loops)
            return
        first, end = self.plan.taps(self.kernel.evaluator, dims[0], loops)
        loop(first, end, 1, lambda t: self._each(dims[1:], [t if d == dims[0] else x for d, x in enumerate(loops)], body),
             index=self.kernel.index)

    def _rows(self, loops: Loops, low: Index, high: Index) -> None:
        ev, plan, index = self.kernel.evaluator, self.plan, self.kernel.index
        window = plan.window_across
        if window is None:
            self._row(loops, Index(0))
            return
        count = (high - low - 1) * window.stride + (ev.emit(plan.extents[window.tap]) - 1) * window.dilation + 1
        here = [low if d == plan.across else x for d, x in enumerate(loops)]
        if not plan.padded(window):
            loop(0, count, 1, lambda i: self._row(here, i), index=index)
            return
        before, extent = plan.place_of(ev, window)
        begin = low * window.stride - before
        first = (Index(0) - begin).max(0).min(count)
        last = (extent - begin).max(first).min(count)
        loop(0, first, 1, lambda i: self._blank(loops, i), index=index)
        loop(first, last, 1, lambda i: self._row(here, i), index=index)
        loop(last, count, 1, lambda i: self._blank(loops, i), index=index)

    def _blank(self, loops: Loops, row: Index) -> None:
        """A row of padding."""
        memory, lanes, fill, index = self._memory(), self.config.lanes, self._fill(), self.kernel.index
        deep, width = [known(loops[d]) for d in self._deep], self._row_width(memory)
        for phase in range(self._window.stride):

            def some(x: Index, phase: int = phase) -> None:
                mask = lane_mask(width - x, lanes, index) if self.config.flat else None  # the next row begins behind it
                memory.store(fill, [*deep, *self._at(row, Index(phase), Index.ramp(x, lanes))], mask)

            loop(0, width, lanes, some, index=index)

    def _row_width(self, memory: Memory) -> Index:
        return self.kernel.evaluator.emit(self.pitch) if self.config.flat else memory.sizes[-1]

    def _row(self, loops: Loops, row: Index) -> None:
        """A row of the image, from that of the first tap of the pixels of `loops` on."""
        ev, plan, window, lanes = self.kernel.evaluator, self.plan, self._window, self.config.lanes
        memory, step, axis = self._memory(), window.stride, plan.axis_of(window)
        before, extent = plan.place_of(ev, window)
        source = plan.image_place(ev, [Index(0) if x is None else x for x in loops])
        if plan.window_across is not None:
            across = plan.axis_of(plan.window_across)
            source[across] = source[across] + row
        deep = [known(loops[d]) for d in self._deep]
        width = self._row_width(memory)
        if 1 < step <= WIDEST_STEP:
            self._parted(memory, [*deep, row], source)
            return
        for phase in range(step):
            first = (before - phase).max(0).ceildiv(step).min(width)
            end = (extent + before - phase).max(0).ceildiv(step).min(width).max(first)

            def some(x: Index, mask: ir.Value | None = None, phase: int = phase) -> None:
                at = list(source)
                at[axis] = Index.ramp(x * step + phase - before, lanes, step)
                with ev.kept():
                    memory.store(splat_to(ev.element(plan.reduction.source, at, mask), lanes),
                                 [*deep, *self._at(row, Index(phase), Index.ramp(x, lanes))], mask)

            whole = end - (end - first) % lanes
            loop(first, whole, lanes, some, index=self.kernel.index)

            def rest(first: Index = first, end: Index = end, whole: Index = whole,
                     some: Callable[[Index, ir.Value | None], None] = some) -> None:
                enough = (end - first).ge(lanes)
                when(enough, lambda: some(end - lanes, None),
                     lambda: some(whole, lane_mask(end - whole, lanes, self.kernel.index)))

            when(whole.lt(end), rest)

    def _parted(self, memory: Memory, first: list[Index], source: list[Index]) -> None:
        """A row of which a step of elements is loaded at once, for as many places side by side. first: coordinates of the row in
        `memory`. source: those of the image, without that along the row."""
        ev, plan, window, lanes, index = self.kernel.evaluator, self.plan, self._window, self.config.lanes, self.kernel.index
        step, axis = window.stride, plan.axis_of(window)
        before, extent = plan.place_of(ev, window)
        width = self._row_width(memory)
        shifts = [(before + q) // step for q in range(step)]  # places before those of the q-th elements of steps
        count = (extent // step).min(width - shifts[-1]).max(0)

        def element(x: Index, places: int, mask: ir.Value | None) -> ir.Value:
            at = list(source)
            at[axis] = Index.ramp(x, lanes, places)
            return splat_to(ev.element(plan.reduction.source, at, mask), lanes)

        def place(y: Index, q: int) -> list[Index]:
            *deep, row = first
            return [*deep, *self._at(row, (before + q) % step, Index.ramp(y + shifts[q], lanes))]

        def some(y: Index, masked: bool = False) -> None:
            with ev.kept():
                masks = [lane_mask((count - y) * step - k * lanes, lanes, index) if masked else None for k in range(step)]
                parts = [element(y * step + k * lanes, 1, mask) for k, mask in enumerate(masks)]
                mask = lane_mask(count - y, lanes, index) if masked else None
                for q in range(step):
                    found = picked(parts, [divmod(q + step * i, lanes) for i in range(lanes)])
                    memory.store(found, place(y, q), mask)

        whole = count - count % lanes
        loop(0, whole, lanes, some, index=index)
        when(whole.lt(count), lambda: when(count.ge(lanes), lambda: some(count - lanes), lambda: some(whole, masked=True)))
        for q in range(step):
            end = (extent - q).ceildiv(step).min(width - shifts[q])

            def rest(q: int = q, end: Index = end) -> None:
                mask = lane_mask(end - count, lanes, index)
                with ev.kept():
                    memory.store(element(count * step + q, step, mask), place(count, q), mask)

            when(count.lt(end), rest)


def known(x: Index | None) -> Index:
    assert x is not None
    return x
