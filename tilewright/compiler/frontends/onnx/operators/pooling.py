"""Pooling over windows and over whole axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.operators.convolutions import window_options
from tilewright.compiler.frontends.onnx.values import Known
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


@operator("MaxUnpool", known=[2])
def max_unpool(context: Context, x: ops.Tensor, places: ops.Tensor, shape: Known | None = None) -> ops.Tensor:
    """Each element at its place in the flat result, beside zeros. A shape that is given has this in its first corner."""
    kernel = context.attribute("kernel_shape")
    rank = len(kernel)
    context.require(x.rank == rank + 2, f"an input of rank {x.rank} and a kernel of {rank} axes")
    strides, pads = context.attribute("strides", [1] * rank), context.attribute("pads", [0] * 2 * rank)
    sizes = [(d - 1) * s - (pads[a] + pads[a + rank]) + kernel[a]
             for a, (d, s) in enumerate(zip(x.dims[2:], strides, strict=True))]  # fmt: skip
    dims = [*x.dims[:2], *sizes]
    flat = ops.zeros(context.graph, [math.prod(dims, start=Expr.of(1))], x.dtype)
    at = ops.reshape(context.restated(places, x.dims), [-1])
    found = ops.reshape(ops.scatter(flat, at, ops.reshape(x, [-1])), dims)
    if shape is None:
        return found
    wanted = shape.exprs()
    context.require(len(wanted) == len(dims), f"an output_shape of {len(wanted)} numbers for rank {x.rank}")
    context.require(all(context.graph.bounds(w - d)[0] >= 0 for w, d in zip(wanted, dims, strict=True)),
                    f"an output_shape of {', '.join(map(str, wanted))} around {', '.join(map(str, dims))}")  # fmt: skip
    return ops.pad(found, [0] * x.rank, [w - d for w, d in zip(wanted, dims, strict=True)])


@operator("RoiAlign")
def roi_align(context: Context, x: ops.Tensor, boxes: ops.Tensor, images: ops.Tensor) -> ops.Tensor:
    mode, samples = context.attribute("mode", "avg"), context.attribute("sampling_ratio", 0)
    half = "half_pixel" if context.opset >= 16 else "output_half_pixel"
    context.require(mode in ("avg", "max"), f"mode={mode!r}", "Use avg or max")
    context.require(samples > 0, "sampling_ratio=0: how many elements are read depends on the boxes",
                    "Export with a sampling_ratio of 1 or more, such as 2")  # fmt: skip
    boxes = context.restated(boxes, [images.dims[0], boxes.dims[1]])
    aligned = context.attribute("coordinate_transformation_mode", half) == "half_pixel"
    cells = (context.attribute("output_height", 1), context.attribute("output_width", 1), samples)
    return ops.roi_align(x, boxes, images, cells, context.attribute("spatial_scale", 1.0), aligned, mode == "max")


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
