"""Selection and update by index tensors."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_ONE = Expr.of(1)


@operator("Gather", either=[1])
def gather(context: Context, x: ops.Tensor, indices: Known | ops.Tensor) -> ops.Tensor:
    axis = context.axis(x.rank, context.attribute("axis", 0))
    if not isinstance(indices, Known):
        return ops.gather(x, indices, axis, negative=True)
    if indices.elements.size == 1:
        (place,), extent = indices.exprs(), x.dims[axis].constant
        index = place.constant
        context.require(
            None in (index, extent) or -(extent or 0) <= (index or 0) < (extent or 0), f"index {index} on an axis of {extent}"
        )
        found = ops.select(x, axis, place if index is None else index)
        return ops.reshape(found, [*x.dims[:axis], *[_ONE] * indices.elements.ndim, *x.dims[axis + 1 :]])
    positive = not indices.symbolic and (indices.elements >= 0).all()
    return ops.gather(x, context.tensor(indices), axis, negative=not positive)


@operator("Trilu", either=[1])
def trilu(context: Context, x: ops.Tensor, k: Known | ops.Tensor | None = None) -> ops.Tensor:
    upper = bool(context.attribute("upper", 1))
    if k is None or isinstance(k, Known):
        diagonal = Expr.of(0) if k is None else k.exprs()[0]
        return (ops.triu if upper else ops.tril)(x, diagonal)
    rows, columns = (ops.iota(context.graph, x.dims[-2:], a, "i64") for a in (0, 1))
    limit = ops.add(rows, ops.reshape(k, ()))
    return ops.where(ops.compare(columns, limit, "ge" if upper else "le"), x, ops.zeros(context.graph, [], x.dtype))


@operator("EyeLike")
def eye_like(context: Context, x: ops.Tensor) -> ops.Tensor:
    kind = context.element(context.attribute("dtype")) if context.has("dtype") else x.dtype
    context.require(x.rank == 2, f"a tensor of rank {x.rank}; wanted 2")
    return ops.eye(context.graph, x.dims[0], x.dims[1], kind, diagonal=context.attribute("k", 0))


@operator("OneHot", known=[1])
def one_hot(context: Context, indices: ops.Tensor, depth: Known, values: ops.Tensor) -> ops.Tensor:
    (count,) = depth.exprs()
    rank = indices.rank + 1
    axis = context.axis(rank, context.attribute("axis", -1))
    whole = ops.cast(indices, DType.I64)
    inside = context.graph.pointwise("OneHot", lambda v, n: v.body.select(v.compare("lt", 0), v + n, v), whole, count)
    places = ops.reshape(inside, [*indices.dims[:axis], _ONE, *indices.dims[axis:]])
    position = ops.iota(context.graph, [count if a == axis else _ONE for a in range(rank)], axis, "i64")
    off, on = (ops.select(values, 0, i) for i in (0, 1))
    return ops.where(ops.compare(places, position, "eq"), on, off)


@operator("GatherElements")
def gather_elements(context: Context, x: ops.Tensor, indices: ops.Tensor) -> ops.Tensor:
    return ops.gather_elements(x, indices, context.axis(x.rank, context.attribute("axis", 0)), negative=True)


@operator("GatherND")
def gather_nd(context: Context, x: ops.Tensor, indices: ops.Tensor) -> ops.Tensor:
    return ops.gather_nd(x, indices, context.attribute("batch_dims", 0), negative=True)


@operator("ScatterElements", "Scatter")
def scatter_elements(context: Context, x: ops.Tensor, indices: ops.Tensor, updates: ops.Tensor) -> ops.Tensor:
    axis = context.axis(x.rank, context.attribute("axis", 0))
    return ops.scatter(x, indices, updates, axis, reduce=_reduction(context), negative=True)


@operator("ScatterND")
def scatter_nd(context: Context, x: ops.Tensor, indices: ops.Tensor, updates: ops.Tensor) -> ops.Tensor:
    count = indices.dims[-1].constant
    context.require(count is not None and 0 < count <= x.rank, f"indices that name {indices.dims[-1]} of {x.rank} axes")
    places = [ops.select(indices, indices.rank - 1, i) for i in range(count or 0)]
    return ops.index_put(x, places, updates, reduce=_reduction(context))


def _reduction(context: Context) -> str:
    names = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}
    given = context.attribute("reduction", "none")
    context.require(given in names, f"reduction={given!r}", f"Use one of {', '.join(names)}")
    return names[given]


@operator("ReverseSequence")
def reverse_sequence(context: Context, x: ops.Tensor, lengths: ops.Tensor) -> ops.Tensor:
    time, batch = context.attribute("time_axis", 0), context.attribute("batch_axis", 1)
    position = ops.iota(context.graph, x.dims, time, "i64")
    count = ops.reshape(ops.cast(lengths, DType.I64), [x.dims[batch] if a == batch else _ONE for a in range(x.rank)])
    places = context.graph.pointwise(
        "ReverseSequence", lambda p, n: p.body.select(p.compare("lt", n), n - 1 - p, p), position, count
    )
    return ops.gather_elements(x, places, time)


@operator("TensorScatter")
def tensor_scatter(context: Context, past: ops.Tensor, update: ops.Tensor, starts: ops.Tensor | None = None) -> ops.Tensor:
    """A cache with `update` written along an axis, in each row of the batch from its own place on."""
    axis, mode = context.axis(past.rank, context.attribute("axis", -2)), context.attribute("mode", "linear")
    context.require(
        axis > 0 and mode in ("linear", "circular"), f"axis {axis}, mode={mode!r}", "Use linear or circular, behind the batch"
    )
    update = context.restated(update, [d if a == axis else past.dims[a] for a, d in enumerate(update.dims)])
    position = ops.iota(context.graph, [d if a == axis else _ONE for a, d in enumerate(past.dims)], axis, DType.I64)
    if starts is None:
        first = ops.zeros(context.graph, [_ONE] * past.rank, DType.I64)
    else:
        first = ops.reshape(ops.cast(starts, DType.I64), [past.dims[0], *[_ONE] * (past.rank - 1)])

    def source(p: Scalar, start: Scalar, length: Scalar) -> Scalar:
        return (p - start).modulo(length) if mode == "circular" else p - start

    place = context.graph.pointwise("TensorScatter", source, position, first, past.dims[axis])
    inside = context.graph.pointwise(
        "TensorScatter", lambda p, n: p.compare("ge", 0) & p.compare("lt", n), place, update.dims[axis], dtype=DType.I1
    )
    clamped = context.graph.pointwise("TensorScatter", lambda p, n: p.maximum(0).minimum(n - 1), place, update.dims[axis])
    return ops.where(inside, ops.gather_elements(update, ops.broadcast_to(clamped, past.dims), axis), past)


@operator("ai.onnx.ml.ArrayFeatureExtractor")
def array_feature_extractor(context: Context, x: ops.Tensor, indices: ops.Tensor) -> ops.Tensor:
    return ops.gather(x, ops.reshape(indices, [-1]), x.rank - 1)


@operator("ai.onnx.ml.Binarizer")
def binarizer(context: Context, x: ops.Tensor) -> ops.Tensor:
    return ops.cast(ops.compare(x, context.attribute("threshold", 0.0), "gt"), x.dtype)
