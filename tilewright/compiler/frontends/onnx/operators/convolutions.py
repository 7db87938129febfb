"""Convolutions, plain and transposed, and the image of windows that overlap."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.runtime.shape import Expr

_AUTO_PAD = {"VALID": "valid", "SAME_UPPER": "same", "SAME_LOWER": "same_lower"}


def window_options(context: Context, rank: int) -> ops.WindowOptions:
    """Strides, dilations and `pads` or `auto_pad` of a node."""
    mode, pads = context.attribute("auto_pad", "NOTSET"), context.attribute("pads", [0] * (2 * rank))
    context.require(len(pads) == 2 * rank, f"{len(pads)} pads for {rank} spatial axes")
    context.require(mode in ("NOTSET", "", *_AUTO_PAD), f"auto_pad={mode!r}", f"Use NOTSET, {', '.join(_AUTO_PAD)}")
    padding = _AUTO_PAD[mode] if mode in _AUTO_PAD else list(zip(pads[:rank], pads[rank:], strict=True))
    strides, dilations = context.attribute("strides", [1] * rank), context.attribute("dilations", [1] * rank)
    return {"stride": strides, "dilation": dilations, "padding": padding}


@operator("Conv")
def conv(context: Context, x: ops.Tensor, w: ops.Tensor, bias: ops.Tensor | None = None) -> ops.Tensor:
    return ops.cast(convolution(context, x, w, bias), x.dtype)


def convolution(context: Context, x: ops.Tensor, w: ops.Tensor, bias: ops.Tensor | None) -> ops.Tensor:
    """Conv by the node's attributes."""
    rank = _spatial_rank(context, x, w)
    groups = context.attribute("group", 1)
    x = context.restated(x, [x.dims[0], w.dims[1] * groups, *x.dims[2:]])
    build = (ops.conv1d, ops.conv2d, ops.conv3d)[rank - 1]
    return build(x, w, bias, groups=groups, **window_options(context, rank))


@operator("ConvTranspose")
def conv_transpose(context: Context, x: ops.Tensor, w: ops.Tensor, bias: ops.Tensor | None = None) -> ops.Tensor:
    rank = _spatial_rank(context, x, w)
    window, sizes = window_options(context, rank), context.attribute("output_shape")
    if sizes is not None and window["padding"] != "same":
        window["padding"] = "same_lower"
    more = context.attribute("output_padding", [0] * rank)
    wanted = None if sizes is None else sizes[-rank:]
    groups = context.attribute("group", 1)
    found = ops.conv_transpose(x, w, bias, groups=groups, output_padding=more, sizes=wanted, **window)
    return ops.cast(found, x.dtype)


@operator("Col2Im", known=[1, 2])
def image_of_windows(context: Context, x: ops.Tensor, shape: Known, kernel: Known) -> ops.Tensor:
    """x [N, C kh kw, windows] as the image [N, C, H, W], what overlaps added."""
    extents, window = shape.exprs(), context.numbers(kernel, "block_shape")
    context.require(len(extents) == 2, f"an image of {len(extents)} axes", "Use images of two axes")
    top, left, bottom, right = context.attribute("pads", [0] * 4)
    height, width = extents
    strides, dilations = context.attribute("strides", [1, 1]), context.attribute("dilations", [1, 1])
    whole = ops.fold(x, [height + (top + bottom), width + (left + right)], window, stride=strides, dilation=dilations)
    return ops.narrow(ops.narrow(whole, 2, top, height), 3, left, width)


def _spatial_rank(context: Context, x: ops.Tensor, w: ops.Tensor) -> int:
    rank = x.rank - 2
    context.require(
        1 <= rank <= 3 and w.rank == x.rank, f"an input of rank {x.rank} and a weight of rank {w.rank}; wanted 3 to 5"
    )
    given = context.attribute("kernel_shape")
    context.require(given is None or [Expr.of(k) for k in given] == list(w.dims[2:]), "kernel_shape is not that of the weight")
    return rank
