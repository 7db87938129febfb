"""Reductions over axes, softmax and its relatives, running sums, selection of the largest."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.compiler.ops import scalar_functions
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_Reduction = Callable[[ops.Tensor, list[int], bool], ops.Tensor]


def _mean(x: ops.Tensor, axes: list[int], keepdims: bool) -> ops.Tensor:
    if x.dtype.is_float:
        return ops.mean(x, axes, keepdims)
    total = ops.sum(x, axes, keepdims)
    return total.graph.pointwise(
        "ReduceMean", scalar_functions.truncated_quotient, total, math.prod((x.dims[a] for a in axes), start=Expr.of(1))
    )


def _log(x: ops.Tensor) -> ops.Tensor:
    return ops.cast(ops.log(x if x.dtype.is_float else ops.cast(x, DType.F64)), x.dtype)


def _root(x: ops.Tensor) -> ops.Tensor:
    return ops.cast(ops.sqrt(x if x.dtype.is_float else ops.cast(x, DType.F64)), x.dtype)


def _log_sum_exp(x: ops.Tensor, axes: list[int], keepdims: bool) -> ops.Tensor:
    return ops.cast(ops.logsumexp(x if x.dtype.is_float else ops.cast(x, DType.F64), axes, keepdims), x.dtype)


_REDUCTIONS: dict[str, _Reduction] = {
    "ReduceSum": ops.sum,
    "ReduceMean": _mean,
    "ReduceMax": ops.max,
    "ReduceMin": ops.min,
    "ReduceProd": ops.prod,
    "ReduceL1": lambda x, axes, keep: ops.sum(ops.absolute(x), axes, keep),
    "ReduceL2": lambda x, axes, keep: _root(ops.sum(ops.multiply(x, x), axes, keep)),
    "ReduceSumSquare": lambda x, axes, keep: ops.sum(ops.multiply(x, x), axes, keep),
    "ReduceLogSum": lambda x, axes, keep: _log(ops.sum(x, axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
}


@operator(*_REDUCTIONS, known=[1])
def reduce(context: Context, x: ops.Tensor, axes: Known | None = None) -> ops.Tensor:
    given = context.attribute("axes") if axes is None else context.numbers(axes, "axes")
    keeps_all, keepdims = bool(context.attribute("noop_with_empty_axes", 0)), bool(context.attribute("keepdims", 1))
    if keeps_all and not given:
        over: list[int] = []
        if context.node.op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
            return x
    else:
        over = context.axes(x.rank, given) if given else list(range(x.rank))
    found = _REDUCTIONS[context.node.op_type](x, over, keepdims)
    return ops.cast(found, x.dtype)


@operator("ArgMax", "ArgMin")
def arg_extreme(context: Context, x: ops.Tensor) -> ops.Tensor:
    axis = context.axis(x.rank, context.attribute("axis", 0))
    find = ops.argmax if context.node.op_type == "ArgMax" else ops.argmin
    return find(x, axis, bool(context.attribute("keepdims", 1)), last=bool(context.attribute("select_last_index", 0)))


@operator("Softmax")
def softmax(context: Context, x: ops.Tensor) -> ops.Tensor:
    return ops.softmax(x, context.axis(x.rank, context.attribute("axis", -1)))


@operator("LogSoftmax")
def log_softmax(context: Context, x: ops.Tensor) -> ops.Tensor:
    return ops.log_softmax(x, context.axis(x.rank, context.attribute("axis", -1)))


@operator("Hardmax")
def hardmax(context: Context, x: ops.Tensor) -> ops.Tensor:
    axis = context.axis(x.rank, context.attribute("axis", -1))
    place = ops.iota(context.graph, x.dims, axis, "i64")
    return ops.cast(ops.compare(place, ops.argmax(x, axis, True), "eq"), x.dtype)


@operator("CumSum", "CumProd", known=[1])
def running(context: Context, x: ops.Tensor, axis: Known) -> ops.Tensor:
    (given,) = context.numbers(axis, "axis")
    build = ops.cumprod if context.node.op_type == "CumProd" else ops.cumsum
    exclusive, reverse = bool(context.attribute("exclusive", 0)), bool(context.attribute("reverse", 0))
    return build(x, context.axis(x.rank, given), exclusive=exclusive, reverse=reverse)


@operator("TopK", known=[1])
def top_k(context: Context, x: ops.Tensor, k: Known) -> list[ops.Tensor]:
    (count,) = k.exprs()
    axis = context.axis(x.rank, context.attribute("axis", -1))
    values, indices = ops.topk(x, count, axis, largest=bool(context.attribute("largest", 1)))
    return [values, indices]


@operator("LpNormalization")
def lp_normalization(context: Context, x: ops.Tensor) -> ops.Tensor:
    axis, p = context.axis(x.rank, context.attribute("axis", -1)), context.attribute("p", 2)
    context.require(p in (1, 2), f"p={p}", "Use 1 or 2")
    size = ops.sum(ops.absolute(x), axis, True) if p == 1 else ops.sqrt(ops.sum(ops.multiply(x, x), axis, True))
    return context.graph.pointwise("LpNormalization", lambda v, n: v.body.select(n.compare("eq", 0), 0.0 * v, v / n), x, size)
