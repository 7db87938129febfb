"""Order along an axis. An element's place is how many come before it, which is said as such and found by sorting."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar, computed_in, is_float
from tilewright.compiler.ops.creation import iota
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import Size, Tensor, axis_of, shown, size
from tilewright.compiler.ops.indexing import gather_elements, place_of
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.reshaping import squeeze, unsqueeze
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_SHORT = 64  # elements that are all ordered to find one rank
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


def kthvalue(x: Tensor, k: Size | Tensor, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k-th smallest element along an axis, counted from 1 as by torch.kthvalue, and its place (i64); NaN is the largest.

    Of rows of more than 64 elements of up to 32 bits along the last axis it is found by halves of the values that there are, a
    bit at a time, each of which reads the elements once and moves none; others are put in order. Of equal ones any may be named.

    Args:
        k: an int, an Expr, or integers of x's extents without the axis. One below 1 or beyond the extent gives an element
            all the same.
    """
    g, at = x.graph, axis_of("kthvalue", x, axis)
    rank: Tensor | Expr = cast(k, DType.I64) - 1 if isinstance(k, Tensor) else size("kthvalue", k) - 1
    if at != x.rank - 1 or g.bounds(x.dims[at])[1] <= _SHORT or _key_kind(x) is not DType.I32:
        places = _first_places(x, at, x.dims[at], False)
        asked = g.pointwise("kthvalue", lambda _, r: r, g.full(_without(x.dims, at), 0, DType.I64), rank)
        place = gather_elements(places, unsqueeze(asked, at), at)
    else:
        place = unsqueeze(_place_of_rank(x, rank), at)
    return squeeze(gather_elements(x, place, at), at), squeeze(place, at)


def _place_of_rank(x: Tensor, rank: Tensor | Expr) -> Tensor:
    """Of the element of a rank along the last axis, by halves of the values that there are."""
    g, keys = x.graph, _keys(x, False)
    whole, dims = keys.dtype, x.dims[:-1]
    least, most = map(int, whole.limits)
    loops = [f"d{a}" for a in range(x.rank)]
    own, roles = loops[:-1], ["parallel"] * (x.rank - 1) + ["reduction"]

    def smaller(_: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        return out + scalars[0].compare("lt", scalars[1]).cast(whole.value)

    found = g.filled(least, whole, dims)
    for bit in reversed(range(8 * whole.bytes)):
        by = least if bit == 8 * whole.bytes - 1 else 1 << bit
        larger = g.pointwise("kthvalue", lambda f, by=by: f ^ by, found)
        count = g.generic([(keys, loops), (larger, own)], (g.filled(0, whole, dims), own), roles, smaller)
        found = g.map_elements("kthvalue", lambda f, m, n, r: f.body.select(n.compare("le", r.cast(whole.value)), m, f),
                               [found, larger, count, rank], whole, whole)

    def first(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        key, wanted, here = scalars
        return out.minimum(region.select(key.compare("eq", wanted), here, most))

    inputs = [(keys, loops), (found, own), (iota(g, [x.dims[-1]], 0, whole), [loops[-1]])]
    return cast(g.generic(inputs, (g.filled(most, whole, dims), own), roles, first), DType.I64)


def _without(dims: Sequence[Expr], axis: int) -> list[Expr]:
    return [d for a, d in enumerate(dims) if a != axis]


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
    wide = _key_kind(x)

    def key(value: Scalar) -> Scalar:
        found = _float_key(value, wide.value) if is_float(value.kind) else _whole_key(value, wide.value)
        return found ^ -1 if descending else found

    return x.graph.pointwise("sort", key, cast(x, computed_in(x.dtype)), dtype=wide)


def _key_kind(x: Tensor) -> DType:
    kind = computed_in(x.dtype)
    return DType.I64 if kind.bytes == 8 or kind is DType.U32 else DType.I32


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
