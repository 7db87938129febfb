"""Running totals and extrema along an axis."""

from __future__ import annotations

from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.runtime.tensor import DType


@register("torch", *names("cumsum"))
def cumsum(context: Context, x: ops.Tensor, axis: int, *, dtype: Any = None) -> ops.Tensor:
    """Running sums."""
    return ops.cumsum(x, axis, dtype=context.dtype()) if x.rank else ops.cast(x, context.dtype())


@register("torch", *names("cumprod"))
def cumprod(context: Context, x: ops.Tensor, axis: int, *, dtype: Any = None) -> ops.Tensor:
    """Running products."""
    wide = ops.cast(x, context.dtype())
    return ops.cumprod(wide, axis) if x.rank else wide


@register("torch", *names("cummax", "cummin"))
def running_extremum(context: Context, x: ops.Tensor, axis: int) -> list[ops.Tensor]:
    """The largest or smallest element so far, and where it stands."""
    if not x.rank:
        return [x, x.graph.filled(0, DType.I64, [])]
    return list(ops.cummax(x, axis) if context.operator == "aten.cummax.default" else ops.cummin(x, axis))


@register("torch", *names("logcumsumexp"))
def logcumsumexp(context: Context, x: ops.Tensor, axis: int) -> ops.Tensor:
    """The logarithm of running sums of e^x."""
    return ops.logcumsumexp(x, axis) if x.rank else x


@register("torch", *names("masked_scatter"))
def masked_scatter(context: Context, x: ops.Tensor, mask: ops.Tensor, source: ops.Tensor) -> ops.Tensor:
    """x with the source's elements, in their order, where the mask holds."""
    shape = context.shape()
    if not shape:
        return ops.where(mask, ops.reshape(ops.slice_axis(ops.reshape(source, [-1]), 0, 0, 1), []), x)
    wide, where = (ops.reshape(ops.broadcast_to(t, shape), [-1]) for t in (x, mask))
    count = ops.cumsum(where, 0, dtype=DType.I64)
    place = x.graph.pointwise("place", lambda n: (n - 1).maximum(0), count)
    found = ops.gather(ops.reshape(source, [-1]) if source.rank else ops.reshape(source, [1]), place)
    return ops.reshape(ops.where(where, found, wide), shape)
