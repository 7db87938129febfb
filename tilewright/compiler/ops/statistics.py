"""What is said of the elements along axes: places of extremes, truth, spread, norms, logarithm of a sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.creation import iota
from tilewright.compiler.ops.graph import Axes, Tensor, axes_of, axis_of, shown, want_float
from tilewright.compiler.ops.pointwise import absolute, cast, compare, exp, log, sqrt
from tilewright.compiler.ops.reductions import SUM, Reduction, accumulate, divided, max, min, sum  # noqa: A004
from tilewright.compiler.ops.reshaping import product_of, reshape, unsqueeze
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_LARGEST_I32 = (1 << 31) - 1
_NO_PLACE = (1 << 63) - 1


def argmax(x: Tensor, axis: int | None = None, keepdims: bool = False, last: bool = False) -> Tensor:
    """The place (i64) of the largest element along an axis: the first one, with `last` the last; a NaN counts as the largest.

    axis: None takes all elements in row-major order and gives a rank of 0 (with keepdims, of x's rank). ShapeError for an axis of
    extent 0.
    """
    return _place("argmax", max, x, axis, keepdims, last)


def argmin(x: Tensor, axis: int | None = None, keepdims: bool = False, last: bool = False) -> Tensor:
    """The place (i64) of the smallest element along an axis, as argmax; a NaN counts as the smallest."""
    return _place("argmin", min, x, axis, keepdims, last)


def _place(name: str, extreme: Callable[..., Tensor], x: Tensor, axis: int | None, keepdims: bool, last: bool) -> Tensor:
    if axis is None:
        found = _place(name, extreme, reshape(x, [product_of(x.dims)]), 0, False, last)
        return reshape(found, [1] * x.rank) if keepdims else found
    at = axis_of(name, x, axis)
    if x.dims[at] == Expr.of(0):
        raise ShapeError(f"{name}: axis {at} of {shown(x.dims)} has no element")
    best = extreme(x, at)
    kept = [a for a in range(x.rank) if a != at]
    narrow = x.graph.bounds(x.dims[at])[1] <= _LARGEST_I32  # which AVX2 has minima of
    kind, none = (DType.I32, _LARGEST_I32) if narrow else (DType.I64, _NO_PLACE)

    def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        value, wanted, here = scalars
        same = value.compare("eq", wanted)
        if x.dtype.is_float:
            same = same | value.compare("ne", value)
        return out.maximum(region.select(same, here, -1)) if last else out.minimum(region.select(same, here, none))

    g, loops = x.graph, [f"d{a}" for a in range(x.rank)]
    own = [loops[a] for a in kept]
    into = (g.filled(-1 if last else none, kind, best.dims), own)
    places = iota(g, [x.dims[at]], 0, kind)  # as an operand: a reduction along rows of nothing but its operands
    roles = ["reduction" if a == at else "parallel" for a in range(x.rank)]
    found = cast(g.generic([(x, loops), (best, own), (places, [loops[at]])], into, roles, body), DType.I64)
    return unsqueeze(found, at) if keepdims else found


def any(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Is an element along the axes (None: all) other than 0? i1; NaN is, and of no elements none is."""
    return max(cast(x, DType.I1), axis, keepdims)


def all(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Are all elements along the axes (None: all) other than 0? i1; of no elements all are."""
    return min(cast(x, DType.I1), axis, keepdims)


def count_nonzero(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """How many elements along the axes (None: all) are not 0: i64."""
    return sum(cast(cast(x, DType.I1), DType.I64), axis, keepdims)


def var(x: Tensor, axis: Axes = None, keepdims: bool = False, correction: float = 1) -> Tensor:
    """Variance over the axes (None: all), with the divisor (elements - correction); NaN where that is 0. Two passes, in f32 or
    wider."""
    return cast(_variance("var", x, axis, keepdims, correction), x.dtype)


def std(x: Tensor, axis: Axes = None, keepdims: bool = False, correction: float = 1) -> Tensor:
    """Square root of `var`."""
    return cast(sqrt(_variance("std", x, axis, keepdims, correction)), x.dtype)


def _variance(name: str, x: Tensor, axis: Axes, keepdims: bool, correction: float) -> Tensor:
    want_float(name, x)
    axes, g = axes_of(name, x, axis), x.graph
    kept = [a for a in range(x.rank) if a not in axes]
    count = product_of([x.dims[a] for a in axes])
    mean = divided(name, accumulate(name, [x], axes, SUM), [x.dims[a] for a in axes], computed_in(x.dtype))
    squares = accumulate(name, [x, mean.on(*kept)], axes, SUM, keepdims, lambda v, m: (v - m) * (v - m))

    def spread(total: Scalar) -> Scalar:
        return total / (g.number(total.body, count, total.kind) - correction).maximum(0)

    return g.pointwise(name, spread, squares)


def logsumexp(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over the axes (None: all), without overflow; -inf of no elements."""
    want_float("logsumexp", x)
    wide = cast(x, computed_in(x.dtype))
    axes = axes_of("logsumexp", x, axis)
    most = max(wide, axes, True)

    def shift(m: Scalar) -> Scalar:
        finite = m.math("absf").compare("ne", math.inf)
        return m.body.select(finite, m, 0)

    by = x.graph.pointwise("logsumexp", shift, most)
    total = log(sum(exp(wide - by), axes, True)) + by
    kept = [d for a, d in enumerate(x.dims) if a not in axes]
    return cast(total if keepdims else reshape(total, kept), x.dtype)


def norm(x: Tensor, p: float = 2, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The p-norm over the axes (None: all): (sum |x|^p)^(1/p); inf and -inf the largest and smallest |x|, 0 how many are not
    0."""
    want_float("norm", x)
    axes, kind = axes_of("norm", x, axis), computed_in(x.dtype)
    wide = cast(x, kind)
    if math.isinf(p):
        return cast((max if p > 0 else min)(absolute(wide), axes, keepdims), x.dtype)
    if math.isnan(p):
        raise OptionError(f"norm: p is {p}; wanted a number or an infinity")
    if p == 0:
        return cast(sum(cast(compare(wide, 0, "ne"), kind), axes, keepdims), x.dtype)
    element: Callable[[Scalar], Scalar] = (
        (lambda v: v * v) if p == 2 else (lambda v: v.math("absf")) if p == 1 else (lambda v: v.math("absf").power(p)))
    total = accumulate("norm", [wide], axes, Reduction(Scalar.__add__, 0), keepdims, element)
    if p == 1:
        return cast(total, x.dtype)
    return cast(sqrt(total) if p == 2 else x.graph.pointwise("norm", lambda v: v.power(1 / p), total), x.dtype)
