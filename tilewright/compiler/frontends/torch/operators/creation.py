"""Tensors made from numbers and sizes; embeddings."""

from __future__ import annotations

from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.ops.creation import iota, tril, triu
from tilewright.runtime.shape import Expr


@register(
    "torch",
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "aten.empty_permuted.default",
)
def zeros(context: Context, *_: Any, **__: Any) -> ops.Tensor:
    """Of zeros; what PyTorch leaves open is zero, too."""
    return context.graph.full(context.shape(), 0, context.dtype())


@register("torch", "aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(context: Context, *_: Any, **__: Any) -> ops.Tensor:
    return context.graph.full(context.shape(), 1, context.dtype())


@register(
    "torch",
    "aten.full.default",
    "aten.full_like.default",
    "aten.new_full.default",
    "aten.fill.Scalar",
    "aten.fill.Tensor",
)
def full(context: Context, *given: Any, **_: Any) -> ops.Tensor:
    """The number is the last of the arguments, behind the shape and the tensor that it is like."""
    return _filled(context, given[-1])


@register("torch", "aten.scalar_tensor.default")
def scalar_tensor(context: Context, s: Any, **_: Any) -> ops.Tensor:
    return _filled(context, s)


def _filled(context: Context, value: Any) -> ops.Tensor:
    if isinstance(value, ops.Tensor):
        return ops.broadcast_to(ops.cast(value, context.dtype()), context.shape())
    return context.graph.full(context.shape(), value, context.dtype())


@register("torch", "aten.arange.default")
def arange(context: Context, end: Any, **_: Any) -> ops.Tensor:
    return iota(context.graph, context.shape(), 0, context.dtype())


@register("torch", "aten.arange.start", "aten.arange.start_step")
def arange_from(context: Context, start: Any, end: Any, step: Any = 1, **_: Any) -> ops.Tensor:
    if isinstance(step, Expr):
        counted = iota(context.graph, context.shape(), 0, context.dtype())
        return ops.add(ops.multiply(counted, step), start)
    return iota(context.graph, context.shape(), 0, context.dtype(), start=start, step=step)


@register("torch", "aten.eye.default", "aten.eye.m")
def eye(context: Context, *_: Any, **__: Any) -> ops.Tensor:
    rows, columns = context.shape()
    return ops.eye(context.graph, rows, columns, context.dtype())


@register("torch", "aten.tril.default")
def lower_triangle(_: Context, x: ops.Tensor, diagonal: Any = 0) -> ops.Tensor:
    return tril(x, diagonal)


@register("torch", "aten.triu.default")
def upper_triangle(_: Context, x: ops.Tensor, diagonal: Any = 0) -> ops.Tensor:
    return triu(x, diagonal)


@register("torch", "aten.embedding.default")
def embedding(_: Context, weight: ops.Tensor, indices: ops.Tensor, *__: Any, **___: Any) -> ops.Tensor:
    return ops.gather(weight, indices)
