"""Folding: nodes whose inputs are known now, and everything about shapes, so that no shape is computed at run time.

A value is known as numbers or as expressions of the dims (`Known`). One function per operator serves both: on expressions NumPy's
functions call the operators of Expr. Where the dims leave a result open the node is not folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tilewright.compiler.frontends.onnx.context import Context
from tilewright.compiler.frontends.onnx.fold_arithmetic import ARITHMETIC, Undecided
from tilewright.compiler.frontends.onnx.slices import slice_bounds
from tilewright.compiler.frontends.onnx.values import Array, Known, Value, dims_of
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.shape import Expr

MOST_ELEMENTS = 1 << 16
_VIEWS = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")


def folded(context: Context, inputs: Sequence[Value | None]) -> list[Value] | None:
    """Results of a node that can be known now, else None.

    Raises:
        IngestError: an input or an attribute does not fit the operator.
    """
    if context.node.domain not in ("", "ai.onnx"):
        return None
    name = context.node.op_type
    if name in ("Shape", "Size") and inputs and inputs[0] is not None:
        return [_shape(context, dims_of(inputs[0]))]
    if name == "Identity" and inputs and inputs[0] is not None:
        return [inputs[0]]
    if name == "Constant":
        return [Known.of(_constant(context))]
    known = [v for v in inputs if v is not None]
    if not known or not all(isinstance(v, Known) for v in known) or (name not in _FOLDS and name not in ARITHMETIC):
        return None
    values = [v if isinstance(v, Known) else None for v in inputs]
    if name not in _VIEWS and sum(v.elements.size for v in values if v is not None) > MOST_ELEMENTS:
        return None
    try:
        with np.errstate(all="ignore"):
            found = ARITHMETIC[name](context, *values) if name in ARITHMETIC else _FOLDS[name](context, *values)
    except Undecided:
        return None
    except (ValueError, IndexError, TypeError, ShapeError, ZeroDivisionError) as error:
        raise context.refused(str(error).rstrip("."), "Correct the model") from error
    return list(found) if isinstance(found, list) else [found]


def _shape(context: Context, dims: Sequence[Expr]) -> Known:
    if context.node.op_type == "Size":
        return Known.sizes([math.prod(dims, start=Expr.of(1))], shape=())
    rank = len(dims)
    start, end = (_clipped(context.attribute(k, d), rank) for k, d in (("start", 0), ("end", rank)))
    return Known.sizes(dims[start:end])


def _clipped(axis: int, rank: int) -> int:
    return min(max(axis + rank if axis < 0 else axis, 0), rank)


def _constant(context: Context) -> Array:
    for a in context.node.attribute:
        if a.name == "value":
            return np.asarray(context.array(a.t))
        if a.name in ("value_int", "value_ints"):
            return np.array(context.attribute(a.name), np.int64)
        if a.name in ("value_float", "value_floats"):
            return np.array(context.attribute(a.name), np.float32)
    kinds = ", ".join(a.name for a in context.node.attribute) or "nothing"
    raise context.refused(f"a constant given by {kinds} is not compiled", "Give its numbers as a dense tensor")


def _like(x: Known, elements: Any) -> Known:
    """Elements of x's type; expressions that are all numbers become numbers. (NumPy gives a single object without its array.)"""
    cells = np.asarray(elements)
    return Known.sizes(cells.reshape(-1), x.dtype, cells.shape) if cells.dtype == object else Known(cells, x.dtype)


def _integers(context: Context, value: Known | None, default: Any) -> Any:
    return default if value is None else context.numbers(value, "axes or indices")


def _bounded(context: Context, count: int) -> None:
    if count > MOST_ELEMENTS:
        raise Undecided


def _axes(context: Context, x: Known, given: Known | None, rank: int | None = None) -> list[int]:
    """Axes from an input or, in older opsets, from an attribute."""
    axes = context.attribute("axes") if given is None else context.numbers(given, "axes")
    count = x.elements.ndim if rank is None else rank
    return list(range(count)) if axes is None else context.axes(count, axes)


def _cast(context: Context, x: Known, like: Known | None = None) -> Known:
    number = context.attribute("to")
    if like is not None:
        wanted: np.dtype[Any] = like.dtype
    else:
        try:
            wanted = onnx.helper.tensor_dtype_to_np_dtype(number)
        except KeyError:
            raise Undecided from None
    if x.symbolic:
        if wanted == np.bool_:
            raise Undecided
        return Known(x.elements, wanted)
    if (
        wanted.kind not in "biuf"
        or x.dtype.kind not in "biuf"
        or (x.dtype.kind == "f" and wanted.kind in "iu" and not np.isfinite(x.elements).all())
    ):
        raise Undecided
    return Known.of(x.elements.astype(wanted))


def _reshape(context: Context, x: Known, shape: Known) -> Known:
    sizes = [e.constant for e in shape.exprs()]
    if None in sizes:
        raise Undecided
    if not context.attribute("allowzero", 0):
        sizes = [x.elements.shape[i] if s == 0 else s for i, s in enumerate(sizes)]
    return Known(x.elements.reshape([s for s in sizes if s is not None]), x.dtype)


def _flatten(context: Context, x: Known) -> Known:
    axis = context.attribute("axis", 1)
    at = axis + x.elements.ndim if axis < 0 else axis
    return Known(x.elements.reshape(math.prod(x.elements.shape[:at]), -1), x.dtype)


def _transpose(context: Context, x: Known) -> Known:
    return Known(x.elements.transpose(context.attribute("perm")), x.dtype)


