"""Pooling over windows of one to three axes, fixed or adapted to the extent of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.reductions import SUM, Reduction
from tilewright.compiler.ops.scalar_functions import is_nan, select
from tilewright.compiler.ops.windows import WindowAxis, adaptive, reduce_windows, strided
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Sizes = int | Sequence[int]
_LAST = (1 << 63) - 1


def _each(value: Any, axes: int, default: Sequence[int] = ()) -> list[int]:
    """One number for each axis."""
    given = [value] if isinstance(value, int) else list(value or default)
    return given * axes if len(given) == 1 else given


def _axes_of(operator: str) -> int:
    """How many axes an operator pools over, by its name."""
    return int(operator.split("d.")[0].split("d_")[0][-1])


def _lowest(dtype: DType) -> float:
    return -inf if dtype.is_float else -(1 << 8 * dtype.bytes - 1)


# -- maxima


@register("torch", *names(*(f"max_pool{n}d{what}" for n in (1, 2, 3) for what in ("", "_with_indices"))))
def max_pool(
    context: Context,
    x: ops.Tensor,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> ops.Tensor | list[ops.Tensor]:
    """The largest element of every window, and its number in the plane where that is asked for; NaN wins."""
    n = _axes_of(context.operator)
    sizes, low, spread = (_each(value, n) for value in (kernel, padding, dilation))
    moves = _each(stride, n, sizes)
    if "_with_indices" in context.operator:
        return _maxima(x, [strided(*axis) for axis in zip(moves, low, sizes, spread, strict=True)], context.shape())
    build = (ops.max_pool1d, ops.max_pool2d, ops.max_pool3d)[n - 1]
    return _batched(x, n, lambda t: build(t, sizes, moves, low, spread, ceil_mode=ceil_mode))


def _batched(x: ops.Tensor, n: int, build: Callable[[ops.Tensor], ops.Tensor]) -> ops.Tensor:
    """An input without a batch axis is given one, which its result loses."""
    return build(x) if x.rank == n + 2 else ops.squeeze(build(ops.unsqueeze(x, 0)), 0)


@register("torch", *names(*(f"adaptive_max_pool{n}d" for n in (1, 2, 3))))
def adaptive_max_pool(context: Context, x: ops.Tensor, size: Sizes) -> list[ops.Tensor]:
    """The largest element of every window of as many as are wanted, and its number in the plane."""
    n = _axes_of(context.operator)
    shape = context.shape()
    return _maxima(x, [adaptive(x, x.rank - n + i, shape[x.rank - n + i]) for i in range(n)], shape)


def _maxima(x: ops.Tensor, axes: Sequence[WindowAxis], shape: Sequence[Expr]) -> list[ops.Tensor]:
    best = reduce_windows(x, axes, shape, Reduction(Scalar.maximum, _lowest(x.dtype)), x.dtype)
    plane = x.dims[x.rank - len(axes) :]

    def number(v: Scalar, places: Sequence[Scalar], found: Sequence[Scalar]) -> Scalar:
        same = v.cast(found[0].kind).compare("eq", found[0])
        same = same | is_nan(v) if x.dtype.is_float else same
        at = places[0]
        for place, extent in zip(places[1:], plane[1:], strict=True):
            at = at * x.graph.number(v.body, extent, "index") + place
        return select(same, at.cast("i64"), _LAST)

    where = reduce_windows(x, axes, shape, Reduction(Scalar.minimum, _LAST), DType.I64, number, [best])
    return [best, where]


# -- means


@register("torch", *names(*(f"avg_pool{n}d" for n in (1, 2, 3))))
def avg_pool(
    context: Context, x: ops.Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> ops.Tensor:  # fmt: skip
    """The mean of every window; padding counts as zeros on request, what is beyond it never."""
    n = _axes_of(context.operator)
    sizes, moves = _each(kernel, n), _each(stride, n, _each(kernel, n))
    low = _each(padding, n)
    if x.dtype.is_float and divisor_override is None:
        build = (ops.avg_pool1d, ops.avg_pool2d, ops.avg_pool3d)[n - 1]
        return _batched(x, n, lambda t: build(t, sizes, moves, low, count_include_pad, ceil_mode=ceil_mode))
    axes = [strided(m, p, k) for m, p, k in zip(moves, low, sizes, strict=True)]
    total = reduce_windows(x, axes, context.shape(), SUM, computed_in(x.dtype))
    if divisor_override is not None:
        return x.graph.pointwise("avg_pool", lambda v: v / divisor_override, total, dtype=x.dtype)

    def length(o: Scalar, i: int) -> Scalar:
        extent = x.graph.number(o.body, x.dims[x.rank - n + i], "index")
        first = o * moves[i] - low[i]
        last = (first + sizes[i]).minimum(extent + low[i])
        return last - first if count_include_pad else last.minimum(extent) - first.maximum(0)

    return _divided(x, total, n, length)


def _divided(x: ops.Tensor, total: ops.Tensor, n: int, length: Callable[[Scalar, int], Scalar]) -> ops.Tensor:
    """Sums over windows divided by their lengths, which follow from the place."""
    loops = [f"d{i}" for i in range(total.rank)]

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        count = length(region.index(total.rank - n), 0)
        for i in range(1, n):
            count = count * length(region.index(total.rank - n + i), i)
        number = count.cast("i64").cast(scalars[0].kind)
        return scalars[0] / number

    into = (x.graph.empty(x.dtype, total.dims), loops)
    return x.graph.generic([(total, loops)], into, ["parallel"] * total.rank, body)


@register(
    "torch",
    *names("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
)
def adaptive_avg_pool(context: Context, x: ops.Tensor, size: Sizes) -> ops.Tensor:
    """The mean of every window of as many as are wanted."""
    n = _axes_of(context.operator)
    shape = context.shape()
    spatial = range(x.rank - n, x.rank)
    if x.dtype.is_float:
        if all(shape[a] == Expr.of(1) for a in spatial):
            return ops.mean(x, list(spatial), keepdims=True)
        return _batched(x, n, lambda t: ops.adaptive_avg_pool(t, [shape[a] for a in spatial]))
    axes = [adaptive(x, a, shape[a]) for a in spatial]
    total = reduce_windows(x, axes, shape, SUM, computed_in(x.dtype))

    def length(o: Scalar, i: int) -> Scalar:
        end = axes[i].end
        assert end is not None
        return end(o) - axes[i].begin(o)

    return _divided(x, total, n, length)
