"""Resampling: other extents of spatial axes, each element a weighted sum of its neighbours, axis by axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import Size, Tensor, shown, size, want_float
from tilewright.compiler.ops.pointwise import cast
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

COORDINATES = ("half_pixel", "align_corners", "asymmetric")
MODES = ("nearest", "floor", "linear", "cubic")
_SHARPNESS = -0.75  # of the cubic kernel, as torch and OpenCV have it


def interpolate(
    x: Tensor, sizes: Sequence[Size], mode: str = "nearest", coordinates: str = "half_pixel",
    scales: Sequence[float | None] | None = None,
) -> Tensor:
    """x [N, C, ...] with the axes after the channels resampled to `sizes`, ints or Exprs.

    Args:
        mode: nearest (ties to the right), floor (the neighbour on the left), linear (along every axis), or cubic. Beyond the ends
            the last element goes on.
        coordinates: where the elements of the result lie in x. half_pixel: as if elements were squares; align_corners: the first
            and the last ones coincide; asymmetric: the first ones coincide. torch's nearest is floor with asymmetric, its
            nearest-exact is nearest with half_pixel.
        scales: extents of the result by extents of x where that is not exactly their quotient, as when a size was rounded.
    Raises:
        ShapeError: not one size for each of the axes. OptionError: an unknown mode or coordinates.
    """
    if len(sizes) != x.rank - 2 or not sizes:
        raise ShapeError(f"interpolate: {len(sizes)} sizes for the axes after the channels of {shown(x.dims)}")
    if mode not in MODES or coordinates not in COORDINATES:
        raise OptionError(f"interpolate: mode={mode!r}, coordinates={coordinates!r}; use {', '.join(MODES)} and "
                          f"{', '.join(COORDINATES)}")
    if mode in ("linear", "cubic"):
        want_float("interpolate", x)
    given = [None] * len(sizes) if scales is None else list(scales)
    found = cast(x, computed_in(x.dtype))
    for axis, (wanted, scale) in enumerate(zip(sizes, given, strict=True), 2):
        extent = size("interpolate", wanted)
        if extent != x.dims[axis] or scale not in (None, 1.0):
            found = _along(found, axis, extent, mode, _place(found, axis, extent, coordinates, scale))
    return cast(found, x.dtype)


def _place(x: Tensor, axis: int, extent: Expr, coordinates: str, scale: float | None) -> Callable[[Body], Scalar]:
    """The coordinate in x, as a float, of an element of the result."""
    g, kind = x.graph, (DType.F64 if x.dtype is DType.F64 else DType.F32).value

    def place(region: Body) -> Scalar:
        i = region.index(axis).cast(kind)
        before, after = g.number(region, x.dims[axis], kind), g.number(region, extent, kind)
        if coordinates == "align_corners":
            return i * ((before - 1) / (after - 1).maximum(1))
        step = before / after if scale is None else region.value(1 / scale, kind)
        return i * step if coordinates == "asymmetric" else (i + 0.5) * step - 0.5

    return place


def _along(x: Tensor, axis: int, extent: Expr, mode: str, place: Callable[[Body], Scalar]) -> Tensor:
    g = x.graph
    dims = [extent if a == axis else d for a, d in enumerate(x.dims)]

    def body(region: Body, _: Sequence[Scalar], __: Scalar) -> Scalar:
        last = g.number(region, x.dims[axis] - 1, "index")

        def neighbour(at: Scalar) -> Scalar:
            inside = at.cast("index").maximum(0).minimum(last)
            return element(region, x, [inside if a == axis else region.index(a) for a in range(x.rank)])

        at = place(region)
        if mode in ("nearest", "floor"):
            return neighbour((at + 0.5 if mode == "nearest" else at).math("floor"))
        left = at.math("floor")
        rest = (at - left).cast(x.dtype.value)
        weights = [1 - rest, rest] if mode == "linear" else _cubic(rest)
        first = 0 if mode == "linear" else -1
        total: Scalar | None = None
        for number, weight in enumerate(weights, first):
            term = neighbour(left + float(number)) * weight
            total = term if total is None else total + term
        assert total is not None
        return total

    loops = [f"d{a}" for a in range(x.rank)]
    return g.generic([], (g.empty(x.dtype, dims), loops), ["parallel"] * x.rank, body)


def _cubic(t: Scalar) -> list[Scalar]:
    """Weights of the four neighbours of a place t behind the second. Source: Keys 1981, Cubic convolution interpolation."""
    a = _SHARPNESS

    def near(d: Scalar) -> Scalar:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Scalar) -> Scalar:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]
