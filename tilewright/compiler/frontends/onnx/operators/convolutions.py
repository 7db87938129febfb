"""Convolutions, plain and transposed."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.runtime.shape import Expr

Pairs = list[tuple[int, int]]


def window_padding(
    context: Context, x: ops.Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], fill: float = 0
) -> tuple[ops.Tensor, Pairs]:
    """The input and the (low, high) widths of its spatial axes, from `pads` or `auto_pad`.

    Widths that depend on the dims are put around the input at once, with `fill`, and the pairs are 0.
    """
    rank, mode = len(kernel), context.attribute("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        pads = context.attribute("pads", [0] * (2 * rank))
        context.require(len(pads) == 2 * rank, f"{len(pads)} pads for {rank} spatial axes")
        return x, list(zip(pads[:rank], pads[rank:], strict=True))
    if mode == "VALID":
        return x, [(0, 0)] * rank
    context.require(mode in ("SAME_UPPER", "SAME_LOWER"), f"auto_pad={mode!r}", "Use NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    low, high = [Expr.of(0)] * 2, [Expr.of(0)] * 2
    for extent, k, s, d in zip(x.dims[2:], kernel, strides, dilations, strict=True):
        total = Expr.of(d * (k - 1)) if s == 1 else (extent.ceildiv(s) - 1) * s + (d * (k - 1) + 1) - extent
        total = context.graph.larger(total, Expr.of(0))
        less, more = total // 2, total - total // 2
        low.append(less if mode == "SAME_UPPER" else more)
        high.append(more if mode == "SAME_UPPER" else less)
    static = [(a.constant, b.constant) for a, b in zip(low[2:], high[2:], strict=True)]
    pairs = [(a, b) for a, b in static if a is not None and b is not None]
    return (x, pairs) if len(pairs) == rank else (ops.pad(x, low, high, fill), [(0, 0)] * rank)


@operator("Conv")
def conv(context: Context, x: ops.Tensor, w: ops.Tensor, bias: ops.Tensor | None = None) -> ops.Tensor:
    return ops.cast(convolution(context, x, w, bias), x.dtype)


def convolution(context: Context, x: ops.Tensor, w: ops.Tensor, bias: ops.Tensor | None) -> ops.Tensor:
    """Conv by the node's attributes."""
    rank = _spatial_rank(context, x, w)
    kernel = [d.constant or 0 for d in w.dims[2:]]
    strides, dilations = context.attribute("strides", [1] * rank), context.attribute("dilations", [1] * rank)
    groups = context.attribute("group", 1)
    x = context.restated(x, [x.dims[0], w.dims[1] * groups, *x.dims[2:]])
    x, padding = window_padding(context, x, kernel, strides, dilations)
    build = (ops.conv1d, ops.conv2d, ops.conv3d)[rank - 1]
    return build(x, w, bias, groups=groups, stride=strides, dilation=dilations, padding=padding)


@operator("ConvTranspose")
def conv_transpose(context: Context, x: ops.Tensor, w: ops.Tensor, bias: ops.Tensor | None = None) -> ops.Tensor:
    rank = _spatial_rank(context, x, w)
    kernel = [d.constant or 0 for d in w.dims[2:]]
    strides, dilations = context.attribute("strides", [1] * rank), context.attribute("dilations", [1] * rank)
    more = list(context.attribute("output_padding", [0] * rank))
    pads = context.attribute("pads", [0] * (2 * rank))
    padding = list(zip(pads[:rank], pads[rank:], strict=True))
    mode = context.attribute("auto_pad", "NOTSET")
    wanted = context.attribute("output_shape")
    if wanted is not None or mode.startswith("SAME"):
        sizes = [Expr.of(n) for n in wanted[-rank:]] if wanted else [d * s for d, s in zip(x.dims[2:], strides, strict=True)]
        padding = []
        for i, size in enumerate(sizes):
            total = ((x.dims[2 + i] - 1) * strides[i] + more[i] + (kernel[i] - 1) * dilations[i] + 1 - size).constant
            context.require(total is not None, f"output_shape {size} for an axis of {x.dims[2 + i]}", "Give pads as numbers")
            less = max(total or 0, 0) // 2
            padding.append((less, (total or 0) - less) if mode == "SAME_UPPER" else ((total or 0) - less, less))
            if (total or 0) < 0:
                padding[-1], more[i] = (0, 0), more[i] - (total or 0)
    groups = context.attribute("group", 1)
    return ops.cast(
        ops.conv_transpose(x, w, bias, groups=groups, output_padding=more, stride=strides, dilation=dilations, padding=padding),
        x.dtype,
    )


def _spatial_rank(context: Context, x: ops.Tensor, w: ops.Tensor) -> int:
    rank = x.rank - 2
    context.require(
        1 <= rank <= 3 and w.rank == x.rank, f"an input of rank {x.rank} and a weight of rank {w.rank}; wanted 3 to 5"
    )
    given = context.attribute("kernel_shape")
    context.require(given is None or [Expr.of(k) for k in given] == list(w.dims[2:]), "kernel_shape is not that of the weight")
    return rank
