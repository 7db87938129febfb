"""Resampling: other extents of axes, each element a weighted sum of its neighbours, axis by axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from tilewright.compiler.ops.body import Scalar, computed_in
from tilewright.compiler.ops.creation import iota
from tilewright.compiler.ops.graph import Number, Size, Tensor, element_type, shown, size, want_float, want_keywords
from tilewright.compiler.ops.indexing import gather, take_axes
from tilewright.compiler.ops.joining import broadcast_to
from tilewright.compiler.ops.pointwise import cast, where
from tilewright.compiler.ops.reshaping import reshape
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

COORDINATES = ("half_pixel", "half_pixel_or_first", "half_pixel_symmetric", "align_corners", "asymmetric", "crop")
_NEAREST: Mapping[str, Callable[[Scalar], Scalar]] = {
    "nearest": lambda p: (p + 0.5).math("floor"),
    "nearest_left": lambda p: (p - 0.5).math("ceil"),
    "floor": lambda p: p.math("floor"),
    "ceil": lambda p: p.math("ceil"),
}
_WHOLE = (("floor", "asymmetric"), ("nearest", "half_pixel"), ("nearest_left", "half_pixel"))  # name the element that is repeated
_REACH = {"linear": 1, "cubic": 2}  # of the kernel to either side
MODES = (*_NEAREST, *_REACH)


class InterpolationOptions(TypedDict, total=False):
    """Further keywords of interpolate; see there."""

    axes: Sequence[int]
    cubic_coefficient: float
    antialias: bool
    exclude_outside: bool
    crops: Sequence[tuple[float, float]]
    outside: float
    places: str | DType


@dataclass(frozen=True)
class _Axis:
    """One axis to resample. scale: extent of the result by that of x, None where it is just their quotient."""

    axis: int
    before: Expr
    after: Expr
    scale: float | None
    crop: tuple[float, float]


@dataclass(frozen=True)
class _Kernel:
    """What an element at a distance from a place weighs, and how places are found."""

    mode: str
    coordinates: str
    sharpness: float
    antialias: bool
    exclude_outside: bool
    places: DType


def interpolate(
    x: Tensor, sizes: Sequence[Size], mode: str = "nearest", coordinates: str = "half_pixel",
    scales: Sequence[float | None] | None = None, **options: Unpack[InterpolationOptions],
) -> Tensor:  # fmt: skip
    """x [N, C, ...] with the axes after the channels resampled to `sizes`, ints or Exprs.

    Args:
        mode: nearest (ties to the right), nearest_left (ties to the left), floor and ceil (the neighbour on the left, on the
            right), linear (along every axis), or cubic. Beyond the ends the last element goes on.
        coordinates: where the elements of the result lie in x. half_pixel: as if elements were squares (half_pixel_or_first: the
            first one where there is only one; half_pixel_symmetric: around the middle where a size was rounded); align_corners:
            the first and the last ones coincide; asymmetric: the first ones coincide; crop: align_corners of a part of x. torch's
            nearest is floor with asymmetric, its nearest-exact is nearest with half_pixel.
        scales: extents of the result by extents of x where that is not exactly their quotient, as when a size was rounded.
        axes: those to resample; default all after the channels.
        cubic_coefficient: of the cubic kernel, default -0.75, as torch and OpenCV have it.
        antialias: the kernel of linear and cubic is as wide as an element of the result where that is wider; extents or scales
            must be known.
        exclude_outside: elements beyond the ends weigh nothing.
        crops: start and end of each axis for coordinates="crop", 0 and 1 being the ends of x. outside: the value beyond these.
        places: element type in which places are computed, default f32 (f64 for x of f64).
    Raises:
        ShapeError: not one size for each of the axes. OptionError: an unknown mode or coordinates, or an unknown scale for
            antialias.
    """
    name = "interpolate"
    want_keywords(name, options, InterpolationOptions)
    axes = list(options.get("axes", range(2, x.rank)))
    if len(sizes) != len(axes) or not sizes:
        raise ShapeError(f"{name}: {len(sizes)} sizes for the axes {axes} of {shown(x.dims)}")
    if mode not in MODES or coordinates not in COORDINATES:
        raise OptionError(f"{name}: mode={mode!r}, coordinates={coordinates!r}; use {', '.join(MODES)} and "
                          f"{', '.join(COORDINATES)}")
    if mode in _REACH:
        want_float(name, x)
    usual = DType.F64 if x.dtype is DType.F64 else DType.F32
    kernel = _Kernel(mode, coordinates, options.get("cubic_coefficient", -0.75), options.get("antialias", False),
                     options.get("exclude_outside", False), element_type(name, options.get("places", usual)))  # fmt: skip
    given = list(scales or [None] * len(axes))
    crops = list(options.get("crops", [(0.0, 1.0)] * len(axes)))
    found, value = cast(x, computed_in(x.dtype)) if mode in _REACH else x, options.get("outside")
    moved, repeats = [], dict[int, int]()
    for at, wanted, scale, crop in zip(axes, sizes, given, crops, strict=True):
        axis = _Axis(at, x.dims[at], size(name, wanted), scale, crop)
        if axis.after != axis.before or scale not in (None, 1.0) or coordinates == "crop":
            if value is None and (times := _times(axis, kernel)):
                repeats[at] = times
            else:
                moved.append((axis, _places(x, axis, kernel)))
    if mode in _NEAREST:
        found = take_axes(found, {a.axis: _inside(place, a, _NEAREST[mode]) for a, place in moved})
    else:
        growing = all(x.graph.bounds(a.after - a.before)[0] >= 0 for a, _ in moved)
        for axis, place in reversed(moved) if growing else moved:  # rows are widened while they are few
            found = _along(found, axis, kernel, place)
    for axis, place in moved if value is not None else ():
        found = _beyond(found, axis, place, value or 0)
    return cast(_repeated(found, repeats), x.dtype)


def _times(a: _Axis, kernel: _Kernel) -> int:
    """How often each element of an axis is repeated in a row, where that is what the nearest ones are; 0 where it is not known.

    Factors are powers of two, for which places are computed without rounding.
    """
    if (kernel.mode, kernel.coordinates) not in _WHOLE:
        return 0
    return next((n for n in (2, 4, 8) if a.after == a.before * n and a.scale in (None, float(n))), 0)


def _repeated(x: Tensor, times: Mapping[int, int]) -> Tensor:
    """x with every element of some axes several times in a row."""
    if not times:
        return x
    parts = [[d, Expr.of(times[a])] if a in times else [d] for a, d in enumerate(x.dims)]
    ones = [d for part in parts for d in (part[0], *(Expr.of(1) for _ in part[1:]))]
    wide = broadcast_to(reshape(x, ones), [d for part in parts for d in part])
    return reshape(wide, [d * times.get(a, 1) for a, d in enumerate(x.dims)])


def _places(x: Tensor, a: _Axis, kernel: _Kernel) -> Tensor:
    """The coordinates in x of the elements of the result along an axis."""
    start, end = a.crop

    def place(i: Scalar, before: Scalar, after: Scalar) -> Scalar:
        step = before / after if a.scale is None else i.body.value(1 / a.scale, i.kind)
        several = after.compare("gt", 1)
        if kernel.coordinates == "asymmetric":
            return i * step
        if kernel.coordinates == "align_corners":
            exact = after if a.scale is None else before * a.scale  # not rounded down to the extent
            return i.body.select(several, i * ((before - 1) / (exact - 1)), 0.0)
        if kernel.coordinates == "crop":
            steps = (before - 1) * start + i * ((before - 1) * (end - start)) / (after - 1).maximum(1)
            return i.body.select(several, steps, (before - 1) * (0.5 * (start + end)))
        half = (i + 0.5) * step - 0.5
        if kernel.coordinates == "half_pixel_symmetric":
            return before * 0.5 * (1 - after * step / before) + half
        return half if kernel.coordinates == "half_pixel" else i.body.select(several, half, 0.0)

    return x.graph.pointwise("interpolate", place, iota(x.graph, [a.after], 0, kernel.places), a.before, a.after)


def _inside(place: Tensor, a: _Axis, whole: Callable[[Scalar], Scalar]) -> Tensor:
    """Places as whole ones of x, those beyond its ends moved there."""
    return cast(place.graph.pointwise("interpolate", lambda p, n: whole(p).maximum(0).minimum(n - 1), place, a.before), DType.I64)


def _along(x: Tensor, a: _Axis, kernel: _Kernel, place: Tensor) -> Tensor:
    g = x.graph

    def neighbours(whole: Callable[[Scalar], Scalar]) -> Tensor:
        return gather(x, _inside(place, a, whole), a.axis)

    shrink = _shrink(a, kernel)
    first = math.floor(-_REACH[kernel.mode] / shrink) + 1
    taps = range(first, 2 - first)
    weights = [g.pointwise("interpolate", _weight(kernel, tap, shrink), place, a.before) for tap in taps]
    if kernel.exclude_outside or kernel.antialias:
        total = weights[0]
        for w in weights[1:]:
            total = total + w
        weights = [w / total for w in weights]
    found: Tensor | None = None
    for tap, w in zip(taps, weights, strict=True):
        term = neighbours(lambda p, tap=tap: p.math("floor") + float(tap)) * _row(cast(w, x.dtype), x, a)  # type: ignore[misc]
        found = term if found is None else found + term
    assert found is not None
    return found


def _shrink(a: _Axis, kernel: _Kernel) -> float:
    """The width of an element of x by that of the kernel's unit: below 1 for an antialiased kernel of a smaller result."""
    if not kernel.antialias:
        return 1.0
    before, after = a.before.constant, a.after.constant
    if a.scale is None and (not before or after is None):
        raise OptionError(f"interpolate: antialias of an axis of {a.before} that becomes {a.after}; wanted fixed extents, or "
                          "scales")
    return min(a.scale or (after or 0) / (before or 1) or 1.0, 1.0)


