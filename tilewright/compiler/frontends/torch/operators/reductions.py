"""Reductions over axes: sums, extrema and where they are, norms, variances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.compiler.ops import scalar_functions as scalar
from tilewright.compiler.ops.body import Scalar, computed_in, is_float
from tilewright.compiler.ops.reductions import PRODUCT, SUM, Reduction, accumulate, limits_of
from tilewright.compiler.ops.scalar_functions import constant, select
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Axes = int | Sequence[int] | None
_LAST = (1 << 63) - 1


def axes_of(x: ops.Tensor, axes: Axes) -> tuple[int, ...]:
    """The axes to reduce; none given means all, and a tensor of rank 0 has none."""
    given = [axes] if isinstance(axes, int) else list(axes or range(x.rank))
    return tuple(sorted({a % x.rank for a in given})) if x.rank else ()


def reduce(
    context: Context,
    x: ops.Tensor,
    axes: Axes,
    keepdims: bool,
    reduction: Reduction,
    element: Callable[[Scalar], Scalar] | None = None,
) -> ops.Tensor:
    """The reduction of element(x) in the type that the node's element type is computed in."""
    return reduced(context, x, axes, keepdims, reduction, element, context.dtype())


def reduced(
    context: Context, x: ops.Tensor, axes: Axes, keepdims: bool, reduction: Reduction, element: Callable[[Scalar], Scalar] | None,
    dtype: DType,
) -> ops.Tensor:  # fmt: skip
    """The same with another element type as result."""
    kind = computed_in(dtype)
    whole = Reduction(reduction.combine, reduction.start, kind)
    at = axes_of(x, axes)
    run = element or (lambda v: v)
    if not at:
        return x.graph.map_elements(context.operator, lambda v: run(v.cast(kind.value)), [x], dtype, kind)
    total = accumulate(context.operator, [x], at, whole, keepdims, lambda v: run(v.cast(kind.value)))
    return total if total.dtype is dtype else ops.cast(total, dtype)


@register("torch", *names("sum"))
def sum_all(context: Context, x: ops.Tensor, *, dtype: Any = None) -> ops.Tensor:
    """The sum of all elements."""
    return reduce(context, x, None, False, SUM)


@register("torch", "aten.sum.dim_IntList")
def sum_axes(context: Context, x: ops.Tensor, axes: Axes, keepdims: bool = False, *, dtype: Any = None) -> ops.Tensor:
    """Sums over axes."""
    return reduce(context, x, axes, keepdims, SUM)


@register("torch", *names("nansum"))
def sum_numbers(context: Context, x: ops.Tensor, axes: Axes = None, keepdims: bool = False, *, dtype: Any = None) -> ops.Tensor:
    """Sums over axes that leave NaN out."""
    return reduce(context, x, axes, keepdims, SUM, _number)


def _number(v: Scalar) -> Scalar:
    return select(scalar.is_nan(v), constant(v, 0), v) if is_float(v.kind) else v


@register("torch", *names("prod"))
def product_all(context: Context, x: ops.Tensor, *, dtype: Any = None) -> ops.Tensor:
    """The product of all elements."""
    return reduce(context, x, None, False, PRODUCT)


@register("torch", "aten.prod.dim_int")
def product_axis(context: Context, x: ops.Tensor, axis: int, keepdims: bool = False, *, dtype: Any = None) -> ops.Tensor:
    """Products over an axis."""
    return reduce(context, x, axis, keepdims, PRODUCT)


@register("torch", *names("mean"))
def mean_all(context: Context, x: ops.Tensor, *, dtype: Any = None) -> ops.Tensor:
    """The mean of all elements."""
    return _mean(context, x, None, False)


@register("torch", "aten.mean.dim")
def mean_axes(context: Context, x: ops.Tensor, axes: Axes, keepdims: bool = False, *, dtype: Any = None) -> ops.Tensor:
    """Means over axes."""
    return _mean(context, x, axes, keepdims)


def _mean(context: Context, x: ops.Tensor, axes: Axes, keepdims: bool) -> ops.Tensor:
    dtype = context.dtype()
    total = reduced(context, x, axes, keepdims, SUM, None, computed_in(dtype))
    return x.graph.pointwise("mean", lambda v, n: v / n, total, count(x, axes_of(x, axes)), dtype=dtype)


