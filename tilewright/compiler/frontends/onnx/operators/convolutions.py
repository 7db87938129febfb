"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.runtime.shape import Expr

Pairs = list[tuple[int, int]]


def window_padding(context: Context, x: ops.Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Pairs:
    """(low, high) widths of every spatial axis, from `pads` or `auto_pad`."""
    rank, mode = len(kernel), context.attribute("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        pads = context.attribute("pads", [0] * (2 * rank))
        context.require(len(pads) == 2 * rank, f"{len(pads)} pads for {rank} spatial axes")
        return list(zip(pads[:rank], pads[rank:], strict=True))
    if mode == "VALID":
        return [(0, 0)] * rank
    context.require(mode in ("SAME_UPPER", "SAME_LOWER"), f"auto_pad={mode!r}")
    found: Pairs = []
    for extent, k, s, d in zip(x.dims[2:], kernel, strides, dilations, strict=True):
        total = Expr.of(d * (k - 1)) if s == 1 else (extent.ceildiv(s) - 1) * s + (d * (k - 1) + 1) - extent
        context.require(total.constant is not None, f"auto_pad={mode!r} with stride {s} on an axis of {extent}",
                        "Give pads as numbers")
        width = max(total.constant or 0, 0)
        low = width // 2 if mode == "SAME_UPPER" else width - width // 2
        found.append((low, width - low))
    return found


@operator("Conv")
def conv(context: Context, x: ops.Tensor, w: ops.Tensor, bias: ops.Tensor | None = None) -> ops.Tensor:
    return ops.cast(convolution(context, x, w, bias), x.dtype)


def convolution(context: Context, x: ops.Tensor, w: ops.Tensor, bias: ops.Tensor | None) -> ops.Tensor:
    """Conv by the node's attributes."""
    rank = x.rank - 2
    context.require(rank in (1, 2) and w.rank == x.rank, f"a convolution over {rank} spatial axes", "Use one or two")
    kernel = [d.constant or 0 for d in w.dims[2:]]
    strides, dilations = context.attribute("strides", [1] * rank), context.attribute("dilations", [1] * rank)
    groups = context.attribute("group", 1)
    x = context.restated(x, [x.dims[0], w.dims[1] * groups, *x.dims[2:]])
    padding = window_padding(context, x, kernel, strides, dilations)
    build = ops.conv1d if rank == 1 else ops.conv2d
    return build(x, w, bias, groups=groups, stride=strides, dilation=dilations, padding=padding)


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(context: Context, x: ops.Tensor) -> ops.Tensor:
    over = list(range(2, x.rank))
    return (ops.mean if context.node.op_type == "GlobalAveragePool" else ops.max)(x, over, True)
