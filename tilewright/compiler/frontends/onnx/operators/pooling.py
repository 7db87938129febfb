"""Pooling over windows and over whole axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.operators.convolutions import window_options
from tilewright.compiler.ops import scalar_functions
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


def _window(context: Context, x: ops.Tensor) -> dict[str, Any]:
    """The keywords of a node that are the same for all kinds of pooling."""
    kernel = context.attribute("kernel_shape")
    rank = len(kernel)
    context.require(x.rank == rank + 2 and 1 <= rank <= 3, f"an input of rank {x.rank} and a kernel of {rank} axes")
    return {"kernel": kernel, "ceil_mode": bool(context.attribute("ceil_mode", 0)), **window_options(context, rank)}


@operator("MaxPool")
def max_pool(context: Context, x: ops.Tensor) -> list[ops.Tensor]:
    window = _window(context, x)
    if not context.wants(1):
        return [(ops.max_pool1d, ops.max_pool2d, ops.max_pool3d)[x.rank - 3](x, **window)]
    best, number = ops.max_pool_with_indices(x, **window)
    return [best, _place(context, x, number)]


def _place(context: Context, x: ops.Tensor, number: ops.Tensor) -> ops.Tensor:
    """The number of an element in its channel as one in the flat input, with storage_order=1 by columns."""
    plane = math.prod(x.dims[2:], start=Expr.of(1))
    if context.attribute("storage_order", 0):
        rest, found = number, ops.zeros(context.graph, [], DType.I64)
        factor = plane
        for extent in reversed(x.dims[2:]):
            factor = factor // extent
            place = context.graph.pointwise("MaxPool", Scalar.remainder, rest, extent)
            rest, found = rest / extent, found + place * factor
        number = found
    batch, channel = (ops.iota(context.graph, [x.dims[a] if a == b else 1 for b in range(x.rank)], a, DType.I64) for a in (0, 1))
    return number + (batch * x.dims[1] + channel) * plane


@operator("AveragePool")
def average_pool(context: Context, x: ops.Tensor) -> ops.Tensor:
    window = _window(context, x)
    build = (ops.avg_pool1d, ops.avg_pool2d, ops.avg_pool3d)[x.rank - 3]
    return build(x, count_include_pad=bool(context.attribute("count_include_pad", 0)), **window)


@operator("LpPool")
def lp_pool(context: Context, x: ops.Tensor) -> ops.Tensor:
    power, root = _norm(context.attribute("p", 2))
    total = ops.sum_pool(context.graph.pointwise("LpPool", power, x), **_window(context, x))
    return context.graph.pointwise("LpPool", root, total)


def _norm(p: int) -> tuple[Callable[[Scalar], Scalar], Callable[[Scalar], Scalar]]:
    """|v|^p, and the p-th root."""
    return lambda v: scalar_functions.power(v.math("absf"), float(p)), lambda v: scalar_functions.power(v, 1 / p)


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(context: Context, x: ops.Tensor) -> ops.Tensor:
    over, name = list(range(2, x.rank)), context.node.op_type
    if name == "GlobalLpPool":
        return ops.norm(x, context.attribute("p", 2), over, True)
    return (ops.mean if name == "GlobalAveragePool" else ops.max)(x, over, True)
