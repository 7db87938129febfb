"""Elements at places that a tensor or a mask names, read and written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.compiler.ops.body import Scalar
from tilewright.compiler.ops.scalar_functions import select
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Indices = Sequence[ops.Tensor | None]
_REDUCTIONS = {None: "set", "add": "add", "sum": "add", "multiply": "multiply", "prod": "multiply", "amax": "max", "amin": "min",
               "mean": "mean"}  # fmt: skip


def _reduction(x: ops.Tensor, name: str | None) -> str:
    """The builder's name of a reduction; booleans are added by `or` and multiplied by `and`."""
    found = _REDUCTIONS[name]
    return {"add": "max", "multiply": "min"}.get(found, found) if x.dtype is DType.I1 else found


def _vector(x: ops.Tensor) -> ops.Tensor:
    return x if x.rank else ops.reshape(x, [1])


def _no_mask(context: Context, indices: Indices) -> None:
    if any(t is not None and t.dtype in (DType.I1, DType.U8) for t in indices):
        context.refuse("the extents of its result depend on the mask", "use torch.where, or indices instead of a mask")


# -- reading


@register("torch", *names("gather"))
def gather(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, *, sparse_grad: bool = False) -> ops.Tensor:
    """x at the index's own place, but along `axis` where the index says."""
    if Expr.of(0) in index.dims:
        return x.graph.full(index.dims, 0, x.dtype)
    return ops.reshape(ops.gather_elements(_vector(x), _vector(index), axis), context.shape())


@register("torch", *names("index_select"))
def index_select(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor) -> ops.Tensor:
    """x's slices at the positions of a vector."""
    return ops.reshape(ops.gather(_vector(x), _vector(index), axis), context.shape())


@register("torch", *names("take"))
def take(context: Context, x: ops.Tensor, index: ops.Tensor) -> ops.Tensor:
    """x's elements, numbered row by row, at the positions of a tensor."""
    return ops.gather(ops.reshape(x, [_size(x)]), index, 0, negative=True)


@register("torch", *names("index", "_unsafe_index", overloads=("Tensor",)))
def index(context: Context, x: ops.Tensor, indices: Indices) -> ops.Tensor:
    """x[indices], by the rules of advanced indexing; None takes the whole axis."""
    _no_mask(context, indices)
    return ops.index(x, indices)


@register("torch", *names("_unsafe_masked_index"))
def masked_index(context: Context, x: ops.Tensor, mask: ops.Tensor, indices: Indices, fill: float) -> ops.Tensor:
    """x[indices] where the mask holds, else a number; what the indices are elsewhere does not count."""
    found = ops.index(x, _inside(x, mask, indices))
    return ops.masked_fill(found, x.graph.pointwise("not", lambda m: ~m, mask), fill)


def _inside(x: ops.Tensor, mask: ops.Tensor, indices: Indices) -> list[ops.Tensor | None]:
    """Indices moved into x where the mask does not hold."""

    def moved(i: Scalar, m: Scalar, n: Scalar) -> Scalar:
        return select(m.cast("i1"), i, i.maximum(0).minimum(n - 1))

    return [
        t if t is None else x.graph.map_elements("index", moved, [t, mask, x.dims[a]], t.dtype, t.dtype)
        for a, t in enumerate(indices)
    ]


# -- writing


@register("torch", *names("masked_fill", overloads=("Scalar", "Tensor")))
def masked_fill(context: Context, x: ops.Tensor, mask: ops.Tensor, value: Any) -> ops.Tensor:
    """`value` where the mask holds."""
    kind = context.dtype()

    def run(v: Scalar, m: Scalar, filled: Scalar) -> Scalar:
        return select(m.cast("i1"), filled.cast(kind.value), v.cast(kind.value))

    return context.graph.map_elements("masked_fill", run, [x, mask, value], kind, kind)


@register("torch", *names("scatter", overloads=("src", "value", "reduce", "value_reduce")))
def scatter(
    context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: Any, *, reduce: str | None = None
) -> ops.Tensor:
    """x with the source at the places that gather would read."""
    return _scattered(context, x, axis, index, source, _reduction(x, reduce))


@register("torch", *names("scatter_add"))
def scatter_add(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor) -> ops.Tensor:
    """x with the source added at the places that gather would read."""
    return _scattered(context, x, axis, index, source, _reduction(x, "add"))


@register("torch", "aten.scatter_reduce.two")
def scatter_reduce(
    context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor, reduce: str, *, include_self: bool = True
) -> ops.Tensor:
    """x with the source combined at the places that gather would read."""
    return _scattered(context, x, axis, index, source, _reduction(x, reduce), include_self)


