"""Images at places that a grid names: elements, or their mixture with neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.compiler.ops.body import Scalar, computed_in
from tilewright.compiler.ops.graph import Tensor, shown, want_equal, want_float, want_rank
from tilewright.compiler.ops.interpolation import cubic
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.slicing import select
from tilewright.compiler.ops.weighted_elements import Taps, weighted_elements
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
_SHARPNESS = -0.75  # of the cubic kernel, as torch has it
_NAME, _NARROW = "grid_sample", 1 << 31


def grid_sample(x: Tensor, grid: Tensor, mode: str = "bilinear", padding: str = "zeros", align_corners: bool = False) -> Tensor:
    """x [N, C, H, W] at the places of grid [N, P, Q, 2], as torch.nn.functional.grid_sample: [N, C, P, Q]. Volumes
    [N, C, D, H, W] at those of grid [N, P, Q, R, 3] as well.

    A place is a column and a row (and a slice), -1 and 1 the ends of x: the outer edges of its elements, or with align_corners
    the middles of the first and the last one. What elements weigh follows from the grid alone and is computed once for all
    channels.

    Args:
        mode: bilinear (of volumes trilinear), nearest (ties to even), or bicubic.
        padding: beyond x are zeros, its last element (border), or x reflected at its ends. A place that is no number lies
            outside.
    Raises:
        ShapeError: other ranks, or a last axis of the grid other than 2, of volumes 3. OptionError: an unknown mode or padding.
    """
    if mode not in MODES or padding not in PADDINGS:
        raise OptionError(f"{_NAME}: mode={mode!r}, padding={padding!r}; use {', '.join(MODES)} and {', '.join(PADDINGS)}")
    if x.rank not in (4, 5):
        raise ShapeError(f"{_NAME}: the image has rank {x.rank}, shape {shown(x.dims)}; wanted rank 4, or 5 for volumes")
    want_rank(_NAME, "the grid", grid, x.rank)
    want_float(_NAME, x, grid)
    want_equal(_NAME, "the images and the grids", x.dims[0], grid.dims[0])
    axes = x.rank - 2
    if grid.dims[-1] != Expr.of(axes):
        raise ShapeError(f"{_NAME}: a grid {shown(grid.dims)}; wanted {('two', 'three')[axes - 2]} coordinates in the last axis")
    extents = x.dims[2:]
    whole = DType.I32 if x.graph.bounds(math.prod(extents, start=Expr.of(1)))[1] < _NARROW else DType.I64
    loops = ["d0", *(f"d{a}" for a in range(2, x.rank))]
    how = (mode, padding, align_corners)
    taps = [Taps(_taps(cast(select(grid, -1, axes - 1 - a), computed_in(x.dtype)), extent, how, whole), loops)
            for a, extent in enumerate(extents)]  # fmt: skip
    return weighted_elements(x, taps, grid.dims[1:-1])


def _taps(given: Tensor, extent: Expr, how: tuple[str, str, bool], whole: DType) -> list[tuple[Tensor, Tensor | None]]:
    """Along one axis. how: mode, padding, align_corners."""
    mode, padding, align = how
    g = given.graph

    def place(p: Scalar, size: Scalar) -> Scalar:
        at = (p + 1) * 0.5 * (size - 1) if align else ((p + 1) * size - 1) * 0.5
        return at if mode == "bicubic" else _padded(at, size, padding, align)

    def number(of: Callable[[Scalar], Scalar]) -> Tensor:
        def found(p: Scalar, size: Scalar) -> Scalar:
            at = of(p)
            at = _padded(at, size, padding, align) if mode == "bicubic" else at
            inside = at.compare("ge", 0) & at.compare("lt", size)
            return p.body.select(inside, at, -1.0)

        return cast(g.pointwise(_NAME, found, places, extent), whole)

    places = g.pointwise(_NAME, place, given, extent)
    if mode == "nearest":
        return [(number(lambda p: p.math("roundeven")), None)]

    def weight(p: Scalar, tap: int) -> Scalar:
        distance = (p - (p.math("floor") + float(tap))).math("absf")
        return 1 - distance if mode == "bilinear" else cubic(distance, _SHARPNESS)

    return [(number(lambda p, tap=tap: p.math("floor") + float(tap)),  # type: ignore[misc]
             g.pointwise(_NAME, lambda p, tap=tap: weight(p, tap), places))
            for tap in (range(2) if mode == "bilinear" else range(-1, 3))]  # fmt: skip


def _padded(at: Scalar, size: Scalar, padding: str, align: bool) -> Scalar:
    """A place of an axis, moved into it unless zeros lie beside it."""
    if padding == "zeros":
        return at
    if padding == "reflection":
        first, span = (0.0, size - 1) if align else (-0.5, size)
        away = (at - first).math("absf")
        times = (away / span.maximum(1)).math("floor")
        rest = away - times * span
        odd = (times * 0.5 - (times * 0.5).math("floor")).compare("gt", 0.25)
        at = at.body.select(odd, span - rest, rest) + first
    return at.maximum(0).minimum(size - 1)
