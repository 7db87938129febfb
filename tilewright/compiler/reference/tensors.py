"""Tensor operations without regions (tensor dialect and the region-less linalg.softmax)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.compiler.reference.loops import check_bounds
from tilewright.compiler.reference.scalars import Array, Rule, bitcast, element, is_float, storage
from tilewright.passes.linalg.symbolic import MAY_BE_EMPTY
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import ShapeError


def where(op: ir.Operation) -> str:
    """The operation and its location, for messages."""
    return f"{op.name} at {op.location}"


def static_shape(kind: ir.Type) -> list[int | None]:
    """Extents of a ranked tensor type; None where dynamic."""
    t = ir.RankedTensorType(kind)
    return [None if t.is_dynamic_dim(i) else t.get_dim_size(i) for i in range(t.rank)]


def shape_of(kind: ir.Type, dynamic: Sequence[Array]) -> tuple[int, ...]:
    """Extents of a tensor type with the dynamic ones put in, in order."""
    sizes = iter(dynamic)
    return tuple(int(next(sizes)) if s is None else s for s in static_shape(kind))


def check_shape(array: Array, kind: ir.Type, what: str) -> Array:
    """`array`; ShapeError when it does not fit the static extents of its type."""
    static = static_shape(kind)
    if array.ndim != len(static) or any(s not in (None, n) for s, n in zip(static, array.shape, strict=True)):
        raise ShapeError(f"{what}: wanted {kind}, came shape {array.shape}")
    return array


def mixed(op: ir.Operation, operands: Sequence[Array], name: str, segment: int) -> list[int]:
    """Sizes given as `static_...` attribute and dynamic operands."""
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    start = sum(segments[:segment])
    dynamic: Iterator[Array] = iter(operands[start : start + segments[segment]])
    absent = ir.ShapedType.get_dynamic_size()
    return [int(next(dynamic)) if s == absent else int(s) for s in ir.DenseI64ArrayAttr(op.attributes[name])]


def pad_widths(op: ir.Operation, operands: Sequence[Array]) -> list[tuple[int, int]]:
    """(low, high) of every axis of tensor.pad."""
    return list(zip(mixed(op, operands, "static_low", 1), mixed(op, operands, "static_high", 2), strict=True))


def _window(op: ir.Operation, operands: Sequence[Array], first: int, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Offsets, sizes and strides as slices; `first` counts the operand groups before the offsets.

    The ellipsis at the end keeps a tensor of rank 0 a view.
    """
    groups = (("static_offsets", first), ("static_sizes", first + 1), ("static_strides", first + 2))
    window: list[Any] = []
    for extent, offset, size, stride in zip(shape, *(mixed(op, operands, *g) for g in groups), strict=True):
        last = offset + (size - 1) * stride
        if size < 0 or stride < 1 or (size and not (offset >= 0 and last < extent)):
            raise ShapeError(f"{where(op)}: elements {offset} to {last} in steps of {stride} of an axis of {extent}")
        window.append(slice(offset, last + 1, stride) if size else slice(0, 0))
    return (*window, ...)


def _extract_slice(op: ir.Operation, operands: Sequence[Array]) -> Array:
    source = operands[0]
    view = source[_window(op, operands, 1, source.shape)]
    wanted = static_shape(op.results[0].type)
    absent = ir.ShapedType.get_dynamic_size()
    sizes = [None if s == absent else int(s) for s in ir.DenseI64ArrayAttr(op.attributes["static_sizes"])]
    for kept in itertools.combinations(range(view.ndim), len(wanted)):
        dropped = [a for a in range(view.ndim) if a not in kept]
        if [sizes[a] for a in kept] == wanted and all(sizes[a] == 1 for a in dropped):
            return np.asarray(view.squeeze(tuple(dropped)))
    return np.asarray(view).reshape([n for n, s in zip(view.shape, sizes, strict=True) if s != 1])


def _insert_slice(op: ir.Operation, operands: Sequence[Array]) -> Array:
    result = operands[1].copy()
    window = _window(op, operands, 2, result.shape)
    view = result[window]
    view[...] = operands[0].reshape(view.shape)
    return result


def _expand_shape(op: ir.Operation, operands: Sequence[Array]) -> Array:
    absent = ir.ShapedType.get_dynamic_size()
    dynamic = iter(operands[1:])
    static = ir.DenseI64ArrayAttr(op.attributes["static_output_shape"])
    shape = [int(next(dynamic)) if s == absent else int(s) for s in static]
    for group, extent in zip(_groups(op), operands[0].shape, strict=True):
        if int(np.prod([shape[i] for i in group])) != extent:
            parts = [shape[i] for i in group]
            raise ShapeError(f"{where(op)}: an axis of {extent} elements cannot be split into {parts}")
    return operands[0].reshape(shape)


