"""Selection and update by index tensors."""

from __future__ import annotations

import math

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_ONE = Expr.of(1)


def from_start(indices: ops.Tensor, extent: Expr) -> ops.Tensor:
    """Indices that count from the start; negative ones count from the end."""
    return indices.graph.pointwise("indices", lambda v, n: v.body.select(v.compare("lt", 0), v + n, v), indices, extent)


@operator("Gather", either=[1])
def gather(context: Context, x: ops.Tensor, indices: Known | ops.Tensor) -> ops.Tensor:
    axis = context.axis(x.rank, context.attribute("axis", 0))
    if isinstance(indices, Known):
        if not indices.symbolic and indices.elements.size == 1:
            return _one(context, x, axis, int(indices.elements.item()), indices.elements.ndim)
        if not indices.symbolic and (indices.elements >= 0).all():
            return ops.gather(x, context.tensor(indices), axis)
        indices = context.tensor(indices)
    return ops.gather(x, from_start(indices, x.dims[axis]), axis)


def _one(context: Context, x: ops.Tensor, axis: int, index: int, rank: int) -> ops.Tensor:
    """One position as a slice."""
    extent = x.dims[axis].constant
    context.require(extent is None or -extent <= index < extent, f"index {index} on an axis of {extent}")
    start = Expr.of(index) if index >= 0 else x.dims[axis] + index
    starts: list[Expr | None] = [start if a == axis else None for a in range(x.rank)]
    ends: list[Expr | None] = [start + 1 if a == axis else None for a in range(x.rank)]
    return ops.reshape(ops.slice(x, starts, ends), [*x.dims[:axis], *[_ONE] * rank, *x.dims[axis + 1:]])


@operator("Trilu", either=[1])
def trilu(context: Context, x: ops.Tensor, k: Known | ops.Tensor | None = None) -> ops.Tensor:
    upper = bool(context.attribute("upper", 1))
    if k is None or isinstance(k, Known):
        diagonal = Expr.of(0) if k is None else k.exprs()[0]
        return (ops.triu if upper else ops.tril)(x, diagonal)
    rows, columns = (ops.iota(context.graph, x.dims[-2:], a, "i64") for a in (0, 1))
    limit = ops.add(rows, ops.reshape(k, ()))
    return ops.where(ops.compare(columns, limit, "ge" if upper else "le"), x, ops.zeros(context.graph, [], x.dtype))


@operator("EyeLike")
def eye_like(context: Context, x: ops.Tensor) -> ops.Tensor:
    kind = context.element(context.attribute("dtype")) if context.has("dtype") else x.dtype
    context.require(x.rank == 2, f"a tensor of rank {x.rank}; wanted 2")
    return ops.eye(context.graph, x.dims[0], x.dims[1], kind, diagonal=context.attribute("k", 0))


@operator("OneHot", known=[1])
def one_hot(context: Context, indices: ops.Tensor, depth: Known, values: ops.Tensor) -> ops.Tensor:
    (count,) = depth.exprs()
    rank = indices.rank + 1
    axis = context.axis(rank, context.attribute("axis", -1))
    whole = ops.cast(indices, DType.I64)
    places = ops.reshape(from_start(whole, count), [*indices.dims[:axis], _ONE, *indices.dims[axis:]])
    position = ops.iota(context.graph, [count if a == axis else _ONE for a in range(rank)], axis, "i64")
    off, on = (ops.reshape(ops.slice(values, [i], [i + 1]), ()) for i in (0, 1))
    return ops.where(ops.compare(places, position, "eq"), on, off)


@operator("GatherElements")
def gather_elements(context: Context, x: ops.Tensor, indices: ops.Tensor) -> ops.Tensor:
    axis = context.axis(x.rank, context.attribute("axis", 0))
    return ops.gather_elements(x, from_start(indices, x.dims[axis]), axis)


@operator("GatherND")
def gather_nd(context: Context, x: ops.Tensor, indices: ops.Tensor) -> ops.Tensor:
    return ops.gather_nd(x, indices, batch_dims=context.attribute("batch_dims", 0))


@operator("ScatterElements", "Scatter")
def scatter_elements(context: Context, x: ops.Tensor, indices: ops.Tensor, updates: ops.Tensor) -> ops.Tensor:
    axis = context.axis(x.rank, context.attribute("axis", 0))
    return ops.scatter_elements(x, from_start(indices, x.dims[axis]), updates, axis, context.attribute("reduction", "none"))


@operator("ScatterND")
def scatter_nd(context: Context, x: ops.Tensor, indices: ops.Tensor, updates: ops.Tensor) -> ops.Tensor:
    return ops.scatter_nd(x, indices, updates, context.attribute("reduction", "none"))


@operator("ReverseSequence")
def reverse_sequence(context: Context, x: ops.Tensor, lengths: ops.Tensor) -> ops.Tensor:
    time, batch = context.attribute("time_axis", 0), context.attribute("batch_axis", 1)
    position = ops.iota(context.graph, x.dims, time, "i64")
    count = ops.reshape(ops.cast(lengths, DType.I64), [x.dims[batch] if a == batch else _ONE for a in range(x.rank)])
    places = context.graph.pointwise(
        "ReverseSequence", lambda p, n: p.body.select(p.compare("lt", n), n - 1 - p, p), position, count)
    return ops.gather_elements(x, places, time)
