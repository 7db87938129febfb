"""Change of shape and selection: reshape, transpose, slice, pad, concat, gather, broadcast."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.graph import Size, Tensor, axis_of, same_dtype, shown, size, want_equal
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.shape import Expr


def transpose(x: Tensor, permutation: Sequence[int] | None = None) -> Tensor:
    """Axis i of the result is axis permutation[i] of `x`; default: all axes reversed."""
    order = list(reversed(range(x.rank))) if permutation is None else [axis_of("transpose", x, a) for a in permutation]
    if sorted(order) != list(range(x.rank)):
        raise OptionError(f"transpose: {list(permutation or ())} is no permutation of the {x.rank} axes")
    dims = [x.dims[a] for a in order]
    into = x.graph.empty(x.dtype, dims)
    text = f"linalg.transpose ins({x.ssa} : {x.type}) outs({into.ssa} : {into.type}) permutation = {order}"
    return Tensor(x.graph, x.graph.emitter.emit(text), x.dtype, tuple(dims))


def reshape(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """Adjacent axes merged and split; one extent may be -1. ShapeError when the sizes do not match symbolically."""
    sizes = [None if d == -1 else size("reshape", d) for d in shape]
    if sizes.count(None) > 1:
        raise OptionError(f"reshape: {list(shape)} leaves more than one extent open")
    if None in sizes:
        known = _product([d for d in sizes if d is not None])
        if known == Expr.of(0):
            raise ShapeError(f"reshape: an open extent beside an extent of 0 in {list(shape)}")
        sizes[sizes.index(None)] = _product(x.dims) // known
    target = [d for d in sizes if d is not None]
    if _product(target) != _product(x.dims):
        raise ShapeError(f"reshape: {shown(x.dims)} has {_product(x.dims)} elements, "
                         f"{shown(target)} has {_product(target)}")
    if not target and x.rank:
        return x.graph.result(f"tensor.collapse_shape {x.ssa} [] : {x.type} into ", x.dtype, [])
    groups = _matched_groups(x.dims, target)
    return expand(collapse(x, [g for g, _ in groups]), [[target[i] for i in g] for _, g in groups])


def _product(dims: Sequence[Expr]) -> Expr:
    total = Expr.of(1)
    for d in dims:
        total = total * d
    return total


def _matched_groups(a: Sequence[Expr], b: Sequence[Expr]) -> list[tuple[list[int], list[int]]]:
    """The finest split of both shapes into runs of axes of equal size."""
    if _product(a) == Expr.of(0):
        return [(list(range(len(a))), list(range(len(b))))]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        ends = [(p, q) for p in range(i + 1, len(a) + 1) for q in range(j + 1, len(b) + 1)
                if _product(a[i:p]) == _product(b[j:q])]
        p, q = min(ends, key=sum)
        groups.append((list(range(i, p)), list(range(j, q))))
        i, j = p, q
    rest = list(range(i, len(a))), list(range(j, len(b)))
    if groups:
        groups[-1] = (groups[-1][0] + rest[0], groups[-1][1] + rest[1])
        return groups
    return [rest] if any(rest) else []


def collapse(x: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Each group of adjacent axes merged into one axis."""
    if all(len(g) == 1 for g in groups) or not x.rank:
        return x
    dims = [_product([x.dims[a] for a in g]) for g in groups]
    if Expr.of(0) in dims:
        return x.graph.empty(x.dtype, dims)
    shown_groups = [list(g) for g in groups]
    return x.graph.result(f"tensor.collapse_shape {x.ssa} {shown_groups} : {x.type} into ", x.dtype, dims)


def expand(x: Tensor, groups: Sequence[Sequence[Expr]]) -> Tensor:
    """Axis i split into the extents groups[i]."""
    if all(len(g) == 1 for g in groups):
        return x
    dims = [d for g in groups for d in g]
    if Expr.of(0) in x.dims:
        return x.graph.empty(x.dtype, dims)
    axes, at = [], 0
    for g in groups:
        axes.append(list(range(at, at + len(g))))
        at += len(g)
    shown_axes = axes if x.rank else []
    sizes = x.graph.emitter.sizes(dims)
    text = f"tensor.expand_shape {x.ssa} {shown_axes} output_shape [{sizes}] : {x.type} into "
    return x.graph.result(text, x.dtype, dims)


