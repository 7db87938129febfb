"""Elements at places that a tensor or a mask names, read and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import broadcast
from tilewright.compiler.ops.scalar_functions import select
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

# of an accumulator and a value, with the element type that they have
Combine = Callable[[Scalar, Scalar], Scalar]


def _wrapped(context: Context, index: Scalar, extent: Expr) -> Scalar:
    """A position as an index value; negative ones count from the end."""
    n = context.graph.number(index.body, extent, index.kind)
    return select(index.compare("lt", 0), index + n, index).cast("index")


# -- reading


@register("torch", *names("gather"))
def gather(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, *, sparse_grad: bool = False) -> ops.Tensor:
    """x at the index's own place, but along `axis` where the index says."""
    if not x.rank:
        return x if not index.rank else ops.broadcast_to(x, index.dims)
    at = axis % x.rank
    index = index if index.rank else ops.reshape(index, [1])

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        place = [region.index(d) for d in range(x.rank)]
        place[at] = scalars[0].cast("index")
        return element(region, x, place)

    loops = [f"d{d}" for d in range(index.rank)]
    found = context.graph.generic([(index, loops)], (context.graph.empty(x.dtype, index.dims), loops), ["parallel"] * index.rank, body)
    return ops.reshape(found, context.shape())


@register("torch", *names("index_select"))
def index_select(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor) -> ops.Tensor:
    """x's slices at the positions of a vector."""
    if not x.rank:
        return ops.reshape(ops.broadcast_to(x, [1]), context.shape())
    return ops.gather(x, index if index.rank else ops.reshape(index, [1]), axis % x.rank)


@register("torch", *names("take"))
def take(context: Context, x: ops.Tensor, index: ops.Tensor) -> ops.Tensor:
    """x's elements, numbered row by row, at the positions of a tensor."""
    flat = ops.reshape(x, [-1] if x.rank else [1])
    return _indexed(context, flat, [index])


@register("torch", *names("index", "_unsafe_index", overloads=("Tensor",)))
def index(context: Context, x: ops.Tensor, indices: Sequence[ops.Tensor | None]) -> ops.Tensor:
    """x[indices], by the rules of advanced indexing; None takes the whole axis."""
    return _indexed(context, x, indices)


def _indexed(context: Context, x: ops.Tensor, indices: Sequence[ops.Tensor | None]) -> ops.Tensor:
    given = [(axis, t) for axis, t in enumerate(indices) if t is not None]
    for _, t in given:
        if t.dtype in (DType.I1, DType.U8):
            context.refuse("the extents of its result depend on the mask", "use torch.where, or indices instead of a mask")
    common, maps = broadcast(context.operator, context.graph, [t for _, t in given])
    axes = [axis for axis, _ in given]
    first = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    rest = [a for a in range(x.rank) if a not in axes]
    before = rest[:first]
    dims = (*(x.dims[a] for a in before), *common, *(x.dims[a] for a in rest[first:]))
    loop_of = {a: i for i, a in enumerate(before)} | {a: i + len(common) for i, a in enumerate(rest) if i >= first}

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        places = dict(zip(axes, scalars, strict=True))
        return element(region, x, [_wrapped(context, places[a], x.dims[a]) if a in places else region.index(loop_of[a])
                                   for a in range(x.rank)])

    shifted = [[m if m == "0" else f"d{int(m[1:]) + len(before)}" for m in each] for each in maps]
    operands = [(t, m) for (_, t), m in zip(given, shifted, strict=True)]
    into = (context.graph.empty(x.dtype, dims), [f"d{d}" for d in range(len(dims))])
    return context.graph.generic(operands, into, ["parallel"] * len(dims), body)


# -- writing


