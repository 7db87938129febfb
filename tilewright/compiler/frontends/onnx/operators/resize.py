"""Resize: every axis by itself, as a weighted sum of elements gathered along it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Union

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.compiler.ops.body import Body, Scalar
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Number = Union[float, Expr]


@dataclass(frozen=True)
class _Axis:
    """One axis to resize. scale: result extent / input extent, None where it is just their quotient; roi: start and end."""

    axis: int
    before: Expr
    after: Expr
    scale: float | None
    roi: tuple[float, float]


@operator("Resize", known=[1, 2, 3])
def resize(
    context: Context, x: ops.Tensor, roi: Known | None = None, scales: Known | None = None, sizes: Known | None = None
) -> ops.Tensor:
    over = context.axes(x.rank, context.attribute("axes", list(range(x.rank))))
    window = [0.0] * len(over) + [1.0] * len(over)
    if roi is not None and roi.elements.size:
        window = context.numbers(roi, "roi")
    axes = _axes(context, x, over, scales, sizes, window)
    crop = context.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    found, outside = x, []
    for a in axes:
        if a.before != a.after or crop or a.scale not in (None, 1.0):
            found, place = _along(context, found, a)
            outside.append((a, place))
    if not crop:
        return found
    return _extrapolated(context, found, outside)


@operator("Upsample", known=[1])
def upsample(context: Context, x: ops.Tensor, scales: Known) -> ops.Tensor:
    return resize(context, x, None, scales)


def _axes(
    context: Context, x: ops.Tensor, over: Sequence[int], scales: Known | None, sizes: Known | None, roi: Sequence[float]
) -> list[_Axis]:
    context.require(len(roi) == 2 * len(over), f"a roi of {len(roi)} numbers for {len(over)} axes")
    windows = list(zip(roi[: len(over)], roi[len(over) :], strict=True))
    if scales is not None and scales.elements.size:
        factors = context.numbers(scales, "scales")
        context.require(len(factors) == len(over), f"{len(factors)} scales for {len(over)} axes")
        context.require(all(map(math.isfinite, factors)), f"scales of {factors}")
        return [
            _Axis(a, x.dims[a], _scaled(x.dims[a], f * _span(context, w)), f, w)
            for a, f, w in zip(over, factors, windows, strict=True)
        ]
    context.require(sizes is not None and len(sizes.exprs()) == len(over), "wanted scales or sizes, one for each axis")
    wanted = [] if sizes is None else sizes.exprs()
    policy = context.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [_Axis(a, x.dims[a], s, None, w) for a, s, w in zip(over, wanted, windows, strict=True)]
    pairs = [(s.constant, x.dims[a].constant) for a, s in zip(over, wanted, strict=True)]
    context.require(
        all(s is not None and d for s, d in pairs), f"keep_aspect_ratio_policy={policy!r} with extents that are dynamic"
    )
    ratios = [(s or 0) / (d or 1) for s, d in pairs]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [
        _Axis(a, x.dims[a], Expr.of(math.floor(scale * (d or 1) + 0.5)), scale, w)
        for a, (_, d), w in zip(over, pairs, windows, strict=True)
    ]


def _span(context: Context, window: tuple[float, float]) -> float:
    crop = context.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return window[1] - window[0] if crop else 1.0


def _scaled(extent: Expr, scale: float) -> Expr:
    """floor(extent * scale)."""
    if extent.constant is not None:
        return Expr.of(math.floor(extent.constant * scale))
    ratio = Fraction(scale).limit_denominator(10000)
    return (extent * ratio.numerator) // ratio.denominator


def _along(context: Context, x: ops.Tensor, a: _Axis) -> tuple[ops.Tensor, ops.Tensor]:
    """x resized along one axis, and the place in x of each result, as f64."""
    graph = context.graph
    place = graph.pointwise("Resize", _coordinate(context, a), ops.iota(graph, [a.after], 0, "f64"), a.before, a.after)
    mode = context.attribute("mode", "nearest")
    if mode == "nearest":
        rounding = _ROUNDINGS[context.attribute("nearest_mode", "round_prefer_floor")]
        index = graph.pointwise("Resize", lambda p, n: rounding(p).maximum(0).minimum(n - 1), place, a.before)
        return ops.gather(x, ops.cast(index, DType.I64), a.axis), place
    context.require(mode in ("linear", "cubic"), f"mode={mode!r}", "Use nearest, linear or cubic")
    taps, weight = _taps(context, a, mode)
    weights = [graph.pointwise("Resize", _weight(context, weight, t), place, a.before) for t in taps]
    if context.attribute("exclude_outside", 0) or context.attribute("antialias", 0):
        total = weights[0]
        for w in weights[1:]:
            total = ops.add(total, w)
        weights = [ops.divide(w, total) for w in weights]
    found = None
    for t, w in zip(taps, weights, strict=True):
        index = graph.pointwise(
            "Resize", lambda p, n, t=t: (p.math("floor") + float(t)).maximum(0).minimum(n - 1), place, a.before
        )
        part = ops.gather(x, ops.cast(index, DType.I64), a.axis)
        shape = [a.after if i == a.axis else Expr.of(1) for i in range(x.rank)]
        term = ops.multiply(part, ops.reshape(ops.cast(w, x.dtype), shape))
        found = term if found is None else ops.add(found, term)
    assert found is not None
    return found, place


_ROUNDINGS: dict[str, Callable[[Scalar], Scalar]] = {
    "round_prefer_floor": lambda p: (p - 0.5).math("ceil"),
    "round_prefer_ceil": lambda p: (p + 0.5).math("floor"),
    "floor": lambda p: p.math("floor"),
    "ceil": lambda p: p.math("ceil"),
}


def _coordinate(context: Context, a: _Axis) -> Callable[[Scalar, Scalar, Scalar], Scalar]:
    """The place in the input of a position in the result; before, after: the extents as numbers."""
    mode = context.attribute("coordinate_transformation_mode", "half_pixel")
    start, end = a.roi

    def scalar(i: Scalar, before: Scalar, after: Scalar) -> Scalar:
        body: Body = i.body
        scale: Scalar | float = after / before if a.scale is None else a.scale
        half = (i + 0.5) / scale - 0.5
        several = after.compare("gt", 1)
        if mode == "half_pixel":
            return half
        if mode == "half_pixel_symmetric":
            return before * 0.5 * (1 - after / (before * scale)) + half
        if mode == "pytorch_half_pixel":
            return body.select(several, half, 0.0)
        if mode == "align_corners":
            exact = after if a.scale is None else before * a.scale  # not rounded down to the extent, as ONNX has it
            return body.select(several, i * (before - 1) / (exact - 1), 0.0)
        if mode == "tf_crop_and_resize":
            steps = (before - 1) * start + i * ((before - 1) * (end - start)) / (after - 1).maximum(1)
            return body.select(several, steps, (before - 1) * (0.5 * (start + end)))
        context.require(mode == "asymmetric", f"coordinate_transformation_mode={mode!r}")
        return i / scale

    return scalar


def _taps(context: Context, a: _Axis, mode: str) -> tuple[range, Callable[[Scalar], Scalar]]:
    """Offsets from the floor of a place that have a weight, and the weight at a distance."""
    shrink = 1.0
    if context.attribute("antialias", 0):
        ends = a.before.constant, a.after.constant
        scale = a.scale if a.scale is not None else (ends[1] or 0) / (ends[0] or 1) if None not in ends else None
        context.require(scale is not None, "antialias with a scale that depends on the dims")
        shrink = min(scale or 1.0, 1.0)
    reach = 1 if mode == "linear" else 2
    first = math.floor(-reach / shrink) + 1
    if mode == "linear":
        return range(first, 2 - first), lambda d: (1 - d * shrink).maximum(0)
    return range(first, 2 - first), lambda d: _cubic(d * shrink, context.attribute("cubic_coeff_a", -0.75))


def _cubic(d: Scalar, a: float) -> Scalar:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return d.body.select(d.compare("le", 1), near, d.body.select(d.compare("lt", 2), far, 0.0))


def _weight(context: Context, weight: Callable[[Scalar], Scalar], tap: int) -> Callable[[Scalar, Scalar], Scalar]:
    exclude = context.attribute("exclude_outside", 0)

    def scalar(p: Scalar, extent: Scalar) -> Scalar:
        at = p.math("floor") + float(tap)
        found = weight((p - at).math("absf"))
        if not exclude:
            return found
        inside = at.compare("ge", 0) & at.compare("lt", extent)
        return p.body.select(inside, found, 0.0)

    return scalar


def _extrapolated(context: Context, x: ops.Tensor, places: Sequence[tuple[_Axis, ops.Tensor]]) -> ops.Tensor:
    value = context.graph.scalar(context.attribute("extrapolation_value", 0.0), x.dtype)
    for a, place in places:
        outside = context.graph.pointwise(
            "Resize", lambda p, n: p.compare("lt", 0) | p.compare("gt", n - 1), place, a.before, dtype=DType.I1
        )
        shape = [a.after if i == a.axis else Expr.of(1) for i in range(x.rank)]
        x = ops.where(ops.reshape(outside, shape), value, x)
    return x
