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
from tilewright.runtime.tensor import DType

_ONE = Expr.of(1)
_BEYOND = 1 << 31  # what exporters write for "to the end"
_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


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
    open_axes = [i for i, d in enumerate(wanted) if d.constant == -1]
    if open_axes:
        return ops.reshape(x, [-1 if i in open_axes else d for i, d in enumerate(wanted)])
    total, found = math.prod(x.dims, start=_ONE), math.prod(wanted, start=_ONE)
    context.equal(total, found)
    return ops.reshape(x, wanted)


@operator("Flatten")
def flatten(context: Context, x: ops.Tensor) -> ops.Tensor:
    axis = context.attribute("axis", 1)
    at = axis + x.rank if axis < 0 else axis
    context.require(0 <= at <= x.rank, f"axis {axis} of a tensor of rank {x.rank}")
    return ops.reshape(x, [math.prod(x.dims[:at], start=_ONE), math.prod(x.dims[at:], start=_ONE)])


@operator("Squeeze", known=[1])
def squeeze(context: Context, x: ops.Tensor, axes: Known | None = None) -> ops.Tensor:
    given = context.attribute("axes") if axes is None else context.numbers(axes, "axes")
    over = [a for a, d in enumerate(x.dims) if d == _ONE] if given is None else context.axes(x.rank, given)
    x = context.restated(x, [_ONE if a in over else d for a, d in enumerate(x.dims)])
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
    dims = [[d if a == axis else first.dims[a] for a, d in enumerate(t.dims)] for t in tensors]
    return ops.concat([context.restated(t, d) for t, d in zip(tensors, dims, strict=True)], axis)


@operator("Split", known=[1])
def split(context: Context, x: ops.Tensor, sizes: Known | None = None) -> list[ops.Tensor]:
    axis = context.axis(x.rank, context.attribute("axis", 0))
    extent, count = x.dims[axis], len(context.node.output)
    context.require(context.attribute("num_outputs", count) == count, f"num_outputs is not {count}, the number of its results")
    if sizes is not None or context.has("split"):
        lengths = sizes.exprs() if sizes is not None else [Expr.of(n) for n in context.attribute("split")]
        context.require(len(lengths) == count, f"{len(lengths)} lengths for {count} results")
        total = sum(lengths, start=Expr.of(0))
        x = context.restated(x, [total if a == axis else d for a, d in enumerate(x.dims)])
    else:
        chunk = extent.ceildiv(count)
        lengths = [chunk] * (count - 1) + [extent - chunk * (count - 1)]
    return ops.split(x, lengths, axis)


@operator("Slice", known=[1, 2, 3, 4])
def slice_(context: Context, x: ops.Tensor, *bounds: Known | None) -> ops.Tensor:
    starts, ends, axes, steps = slice_bounds(context, x.rank, bounds)
    for axis, begin, end, step in zip(axes, starts, ends, steps, strict=True):
        whole = step < 0 and end.constant is not None and end.constant <= -_BEYOND
        x = ops.slice_axis(x, axis, begin, None if whole else end, step)
    return x


@operator("Expand", known=[1])
def expand(context: Context, x: ops.Tensor, shape: Known) -> ops.Tensor:
    return broadcast_to(context, x, shape.exprs())


def broadcast_to(context: Context, x: ops.Tensor, wanted: Sequence[Expr]) -> ops.Tensor:
    """x broadcast against a shape, either of which may have extents of 1."""
    rank = max(x.rank, len(wanted))
    have = [_ONE] * (rank - x.rank) + list(x.dims)
    want = [_ONE] * (rank - len(wanted)) + list(wanted)
    whole = context.restated(ops.reshape(x, have), [h if _ONE in (h, w) else w for h, w in zip(have, want, strict=True)])
    dims = [h if w == _ONE else w for h, w in zip(whole.dims, want, strict=True)]
    return x if dims == list(x.dims) else ops.broadcast_to(whole, dims)


@operator("Tile", known=[1])
def tile(context: Context, x: ops.Tensor, repeats: Known) -> ops.Tensor:
    return ops.tile(x, repeats.exprs())


@operator("ConstantOfShape", known=[0])
def constant_of_shape(context: Context, shape: Known) -> ops.Tensor:
    value = np.asarray(context.attribute("value", np.zeros(1, np.float32)))
    context.require(value.size == 1, f"value holds {value.size} elements; wanted one")
    return ops.full(context.graph, shape.exprs(), value.item(), DType.of(value.dtype))


@operator("Range", known=[0, 1, 2])
def range_(context: Context, start: Known, limit: Known, delta: Known) -> ops.Tensor:
    context.require(
        start.dtype.kind in "iu", "a range of floats whose length depends on the dims", "Make it of integers and cast it"
    )
    (first,), (last,), (step,) = start.exprs(), limit.exprs(), delta.exprs()
    context.require(step.constant not in (None, 0), f"a step of {step}", "Wanted an integer other than 0")
    return ops.arange(context.graph, first, last, step, dtype=DType.of(start.dtype))


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
    context.require(mode in _PAD_MODES, f"mode={mode!r}", f"Use one of {', '.join(_PAD_MODES)}")
    if mode != "constant" or value is None:
        return ops.pad(x, low, high, mode=_PAD_MODES[mode])
    if isinstance(value, Known):
        return ops.pad(x, low, high, value.elements.item())
    inside = ops.pad(ops.full(context.graph, x.dims, True, DType.I1), low, high)
    return ops.where(inside, ops.pad(x, low, high), ops.reshape(value, ()))


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
        grows = context.graph.at_least(wanted, x.dims[a])
        context.require(
            grows or context.graph.at_least(x.dims[a], wanted), f"axis {a} of {x.dims[a]} may be cropped or padded to {wanted}"
        )
        low[a] = more // 2 if grows else -((-more) // 2)
        high[a] = more - low[a]
    return ops.pad(x, low, high)
