"""Images at places that a grid names: elements, or their mixture with neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import Tensor, shown, want_equal, want_float, want_rank
from tilewright.compiler.ops.interpolation import cubic
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.reshaping import reshape
from tilewright.compiler.ops.slicing import select
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
_SHARPNESS = -0.75  # of the cubic kernel, as torch has it
_NAME, _NARROW = "grid_sample", 1 << 31

_Taps = list[tuple[Tensor, Tensor | None]]  # along an axis: the element, -1 outside, and its weight, None for 1


def grid_sample(x: Tensor, grid: Tensor, mode: str = "bilinear", padding: str = "zeros", align_corners: bool = False) -> Tensor:
    """x [N, C, H, W] at the places of grid [N, P, Q, 2], as torch.nn.functional.grid_sample: [N, C, P, Q].

    A place is a column and a row, -1 and 1 the ends of x: the outer edges of its elements, or with align_corners the middles of
    the first and the last one. What elements weigh follows from the grid alone and is computed once for all channels.

    Args:
        mode: bilinear, nearest (ties to even), or bicubic.
        padding: beyond x are zeros, its last element (border), or x reflected at its ends. A place that is no number lies
            outside.
    Raises:
        ShapeError: other ranks, or a last axis of the grid other than 2. OptionError: an unknown mode or padding.
    """
    if mode not in MODES or padding not in PADDINGS:
        raise OptionError(f"{_NAME}: mode={mode!r}, padding={padding!r}; use {', '.join(MODES)} and {', '.join(PADDINGS)}")
    want_rank(_NAME, "the image", x, 4)
    want_rank(_NAME, "the grid", grid, 4)
    want_float(_NAME, x, grid)
    want_equal(_NAME, "the images and the grids", x.dims[0], grid.dims[0])
    if grid.dims[3] != Expr.of(2):
        raise ShapeError(f"{_NAME}: a grid {shown(grid.dims)}; wanted two coordinates in the last axis")
    n, c, h, w = x.dims
    whole = DType.I32 if x.graph.bounds(h * w)[1] < _NARROW else DType.I64
    rows, columns = (_taps(cast(select(grid, -1, k), computed_in(x.dtype)), extent, (mode, padding, align_corners), whole)
                     for k, extent in ((1, h), (0, w)))  # fmt: skip
    return _mixed(reshape(x, [n, c, h * w]), w, rows, columns)


def _taps(given: Tensor, extent: Expr, how: tuple[str, str, bool], whole: DType) -> _Taps:
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


def _mixed(x: Tensor, width: Expr, rows: _Taps, columns: _Taps) -> Tensor:
    """The sum over taps of x [N, C, row and column], in what it computes in."""
    g, kind, taps = x.graph, computed_in(x.dtype), [*rows, *columns]
    given = [t for tap in taps for t in tap if t is not None]
    dims = [*x.dims[:2], *given[0].dims[1:]]

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        values = iter(scalars)
        read = [(next(values), next(values) if w is not None else None) for _, w in taps]
        step = g.number(region, width, read[0][0].kind)
        total: Scalar | None = None
        for row, high in read[: len(rows)]:
            for column, wide in read[len(rows) :]:
                inside = row.compare("ge", 0) & column.compare("ge", 0)
                at = region.select(inside, row * step + column, 0)
                value = element(region, x, [region.index(0), region.index(1), at.cast("index")]).cast(kind.value)
                value = region.select(inside, value, 0.0)
                term = value if high is None or wide is None else value * region.select(inside, high * wide, 0.0)
                total = term if total is None else total + term
        assert total is not None
        return total.cast(x.dtype.value)

    into = (g.empty(x.dtype, dims), ["d0", "d1", "d2", "d3"])
    return g.generic([(t, ["d0", "d2", "d3"]) for t in given], into, ["parallel"] * 4, body)
