"""Resampling of images and signals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.compiler.frontends.torch.window_arguments import scales_of
from tilewright.compiler.ops.grid_sampling import MODES, PADDINGS
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_FORMS = ("default", "vec")


@register("torch", *names(*(f"upsample_nearest{n}d" for n in (1, 2, 3)), overloads=_FORMS))
def nearest(context: Context, x: ops.Tensor, size: Any, *scales: Any) -> ops.Tensor:
    """The element that the place falls into, counted from the first corner."""
    return ops.interpolate(x, context.shape()[2:], "floor", "asymmetric", scales_of(scales, x.rank - 2))


@register("torch", *names(*(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)), overloads=_FORMS))
def nearest_exact(context: Context, x: ops.Tensor, size: Any, *scales: Any) -> ops.Tensor:
    """The element with the nearest centre."""
    return ops.interpolate(x, context.shape()[2:], "nearest", "half_pixel", scales_of(scales, x.rank - 2))


@register(
    "torch", *names("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", overloads=_FORMS)
)
def smooth(context: Context, x: ops.Tensor, size: Any, align_corners: bool, *scales: Any) -> ops.Tensor:
    """Linear along every axis, or cubic."""
    return _smooth(context, x, align_corners, scales, {})


@register("torch", *names("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", overloads=_FORMS))
def antialiased(context: Context, x: ops.Tensor, size: Any, align_corners: bool, *scales: Any) -> ops.Tensor:
    """The same with a kernel as wide as an element of the result; its cubic is that of Pillow."""
    if align_corners:
        context.refuse("antialias with align_corners", "use align_corners=False")
    if any(a.constant is None or b.constant is None for a, b in zip(x.dims[2:], context.shape()[2:], strict=True)):
        context.refuse("a kernel as wide as the sizes say", "give the axes that are resampled fixed extents")
    return _smooth(context, x, align_corners, scales, {"antialias": True, "exclude_outside": True, "cubic_coefficient": -0.5})


@register("torch", *names("grid_sampler_2d", "grid_sampler_3d"))
def grid_sampler(context: Context, x: ops.Tensor, grid: ops.Tensor, mode: int, padding: int, align_corners: bool) -> ops.Tensor:
    """Elements at the places of a grid, or mixtures with their neighbours."""
    return ops.grid_sample(x, grid, MODES[mode], PADDINGS[padding], align_corners)


@register("torch", *names("col2im"))
def col2im(
    _: Context, x: ops.Tensor, size: Sequence[Any], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> ops.Tensor:  # fmt: skip
    """An image from its windows, what overlaps added."""
    windows = x if x.rank == 3 else ops.unsqueeze(x, 0)
    image = ops.fold(windows, size, kernel, stride=stride, padding=padding, dilation=dilation)
    return image if x.rank == 3 else ops.squeeze(image, 0)


@register("torch", *names("unfold_backward"))
def unfold_backward(context: Context, x: ops.Tensor, _: Sequence[Any], axis: int, size: int, step: int) -> ops.Tensor:
    """A signal from its windows [.., windows, .., size], what overlaps added, as an inverse short-time transform does."""
    dims = context.shape()
    at = axis % len(dims)
    others = [a for a in range(len(dims)) if a != at]
    rows = math.prod((x.dims[a] for a in others), start=Expr.of(1))
    windows = ops.reshape(ops.transpose(x, [*others, len(dims), at]), [rows, size, x.dims[at]])
    signal = ops.fold(windows, [1, dims[at]], (1, size), stride=(1, step))
    apart = ops.reshape(signal, [*(x.dims[a] for a in others), dims[at]])
    return ops.broadcast_to(ops.transpose(apart, [(*others, at).index(a) for a in range(len(dims))]), dims)


def _smooth(
    context: Context, x: ops.Tensor, align_corners: bool, scales: Sequence[Any], options: ops.InterpolationOptions
) -> ops.Tensor:
    mode = "cubic" if "cubic" in context.operator else "linear"
    coordinates = "align_corners" if align_corners else "half_pixel"
    factors = None if align_corners else scales_of(scales, x.rank - 2)
    wide = x if x.dtype.is_float else ops.cast(x, DType.F32)
    found = ops.interpolate(wide, context.shape()[2:], mode, coordinates, factors, **options)
    if x.dtype.is_float:
        return found
    low, high = x.dtype.limits
    rounded = x.graph.pointwise("round", lambda v: v.math("roundeven").maximum(float(low)).minimum(float(high)), found)
    return ops.cast(rounded, x.dtype)
