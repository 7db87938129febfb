"""Windows of a tensor: slices as Python's, selections, splits and reversals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.elements import remapped
from tilewright.compiler.ops.graph import Graph, Size, Tensor, axes_of, axis_of, shown, size
from tilewright.compiler.ops.reshaping import squeeze
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr

_NO_END = 1 << 31  # what exporters write for "to the end" is larger


def slice(  # noqa: A001
    x: Tensor, begin: Sequence[Size | None], end: Sequence[Size | None], step: Sequence[int] | None = None
) -> Tensor:
    """Elements begin, begin + step, ... before end of every axis; None is its start or end, -n counts from its end.

    A begin or end beyond the axis is an error; `slice_axis` cuts it off as Python does. A negative step goes backwards.

    Raises:
        ShapeError: not one entry an axis, or a window known to leave its axis. OptionError: a step of 0.
    """
    steps = [1] * x.rank if step is None else list(step)
    if not len(begin) == len(end) == len(steps) == x.rank:
        raise ShapeError(f"slice: wanted a begin, end and step for each of the {x.rank} axes of {shown(x.dims)}")
    if 0 in steps:
        raise OptionError(f"slice: steps {steps}; wanted integers other than 0")
    forward = [s > 0 for s in steps]
    starts = [_position(d, b, Expr.of(0)) if f else Expr.of(0) for d, b, f in zip(x.dims, begin, forward, strict=True)]
    stops = [_position(d, e, d) if f else d for d, e, f in zip(x.dims, end, forward, strict=True)]
    for axis, (a, b, d) in enumerate(zip(starts, stops, x.dims, strict=True)):
        for smaller, larger in ((Expr.of(0), a), (a, b), (b, d)):
            if x.graph.bounds(larger - smaller)[1] < 0:
                raise ShapeError(f"slice: elements {a} to {b} of axis {axis} of {shown(x.dims)}")
    result = window(x, starts, stops, [s if s > 0 else 1 for s in steps])
    for axis, by in enumerate(steps):
        if by < 0:
            result = slice_axis(result, axis, begin[axis], end[axis], by)
    return result


def window(x: Tensor, starts: Sequence[Expr], stops: Sequence[Expr], steps: Sequence[int]) -> Tensor:
    """Elements start, start + step, ... before stop of every axis, all inside x."""
    steps = [_within(x.graph, d, s) for d, s in zip(x.dims, steps, strict=True)]
    dims = [(b - a).ceildiv(s) for a, b, s in zip(starts, stops, steps, strict=True)]
    if tuple(dims) == x.dims and all(s == Expr.of(0) for s in starts):
        return x
    if Expr.of(0) in dims:
        return x.graph.empty(x.dtype, dims)  # MLIR refuses a static window of no elements at the end of an axis
    sizes = x.graph.emitter.sizes
    text = f"tensor.extract_slice {x.ssa}[{sizes(starts)}] [{sizes(dims)}] {list(steps)} : {x.type} to "
    return x.graph.result(text, x.dtype, dims)


def _within(g: Graph, extent: Expr, step: int) -> int:
    """A step of the same effect to which an extent is added within 64 bits: exporters write the largest integer for the first
    element alone."""
    longest = int(max(1, min(g.bounds(extent)[1], _NO_END)))
    return min(step, longest) if step > 0 else max(step, -longest)


def _position(extent: Expr, given: Size | None, default: Expr) -> Expr:
    if given is None:
        return default
    if isinstance(given, int) and given < 0:
        return extent + given
    return size("slice", given)


def slice_axis(x: Tensor, axis: int, begin: Size | None = None, end: Size | None = None, step: int = 1) -> Tensor:
    """x[begin:end:step] along one axis, by Python's rules: what lies beyond is cut off, negative positions count from the end.

    Begin and end are ints, Exprs or None; a negative step goes backwards.
    """
    at = axis_of("slice_axis", x, axis)
    if step == 0:
        raise OptionError("slice_axis: a step of 0; wanted another integer")
    g, extent = x.graph, x.dims[at]
    step = _within(g, extent, step)
    if step > 0:
        first = clamped(g, extent, begin, Expr.of(0), (Expr.of(0), extent))
        last = clamped(g, extent, end, extent, (Expr.of(0), extent))
        starts = [first if a == at else Expr.of(0) for a in range(x.rank)]
        stops = [g.larger(last, first) if a == at else d for a, d in enumerate(x.dims)]
        return window(x, starts, stops, [step if a == at else 1 for a in range(x.rank)])
    inside = (Expr.of(-1), extent - 1)
    first, last = clamped(g, extent, begin, extent - 1, inside), clamped(g, extent, end, Expr.of(-1), inside)
    count = g.larger((first - last).ceildiv(-step), Expr.of(0))

    def place(region: Body, loops: list[Scalar]) -> list[Scalar]:
        return [g.number(region, first, "index") + i * step if a == at else i for a, i in enumerate(loops)]

    return remapped(x, [count if a == at else d for a, d in enumerate(x.dims)], place)


def clamped(g: Graph, extent: Expr, given: Size | None, default: Expr, inside: tuple[Expr, Expr]) -> Expr:
    """A position as Python reads it: counted from the end when negative, and moved `inside`."""
    if given is None:
        return default
    place = Expr.parse(given) if isinstance(given, str) else Expr.of(given)
    if place.constant is not None and place.constant >= _NO_END:
        return inside[1]
    lo, hi = g.bounds(place)
    if hi < 0:
        place = place + extent
    elif lo < 0:  # 1 where it is negative
        place = place + extent * (-place).maximum(0).minimum(1)
    return g.smaller(g.larger(place, inside[0]), inside[1])


def select(x: Tensor, axis: int, index: Size) -> Tensor:
    """x[..., index, ...] without the axis; index: an int or Expr, from the end when it is a negative int."""
    at = axis_of("select", x, axis)
    place = x.dims[at] + index if isinstance(index, int) and index < 0 else size("select", index)
    return squeeze(narrow(x, at, place, 1), at)


def narrow(x: Tensor, axis: int, start: Size, length: Size) -> Tensor:
    """`length` elements from `start` on along one axis; ShapeError when they are known to leave it."""
    at = axis_of("narrow", x, axis)
    first, count = size("narrow", start), size("narrow", length)
    none: list[Size | None] = [None] * x.rank
    return slice(x, [*none[:at], first, *none[at + 1:]], [*none[:at], first + count, *none[at + 1:]])


def split(x: Tensor, sizes: int | Sequence[Size], axis: int = 0) -> list[Tensor]:
    """Parts along one axis: of these sizes, which add up to its extent; or of `sizes` elements each, the last with what is left.

    Raises:
        ShapeError: the sizes do not add up, or one size for an extent that is not an integer (use `chunk`).
    """
    at = axis_of("split", x, axis)
    extent = x.dims[at]
    if isinstance(sizes, int):
        if sizes < 1:
            raise OptionError(f"split: parts of {sizes} elements; wanted 1 or more")
        if extent.constant is None:
            raise ShapeError(f"split: axis {at} of {shown(x.dims)} has no fixed extent, so the number of parts of {sizes} is not "
                             "known; give the sizes, or use chunk")
        whole, rest = divmod(extent.constant, sizes)
        parts = [Expr.of(sizes)] * whole + ([Expr.of(rest)] if rest or not whole else [])
    else:
        parts = [size("split", s) for s in sizes]
        total = Expr.of(0)
        for p in parts:
            total = total + p
        if total != extent:
            x.graph.require_equal(total, extent, f"split: the sizes of the parts of axis {at} of {shown(x.dims)}")
    found, start = [], Expr.of(0)
    for p in parts:
        found.append(narrow(x, at, start, p))
        start = start + p
    return found


def chunk(x: Tensor, count: int, axis: int = 0) -> list[Tensor]:
    """`count` parts of ceil(extent / count) elements along one axis; the last ones are shorter, or empty."""
    at = axis_of("chunk", x, axis)
    if count < 1:
        raise OptionError(f"chunk: {count} parts; wanted 1 or more")
    g, extent = x.graph, x.dims[at]
    each = extent.ceildiv(count)
    ends = [g.smaller(each * i, extent) for i in range(count)] + [extent]
    return [narrow(x, at, a, b - a) for a, b in pairwise(ends)]


def unbind(x: Tensor, axis: int = 0) -> list[Tensor]:
    """Every x[..., i, ...] along one axis of fixed extent, without the axis; ShapeError when its extent is not an integer."""
    at = axis_of("unbind", x, axis)
    count = x.dims[at].constant
    if count is None:
        raise ShapeError(f"unbind: axis {at} of {shown(x.dims)} has no fixed extent; select the places that are needed")
    return [select(x, at, i) for i in range(count)]


def flip(x: Tensor, axes: int | Sequence[int]) -> Tensor:
    """Elements in reverse order along the axes."""
    chosen = axes_of("flip", x, axes)

    def place(region: Body, loops: list[Scalar]) -> list[Scalar]:
        return [x.graph.number(region, x.dims[a] - 1, "index") - i if a in chosen else i for a, i in enumerate(loops)]

    return remapped(x, x.dims, place) if chosen else x