@register("torch", *names("masked_fill", overloads=("Scalar", "Tensor")))
def masked_fill(context: Context, x: ops.Tensor, mask: ops.Tensor, value: Any) -> ops.Tensor:
    """`value` where the mask holds."""
    kind = context.dtype()

    def run(v: Scalar, m: Scalar, filled: Scalar) -> Scalar:
        return select(m.cast("i1"), filled.cast(kind.value), v.cast(kind.value))

    return context.graph.map_elements("masked_fill", run, [x, mask, value], kind, kind)


def _replace(_: Scalar, new: Scalar) -> Scalar:
    return new


_COMBINE: dict[str, Combine] = {
    "add": lambda a, b: a | b if a.kind == "i1" else a + b,
    "multiply": lambda a, b: a & b if a.kind == "i1" else a * b,
    "sum": lambda a, b: a | b if a.kind == "i1" else a + b,
    "prod": lambda a, b: a & b if a.kind == "i1" else a * b,
    "amax": Scalar.maximum,
    "amin": Scalar.minimum,
}
_NEUTRAL: dict[str, Callable[[DType], float]] = {
    "sum": lambda _: 0,
    "mean": lambda _: 0,
    "prod": lambda _: 1,
    "amax": lambda t: -float("inf") if t.is_float else 0 if t is DType.I1 else -(1 << 8 * t.bytes - 1),
    "amin": lambda t: float("inf") if t.is_float else 1 if t is DType.I1 else (1 << 8 * t.bytes - 1) - 1,
}


def _written(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: Any, combine: Combine) -> ops.Tensor:
    """x with the source's elements at the places that gather would read; of equal places the last counts, or all combine.

    Every element of the result looks through all places along the axis.
    """
    kind, at = computed_in(x.dtype).value, axis % x.rank
    rank = x.rank
    loops = [f"d{d}" for d in range(rank)]
    along = [f"d{rank}" if d == at else f"d{d}" for d in range(rank)]
    inside = all(i == e for d, (i, e) in enumerate(zip(index.dims, x.dims, strict=True)) if d != at)
    if not inside:
        index, source = _grown(index, source, x, at)
    operands = [(index, along)] + ([(source, along)] if isinstance(source, ops.Tensor) else [])

    def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        new = scalars[1].cast(kind) if isinstance(source, ops.Tensor) else context.graph.number(region, source, kind)
        here = scalars[0].cast("index").compare("eq", region.index(at))
        held = out.cast(kind)
        return select(here, combine(held, new), held)

    wide = x if x.dtype.value == kind else ops.cast(x, kind)
    made = context.graph.generic(operands, (wide, loops), ["parallel"] * rank + ["reduction"], body)
    return made if made.dtype is x.dtype else ops.cast(made, x.dtype)


def _grown(index: ops.Tensor, source: Any, x: ops.Tensor, at: int) -> tuple[ops.Tensor, Any]:
    """Both as large as x but along one axis; the index is -1, which is no place, where there was nothing."""
    low = [0] * x.rank
    zero = Expr.of(0)
    high = [zero if d == at else e - i for d, (i, e) in enumerate(zip(index.dims, x.dims, strict=True))]
    grown = ops.pad(index, low, high, -1)
    if isinstance(source, ops.Tensor):
        source = ops.pad(source, low, high, 0)
    return grown, source


def _flat_cases(x: ops.Tensor, index: ops.Tensor, source: Any) -> tuple[ops.Tensor, ops.Tensor, Any]:
    """Tensors of rank 0 as vectors of one element."""
    if x.rank and index.rank:
        return x, index, source
    one = [1]
    x = x if x.rank else ops.reshape(x, one)
    index = index if index.rank else ops.reshape(index, one)
    return x, index, ops.reshape(source, one) if isinstance(source, ops.Tensor) and not source.rank else source


@register("torch", *names("scatter", overloads=("src", "value", "reduce", "value_reduce")))
def scatter(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: Any, *, reduce: str | None = None) -> ops.Tensor:
    """x with the source at the places that gather would read."""
    x, index, source = _flat_cases(x, index, source)
    source = _part(index, source)
    return ops.reshape(_written(context, x, axis, index, source, _COMBINE[reduce] if reduce else _replace), context.shape())


