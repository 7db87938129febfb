"""Running totals and extrema along an axis. Every element reduces those before it, so that results do not depend on threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.reductions import PRODUCT, SUM, Reduction, limits_of
from tilewright.compiler.ops.scalar_functions import call, constant, is_inf, is_nan, select
from tilewright.runtime.tensor import DType

Element = Callable[[Scalar, Scalar, Scalar], Scalar]


def prefixes(
    x: ops.Tensor, axis: int, reduction: Reduction, dtype: DType, element: Element | None = None, beside: ops.Tensor | None = None
) -> ops.Tensor:
    """result[i] = the reduction of the elements up to i along an axis, in the type that `dtype` is computed in.

    element: what is reduced of an element: of itself, of its position (an index value) and of the element of `beside` at i.
    """
    rank, kind = x.rank, computed_in(dtype)
    at = axis % rank
    loops = [f"d{d}" for d in range(rank)]
    along = [f"d{rank}" if d == at else loop for d, loop in enumerate(loops)]

    def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        place = region.index(rank)
        value = scalars[0] if element is None else element(scalars[0], place, scalars[-1])
        return region.select(place.compare("le", region.index(at)), reduction.combine(out, value.cast(kind.value)), out)

    inputs = [(x, along), *([] if beside is None else [(beside, loops)])]
    start = x.graph.filled(reduction.start, kind, x.dims)
    made = x.graph.generic(inputs, (start, loops), ["parallel"] * rank + ["reduction"], body)
    return ops.cast(made, dtype)


@register("torch", *names("cumsum"))
def cumsum(context: Context, x: ops.Tensor, axis: int, *, dtype: Any = None) -> ops.Tensor:
    """Running sums."""
    return prefixes(x, axis, SUM, context.dtype()) if x.rank else ops.cast(x, context.dtype())


@register("torch", *names("cumprod"))
def cumprod(context: Context, x: ops.Tensor, axis: int, *, dtype: Any = None) -> ops.Tensor:
    """Running products."""
    return prefixes(x, axis, PRODUCT, context.dtype()) if x.rank else ops.cast(x, context.dtype())


@register("torch", *names("cummax", "cummin"))
def running_extremum(context: Context, x: ops.Tensor, axis: int) -> list[ops.Tensor]:
    """The largest or smallest element so far, and where it stands; of equal ones the last, and NaN stays."""
    if not x.rank:
        return [x, x.graph.filled(0, DType.I64, [])]
    low, high = limits_of(x.dtype)
    largest = context.operator.startswith("aten.cummax")
    best = prefixes(x, axis, Reduction(Scalar.maximum, low) if largest else Reduction(Scalar.minimum, high), x.dtype)

    def element(v: Scalar, place: Scalar, found: Scalar) -> Scalar:
        same = v.compare("eq", found)
        same = same | is_nan(v) if x.dtype.is_float else same
        return select(same, place.cast("i64"), -1)

    return [best, prefixes(x, axis, Reduction(Scalar.maximum, -1), DType.I64, element, best)]


@register("torch", *names("logcumsumexp"))
def logcumsumexp(context: Context, x: ops.Tensor, axis: int) -> ops.Tensor:
    """The logarithm of running sums of e^x, without overflow."""
    if not x.rank:
        return x
    best = prefixes(x, axis, Reduction(Scalar.maximum, -inf), x.dtype)

    def finite(m: Scalar) -> Scalar:
        return select(is_inf(m), constant(m, 0), m)

    total = prefixes(x, axis, SUM, computed_in(x.dtype), lambda v, _, m: call("math.exp", v - finite(m)), best)
    return x.graph.pointwise("logcumsumexp", lambda s, m: call("math.log", s) + finite(m), total, best, dtype=x.dtype)


@register("torch", *names("masked_scatter"))
def masked_scatter(context: Context, x: ops.Tensor, mask: ops.Tensor, source: ops.Tensor) -> ops.Tensor:
    """x with the source's elements, in their order, where the mask holds."""
    shape = context.shape()
    wide, where = (ops.reshape(ops.broadcast_to(t, shape), [-1] if shape else [1]) for t in (x, mask))
    before = prefixes(where, 0, SUM, DType.I64)
    place = x.graph.pointwise("place", lambda n: (n - 1).maximum(0), before)
    found = ops.gather(ops.reshape(source, [-1] if source.rank else [1]), place)
    return ops.reshape(ops.where(where, found, wide), shape)