def _squeeze(context: Context, x: Known, axes: Known | None = None) -> Known:
    if axes is None and not context.has("axes"):
        return Known(x.elements.squeeze(), x.dtype)
    return Known(x.elements.squeeze(tuple(_axes(context, x, axes))), x.dtype)


def _unsqueeze(context: Context, x: Known, axes: Known | None = None) -> Known:
    given = context.attribute("axes") if axes is None else context.numbers(axes, "axes")
    return Known(np.expand_dims(x.elements, tuple(context.axes(x.elements.ndim + len(given), given))), x.dtype)


def _gather(context: Context, x: Known, indices: Known) -> Known:
    places = np.asarray(indices.elements)
    if indices.symbolic:
        raise Undecided
    return _like(x, np.take(x.elements, places.astype(np.int64), context.axis(x.elements.ndim, context.attribute("axis", 0))))


def _concat(context: Context, *values: Known) -> Known:
    arrays = [v.elements.astype(object) for v in values] if any(v.symbolic for v in values) else [v.elements for v in values]
    return _like(values[0], np.concatenate(arrays, context.attribute("axis")))


def _slice(context: Context, x: Known, *bounds: Known | None) -> Known:
    starts, ends, axes, steps = slice_bounds(context, x.elements.ndim, bounds)
    window = [slice(None)] * x.elements.ndim
    for a, b, e, s in zip(axes, starts, ends, steps, strict=True):
        if b.constant is None or e.constant is None:
            raise Undecided
        extent, stop = x.elements.shape[a], e.constant
        backward = s < 0 and stop < -extent
        window[a] = slice(b.constant, None if backward else stop, s)
    return _like(x, x.elements[tuple(window)])


def _split(context: Context, x: Known, sizes: Known | None = None) -> list[Known]:
    axis, count = context.axis(x.elements.ndim, context.attribute("axis", 0)), len(context.node.output)
    extent = x.elements.shape[axis]
    chunk = -(-extent // count)
    lengths = _integers(context, sizes, context.attribute("split", [chunk] * (count - 1) + [extent - chunk * (count - 1)]))
    return [_like(x, part) for part in np.split(x.elements, np.cumsum(lengths)[:-1], axis)]


def _expand(context: Context, x: Known, shape: Known) -> Known:
    sizes = context.numbers(shape, "shape") if not shape.symbolic else None
    if sizes is None:
        raise Undecided
    extents = np.broadcast_shapes(x.elements.shape, tuple(sizes))
    _bounded(context, math.prod(extents))
    return Known(np.broadcast_to(x.elements, extents), x.dtype)


def _tile(context: Context, x: Known, repeats: Known) -> Known:
    if repeats.symbolic:
        raise Undecided
    counts = context.numbers(repeats, "repeats")
    _bounded(context, x.elements.size * math.prod(counts))
    return Known(np.tile(x.elements, counts), x.dtype)


def _constant_of_shape(context: Context, shape: Known) -> Known:
    sizes = [e.constant for e in shape.exprs()]
    extents = [s for s in sizes if s is not None]
    if len(extents) < len(sizes):
        raise Undecided
    _bounded(context, math.prod(extents))
    value = np.asarray(context.attribute("value", np.zeros(1, np.float32)))
    return Known.of(np.broadcast_to(value.reshape(()), extents))


def _range(context: Context, start: Known, limit: Known, step: Known) -> Known:
    if start.symbolic or limit.symbolic or step.symbolic:
        raise Undecided
    first, last, by = (
        v.elements.astype(np.float64 if v.dtype.kind not in "iu" else np.int64).item() for v in (start, limit, step)
    )
    count = max(math.ceil((last - first) / by), 0)
    _bounded(context, count)
    return Known.of((first + np.arange(count) * by).astype(start.dtype))


def _reduced(combine: Callable[[Array, Array], Array]) -> Callable[..., Known]:
    def fold(context: Context, x: Known, axes: Known | None = None) -> Known:
        if context.attribute("noop_with_empty_axes", 0) and axes is None:
            return x
        elements, over = x.elements, _axes(context, x, axes)
        if axes is not None and not over:
            over = [] if context.attribute("noop_with_empty_axes", 0) else list(range(elements.ndim))
        for axis in sorted(over, reverse=True):
            parts = list(np.moveaxis(elements, axis, 0))
            if not parts:
                raise Undecided
            total = parts[0]
            for part in parts[1:]:
                total = combine(total, part)
            elements = np.expand_dims(np.asarray(total, x.elements.dtype), axis)
        return _like(x, elements if context.attribute("keepdims", 1) else elements.squeeze(tuple(over)))

    return fold


def _lesser(a: Any, b: Any) -> Any:
    return a.minimum(b) if isinstance(a, Expr) else min(a, b)


def _greater(a: Any, b: Any) -> Any:
    return a.maximum(b) if isinstance(a, Expr) else max(a, b)


def _non_zero(context: Context, x: Known) -> Known:
    if x.symbolic:
        raise Undecided
    return Known.of(np.array(np.nonzero(x.elements), np.int64).reshape(x.elements.ndim, -1))


_FOLDS: Mapping[str, Callable[..., Known | list[Known]]] = {
    "Cast": _cast,
    "CastLike": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "NonZero": _non_zero,
    "Range": _range,
    "ReduceMax": _reduced(np.frompyfunc(_greater, 2, 1)),
    "ReduceMin": _reduced(np.frompyfunc(_lesser, 2, 1)),
    "ReduceProd": _reduced(np.multiply),
    "ReduceSum": _reduced(np.add),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
