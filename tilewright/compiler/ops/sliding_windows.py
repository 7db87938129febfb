"""What convolutions and pooling share: layouts, strides, padding, output extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from tilewright.compiler.ops.graph import Size, Tensor, shown
from tilewright.compiler.ops.padding import pad
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr

Spatial = int | Sequence[int]
Width = int | Expr
Padding = Width | str | Sequence[Width | Sequence[Width]]
SAME = {"same": True, "same_lower": False}  # the odd element comes last


class WindowOptions(TypedDict, total=False):
    """Keywords of a convolution: steps of its window, zeros around its input, steps between the elements of its kernel.

    padding: a width for all sides, or per axis a width or a (low, high) pair, ints or Exprs; "valid": none; "same": so many that
    there are ceil(extent / stride) windows, the odd one at the end, "same_lower": at the beginning.
    """

    stride: Spatial
    padding: Padding
    dilation: Spatial


@dataclass(frozen=True)
class Layout:
    """Where the axes of an input stand: channel axis, spatial axes."""

    text: str
    channel: int
    spatial: tuple[int, ...]


def layout_of(name: str, layout: str, rank: int) -> Layout:
    """From `nchw`/`nhwc` (`ncw`, `ncdhw` and so on for one and three spatial axes); OptionError for anything else."""
    letters = "dhw"[3 - rank:]
    known = {f"nc{letters}": Layout(f"nc{letters}", 1, tuple(range(2, 2 + rank))),
             f"n{letters}c": Layout(f"n{letters}c", 1 + rank, tuple(range(1, 1 + rank)))}
    if layout not in known:
        raise OptionError(f"{name}: unknown layout {layout!r}; use {' or '.join(known)}")
    return known[layout]


@dataclass(frozen=True)
class SlidingWindow:
    """One sliding window: extents, strides, dilations, and (low, high) padding, per spatial axis."""

    name: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[Width, Width], ...]

    @staticmethod
    def of(name: str, x: Tensor, form: Layout, extents: Sequence[int], **options: Unpack[WindowOptions]) -> SlidingWindow:
        """The window over the spatial axes of x."""
        rank, padding = len(extents), options.get("padding", 0)
        strides = per_axis(name, "stride", options.get("stride", 1), rank)
        dilations = per_axis(name, "dilation", options.get("dilation", 1), rank)
        if isinstance(padding, str) and padding in SAME:
            steps = zip(form.spatial, extents, strides, dilations, strict=True)
            pairs = [_same(x, axis, (k, s, d), SAME[padding]) for axis, k, s, d in steps]
        else:
            pairs = _pairs(name, 0 if padding == "valid" else padding, rank)
        return SlidingWindow(name, tuple(extents), strides, dilations, tuple(pairs))

    @property
    def attributes(self) -> str:
        """The attributes of the named operation."""
        values = [f"{k} = dense<{list(v)}> : tensor<{len(v)}xi64>"
                  for k, v in (("dilations", self.dilations), ("strides", self.strides))]
        return f"{{{', '.join(values)}}}"

    def clipped(self, x: Tensor, layout: Layout) -> SlidingWindow:
        """With ceil_mode, a window that is longer than its padded axis and stands there once, as one of the axis's length."""
        extents, strides = list(self.extents), list(self.strides)
        for n, axis in enumerate(layout.spatial):
            whole = (x.dims[axis] + self.padding[n][0] + self.padding[n][1]).constant
            if whole is not None and self.dilations[n] == 1 and 0 < self.extents[n] - whole < self.strides[n]:
                extents[n] = strides[n] = whole
        return replace(self, extents=tuple(extents), strides=tuple(strides))

    def cut(self, x: Tensor, layout: Layout) -> tuple[SlidingWindow, list[tuple[int, int]]]:
        """Without the elements at its ends that stand on padding alone, wherever the window stands and as far as the graph's
        ranges tell; and from which element to which it is left, per spatial axis. Results are as many, at the same places."""
        extents, padding, left = list(self.extents), list(self.padding), []
        for n, axis in enumerate(layout.spatial):
            low, high = (w if isinstance(w, int) else w.constant for w in self.padding[n])
            most, count, step = x.graph.bounds(x.dims[axis])[1], self.extents[n], self.dilations[n]
            first, last = 0, count
            if low is not None and high is not None and most < step * (count - 1):
                longest = int(most)
                first = min(max(0, (step * (count - 1) - longest - high) // step + 1), low // step)
                last = max(min(count, -(-(longest + low) // step)), count - high // step)
            if not 0 < last - first < count or low is None or high is None:
                left.append((0, count))
                continue
            x.graph.require_at_most(x.dims[axis], int(most), f"{self.name}: axis {axis} is longer than its range says")
            extents[n], padding[n] = last - first, (low - first * step, high - (count - last) * step)
            left.append((first, last))
        return replace(self, extents=tuple(extents), padding=tuple(padding)), left

    def pad(self, x: Tensor, layout: Layout, value: float, beyond: Sequence[Width] | None = None) -> Tensor:
        """x with its padding; beyond: more of it after each spatial axis."""
        low: list[Size] = [0] * x.rank
        high: list[Size] = [0] * x.rank
        for n, axis in enumerate(layout.spatial):
            low[axis], high[axis] = self.padding[n]
            if beyond is not None:
                high[axis] = Expr.of(self.padding[n][1]) + beyond[n]
        return pad(x, low, high, value)

    def placed(self, x: Tensor, layout: Layout, value: float, ceil_mode: bool) -> tuple[Tensor, list[Expr]]:
        """The padded input and the extents of the result, with ceil_mode those whose last window may reach beyond the padding."""
        if not ceil_mode:
            padded = self.pad(x, layout, value)
            return padded, self.result_dims(padded, layout, x.dims[layout.channel])
        g, counts, beyond = x.graph, [], []
        for n, axis in enumerate(layout.spatial):
            low, high = (Expr.of(w) for w in self.padding[n])
            reach, stride = Expr.of(self.dilations[n] * (self.extents[n] - 1) + 1), self.strides[n]
            whole = x.dims[axis] + low + high
            if g.bounds(whole - reach + stride)[1] < 1:
                raise ShapeError(f"{self.name}: a window of {self.extents[n]} does not fit {shown(x.dims)} on axis {axis}")
            count = g.smaller((whole - reach).ceildiv(stride) + 1, (x.dims[axis] + low).ceildiv(stride))
            counts.append(count)
            beyond.append(g.larger((count - 1) * stride + reach - whole, Expr.of(0)))
        dims = list(x.dims)
        for axis, count in zip(layout.spatial, counts, strict=True):
            dims[axis] = count
        return self.pad(x, layout, value, beyond), dims

    def output(self, padded: Tensor, layout: Layout) -> list[Expr]:
        """Extents of the spatial axes of the result; ShapeError when a window is known not to fit."""
        found = []
        steps = zip(layout.spatial, self.extents, self.strides, self.dilations, strict=True)
        for axis, size, stride, dilation in steps:
            reach = padded.dims[axis] - (dilation * (size - 1) + 1)
            if reach.constant is not None and reach.constant < 0:
                raise ShapeError(f"{self.name}: a window of {size} (dilation {dilation}) does not fit the padded input "
                                 f"{shown(padded.dims)} on axis {axis}")
            found.append(reach // stride + 1)
        return found

    def result_dims(self, padded: Tensor, layout: Layout, channels: Expr) -> list[Expr]:
        spatial = self.output(padded, layout)
        batch = padded.dims[0]
        return [batch, channels, *spatial] if layout.channel == 1 else [batch, *spatial, channels]


def _pairs(name: str, padding: Padding, rank: int) -> list[tuple[Width, Width]]:
    """(low, high) for each axis."""
    if isinstance(padding, str):
        raise OptionError(f"{name}: padding {padding!r}; wanted widths, 'valid', 'same' or 'same_lower'")
    sides = (padding,) * rank if isinstance(padding, (int, Expr)) else tuple(padding)
    if len(sides) != rank:
        raise OptionError(f"{name}: padding {padding!r}; wanted one entry for each of the {rank} spatial axes")
    pairs = [(p, p) if isinstance(p, (int, Expr)) else tuple(p) for p in sides]
    if any(len(p) != 2 or any(isinstance(w, int) and w < 0 for w in p) for p in pairs):
        raise OptionError(f"{name}: padding {padding!r}; wanted widths of 0 or more, or (low, high) pairs of them")
    return [(p[0], p[1]) for p in pairs]


def _same(x: Tensor, axis: int, window: tuple[int, int, int], odd_last: bool) -> tuple[Width, Width]:
    """Widths around an axis with which a window (extent, stride, dilation) stands at ceil(extent of the axis / stride) places."""
    size, stride, dilation = window
    extent, reach = x.dims[axis], dilation * (size - 1)
    if stride == 1:
        total = Expr.of(reach)
    else:
        total = x.graph.larger((extent.ceildiv(stride) - 1) * stride + reach + 1 - extent, Expr.of(0))
    return halves(total, odd_last)


def halves(total: Expr, odd_last: bool) -> tuple[Width, Width]:
    """A width in two halves, the larger one at the end or at the beginning."""
    less, more = (w if w.constant is None else w.constant for w in (total // 2, total - total // 2))
    return (less, more) if odd_last else (more, less)


def per_axis(name: str, what: str, value: Spatial, rank: int, least: int = 1) -> tuple[int, ...]:
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank or any(v < least for v in values):
        raise OptionError(f"{name}: {what} {value!r}; wanted an integer of at least {least}, or one for each of the {rank} axes")
    return values


def static(name: str, what: str, extent: Expr) -> int:
    if extent.constant is None:
        raise ShapeError(f"{name}: {what} is {extent}; wanted an integer")
    return extent.constant
