"""Plan of a reduction over windows on the host: which loops run along vectors, pixels and work units, where windows end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import linear_terms, used_loops
from tilewright.passes.analysis.window_reduction import WindowReduction
from tilewright.passes.codegen.affine_index import evaluate
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.linalg.structured import iterator_kinds
from tilewright.passes.linalg.symbolic import mixed
from tilewright.passes.mlir import ir, maps_of, position
from tilewright.passes.spaces.host.host_window import UNROLLED, UNROLLED_SHARED
from tilewright.passes.spaces.workload import Window
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class WindowPlan:
    """along: the loop along the vectors; window_along: the window that it places, if any. across: the pixel loop, which places
    window_across; None where no other window is left. filters: the loop that the image has no axis of, whose members all read the
    same places; None without one. outer: the other parallel loops. deep: reduction loops that are not unrolled."""

    reduction: WindowReduction
    along: int
    across: int | None
    window_along: Window | None
    window_across: Window | None
    filters: int | None
    outer: tuple[int, ...]
    deep: tuple[int, ...]

    @staticmethod
    def of(frame: KernelFrame) -> WindowPlan:
        """ValueError when the region is no reduction over windows along an axis of its result."""
        found = WindowReduction.of(frame.ops(), frame.results, frame.shapes)
        unit = frame.result_slot(0).unit
        along = found.fast_loop(lambda axis: axis == unit)
        if along is None:
            raise ValueError(f"{found.root.name} at {found.root.location}: no loop runs along an axis of the result")
        mine = next((w for w in found.windows if w.row == along), None)
        other = next((w for w in reversed(found.windows) if w.row != along), None)
        across = other.row if other is not None else None
        kinds = iterator_kinds(found.root)
        read = used_loops(maps_of(found.root)[found.image])
        free = [d for d, kind in enumerate(kinds) if kind == "parallel" and d not in read]
        if len(free) > 1:
            raise ValueError(f"{found.root.name} at {found.root.location}: the image has no axis of {len(free)} parallel loops")
        filters = free[0] if free else None
        outer = tuple(d for d, kind in enumerate(kinds) if kind == "parallel" and d not in (along, across, filters))
        taps = unrolled_taps(found, mine, other, bool(free))
        deep = tuple(d for d, kind in enumerate(kinds) if kind == "reduction" and d not in taps)
        return WindowPlan(found, along, across, mine, other, filters, outer, deep)

    @property
    def root(self) -> ir.Operation:
        return self.reduction.root

    @property
    def extents(self) -> tuple[Expr, ...]:
        return self.reduction.extents

    @property
    def tap_along(self) -> int | None:
        return None if self.window_along is None else self.window_along.tap

    @property
    def tap_across(self) -> int | None:
        return None if self.window_across is None else self.window_across.tap

    def unrolled(self, tap: int | None) -> Sequence[int | None]:
        """The taps of a loop that is unrolled; one place that stands for those of any other."""
        return range(self.extents[tap].constant or 0) if tap is not None and tap not in self.deep else [None]

    def axis_of(self, window: Window) -> int:
        """The axis of the image that a window passes over."""
        read = maps_of(self.root)[self.reduction.image].results
        terms = [linear_terms(e) or {} for e in read]
        return next(axis for axis, loops in enumerate(terms) if {window.row, window.tap} == set(loops))

    def step_across(self, pixel: int, tap: int) -> int:
        """Places between the first tap of a block's first pixel and a tap of another pixel."""
        window = self.window_across
        return 0 if window is None else pixel * window.stride + tap * window.dilation

    def cut(self, names: Mapping[str, tuple[int, ...]]) -> dict[ir.Value, dict[str, tuple[int, ...]]]:
        """The root's result, with its axes that run along loops, by name of the loops."""
        axes = [position(e) for e in maps_of(self.root)[-1].results]
        return {self.root.results[0]: {name: tuple(axes.index(d) for d in loops) for name, loops in names.items()}}

    # -- the padding

    def pads(self, axis: int) -> tuple[int | ir.Value, int | ir.Value]:
        """Places before and after the image on an axis, numbers or index values."""
        pad = self.reduction.pad
        return (0, 0) if pad is None else (mixed(pad, "static_low", 1)[axis], mixed(pad, "static_high", 2)[axis])

    def padded(self, window: Window | None) -> bool:
        return window is not None and self.pads(self.axis_of(window)) != (0, 0)

    @property
    def padded_across(self) -> bool:
        return self.padded(self.window_across)

    @property
    def copied(self) -> bool:
        """Are rows copied with their padding? They are where vectors of pixels reach into it, or several filters would read
        them places apart."""
        window = self.window_along
        return self.padded(window) or (window is not None and self.filters is not None and window.stride > 1)

    def place_of(self, ev: Evaluator, window: Window) -> tuple[Index, Index]:
        """Places before the image on the window's axis, and the extent of the image."""
        axis = self.axis_of(window)
        return ev.size(self.pads(axis)[0]), ev.extent(self.reduction.source, axis)

    def taps(self, ev: Evaluator, d: int, loops: Loops) -> tuple[Index, Index]:
        """The range of a reduction loop at a point: of taps those that do not lie in the padding, where the point tells."""
        count = ev.emit(self.extents[d])
        window = next((w for w in self.reduction.windows if w.tap == d), None)
        row = None if window is None else loops[window.row]
        if window is None or row is None or not self.padded(window):
            return Index(0), count
        low, extent = self.place_of(ev, window)
        before = low - row * window.stride
        first = before.max(0).ceildiv(window.dilation).min(count)
        return first, (before + extent).max(0).ceildiv(window.dilation).min(count).max(first)

    def interior(self, ev: Evaluator, low: Index, high: Index) -> tuple[Index, Index]:
        """The pixels of [low, high) whose windows do not reach into the padding."""
        window = self.window_across
        if window is None or not self.padded(window):
            return low, high
        before, extent = self.place_of(ev, window)
        reach = (ev.emit(self.extents[window.tap]) - 1) * window.dilation
        first = before.max(0).ceildiv(window.stride).max(low).min(high)
        return first, ((before + extent - reach - 1).floordiv(Index(window.stride)) + 1).min(high).max(first)

    def image_place(self, ev: Evaluator, loops: Sequence[Index]) -> list[Index]:
        """Where the image, without its padding, is read at a point of all loops."""
        read = maps_of(self.root)[self.reduction.image].results
        return [evaluate(e, loops) - ev.size(self.pads(axis)[0]) for axis, e in enumerate(read)]


def unrolled_taps(found: WindowReduction, along: Window | None, across: Window | None, shared: bool) -> set[int]:
    """The loops over taps that are unrolled: first that of the pixel loop, then that along the vectors, while there are few;
    where filters share what is read, first that along the vectors, while there are fewer."""
    taps, total = set[int](), 1
    for window in (along, across) if shared else (across, along):
        count = None if window is None else found.extents[window.tap].constant
        if window is not None and count is not None and 0 < total * count <= (UNROLLED_SHARED if shared else UNROLLED):
            total *= count
            taps.add(window.tap)
    return taps