def _part(index: ops.Tensor, source: Any) -> Any:
    """The part of the source that the index names."""
    if isinstance(source, ops.Tensor) and source.dims != index.dims:
        return ops.slice(source, [None] * index.rank, list(index.dims))
    return source


@register("torch", *names("scatter_add"))
def scatter_add(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor) -> ops.Tensor:
    """x with the source added at the places that gather would read."""
    return scatter(context, x, axis, index, source, reduce="add")


@register("torch", "aten.scatter_reduce.two")
def scatter_reduce(
    context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor, reduce: str, *, include_self: bool = True
) -> ops.Tensor:
    """x with the source combined at the places that gather would read."""
    x, index, source = _flat_cases(x, index, source)
    source = _part(index, source)
    return ops.reshape(_combined(context, x, axis, index, source, reduce, include_self), context.shape())


def _combined(
    context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor, reduce: str, include_self: bool
) -> ops.Tensor:
    graph = context.graph
    start = x
    counts = None
    if not include_self or reduce == "mean":
        nothing = graph.full(x.dims, 0, DType.I64)
        counts = _written(context, nothing, axis, index, 1, _COMBINE["sum"])
    if not include_self:
        assert counts is not None
        neutral = _NEUTRAL[reduce](x.dtype)
        start = graph.map_elements("scatter", lambda v, n: select(n.compare("gt", 0), v.body.value(neutral, v.kind), v),
                                   [x, counts], x.dtype, x.dtype)  # fmt: skip
    made = _written(context, start, axis, index, source, _COMBINE["sum" if reduce == "mean" else reduce])
    if reduce != "mean":
        return made
    assert counts is not None
    own = 1 if include_self else 0

    def mean(v: Scalar, n: Scalar) -> Scalar:
        number = (n + own).maximum(1).cast(v.kind)
        return v / number if x.dtype.is_float else v.floor_divide(number)

    return graph.map_elements("mean", mean, [made, counts], x.dtype, x.dtype)


def _like_source(x: ops.Tensor, axis: int, index: ops.Tensor, dims: Sequence[Expr]) -> ops.Tensor:
    """A vector of positions along one axis as an index for scatter, the same along all other axes."""
    vector = index if index.rank else ops.reshape(index, [1])
    shape = [vector.dims[0] if a == axis else Expr.of(1) for a in range(x.rank)]
    return ops.broadcast_to(ops.reshape(vector, shape), list(dims))


def _by_slices(x: ops.Tensor, axis: int, index: ops.Tensor, source: Any) -> tuple[ops.Tensor, int, ops.Tensor, Any]:
    """Operands of scatter for an operator that writes whole slices."""
    if not x.rank:
        x, axis = ops.reshape(x, [1]), 0
        source = ops.reshape(source, [1]) if isinstance(source, ops.Tensor) else source
    at = axis % x.rank
    count = index.dims[0] if index.rank else Expr.of(1)
    dims = [count if a == at else d for a, d in enumerate(x.dims)]
    if isinstance(source, ops.Tensor) and source.rank and source.dims != tuple(dims):
        source = ops.reshape(source, dims)
    where = x.graph.pointwise("index", lambda i, n: select(i.compare("lt", 0), i + n, i), index, x.dims[at])
    return x, at, _like_source(x, at, where, dims), source


@register("torch", *names("index_add"))
def index_add(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor, *, alpha: Any = 1) -> ops.Tensor:
    """x with slices added at positions along an axis."""
    x, at, places, source = _by_slices(x, axis, index, source)
    if alpha != 1:
        source = x.graph.pointwise("scale", lambda v: _COMBINE["prod"](v, v.body.value(alpha, v.kind)), source)
    return ops.reshape(_written(context, x, at, places, source, _COMBINE["sum"]), context.shape())