def _scattered(
    context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: Any, reduce: str, include_self: bool = True
) -> ops.Tensor:
    updates = _vector(source) if isinstance(source, ops.Tensor) else source
    made = ops.scatter(_vector(x), _vector(index), updates, axis, reduce=reduce, include_self=include_self)
    return ops.reshape(made, context.shape())


@register("torch", *names("index_add"))
def index_add(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor, *, alpha: Any = 1) -> ops.Tensor:
    """x with slices added at positions along an axis."""
    if alpha != 1:
        source = x.graph.pointwise("scale", lambda v: v & bool(alpha) if v.kind == "i1" else v * alpha, source)
    return _by_slices(context, x, axis, index, source, _reduction(x, "add"))


@register("torch", *names("index_copy"))
def index_copy(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor) -> ops.Tensor:
    """x with slices in place of those at positions along an axis."""
    return _by_slices(context, x, axis, index, source, "set")


@register("torch", "aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, value: Any) -> ops.Tensor:
    """x with one value in all slices at positions along an axis."""
    return _by_slices(context, x, axis, index, value, "set")


@register("torch", *names("index_reduce"))
def index_reduce(
    context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: ops.Tensor, reduce: str, *, include_self: bool = True
) -> ops.Tensor:
    """x with slices combined at positions along an axis."""
    return _by_slices(context, x, axis, index, source, _reduction(x, reduce), include_self)


def _by_slices(
    context: Context, x: ops.Tensor, axis: int, index: ops.Tensor, source: Any, reduce: str, include_self: bool = True
) -> ops.Tensor:
    wide = _vector(x)
    at = axis % wide.rank
    places = [*[None] * at, _vector(index)]
    return ops.reshape(ops.index_put(wide, places, source, reduce=reduce, include_self=include_self), context.shape())


@register("torch", *names("index_put", "_unsafe_index_put"))
def index_put(context: Context, x: ops.Tensor, indices: Indices, values: ops.Tensor, accumulate: bool = False) -> ops.Tensor:
    """x[indices] = values, or += on request."""
    masks = [a for a, t in enumerate(indices) if t is not None and t.dtype is DType.I1]
    if len(masks) == 1 and all(t is None for a, t in enumerate(indices) if a != masks[0]):
        return _masked_put(context, x, indices[masks[0]], masks[0], values, accumulate)
    _no_mask(context, indices)
    return ops.index_put(x, indices, values, reduce=_reduction(x, "add" if accumulate else None))


def _masked_put(
    context: Context, x: ops.Tensor, mask: ops.Tensor | None, axis: int, values: ops.Tensor, accumulate: bool
) -> ops.Tensor:
    """x[:, mask] = values, the mask over the axes from `axis` on; the values are the same at all its places."""
    assert mask is not None
    behind = x.rank - axis - mask.rank
    given = [*[Expr.of(1)] * (1 + axis + behind - values.rank), *values.dims]
    if given[axis] != Expr.of(1):
        context.refuse("it writes as many values as the mask has places, a number that depends on data",
                       "use torch.where with a tensor of the whole shape")
    there = ops.reshape(mask, [*mask.dims, *[Expr.of(1)] * behind])
    spread = ops.reshape(values, [*given[:axis], *[Expr.of(1)] * mask.rank, *given[axis + 1 :]])
    new = ops.cast(spread, x.dtype)
    if accumulate:
        new = x.graph.pointwise("sum", lambda a, b: a | b if a.kind == "i1" else a + b, x, new)
    return ops.where(there, new, x)


@register("torch", *names("_unsafe_masked_index_put_accumulate"))
def masked_index_put(context: Context, x: ops.Tensor, mask: ops.Tensor, indices: Indices, values: ops.Tensor) -> ops.Tensor:
    """x[indices] += values where the mask holds."""
    added = ops.masked_fill(values, x.graph.pointwise("not", lambda m: ~m, mask), 0)
    return ops.index_put(x, _inside(x, mask, indices), added, reduce=_reduction(x, "add"))


@register("torch", *names("put"))
def put(context: Context, x: ops.Tensor, index: ops.Tensor, source: ops.Tensor, accumulate: bool = False) -> ops.Tensor:
    """x with elements, numbered row by row, replaced or added to."""
    count = [_size(index)]
    if count == [Expr.of(0)]:
        return x
    reduce = _reduction(x, "add" if accumulate else None)
    written = ops.index_put(ops.reshape(x, [_size(x)]), [ops.reshape(index, count)], ops.reshape(source, count), reduce=reduce)
    return ops.reshape(written, context.shape())


def _size(x: ops.Tensor) -> Expr:
    """How many elements a tensor has."""
    total = Expr.of(1)
    for d in x.dims:
        total = total * d
    return total
