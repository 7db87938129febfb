"""Pooling over windows of one to three axes, fixed or adapted to the extent of the result."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.compiler.frontends.torch.window_arguments import PerAxis, batched, batched_pair, each


def _axes_of(operator: str) -> int:
    """How many axes an operator pools over, by its name."""
    return int(operator.split("d.")[0].split("d_")[0][-1])


@register("torch", *names(*(f"max_pool{n}d" for n in (1, 2, 3))))
def max_pool(
    context: Context,
    x: ops.Tensor,
    kernel: PerAxis,
    stride: PerAxis = (),
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> ops.Tensor:
    """The largest element of every window; NaN wins."""
    n = _axes_of(context.operator)
    sizes, low, spread = (each(value, n) for value in (kernel, padding, dilation))
    moves = each(stride, n, sizes)
    build = (ops.max_pool1d, ops.max_pool2d, ops.max_pool3d)[n - 1]
    return batched(x, n, lambda t: build(t, sizes, moves, low, spread, ceil_mode=ceil_mode))


@register("torch", *names(*(f"max_pool{n}d_with_indices" for n in (1, 2, 3))))
def max_pool_with_indices(
    context: Context,
    x: ops.Tensor,
    kernel: PerAxis,
    stride: PerAxis = (),
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> list[ops.Tensor]:
    """The largest element of every window, and its number in the plane."""
    n = _axes_of(context.operator)
    sizes, low, spread = (each(value, n) for value in (kernel, padding, dilation))
    moves = each(stride, n, sizes)
    return batched_pair(x, n, lambda t: ops.max_pool_with_indices(t, sizes, moves, low, spread, ceil_mode))


@register("torch", *names(*(f"adaptive_max_pool{n}d" for n in (1, 2, 3))))
def adaptive_max_pool(context: Context, x: ops.Tensor, size: PerAxis) -> list[ops.Tensor]:
    """The largest element of every window of as many as are wanted, and its number in the plane."""
    n = _axes_of(context.operator)
    return batched_pair(x, n, lambda t: ops.adaptive_max_pool_with_indices(t, context.shape()[-n:]))


@register("torch", *names(*(f"avg_pool{n}d" for n in (1, 2, 3))))
def avg_pool(
    context: Context, x: ops.Tensor, kernel: PerAxis, stride: PerAxis = (), padding: PerAxis = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> ops.Tensor:  # fmt: skip
    """The mean of every window; padding counts as zeros on request, what is beyond it never."""
    n = _axes_of(context.operator)
    sizes, low = each(kernel, n), each(padding, n)
    moves = each(stride, n, sizes)
    if divisor_override is not None:
        total = batched(x, n, lambda t: ops.sum_pool(t, sizes, moves, low, ceil_mode=ceil_mode))
        return x.graph.pointwise("avg_pool", lambda v: v / divisor_override, total, dtype=x.dtype)
    build = (ops.avg_pool1d, ops.avg_pool2d, ops.avg_pool3d)[n - 1]
    return batched(x, n, lambda t: build(t, sizes, moves, low, count_include_pad, ceil_mode=ceil_mode))


@register(
    "torch",
    *names("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
)
def adaptive_avg_pool(context: Context, x: ops.Tensor, size: PerAxis) -> ops.Tensor:
    """The mean of every window of as many as are wanted."""
    n = _axes_of(context.operator)
    return batched(x, n, lambda t: ops.adaptive_avg_pool(t, context.shape()[-n:]))