def count(x: ops.Tensor, axes: Sequence[int]) -> Expr:
    """How many elements axes have together."""
    total = Expr.of(1)
    for a in axes:
        total = total * x.dims[a]
    return total


# -- extrema and their places


def extremum(context: Context, x: ops.Tensor, axes: Axes, keepdims: bool, largest: bool) -> ops.Tensor:
    """The largest or smallest element over axes; NaN wins."""
    low, high = limits_of(x.dtype)
    reduction = Reduction(Scalar.maximum, low) if largest else Reduction(Scalar.minimum, high)
    return reduced(context, x, axes, keepdims, reduction, None, x.dtype)


def _extremum_and_place(context: Context, x: ops.Tensor, axis: int, keepdims: bool, largest: bool) -> list[ops.Tensor]:
    if not x.rank:
        return [x, x.graph.filled(0, DType.I64, [])]
    where = (ops.argmax if largest else ops.argmin)(x, axis, keepdims)
    return [extremum(context, x, axis, keepdims, largest), where]


@register("torch", "aten.max.dim")
def max_axis(context: Context, x: ops.Tensor, axis: int, keepdims: bool = False) -> list[ops.Tensor]:
    """The largest elements along an axis and where they are."""
    return _extremum_and_place(context, x, axis, keepdims, largest=True)


@register("torch", "aten.min.dim")
def min_axis(context: Context, x: ops.Tensor, axis: int, keepdims: bool = False) -> list[ops.Tensor]:
    """The smallest elements along an axis and where they are."""
    return _extremum_and_place(context, x, axis, keepdims, largest=False)


@register("torch", *names("amax", "max"))
def amax(context: Context, x: ops.Tensor, axes: Axes = None, keepdims: bool = False) -> ops.Tensor:
    """The largest element over axes."""
    return extremum(context, x, axes, keepdims, largest=True)


@register("torch", *names("amin", "min"))
def amin(context: Context, x: ops.Tensor, axes: Axes = None, keepdims: bool = False) -> ops.Tensor:
    """The smallest element over axes."""
    return extremum(context, x, axes, keepdims, largest=False)


@register("torch", *names("aminmax"))
def aminmax(context: Context, x: ops.Tensor, *, dim: int | None = None, keepdim: bool = False) -> list[ops.Tensor]:
    """The smallest and the largest element."""
    return [extremum(context, x, dim, keepdim, largest) for largest in (False, True)]


@register("torch", *names("argmax"))
def argmax(context: Context, x: ops.Tensor, axis: int | None = None, keepdims: bool = False) -> ops.Tensor:
    """Where the largest element is."""
    return _argument(context, x, axis, keepdims, largest=True)


@register("torch", *names("argmin"))
def argmin(context: Context, x: ops.Tensor, axis: int | None = None, keepdims: bool = False) -> ops.Tensor:
    """Where the smallest element is."""
    return _argument(context, x, axis, keepdims, largest=False)


def _argument(context: Context, x: ops.Tensor, axis: int | None, keepdims: bool, largest: bool) -> ops.Tensor:
    if not x.rank:
        return x.graph.filled(0, DType.I64, [])
    return (ops.argmax if largest else ops.argmin)(x, axis, keepdims)


# -- truth


def _truth(context: Context, x: ops.Tensor, axes: Axes, keepdims: bool, every: bool) -> ops.Tensor:
    reduction = Reduction(Scalar.__and__, 1) if every else Reduction(Scalar.__or__, 0)
    truth = reduced(context, x, axes, keepdims, reduction, None, DType.I1)
    return ops.cast(truth, context.dtype())


@register("torch", *names("any", "all", overloads=("default", "dim", "dims")))
def truth(context: Context, x: ops.Tensor, axes: Axes = None, keepdims: bool = False) -> ops.Tensor:
    """Whether any element, or every one, is not 0."""
    if isinstance(axes, (list, tuple)) and not axes:
        return ops.cast(x, DType.I1)
    return _truth(context, x, axes, keepdims, every=context.operator.startswith("aten.all"))


