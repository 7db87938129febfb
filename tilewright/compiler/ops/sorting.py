"""Order along an axis. An element's place is how many come before it, which is said as such and found by sorting."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar, computed_in, is_float
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import Size, Tensor, axis_of, shown, size
from tilewright.compiler.ops.indexing import gather_elements, place_of
from tilewright.compiler.ops.pointwise import cast
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_MOST_SEARCHED = 1 << 31  # boundaries that steps of halves are written out for


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
    shape. Found by halves where the number of boundaries has a bound."""
    if boundaries.rank != 1:
        raise ShapeError(f"searchsorted: boundaries {shown(boundaries.dims)}; wanted one axis")
    g, rank = values.graph, values.rank
    kind = g.common_type("searchsorted", boundaries, values).value

    def stands(bound: Scalar, value: Scalar) -> Scalar:
        return ~_before(value, bound, False) if right else _before(bound, value, False)

    def counted(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        bound, value = (s.cast(kind) for s in scalars)
        return out + stands(bound, value).cast("i64")

    def searched(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        value, all_ = scalars[0].cast(kind), g.number(region, boundaries.dims[0], "i64")
        found = region.value(0, "i64")
        for bit in reversed(range(int(most).bit_length())):
            further = found + (1 << bit)
            last = (further - 1).minimum(all_ - 1)
            bound = element(region, boundaries, [place_of(boundaries, 0, last, False)]).cast(kind)
            found = region.select(further.compare("le", all_) & stands(bound, value), further, found)
        return found

    loops, (least, most) = [f"d{i}" for i in range(rank)], g.bounds(boundaries.dims[0])
    if least >= 1 and most < _MOST_SEARCHED:
        return g.generic([(values, loops)], (g.empty(DType.I64, values.dims), loops), ["parallel"] * rank, searched)
    into = (g.filled(0, DType.I64, values.dims), loops)
    return g.generic([(boundaries, [f"d{rank}"]), (values, loops)], into, ["parallel"] * rank + ["reduction"], counted)


def _before(a: Scalar, b: Scalar, descending: bool) -> Scalar:
    """Does a come before b? NaN is larger than any number."""
    if descending:
        a, b = b, a
    smaller = a.compare("lt", b)
    if not is_float(a.kind):
        return smaller
    return smaller | (a.compare("eq", a) & b.compare("ne", b))


def _keys(x: Tensor, descending: bool) -> Tensor:
    """Integers in the order of the elements: NaN is the largest, and -0 equals 0."""
    kind = computed_in(x.dtype)
    wide = "i64" if kind.bytes == 8 or kind is DType.U32 else "i32"

    def key(value: Scalar) -> Scalar:
        found = _float_key(value, wide) if is_float(value.kind) else _whole_key(value, wide)
        return found ^ -1 if descending else found

    return x.graph.pointwise("sort", key, cast(x, kind), dtype=DType(wide))


def _float_key(value: Scalar, kind: str) -> Scalar:
    """The bits, with those below the sign inverted where it is set."""
    body, most = value.body, DType(kind).limits[1]
    positive = value + 0.0
    bits = body.emit(f"arith.bitcast {positive.ssa} : {value.kind} to {kind}", kind)
    ordered = body.select(bits.compare("lt", 0), bits ^ int(most), bits)
    return body.select(value.compare("ne", value), int(most), ordered)


def _whole_key(value: Scalar, kind: str) -> Scalar:
    wide = value.cast(kind)
    return wide ^ int(DType(kind).limits[0]) if value.kind == "ui64" else wide


def _first_places(x: Tensor, at: int, count: Expr, descending: bool) -> Tensor:
    """For each of the first `count` places in order, where along the axis its element stands: i64."""
    g, rank = x.graph, x.rank
    loops = [f"d{a}" for a in range(rank)]
    other = [f"d{rank}" if a == at else d for a, d in enumerate(loops)]
    kinds = ["parallel"] * rank + ["reduction"]

    def ahead(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        own, its = scalars
        tie = its.compare("eq", own) & region.index(rank).compare("lt", region.index(at))
        return (out + (its.compare("lt", own) | tie).cast("i64")).minimum(g.number(region, count, "i64"))

    keys = _keys(x, descending)
    position = g.generic([(keys, loops), (keys, other)], (g.filled(0, DType.I64, x.dims), loops), kinds, ahead)

    def found(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        here = scalars[0].compare("eq", region.index(at).cast("i64"))
        return region.select(here, region.index(rank).cast("i64"), out)

    dims = [count if a == at else d for a, d in enumerate(x.dims)]
    return g.generic([(position, other)], (g.filled(0, DType.I64, dims), loops), kinds, found)
