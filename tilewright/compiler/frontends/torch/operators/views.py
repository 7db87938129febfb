"""Shapes and parts of tensors: reshape, transpose, slice, join; copies and casts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.runtime.shape import Expr


@register(
    "torch",
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.view_as.default",
    "aten.reshape_as.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.unsqueeze.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.ravel.default",
)
def reshape(context: Context, x: ops.Tensor, *_: Any, **__: Any) -> ops.Tensor:
    return ops.reshape(x, context.shape())


@register("torch", "aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def transpose(_: Context, x: ops.Tensor, dim0: int, dim1: int) -> ops.Tensor:
    if not x.rank:
        return x
    order = list(range(x.rank))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return ops.transpose(x, order)


@register("torch", "aten.permute.default")
def permute(_: Context, x: ops.Tensor, dims: Sequence[int]) -> ops.Tensor:
    return ops.transpose(x, dims)


@register("torch", "aten.t.default", "aten.numpy_T.default", "aten.mT.default", "aten.matrix_H.default", "aten.adjoint.default")
def turned(context: Context, x: ops.Tensor) -> ops.Tensor:
    """The last two axes swapped; all of them for numpy_T."""
    order = list(range(x.rank))
    if context.operator == "aten.numpy_T.default":
        return ops.transpose(x, order[::-1])
    return ops.transpose(x, [*order[:-2], *order[:-3:-1]]) if x.rank > 1 else x


@register("torch", "aten.movedim.intlist", "aten.moveaxis.intlist")
def movedim(_: Context, x: ops.Tensor, source: Sequence[int], destination: Sequence[int]) -> ops.Tensor:
    moved = {d % x.rank: s % x.rank for s, d in zip(source, destination, strict=True)}
    rest = iter(a for a in range(x.rank) if a not in moved.values())
    return ops.transpose(x, [moved[a] if a in moved else next(rest) for a in range(x.rank)])


@register("torch", "aten.movedim.int", "aten.moveaxis.int")
def movedim_one(context: Context, x: ops.Tensor, source: int, destination: int) -> ops.Tensor:
    return movedim(context, x, [source], [destination])


@register("torch", "aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default")
def expand(context: Context, x: ops.Tensor, *_: Any, **__: Any) -> ops.Tensor:
    shape = context.shape()
    return x if x.dims == shape else ops.broadcast_to(x, shape)


@register("torch", "aten.slice.Tensor")
def slice_(context: Context, x: ops.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> ops.Tensor:
    axis = dim % x.rank
    return part(x, axis, first_of(x, axis, start, context.shape()[axis], end), context.shape()[axis], step)


def first_of(x: ops.Tensor, axis: int, start: Any, count: Expr, end: Any) -> Expr:
    """Where a slice of `count` elements begins, clamped to the axis as Python does."""
    extent = x.dims[axis]
    begin = Expr.of(0 if start is None else start)
    if begin.constant is not None and begin.constant < 0:
        begin = (extent + begin).maximum(0)
    elif begin.constant is None and begin.bounds({})[1] <= 0:
        begin = extent + begin
    sizes = [extent - begin] + ([] if end is None else [Expr.of(end) - begin, extent + end - begin])
    return begin if count in sizes or begin == Expr.of(0) else begin.minimum(extent)


def part(x: ops.Tensor, axis: int, begin: Expr, count: Expr, step: int = 1) -> ops.Tensor:
    """`count` elements along an axis."""
    if begin == Expr.of(0) and count == x.dims[axis] and step == 1:
        return x
    starts, ends, steps = [Expr.of(0)] * x.rank, list(x.dims), [1] * x.rank
    starts[axis], ends[axis], steps[axis] = begin, begin + (count - 1) * step + 1, step
    return ops.slice(x, starts, ends, steps)


@register("torch", "aten.narrow.default")
def narrow(context: Context, x: ops.Tensor, dim: int, start: Any, length: Any) -> ops.Tensor:
    axis = dim % x.rank
    return part(x, axis, first_of(x, axis, start, Expr.of(length), None), context.shape()[axis])


@register("torch", "aten.select.int")
def select(context: Context, x: ops.Tensor, dim: int, index: Any) -> ops.Tensor:
    axis, at = dim % x.rank, Expr.of(index)
    if at.constant is not None and at.constant < 0:
        at = x.dims[axis] + at
    return ops.reshape(part(x, axis, at, Expr.of(1)), context.shape())


def _parts(context: Context, x: ops.Tensor, dim: int) -> list[ops.Tensor]:
    """Adjacent parts along an axis, as long as the results are."""
    found, begin = [], Expr.of(0)
    for number in range(context.results):
        count = context.shape(number)[dim]
        found.append(part(x, dim % x.rank, begin, count))
        begin = begin + count
    return found


@register(
    "torch",
    "aten.split.Tensor",
    "aten.split.sizes",
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    "aten.tensor_split.sections",
    "aten.tensor_split.indices",
)
def split(context: Context, x: ops.Tensor, _: Any, dim: int = 0) -> list[ops.Tensor]:
    return _parts(context, x, dim)


@register("torch", "aten.unbind.int")
def unbind(context: Context, x: ops.Tensor, dim: int = 0) -> list[ops.Tensor]:
    axis = dim % x.rank
    return [ops.reshape(part(x, axis, Expr.of(i), Expr.of(1)), context.shape(i)) for i in range(context.results)]


@register("torch", "aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def cat(context: Context, tensors: Sequence[ops.Tensor], dim: int = 0) -> ops.Tensor:
    rank = len(context.shape())
    held = [ops.cast(t, context.dtype()) for t in tensors if t.rank == rank]  # PyTorch skips empty tensors of rank 1
    return held[0] if len(held) == 1 else ops.concat(held, dim)


@register("torch", "aten.stack.default")
def stack(context: Context, tensors: Sequence[ops.Tensor], dim: int = 0) -> ops.Tensor:
    shape = list(context.shape())
    axis = dim % len(shape)
    shape[axis] = Expr.of(1)
    held = [ops.reshape(ops.cast(t, context.dtype()), shape) for t in tensors]
    return held[0] if len(held) == 1 else ops.concat(held, axis)


@register(
    "torch",
    "aten.alias.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.contiguous.default",
    "aten.clone.default",
    "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default",
    "aten.resolve_conj.default",
    "aten.resolve_neg.default",
    "aten.positive.default",
)
def same(_: Context, x: ops.Tensor, **__: Any) -> ops.Tensor:
    return x


@register(
    "torch",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.other",
    "aten._to_copy.default",
    "aten.type_as.default",
)
def to(context: Context, x: ops.Tensor, *_: Any, **__: Any) -> ops.Tensor:
    return ops.cast(x, context.dtype())


@register("torch", "aten.dropout.default", "aten.dropout_.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
def dropout(context: Context, x: ops.Tensor, p: float, train: bool) -> ops.Tensor:
    if train and p:
        context.refuse("dropout in training mode makes random numbers", "call model.eval() before the export")
    return x
