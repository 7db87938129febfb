"""Resize, as interpolation along some axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.runtime.shape import Expr

_NEAREST = {"round_prefer_floor": "nearest_left", "round_prefer_ceil": "nearest", "floor": "floor", "ceil": "ceil"}
_SAME_NAME = ("half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric")
_COORDINATES = {**{name: name for name in _SAME_NAME}, "pytorch_half_pixel": "half_pixel_or_first", "tf_crop_and_resize": "crop"}


@operator("Resize", known=[1, 2, 3])
def resize(
    context: Context, x: ops.Tensor, roi: Known | None = None, scales: Known | None = None, sizes: Known | None = None
) -> ops.Tensor:
    over = context.axes(x.rank, context.attribute("axes", list(range(x.rank))))
    given = context.attribute("coordinate_transformation_mode", "half_pixel")
    context.require(given in _COORDINATES, f"coordinate_transformation_mode={given!r}", f"Use one of {', '.join(_COORDINATES)}")
    ends = context.numbers(roi, "roi") if roi is not None and roi.elements.size else [0.0] * len(over) + [1.0] * len(over)
    context.require(len(ends) == 2 * len(over), f"a roi of {len(ends)} numbers for {len(over)} axes")
    crops = list(zip(ends[: len(over)], ends[len(over) :], strict=True))
    crop = _COORDINATES[given] == "crop"
    extents, factors = _extents(context, x, over, (scales, sizes), [b - a for a, b in crops] if crop else [1.0] * len(over))
    options: ops.InterpolationOptions = {
        "axes": over,
        "cubic_coefficient": context.attribute("cubic_coeff_a", -0.75),
        "antialias": bool(context.attribute("antialias", 0)),
        "exclude_outside": bool(context.attribute("exclude_outside", 0)),
        "crops": crops,
        "places": "f64",
    }
    if crop:
        options["outside"] = context.attribute("extrapolation_value", 0.0)
    return ops.interpolate(x, extents, _mode(context), _COORDINATES[given], factors, **options)


@operator("Upsample", known=[1])
def upsample(context: Context, x: ops.Tensor, scales: Known) -> ops.Tensor:
    return resize(context, x, None, scales)


@operator("GridSample")
def grid_sample(context: Context, x: ops.Tensor, grid: ops.Tensor) -> ops.Tensor:
    context.require(x.rank in (4, 5), f"images of rank {x.rank}", "Use images [N, C, H, W] or volumes [N, C, D, H, W]")
    mode, padding = context.attribute("mode", "linear"), context.attribute("padding_mode", "zeros")
    names = {"linear": "bilinear", "cubic": "bicubic"}  # of opset 20 on
    return ops.grid_sample(x, grid, names.get(mode, mode), padding, bool(context.attribute("align_corners", 0)))


def _mode(context: Context) -> str:
    mode, nearest = context.attribute("mode", "nearest"), context.attribute("nearest_mode", "round_prefer_floor")
    context.require(mode in ("nearest", "linear", "cubic"), f"mode={mode!r}", "Use nearest, linear or cubic")
    context.require(nearest in _NEAREST, f"nearest_mode={nearest!r}", f"Use one of {', '.join(_NEAREST)}")
    return _NEAREST[nearest] if mode == "nearest" else str(mode)


def _extents(
    context: Context, x: ops.Tensor, over: Sequence[int], given: tuple[Known | None, Known | None], spans: Sequence[float]
) -> tuple[list[Expr], list[float | None]]:
    """Extents of the result along the axes, and the scales where these are not just their quotients by x's extents."""
    scales, sizes = given
    if scales is not None and scales.elements.size:
        factors = context.numbers(scales, "scales")
        context.require(len(factors) == len(over), f"{len(factors)} scales for {len(over)} axes")
        context.require(all(map(math.isfinite, factors)), f"scales of {factors}")
        return [_scaled(x.dims[a], f * s) for a, f, s in zip(over, factors, spans, strict=True)], factors
    context.require(sizes is not None and len(sizes.exprs()) == len(over), "wanted scales or sizes, one for each axis")
    wanted = [] if sizes is None else sizes.exprs()
    policy = context.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return wanted, [None] * len(over)
    pairs = [(s.constant, x.dims[a].constant) for a, s in zip(over, wanted, strict=True)]
    context.require(
        all(s is not None and d for s, d in pairs), f"keep_aspect_ratio_policy={policy!r} with extents that are dynamic"
    )
    ratios = [(s or 0) / (d or 1) for s, d in pairs]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [Expr.of(math.floor(scale * (d or 1) + 0.5)) for _, d in pairs], [scale] * len(over)


def _scaled(extent: Expr, scale: float) -> Expr:
    """floor(extent * scale)."""
    if extent.constant is not None:
        return Expr.of(math.floor(extent.constant * scale))
    ratio = Fraction(scale).limit_denominator(10000)
    return (extent * ratio.numerator) // ratio.denominator
