"""Operators that change the shape or select by position."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.slices import slice_bounds
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.runtime.shape import Expr

_ONE = Expr.of(1)


@operator("Reshape", known=[1])
def reshape(context: Context, x: ops.Tensor, shape: Known) -> ops.Tensor:
    wanted = shape.exprs()
    if not context.attribute("allowzero", 0):
        for i, d in enumerate(wanted):
            if d == Expr.of(0):
                context.require(i < x.rank, f"extent {i} of the shape is 0, and the input has rank {x.rank}")
                wanted[i] = x.dims[i]
    return reshaped(context, x, wanted)


def reshaped(context: Context, x: ops.Tensor, wanted: Sequence[Expr]) -> ops.Tensor:
    """Reshaped to extents of which one may be -1; a dim gives way where the sizes do not match by themselves."""
    total = math.prod(x.dims, start=_ONE)
    open_axes = [i for i, d in enumerate(wanted) if d.constant == -1]
    context.require(len(open_axes) <= 1, f"the shape {list(map(str, wanted))} leaves more than one extent open")
    sizes = list(wanted)
    if open_axes:
        rest = math.prod((d for i, d in enumerate(wanted) if i != open_axes[0]), start=_ONE)
        sizes[open_axes[0]] = Expr.of(0) if rest == Expr.of(0) else total // rest
    found = math.prod(sizes, start=_ONE)
    if found != total:
        context.equal(total, found)
    return ops.reshape(x, sizes)


@operator("Flatten")
def flatten(context: Context, x: ops.Tensor) -> ops.Tensor:
    axis = context.attribute("axis", 1)
    at = axis + x.rank if axis < 0 else axis
    context.require(0 <= at <= x.rank, f"axis {axis} of a tensor of rank {x.rank}")
    return ops.reshape(x, [math.prod(x.dims[:at], start=_ONE), math.prod(x.dims[at:], start=_ONE)])


@operator("Squeeze", known=[1])
def squeeze(context: Context, x: ops.Tensor, axes: Known | None = None) -> ops.Tensor:
    given = context.attribute("axes") if axes is None else context.numbers(axes, "axes")
    if given is None:
        over = [a for a, d in enumerate(x.dims) if d == _ONE]
    else:
        over = context.axes(x.rank, given)
    for a in over:
        context.equal(x.dims[a], _ONE)
    return ops.reshape(x, [d for a, d in enumerate(x.dims) if a not in over])


@operator("Unsqueeze", known=[1])
def unsqueeze(context: Context, x: ops.Tensor, axes: Known | None = None) -> ops.Tensor:
    given = context.attribute("axes", []) if axes is None else context.numbers(axes, "axes")
    rank = x.rank + len(given)
    over, rest = context.axes(rank, given), iter(x.dims)
    return ops.reshape(x, [_ONE if a in over else next(rest) for a in range(rank)])


@operator("Transpose")
def transpose(context: Context, x: ops.Tensor) -> ops.Tensor:
    return ops.transpose(x, context.attribute("perm"))


@operator("Concat")
def concat(context: Context, *tensors: ops.Tensor) -> ops.Tensor:
    first = tensors[0]
    axis = context.axis(first.rank, context.attribute("axis", 1))
    for t in tensors[1:]:
        context.require(t.rank == first.rank, f"inputs of rank {first.rank} and {t.rank}")
        for a in range(first.rank):
            if a != axis:
                context.equal(first.dims[a], t.dims[a])
    return ops.concat(tensors, axis)


@operator("Split", known=[1])
def split(context: Context, x: ops.Tensor, sizes: Known | None = None) -> list[ops.Tensor]:
    axis = context.axis(x.rank, context.attribute("axis", 0))
    extent, count = x.dims[axis], len(context.node.output)
    if sizes is not None or context.has("split"):
        lengths = sizes.exprs() if sizes is not None else [Expr.of(n) for n in context.attribute("split")]
        context.require(len(lengths) == count, f"{len(lengths)} lengths for {count} results")
        context.equal(sum(lengths, start=Expr.of(0)), extent)
    else:
        chunk = extent.ceildiv(count)
        lengths = [chunk] * (count - 1) + [extent - chunk * (count - 1)]
    found, start = [], Expr.of(0)
    for length in lengths:
        found.append(_window(x, axis, start, start + length))
        start = start + length
    return found


def _window(x: ops.Tensor, axis: int, begin: Expr, end: Expr) -> ops.Tensor:
    starts: list[Expr | None] = [begin if a == axis else None for a in range(x.rank)]
    ends: list[Expr | None] = [end if a == axis else None for a in range(x.rank)]
    return ops.slice(x, starts, ends)


@operator("Slice", known=[1, 2, 3, 4])
def slice_(context: Context, x: ops.Tensor, *bounds: Known | None) -> ops.Tensor:
    starts, ends, axes, steps = slice_bounds(context, x.rank, bounds)
    begin, stop, by = [Expr.of(0)] * x.rank, list(x.dims), [1] * x.rank
    flipped = []
    for a, first, last, step in zip(axes, starts, ends, steps, strict=True):
        d = x.dims[a]
        if step > 0:
            begin[a], stop[a] = _clamped(context, first, d), _clamped(context, last, d)
        else:  # element i of the flipped axis is element d - 1 - i
            flipped.append(a)
            begin[a] = d - 1 - _backward(context, first, d)
            stop[a] = d - 1 - _backward(context, last, d)
        stop[a] = _at_least(context, stop[a], begin[a])
        by[a] = abs(step)
    return ops.slice(ops.flip(x, flipped) if flipped else x, begin, stop, by)


def _low(context: Context, e: Expr) -> float:
    return e.bounds(context.scope.ranges)[0]


def _from_end(context: Context, position: Expr, extent: Expr) -> Expr:
    """A position that counts from the end where it is negative."""
    low, high = position.bounds(context.scope.ranges)
    if low >= 0:
        return position
    context.require(high < 0, f"a bound of {position} may count from the start or from the end")
    return extent + position


def _clamped(context: Context, position: Expr, extent: Expr) -> Expr:
    return _between(context, _from_end(context, position, extent), Expr.of(0), extent)


def _backward(context: Context, position: Expr, extent: Expr) -> Expr:
    """A bound of a slice that runs backward: -1 is before the first element."""
    if position.constant is not None and position.constant < -(1 << 31):
        return Expr.of(-1)
    return _between(context, _from_end(context, position, extent), Expr.of(-1), extent - 1)


def _between(context: Context, value: Expr, low: Expr, high: Expr) -> Expr:
    if _low(context, high - value) < 0:
        value = high if _low(context, value - high) >= 0 else value.minimum(high)
    return _at_least(context, value, low)


def _at_least(context: Context, value: Expr, low: Expr) -> Expr:
    if _low(context, value - low) >= 0:
        return value
    return low if _low(context, low - value) >= 0 else value.maximum(low)


@operator("Expand", known=[1])
def expand(context: Context, x: ops.Tensor, shape: Known) -> ops.Tensor:
    return broadcast_to(context, x, shape.exprs())


def broadcast_to(context: Context, x: ops.Tensor, wanted: Sequence[Expr]) -> ops.Tensor:
    """x broadcast against a shape, either of which may have extents of 1."""
    rank = max(x.rank, len(wanted))
    have = [_ONE] * (rank - x.rank) + list(x.dims)
    want = [_ONE] * (rank - len(wanted)) + list(wanted)
    dims = [h if w == _ONE else w if h == _ONE else context.equal(h, w) for h, w in zip(have, want, strict=True)]
    return x if dims == list(x.dims) else ops.broadcast_to(x, dims)


@operator("Tile", known=[1])
def tile(context: Context, x: ops.Tensor, repeats: Known) -> ops.Tensor:
    counts = repeats.exprs()
    context.require(len(counts) == x.rank, f"{len(counts)} repeats for a tensor of rank {x.rank}")
    spread = ops.broadcast_to(ops.reshape(x, [e for d in x.dims for e in (_ONE, d)]),
                              [e for c, d in zip(counts, x.dims, strict=True) for e in (c, d)])
    return ops.reshape(spread, [c * d for c, d in zip(counts, x.dims, strict=True)])


@operator("ConstantOfShape", known=[0])
def constant_of_shape(context: Context, shape: Known) -> ops.Tensor:
    value = np.asarray(context.attribute("value", np.zeros(1, np.float32)))
    context.require(value.size == 1, f"value holds {value.size} elements; wanted one")
    number = context.graph.constant(value.reshape(()))
    return ops.broadcast_to(number, shape.exprs())


@operator("Range", known=[0, 1, 2])
def range_(context: Context, start: Known, limit: Known, delta: Known) -> ops.Tensor:
    context.require(start.dtype.kind in "iu", "a range of floats whose length depends on the dims", "Make it of integers and cast it")
    (first,), (last,), (step,) = start.exprs(), limit.exprs(), delta.exprs()
    context.require(step.constant not in (None, 0), f"a step of {step}", "Wanted an integer other than 0")
    by = step.constant or 1
    count = (last - first).ceildiv(by) if by > 0 else (first - last).ceildiv(-by)
    from tilewright.runtime.tensor import DType

    return ops.arange(context.graph, _at_least(context, count, Expr.of(0)), first, by, dtype=DType.of(start.dtype))


@operator("Pad", known=[1, 3], either=[2])
def pad(
    context: Context, x: ops.Tensor, pads: Known, value: Known | ops.Tensor | None = None, axes: Known | None = None
) -> ops.Tensor:
    over = list(range(x.rank)) if axes is None else context.axes(x.rank, context.numbers(axes, "axes"))
    widths = pads.exprs()
    context.require(len(widths) == 2 * len(over), f"{len(widths)} widths for {len(over)} axes")
    low, high = [Expr.of(0)] * x.rank, [Expr.of(0)] * x.rank
    for i, a in enumerate(over):
        low[a], high[a] = widths[i], widths[i + len(over)]
    mode = context.attribute("mode", "constant")
    context.require(mode in ("constant", "reflect", "edge", "wrap"), f"mode={mode!r}", "Use constant, reflect, edge or wrap")
    return padded(context, x, low, high, value, mode)


def padded(
    context: Context, x: ops.Tensor, low: Sequence[Expr], high: Sequence[Expr], value: Known | ops.Tensor | None, mode: str
) -> ops.Tensor:
    """Padded; negative widths cut off."""
    zero = Expr.of(0)
    cut_low = [-_between(context, w, w, zero) if _low(context, w) < 0 else zero for w in low]
    cut_high = [-_between(context, w, w, zero) if _low(context, w) < 0 else zero for w in high]
    if any(c != zero for c in (*cut_low, *cut_high)):
        x = ops.slice(x, cut_low, [d - c for d, c in zip(x.dims, cut_high, strict=True)])
    before = [_at_least(context, w, zero) for w in low]
    after = [_at_least(context, w, zero) for w in high]
    if mode != "constant":
        return ops.pad(x, before, after, mode=mode)
    if value is None:
        return ops.pad(x, before, after)
    if isinstance(value, Known):
        return ops.pad(x, before, after, value.elements.item())
    inside = ops.pad(context.graph.filled(True, ops.DType.I1, x.dims), before, after)
    return ops.where(inside, ops.pad(x, before, after), ops.reshape(value, ()))


@operator("DepthToSpace")
def depth_to_space(context: Context, x: ops.Tensor) -> ops.Tensor:
    b = context.attribute("blocksize")
    n, c, h, w = x.dims
    context.require((c % (b * b)).constant == 0, f"{c} channels do not split into blocks of {b} by {b}")
    if context.attribute("mode", "DCR") == "DCR":
        parts = ops.transpose(ops.reshape(x, [n, b, b, c // (b * b), h, w]), [0, 3, 4, 1, 5, 2])
    else:
        parts = ops.transpose(ops.reshape(x, [n, c // (b * b), b, b, h, w]), [0, 1, 4, 2, 5, 3])
    return ops.reshape(parts, [n, c // (b * b), h * b, w * b])


@operator("SpaceToDepth")
def space_to_depth(context: Context, x: ops.Tensor) -> ops.Tensor:
    b = context.attribute("blocksize")
    n, c, h, w = x.dims
    parts = ops.reshape(x, [n, c, h // b, b, w // b, b])
    order = [0, 3, 5, 1, 2, 4] if context.attribute("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    return ops.reshape(ops.transpose(parts, order), [n, c * (b * b), h // b, w // b])


@operator("CenterCropPad", known=[1])
def center_crop_pad(context: Context, x: ops.Tensor, shape: Known) -> ops.Tensor:
    axes = context.axes(x.rank, context.attribute("axes", list(range(x.rank))))
    low, high = [Expr.of(0)] * x.rank, [Expr.of(0)] * x.rank
    for a, wanted in zip(axes, shape.exprs(), strict=True):
        more = wanted - x.dims[a]
        grows = _low(context, more) >= 0
        context.require(grows or _low(context, -more) >= 0, f"axis {a} of {x.dims[a]} may be cropped or padded to {wanted}")
        low[a] = more // 2 if grows else -((-more) // 2)
        high[a] = more - low[a]
    return padded(context, x, low, high, None, "constant")
