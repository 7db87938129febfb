"""Shapes and parts of tensors: reshape, transpose, slice, join; copies and casts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


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
    "aten.ravel.default",
)
def reshape(context: Context, x: ops.Tensor, *_: Any, **__: Any) -> ops.Tensor:
    return ops.reshape(x, context.shape())


@register("torch", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(context: Context, x: ops.Tensor, dims: int | Sequence[int] | None = None) -> ops.Tensor:
    """Without axes of one element; a size that may be 1 or not is one that stays, and calls at which it is 1 are refused."""
    asked = range(x.rank) if dims is None else [dims] if isinstance(dims, int) else dims
    for axis in asked if x.rank else ():
        if x.dims[axis].constant is None:
            x.graph.require_other(x.dims[axis], 1, f"squeeze: axis {axis % x.rank} is dropped where it is 1, and this model was "
                                  "traced where it is not; name the axes that are always 1, as in x.squeeze(2)")
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
    if isinstance(start, ops.Tensor) or isinstance(end, ops.Tensor):
        context.refuse("the bounds of the slice are elements of a tensor", "pass them as integers")
    return ops.slice_axis(x, dim, start, end, step)


@register("torch", "aten.narrow.default")
def narrow(_: Context, x: ops.Tensor, dim: int, start: Any, length: Any) -> ops.Tensor:
    return ops.narrow(x, dim, start, length)


@register("torch", "aten.select.int")
def select(_: Context, x: ops.Tensor, dim: int, index: Any) -> ops.Tensor:
    return ops.select(x, dim, index)


def _parts(context: Context, x: ops.Tensor, dim: int) -> list[ops.Tensor]:
    """Adjacent parts along an axis, as long as the results are."""
    found, begin = [], Expr.of(0)
    for number in range(context.results):
        count = context.shape(number)[dim]
        found.append(ops.narrow(x, dim, begin, count))
        begin = begin + count
    at = context.sizes.difference(begin, x.dims[dim])
    if at is not None:
        values = ", ".join(f"{n} = {v}" for n, v in at.items())
        context.refuse(f"its results have {begin} elements of {x.dims[dim]}, as for the example, and others at {values}",
                       "take the parts by x.narrow, or give a range in which they are alike")
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
def unbind(_: Context, x: ops.Tensor, dim: int = 0) -> list[ops.Tensor]:
    return ops.unbind(x, dim)


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


@register("torch", "aten.repeat.default", "aten.tile.default")
def repeat(_: Context, x: ops.Tensor, repeats: Sequence[Any]) -> ops.Tensor:
    return ops.tile(ops.reshape(x, [*[1] * (len(repeats) - x.rank), *x.dims]), [*[1] * (x.rank - len(repeats)), *repeats])


@register("torch", "aten.repeat_interleave.self_int")
def repeat_interleave(_: Context, x: ops.Tensor, repeats: Any, dim: int | None = None, **__: Any) -> ops.Tensor:
    return ops.repeat(ops.flatten(x) if dim is None else x, repeats, 0 if dim is None else dim)


@register("torch", "aten.roll.default")
def roll(_: Context, x: ops.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> ops.Tensor:
    return ops.roll(x, shifts, dims) if dims else ops.roll(x, shifts[0])


@register("torch", "aten.flip.default")
def flip(_: Context, x: ops.Tensor, dims: Sequence[int]) -> ops.Tensor:
    return ops.flip(x, dims)


@register("torch", "aten.diff.default")
def diff(
    context: Context, x: ops.Tensor, n: int = 1, dim: int = -1, prepend: ops.Tensor | None = None,
    append: ops.Tensor | None = None,
) -> ops.Tensor:  # fmt: skip
    parts = [p for p in (prepend, x, append) if p is not None]
    joined = parts[0] if len(parts) == 1 else ops.concat(parts, dim)
    for _ in range(n):
        after, before = ops.slice_axis(joined, dim, 1), ops.slice_axis(joined, dim, 0, -1)
        joined = ops.compare(after, before, "ne") if x.dtype is DType.I1 else after - before
    return joined


@register("torch", "aten.pad.default")
def pad(_: Context, x: ops.Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> ops.Tensor:
    return padded(x, pad, value or 0, mode)


@register("torch", "aten.constant_pad_nd.default")
def constant_pad(_: Context, x: ops.Tensor, pad: Sequence[Any], value: float = 0) -> ops.Tensor:
    return padded(x, pad, value, "constant")


def padded(x: ops.Tensor, widths: Sequence[Any], value: float, mode: str) -> ops.Tensor:
    """widths: low and high of the last axis, then of the one before, and so on."""
    rest = x.rank - len(widths) // 2
    low, high = ([0] * rest + list(widths[side::2])[::-1] for side in (0, 1))
    return ops.pad(x, low, high, value, mode)


@register("torch", "aten.pixel_shuffle.default")
def pixel_shuffle(_: Context, x: ops.Tensor, upscale_factor: int) -> ops.Tensor:
    """[..., C * r * r, H, W] -> [..., C, H * r, W * r]."""
    r, lead, (channels, height, width) = upscale_factor, list(x.dims[:-3]), x.dims[-3:]
    n = len(lead)
    split = ops.reshape(x, [*lead, channels // (r * r), r, r, height, width])
    turned = ops.transpose(split, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return ops.reshape(turned, [*lead, channels // (r * r), height * r, width * r])


@register("torch", "aten.meshgrid.default", "aten.meshgrid.indexing")
def meshgrid(context: Context, tensors: Sequence[ops.Tensor], indexing: str = "ij") -> list[ops.Tensor]:
    shape = context.shape()
    axes = list(range(len(tensors)))
    if indexing == "xy" and len(axes) > 1:
        axes[:2] = [1, 0]
    return [ops.broadcast_to(ops.reshape(t, [-1 if a == axis else 1 for a in range(len(shape))]), shape)
            for t, axis in zip(tensors, axes, strict=True)]


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
