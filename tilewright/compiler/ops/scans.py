"""Running reductions along an axis: each element takes all steps up to its own, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.graph import Tensor, axis_of, element_type, want_float
from tilewright.compiler.ops.pointwise import cast, log
from tilewright.compiler.ops.reductions import limits_of
from tilewright.runtime.errors import DTypeError
from tilewright.runtime.tensor import DType


def cumsum(
    x: Tensor, axis: int = -1, *, exclusive: bool = False, reverse: bool = False, dtype: str | DType | None = None
) -> Tensor:
    """Sums of the elements up to and with each one along an axis.

    exclusive: without the element itself. reverse: from the end on. dtype: of the sums; default x's, and i64 for i1. 16-bit
    floats add in f32.
    """
    return _running("cumsum", x, axis, dtype, (Scalar.__add__, 0), exclusive, reverse)


def cumprod(
    x: Tensor, axis: int = -1, *, exclusive: bool = False, reverse: bool = False, dtype: str | DType | None = None
) -> Tensor:
    """Products of the elements up to and with each one along an axis, as cumsum."""
    return _running("cumprod", x, axis, dtype, (Scalar.__mul__, 1), exclusive, reverse)


def cummax(x: Tensor, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The largest element up to each one along an axis, and its place (i64), the last of equal ones; NaN wins."""
    return _running_extreme("cummax", x, axis)


def cummin(x: Tensor, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The smallest element up to each one along an axis, and its place (i64), the last of equal ones; NaN wins."""
    return _running_extreme("cummin", x, axis)


def logcumsumexp(x: Tensor, axis: int = -1) -> Tensor:
    """log of the running sums of exp(x) along an axis, without overflow: sums are kept relative to the largest element so far."""
    want_float("logcumsumexp", x)
    at, wide = axis_of("logcumsumexp", x, axis), computed_in(x.dtype)

    def body(region: Body, scalars: Sequence[Scalar], out: Sequence[Scalar]) -> list[Scalar]:
        value, (most, total) = scalars[0], out
        same = value.compare("eq", most)  # infinities too, whose difference is NaN
        smaller = region.select(same, region.value(1, wide.value), (0 - (value - most).math("absf")).math("exp"))
        grown = region.select(value.compare("gt", most), total * smaller + 1, total + smaller)
        inside = region.index(x.rank).compare("le", region.index(at))
        return [region.select(inside, most.maximum(value), most), region.select(inside, grown, total)]

    loops, along, kinds = _loops(x, at)
    start = [(x.graph.filled(v, wide, x.dims), loops) for v in (float("-inf"), 0)]
    most, total = x.graph.generics([(x, along)], start, kinds, body)
    return cast(log(total) + most, x.dtype)


def _loops(x: Tensor, at: int) -> tuple[list[str], list[str], list[str]]:
    """Maps of the result and of what it reads, and the kinds of loops: x's axes, then one over the elements before."""
    loops = [f"d{a}" for a in range(x.rank)]
    return loops, [f"d{x.rank}" if a == at else d for a, d in enumerate(loops)], ["parallel"] * x.rank + ["reduction"]


def _running(
    name: str, x: Tensor, axis: int, dtype: str | DType | None, combine: tuple[Callable[[Scalar, Scalar], Scalar], float],
    exclusive: bool, reverse: bool,
) -> Tensor:
    at = axis_of(name, x, axis)
    kind = element_type(name, dtype) if dtype is not None else DType.I64 if x.dtype is DType.I1 else x.dtype
    if kind is DType.I1:
        raise DTypeError(f"{name}: i1 has no sums and products; choose an integer dtype")
    wide, (function, neutral) = computed_in(kind), combine
    predicate = ("g" if reverse else "l") + ("t" if exclusive else "e")

    def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        inside = region.index(x.rank).compare(predicate, region.index(at))
        return region.select(inside, function(out, scalars[0].cast(wide.value)), out)

    loops, along, kinds = _loops(x, at)
    return cast(x.graph.generic([(x, along)], (x.graph.filled(neutral, wide, x.dims), loops), kinds, body), kind)


def _running_extreme(name: str, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    at, largest = axis_of(name, x, axis), name != "cummin"
    g, wide = x.graph, computed_in(x.dtype)
    start = limits_of(wide)[0 if largest else 1]
    loops, along, kinds = _loops(x, at)

    def extreme(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        inside, value = region.index(x.rank).compare("le", region.index(at)), scalars[0].cast(wide.value)
        return region.select(inside, out.maximum(value) if largest else out.minimum(value), out)

    values = cast(g.generic([(x, along)], (g.filled(start, wide, x.dims), loops), kinds, extreme), x.dtype)

    def last(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        value, best = scalars  # the best one up to the element, which is the best there where it was the last to become it
        same = value.compare("eq", best)
        if x.dtype.is_float:
            same = same | value.compare("ne", value)
        inside, here = region.index(x.rank).compare("le", region.index(at)), region.index(x.rank).cast("i64")
        return region.select(inside, region.select(same, here, out), out)

    return values, g.generic([(x, along), (values, along)], (g.filled(-1, DType.I64, x.dims), loops), kinds, last)
