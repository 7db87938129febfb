"""Order along an axis. An element's place is how many come before it: the work grows with the square of the extent."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar, is_float
from tilewright.compiler.ops.graph import Size, Tensor, axis_of, shown, size
from tilewright.compiler.ops.indexing import gather_elements
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """The elements in order along an axis, and the places (i64) that they come from. Equal ones keep their order; NaN is the
    largest."""
    at = axis_of("sort", x, axis)
    places = _first_places(x, at, x.dims[at], descending)
    return gather_elements(x, places, at), places


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The places (i64) of the elements in order along an axis. Equal ones keep their order; NaN is the largest."""
    at = axis_of("argsort", x, axis)
    return _first_places(x, at, x.dims[at], descending)


def topk(x: Tensor, k: Size, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements along an axis, in that order, and their places (i64); of equal ones the first come
    first.

    k: an int or an Expr. ShapeError when it is known to be more than the extent.
    """
    at, count = axis_of("topk", x, axis), size("topk", k)
    if x.graph.bounds(x.dims[at] - count)[1] < 0:
        raise ShapeError(f"topk: {count} elements of axis {at} of {shown(x.dims)}")
    places = _first_places(x, at, count, largest)
    return gather_elements(x, places, at), places


def searchsorted(boundaries: Tensor, values: Tensor, right: bool = False) -> Tensor:
    """Where each value would stand in the sorted boundaries [N]: how many are smaller (with `right`, not larger). i64, values'
    shape."""
    if boundaries.rank != 1:
        raise ShapeError(f"searchsorted: boundaries {shown(boundaries.dims)}; wanted one axis")
    g, rank = values.graph, values.rank
    kind = g.common_type("searchsorted", boundaries, values).value

    def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        bound, value = (s.cast(kind) for s in scalars)
        before = ~_before(value, bound, False) if right else _before(bound, value, False)
        return out + before.cast("i64")

    loops = [f"d{i}" for i in range(rank)]
    into = (g.filled(0, DType.I64, values.dims), loops)
    return g.generic([(boundaries, [f"d{rank}"]), (values, loops)], into, ["parallel"] * rank + ["reduction"], body)


def _before(a: Scalar, b: Scalar, descending: bool) -> Scalar:
    """Does a come before b? NaN is larger than any number."""
    if descending:
        a, b = b, a
    smaller = a.compare("lt", b)
    if not is_float(a.kind):
        return smaller
    return smaller | (a.compare("eq", a) & b.compare("ne", b))


def _first_places(x: Tensor, at: int, count: Expr, descending: bool) -> Tensor:
    """For each of the first `count` places in order, where along the axis its element stands: i64."""
    g, rank = x.graph, x.rank
    loops = [f"d{a}" for a in range(rank)]
    other = [f"d{rank}" if a == at else d for a, d in enumerate(loops)]
    kinds = ["parallel"] * rank + ["reduction"]

    def ahead(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        own, its = scalars
        first, later = _before(its, own, descending), _before(own, its, descending)
        tie = ~later & region.index(rank).compare("lt", region.index(at))
        return out + (first | tie).cast("i64")

    position = g.generic([(x, loops), (x, other)], (g.filled(0, DType.I64, x.dims), loops), kinds, ahead)

    def found(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        here = scalars[0].compare("eq", region.index(at).cast("i64"))
        return region.select(here, region.index(rank).cast("i64"), out)

    dims = [count if a == at else d for a, d in enumerate(x.dims)]
    return g.generic([(position, other)], (g.filled(0, DType.I64, dims), loops), kinds, found)