@register("torch", *names("index_copy"))
def index_copy(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor) -> ops.Tensor:
    """x with slices in place of those at positions along an axis."""
    x, at, places, source = _by_slices(x, axis, index, source)
    return ops.reshape(_written(context, x, at, places, source, _replace), context.shape())


@register("torch", "aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, value: Any) -> ops.Tensor:
    """x with one value in all slices at positions along an axis."""
    if isinstance(value, ops.Tensor):
        dims = [Expr.of(1)] if not x.rank else list(x.dims)
        if x.rank:
            dims[axis % x.rank] = index.dims[0] if index.rank else Expr.of(1)
        value = ops.broadcast_to(value, dims)
    x, at, places, value = _by_slices(x, axis, index, value)
    return ops.reshape(_written(context, x, at, places, value, _replace), context.shape())


@register("torch", *names("index_reduce"))
def index_reduce(
    context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor, reduce: str, *, include_self: bool = True
) -> ops.Tensor:
    """x with slices combined at positions along an axis."""
    x, at, places, source = _by_slices(x, axis, index, source)
    return ops.reshape(_combined(context, x, at, places, source, reduce, include_self), context.shape())


@register("torch", *names("index_put", "_unsafe_index_put"))
def index_put(
    context: Context, x: ops.Tensor, indices: Sequence[ops.Tensor | None], values: ops.Tensor, accumulate: bool = False
) -> ops.Tensor:
    """x[indices] = values, or += on request."""
    given = [(axis, t) for axis, t in enumerate(indices) if t is not None]
    if len(given) == 1 and given[0][1].dtype is DType.I1 and given[0][1].rank == x.rank and not accumulate and not values.rank:
        return masked_fill(context, x, given[0][1], values)
    for _, t in given:
        if t.dtype in (DType.I1, DType.U8):
            context.refuse("how many values it writes depends on the mask", "use torch.where, or indices instead of a mask")
    axes = [axis for axis, _ in given]
    if axes != list(range(len(axes))):
        context.refuse("it writes through indices of axes other than the first", "transpose the tensor so that indexed axes come first")
    common, _ = broadcast(context.operator, context.graph, [t for _, t in given])
    extents = x.dims[: len(axes)]
    place = None
    for (_, t), extent in zip(given, extents, strict=True):
        here = x.graph.pointwise("index", lambda i, n: select(i.compare("lt", 0), i + n, i), t, extent)
        place = here if place is None else x.graph.pointwise("index", lambda p, i, n: p * n + i, place, here, extent)
    assert place is not None
    rest = x.dims[len(axes):]
    count = _product(common)
    flat = ops.reshape(x, [_product(extents), *rest])
    source = ops.reshape(ops.broadcast_to(values, [*common, *rest]), [count, *rest])
    vector = ops.reshape(ops.broadcast_to(place, list(common)), [count])
    wide = _like_source(flat, 0, vector, [count, *rest])
    written = _written(context, flat, 0, wide, source, _COMBINE["sum"] if accumulate else _replace)
    return ops.reshape(written, context.shape())


@register("torch", *names("put"))
def put(context: Context, x: ops.Tensor, index: ops.Tensor, source: ops.Tensor, accumulate: bool = False) -> ops.Tensor:
    """x with elements, numbered row by row, replaced or added to."""
    count = _product(index.dims)
    if count == Expr.of(0):
        return x
    flat = ops.reshape(x, [_product(x.dims)])
    where = x.graph.pointwise("index", lambda i, n: select(i.compare("lt", 0), i + n, i), ops.reshape(index, [count]), flat.dims[0])
    written = _written(context, flat, 0, where, ops.reshape(source, [count]), _COMBINE["sum"] if accumulate else _replace)
    return ops.reshape(written, context.shape())


def _product(dims: Sequence[Expr]) -> Expr:
    total = Expr.of(1)
    for d in dims:
        total = total * d
    return total