def _weight(kernel: _Kernel, tap: int, shrink: float) -> Callable[[Scalar, Scalar], Scalar]:
    """The weight of the element `tap` elements from the floor of a place, on an axis of an extent."""

    def weight(p: Scalar, extent: Scalar) -> Scalar:
        at = p.math("floor") + float(tap)
        distance = (p - at).math("absf") * shrink
        found = (1 - distance).maximum(0) if kernel.mode == "linear" else cubic(distance, kernel.sharpness)
        if not kernel.exclude_outside:
            return found
        return p.body.select(at.compare("ge", 0) & at.compare("lt", extent), found, 0.0)

    return weight


def cubic(d: Scalar, a: float) -> Scalar:
    """The weight of an element at a distance. Source: Keys 1981, Cubic convolution interpolation."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return d.body.select(d.compare("le", 1), near, d.body.select(d.compare("lt", 2), far, 0.0))


def _row(v: Tensor, x: Tensor, a: _Axis) -> Tensor:
    """One number for each place of an axis, as a tensor of x's rank."""
    return reshape(v, [a.after if i == a.axis else 1 for i in range(x.rank)])


def _beyond(x: Tensor, a: _Axis, place: Tensor, value: Number) -> Tensor:
    """x with `value` where the place lies outside of the axis."""
    outside = x.graph.pointwise(
        "interpolate", lambda p, n: p.compare("lt", 0) | p.compare("gt", n - 1), place, a.before, dtype=DType.I1)  # fmt: skip
    return where(_row(outside, x, a), x.graph.scalar(value, x.dtype), x)