def slice(  # noqa: A001
    x: Tensor, begin: Sequence[Size | None], end: Sequence[Size | None], step: Sequence[int] | None = None
) -> Tensor:
    """Elements begin, begin + step, ... below end of every axis; None is its start or end, -n counts from its end."""
    steps = [1] * x.rank if step is None else list(step)
    if not len(begin) == len(end) == len(steps) == x.rank:
        raise ShapeError(f"slice: wanted a begin, end and step for each of the {x.rank} axes of {shown(x.dims)}")
    if any(s < 1 for s in steps):
        raise OptionError(f"slice: steps {steps}; wanted positive integers")
    starts = [_position(d, b, Expr.of(0)) for d, b in zip(x.dims, begin, strict=True)]
    stops = [_position(d, e, d) for d, e in zip(x.dims, end, strict=True)]
    dims = [(b - a).ceildiv(s) for a, b, s in zip(starts, stops, steps, strict=True)]
    for axis, (a, b, d) in enumerate(zip(starts, stops, x.dims, strict=True)):
        for smaller, larger in ((Expr.of(0), a), (a, b), (b, d)):
            gap = (larger - smaller).constant
            if gap is not None and gap < 0:
                raise ShapeError(f"slice: elements {a} to {b} of axis {axis} of {shown(x.dims)}")
    if Expr.of(0) in dims:
        return x.graph.empty(x.dtype, dims)  # MLIR refuses a static window of no elements at the end of an axis
    sizes = x.graph.emitter.sizes
    text = f"tensor.extract_slice {x.ssa}[{sizes(starts)}] [{sizes(dims)}] {steps} : {x.type} to "
    return x.graph.result(text, x.dtype, dims)


def _position(extent: Expr, given: Size | None, default: Expr) -> Expr:
    if given is None:
        return default
    if isinstance(given, int) and given < 0:
        return extent + given
    return size("slice", given)


def pad(x: Tensor, low: Sequence[Size], high: Sequence[Size], value: float = 0) -> Tensor:
    """`low` and `high` elements of `value` before and after every axis."""
    if not len(low) == len(high) == x.rank:
        raise ShapeError(f"pad: wanted a low and a high width for each of the {x.rank} axes of {shown(x.dims)}")
    before, after = [size("pad", w) for w in low], [size("pad", w) for w in high]
    if all(w == Expr.of(0) for w in (*before, *after)):
        return x
    dims = [a + d + b for d, a, b in zip(x.dims, before, after, strict=True)]
    emitter = x.graph.emitter
    constant = emitter.constant(value, x.dtype.value)
    indices = ", ".join(f"{emitter.fresh()}: index" for _ in dims)
    text = (f"tensor.pad {x.ssa} low[{emitter.sizes(before)}] high[{emitter.sizes(after)}] {{\n    ^bb0({indices}):\n"
            f"      tensor.yield {constant} : {x.dtype.signless.value}\n    }} : {x.type} to ")
    return x.graph.result(text, x.dtype, dims)


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Joined along one axis; the other extents are equal."""
    same_dtype("concat", tensors)
    first = tensors[0]
    at = axis_of("concat", first, axis)
    total = first.dims[at]
    for t in tensors[1:]:
        if t.rank != first.rank:
            raise ShapeError(f"concat: tensors of rank {first.rank} and {t.rank}")
        for a in range(t.rank):
            if a != at:
                want_equal("concat", f"the extents of axis {a}", first.dims[a], t.dims[a])
        total = total + t.dims[at]
    dims = [total if a == at else d for a, d in enumerate(first.dims)]
    operands, types = ", ".join(t.ssa for t in tensors), ", ".join(t.type for t in tensors)
    return first.graph.result(f"tensor.concat dim({at}) {operands} : ({types}) -> ", first.dtype, dims)


def gather(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """x's slices at `indices` (an integer tensor of any rank, values in [0, extent)) along `axis`, as numpy.take."""
    if indices.dtype.is_float or indices.dtype.value == "i1":
        raise DTypeError(f"gather: wanted integer indices, came {indices.dtype.value}")
    at = axis_of("gather", x, axis)
    dims = (*x.dims[:at], *indices.dims, *x.dims[at + 1:])
    inner = range(at, at + indices.rank)

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        loops = [d for d in range(len(dims)) if d not in inner]
        found = [region.index(d).ssa for d in loops]
        place = [*found[:at], scalars[0].cast("index").ssa, *found[at:]]
        return region.emit(f"tensor.extract {x.ssa}[{', '.join(place)}] : {x.type}", x.dtype.value)

    graph = x.graph
    into = (graph.empty(x.dtype, dims), [f"d{d}" for d in range(len(dims))])
    return graph.generic([(indices, [f"d{d}" for d in inner])], into, ["parallel"] * len(dims), body)


def broadcast_to(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """Repeated along new leading axes and along axes of extent 1."""
    dims = [size("broadcast_to", d) for d in shape]
    offset, one = len(dims) - x.rank, Expr.of(1)
    if offset < 0:
        raise ShapeError(f"broadcast_to: {shown(x.dims)} has more axes than {shown(dims)}")
    for d, wanted in zip(x.dims, dims[offset:], strict=True):
        if d not in (one, wanted):
            raise ShapeError(f"broadcast_to: {shown(x.dims)} does not broadcast to {shown(dims)}")
    maps = ["0" if d == one and dims[offset + a] != one else f"d{offset + a}" for a, d in enumerate(x.dims)]
    into = (x.graph.empty(x.dtype, dims), [f"d{d}" for d in range(len(dims))])
    return x.graph.generic([(x, maps)], into, ["parallel"] * len(dims), lambda _, v, __: v[0])