@register("torch", *names("count_nonzero", overloads=("default", "dim_IntList")))
def count_nonzero(context: Context, x: ops.Tensor, axes: Axes = None) -> ops.Tensor:
    """How many elements are not 0."""
    return reduce(context, ops.cast(x, DType.I1), axes, False, SUM)


# -- variances and norms


def _variance(
    context: Context, x: ops.Tensor, axes: Axes, correction: float | None, keepdims: bool
) -> tuple[ops.Tensor, ops.Tensor]:
    """The variance and the mean in the type that is computed in; both keep their axes when `keepdims`."""
    kind = computed_in(x.dtype)
    at = axes_of(x, axes)
    number = count(x, at)
    mean = x.graph.pointwise(
        "mean", lambda v, n: v / n, reduced(context, x, at, True, SUM, None, kind) if at else x, number, dtype=kind
    )
    freedom: Any = number - int(1 if correction is None else correction)
    if correction is not None and correction != int(correction):
        context.refuse(f"the correction {correction} is no whole number", "use 0 or 1")

    def square(v: Scalar, m: Scalar) -> Scalar:
        distance = v.cast(kind.value) - m
        return distance * distance

    whole = Reduction(SUM.combine, SUM.start, kind)
    total = (
        accumulate("var", [x, mean], at, whole, keepdims, square) if at else x.graph.pointwise("var", square, x, mean, dtype=kind)
    )
    variance = x.graph.pointwise("var", lambda v, n: v / n.maximum(0), total, freedom, dtype=kind)
    short = mean if keepdims or not at else ops.reshape(mean, [d for a, d in enumerate(x.dims) if a not in at])
    return variance, short


@register("torch", "aten.var.correction", "aten.std.correction")
def spread(
    context: Context, x: ops.Tensor, axes: Axes = None, *, correction: float | None = 1, keepdim: bool = False
) -> ops.Tensor:
    """The variance, or its root."""
    variance, _ = _variance(context, x, axes, correction, keepdim)
    if context.operator.startswith("aten.std"):
        variance = ops.sqrt(variance)
    return ops.cast(variance, context.dtype())


@register("torch", "aten.var_mean.correction", "aten.std_mean.correction")
def spread_and_mean(
    context: Context, x: ops.Tensor, axes: Axes = None, *, correction: float | None = 1, keepdim: bool = False
) -> list[ops.Tensor]:
    """The variance or its root, and the mean."""
    variance, mean = _variance(context, x, axes, correction, keepdim)
    if context.operator.startswith("aten.std"):
        variance = ops.sqrt(variance)
    return [ops.cast(variance, context.dtype()), ops.cast(mean, context.dtype())]


@register("torch", *names("linalg_vector_norm"))
def vector_norm(
    context: Context, x: ops.Tensor, order: float = 2, axes: Axes = None, keepdims: bool = False, *, dtype: Any = None
) -> ops.Tensor:
    """(sum of |x|^order)^(1/order); the largest or smallest |x| for the infinities, what is not 0 for 0."""
    result = context.dtype()
    kind = computed_in(result)
    if order in (inf, -inf):
        extreme = Reduction(Scalar.maximum, 0) if order == inf else Reduction(Scalar.minimum, inf)
        return reduce(context, x, axes, keepdims, extreme, scalar.absolute)
    element: Callable[[Scalar], Scalar] = {
        0: lambda v: v.compare("ne", 0).cast(v.kind),
        1: scalar.absolute,
        2: lambda v: v * v,
    }.get(order, lambda v: scalar.power(scalar.absolute(v), float(order)))  # type: ignore[call-overload]
    total = reduced(context, x, axes, keepdims, SUM, element, kind)
    if order in (0, 1):
        return ops.cast(total, result)
    return x.graph.pointwise("norm", lambda v: scalar.power(v, 1 / order), total, dtype=result)


@register("torch", *names("logsumexp"))
def logsumexp(context: Context, x: ops.Tensor, axes: Axes, keepdims: bool = False) -> ops.Tensor:
    """log(sum of e^x) without overflow."""
    at = axes_of(x, axes)
    floating = ops.cast(x, context.dtype())
    return ops.logsumexp(floating, at, keepdims) if at else floating