def _collapse_shape(op: ir.Operation, operands: Sequence[Array]) -> Array:
    source = operands[0]
    return source.reshape([int(np.prod([source.shape[i] for i in g], dtype=np.int64)) for g in _groups(op)])


def _groups(op: ir.Operation) -> list[list[int]]:
    groups = ir.ArrayAttr(op.attributes["reassociation"])
    return [[int(ir.IntegerAttr(i).value) for i in ir.ArrayAttr(g)] for g in groups]


def _reshape(op: ir.Operation, operands: Sequence[Array]) -> Array:
    shape = [int(n) for n in operands[1]]
    if any(n < 0 for n in shape) or int(np.prod(shape, dtype=np.int64)) != operands[0].size:
        raise ShapeError(f"{where(op)}: {operands[0].size} elements of shape {operands[0].shape} do not fit {shape}")
    return check_shape(operands[0].reshape(shape), op.results[0].type, where(op))


def _extract(op: ir.Operation, operands: Sequence[Array]) -> Array:
    source, index = operands[0], tuple(operands[1:])
    if MAY_BE_EMPTY in op.attributes and source.size == 0:
        return np.zeros(np.broadcast_shapes(*(i.shape for i in index)), source.dtype)
    check_bounds(index, source.shape, where(op))
    return np.asarray(source[index])


def _insert(op: ir.Operation, operands: Sequence[Array]) -> Array:
    result, index = operands[1].copy(), tuple(operands[2:])
    check_bounds(index, result.shape, where(op))
    result[index] = operands[0]
    return result


def _gather(op: ir.Operation, operands: Sequence[Array]) -> Array:
    source, indices = operands[0], operands[1].astype(np.int64)
    axes = list(ir.DenseI64ArrayAttr(op.attributes["gather_dims"]))
    index = tuple(indices[..., i] for i in range(len(axes)))
    check_bounds(index, [source.shape[a] for a in axes], where(op))
    found = np.moveaxis(source, axes, range(len(axes)))[index]
    full = indices.ndim - 1 + source.ndim
    if ir.RankedTensorType(op.results[0].type).rank == full:
        found = np.expand_dims(found, [indices.ndim - 1 + a for a in axes])
    return np.asarray(found)


def _concat(op: ir.Operation, operands: Sequence[Array]) -> Array:
    return np.concatenate(list(operands), axis=int(ir.IntegerAttr(op.attributes["dim"]).value))


def _from_elements(op: ir.Operation, operands: Sequence[Array]) -> Array:
    shape = shape_of(op.results[0].type, [])
    return np.array([x[()] for x in operands], storage(element(op.results[0].type))).reshape(shape)


def _empty(op: ir.Operation, operands: Sequence[Array]) -> Array:
    """NaN or zero everywhere: what it holds must not reach a result."""
    kind = op.results[0].type
    shape = shape_of(kind, operands)
    if any(n < 0 for n in shape):
        raise ShapeError(f"{where(op)}: negative extent in {shape}")
    nothing = np.asarray(np.nan if is_float(element(kind)) else 0, storage(element(kind)))
    return np.broadcast_to(nothing, shape)


def _dim(op: ir.Operation, operands: Sequence[Array]) -> Array:
    return np.asarray(operands[0].shape[int(operands[1])], np.int64)


def _softmax(op: ir.Operation, operands: Sequence[Array]) -> Array:
    axis = int(ir.IntegerAttr(op.attributes["dimension"]).value)
    x = operands[0]
    if x.size == 0:
        return x
    power = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(power / power.sum(axis=axis, keepdims=True))


TENSOR_RULES: Mapping[str, Rule] = MappingProxyType({
    "tensor.bitcast": bitcast,
    "tensor.cast": lambda op, x: check_shape(x[0], op.results[0].type, where(op)),
    "tensor.collapse_shape": _collapse_shape,
    "tensor.concat": _concat,
    "tensor.dim": _dim,
    "tensor.empty": _empty,
    "tensor.expand_shape": _expand_shape,
    "tensor.extract": _extract,
    "tensor.extract_slice": _extract_slice,
    "tensor.from_elements": _from_elements,
    "tensor.gather": _gather,
    "tensor.insert": _insert,
    "tensor.insert_slice": _insert_slice,
    "tensor.parallel_insert_slice": _insert_slice,
    "tensor.rank": lambda _, x: np.asarray(x[0].ndim, np.int64),
    "tensor.reshape": _reshape,
    "tensor.splat": lambda op, x: np.broadcast_to(x[0], shape_of(op.results[0].type, x[1:])),
    "linalg.softmax": _softmax,
})
