"""Pooling over windows and over whole axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product as combinations

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.operators.convolutions import Pairs, window_padding
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


@dataclass(frozen=True)
class _Window:
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    padding: Pairs
    ceil: bool

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def taps(self, context: Context, x: ops.Tensor, fill: float) -> Iterator[ops.Tensor]:
        """For every element of the window, what it meets at each place; `fill` outside of x."""
        low, high, counts = [Expr.of(0)] * 2, [Expr.of(0)] * 2, []
        for d, k, s, step, (a, b) in zip(x.dims[2:], self.kernel, self.strides, self.dilations, self.padding, strict=True):
            reach = step * (k - 1) + 1
            room = d + a + b - reach
            count = room // s + 1
            if self.ceil:  # the last window starts inside of the input
                count = context.graph.smaller(room.ceildiv(s) + 1, (d + a).ceildiv(s))
            low.append(Expr.of(a))
            high.append(context.graph.larger((count - 1) * s + reach - d - a, Expr.of(0)))
            counts.append(count)
        padded = ops.pad(x, low, high, fill)
        for places in combinations(*(range(k) for k in self.kernel)):
            part = padded
            for i, (place, s, step, count) in enumerate(zip(places, self.strides, self.dilations, counts, strict=True)):
                first = Expr.of(place * step)
                part = ops.slice_axis(part, 2 + i, first, first + (count - 1) * s + 1, s)
            yield part


def _window(context: Context, x: ops.Tensor, fill: float) -> tuple[ops.Tensor, _Window]:
    kernel = context.attribute("kernel_shape")
    rank = len(kernel)
    context.require(x.rank == rank + 2 and 1 <= rank <= 3, f"an input of rank {x.rank} and a kernel of {rank} axes")
    strides, dilations = context.attribute("strides", [1] * rank), context.attribute("dilations", [1] * rank)
    x, padding = window_padding(context, x, kernel, strides, dilations, fill)
    return x, _Window(kernel, strides, dilations, padding, bool(context.attribute("ceil_mode", 0)))


@operator("MaxPool")
def max_pool(context: Context, x: ops.Tensor) -> list[ops.Tensor]:
    lowest = -np.inf if x.dtype.is_float else float(x.dtype.limits[0])
    whole, window = _window(context, x, lowest)
    if context.wants(1):
        context.require(whole.dims == x.dims, "places of the largest elements beside padding that depends on the dims")
        return _max_with_places(context, x, window, lowest)
    if not x.dtype.is_float:
        return [_folded(window.taps(context, whole, lowest), ops.maximum)]
    build = (ops.max_pool1d, ops.max_pool2d, ops.max_pool3d)[window.rank - 1]
    return [build(whole, window.kernel, window.strides, window.padding, window.dilations, ceil_mode=window.ceil)]


def _folded(parts: Iterator[ops.Tensor], combine: Callable[[ops.Tensor, ops.Tensor], ops.Tensor]) -> ops.Tensor:
    total = next(parts)
    for part in parts:
        total = combine(total, part)
    return total


def _max_with_places(context: Context, x: ops.Tensor, window: _Window, lowest: float) -> list[ops.Tensor]:
    """The largest elements and their places in the flat input, of equal ones the first."""
    columns_first = bool(context.attribute("storage_order", 0))
    spatial = list(reversed(x.dims[2:])) if columns_first else list(x.dims[2:])
    count = math.prod(x.dims, start=Expr.of(1))
    places = ops.reshape(ops.iota(context.graph, [count], 0, DType.I64), [*x.dims[:2], *spatial])
    if columns_first:
        places = ops.transpose(places, [0, 1, *reversed(range(2, x.rank))])
    pairs = zip(window.taps(context, x, lowest), window.taps(context, places, -1), strict=True)
    best, where = next(pairs)
    for value, place in pairs:
        larger = ops.compare(value, best, "gt")
        best, where = ops.where(larger, value, best), ops.where(larger, place, where)
    return [best, where]


@operator("AveragePool")
def average_pool(context: Context, x: ops.Tensor) -> ops.Tensor:
    padded = bool(context.attribute("count_include_pad", 0))
    whole, window = _window(context, x, 0)
    context.require(
        padded or whole.dims == x.dims, "padding that depends on the dims and does not count", "Set count_include_pad=1"
    )
    if all(d == 1 for d in window.dilations):
        build = (ops.avg_pool1d, ops.avg_pool2d, ops.avg_pool3d)[window.rank - 1]
        return build(whole, window.kernel, window.strides, window.padding, count_include_pad=padded, ceil_mode=window.ceil)
    ones = ops.ones(context.graph, [1, 1, *x.dims[2:]], x.dtype)
    if padded:
        low, high = ([0, 0, *(p[i] for p in window.padding)] for i in (0, 1))
        ones = ops.pad(ones, low, high, 1)
        bare = _Window(window.kernel, window.strides, window.dilations, [(0, 0)] * window.rank, window.ceil)
        counts = _folded(bare.taps(context, ones, 0), ops.add)
    else:
        counts = _folded(window.taps(context, ones, 0), ops.add)
    return ops.divide(_folded(window.taps(context, whole, 0), ops.add), counts)


@operator("LpPool")
def lp_pool(context: Context, x: ops.Tensor) -> ops.Tensor:
    power, root = _norm(context.attribute("p", 2))
    whole, window = _window(context, context.graph.pointwise("LpPool", power, x), 0)
    return context.graph.pointwise("LpPool", root, _folded(window.taps(context, whole, 0), ops.add))


def _norm(p: int) -> tuple[Callable[[Scalar], Scalar], Callable[[Scalar], Scalar]]:
    """|v|^p, and the p-th root."""

    def power(v: Scalar) -> Scalar:
        total = size = v.math("absf")
        for _ in range(p - 1):
            total = total * size
        return total

    def root(v: Scalar) -> Scalar:
        return (
            v if p == 1 else v.math("sqrt") if p == 2 else v.body.select(v.compare("gt", 0), (v.math("log") / p).math("exp"), 0.0)
        )

    return power, root


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(context: Context, x: ops.Tensor) -> ops.Tensor:
    over, name = list(range(2, x.rank)), context.node.op_type
    if name == "GlobalLpPool":
        return ops.norm(x, context.attribute("p", 2), over, True)
    return (ops.mean if name == "GlobalAveragePool" else ops.max)(x, over, True)
