"""The rows of a host matmul that a tap of a window does not read zero padding for, as one space of their own.

A tap is one place in the window of a convolution. Products of its filter with padding are zero, so only the other rows, a box
in the loops over rows, are multiplied with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.passes.analysis.windows import argument_windows
from tilewright.passes.codegen.emit import loop
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, select
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import Loops, row_points
from tilewright.passes.spaces.workload import Window


@dataclass(frozen=True)
class Box:
    """dims: the loops over rows, of `sizes`; the box holds `counts` coordinates of each from `lows` on."""

    dims: tuple[int, ...]
    sizes: tuple[Index, ...]
    lows: tuple[Index, ...]
    counts: tuple[Index, ...]

    @staticmethod
    def whole(ev: Evaluator, plan: Plan) -> Box:
        """Every row."""
        sizes = tuple(ev.emit(plan.view.extents[d]) for d in plan.rows)
        return Box(plan.rows, sizes, (Index(0),) * len(sizes), sizes)

    def points(self, loops: Loops, row: Index, height: int) -> list[Loops]:
        """`loops` with the coordinates of consecutive rows of the box."""
        found = row_points(loops, self.dims, self.counts, row, height)
        for point in found:
            for d, low in zip(self.dims, self.lows, strict=True):
                here = point[d]
                assert here is not None
                point[d] = here + low
        return found

    def number(self, point: Loops) -> Index:
        """The number of a row among all rows."""
        total = Index(0)
        for d, size in zip(self.dims, self.sizes, strict=True):
            here = point[d]
            assert here is not None
            total = total * size + here
        return total

    def before(self, row: Index) -> Index:
        """How many rows of the box come before `row`, a number among all rows."""
        left, step, strides = row, Index(1), list[Index]()
        for size in reversed(self.sizes):
            strides.insert(0, step)
            step = step * size
        total, inside = Index(0), Index(1)
        for low, count, stride in zip(self.lows, self.counts, strides, strict=True):
            at = left // stride - low
            left = left % stride
            total = total * count + inside * at.max(0).min(count)
            here = select(at.ge(0), select(at.lt(count), Index(1), Index(0), type_=row.type), Index(0), type_=row.type)
            inside = inside * here
        return total


@dataclass(frozen=True)
class Taps:
    """windows: with loops of `plan.rows`; plan: with the other loops of k only."""

    windows: tuple[Window, ...]
    plan: Plan

    @staticmethod
    def of(kernel: KernelFrame, plan: Plan) -> Taps:
        """ValueError when no window over rows has zeros."""
        view = plan.view
        every = argument_windows(kernel.fn, view.op, plan.narrow, kernel.shapes)
        windows = tuple(w for w in every if w.padded and w.row in plan.rows)
        if not windows:
            raise ValueError(f"{view.op.name} at {view.op.location}: no window over rows passes over zeros")
        inner = replace(view, k=tuple(d for d in view.k if d not in {w.tap for w in windows}))
        return Taps(windows, Plan.along(kernel, inner, plan.column, plan.places, plan.heavy))

    def each(self, ev: Evaluator, loops: Loops, body: Callable[[Loops, Box], None]) -> None:
        """body(`loops` with the tap, its rows) for all taps, in order."""
        self._nest(ev, sorted(self.windows, key=lambda w: w.tap), loops, Box.whole(ev, self.plan), body)

    def _nest(self, ev: Evaluator, windows: Sequence[Window], loops: Loops, box: Box, body: Callable[[Loops, Box], None]) -> None:
        if not windows:
            body(loops, box)
            return
        window, axis = windows[0], box.dims.index(windows[0].row)
        rows = box.sizes[axis]
        read_to = ev.emit(window.extent) - window.high

        def tap(t: Index) -> None:
            reach = t * window.dilation
            low = (Index(window.low) - reach).max(0).ceildiv(window.stride).min(rows)
            count = (read_to - reach).max(0).ceildiv(window.stride).min(rows) - low
            inner = replace(box, lows=_with(box.lows, axis, low), counts=_with(box.counts, axis, count.max(0)))
            self._nest(ev, windows[1:], [t if d == window.tap else x for d, x in enumerate(loops)], inner, body)

        loop(0, ev.emit(self.plan.view.extents[window.tap]), 1, tap, index=ev.index_type)


def _with(values: tuple[Index, ...], at: int, value: Index) -> tuple[Index, ...]:
    return (*values[:at], value, *values[at + 1 :])
