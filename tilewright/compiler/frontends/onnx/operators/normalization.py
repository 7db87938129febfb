"""Normalisations."""

from __future__ import annotations

import math

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


def _wide(x: ops.Tensor) -> ops.Tensor:
    """In the type that stash_type asks for: f32 unless the node says otherwise."""
    return ops.cast(x, DType.F32) if x.dtype.is_float and x.dtype.bytes < 4 else x


@operator("LayerNormalization", "SimplifiedLayerNormalization")
def layer_normalization(context: Context, x: ops.Tensor, scale: ops.Tensor, bias: ops.Tensor | None = None) -> list[ops.Tensor]:
    axis, eps = context.axis(x.rank, context.attribute("axis", -1)), context.attribute("epsilon", 1e-5)
    if context.node.op_type == "SimplifiedLayerNormalization":
        return [_rms(context, x, scale, axis, eps)]
    over = list(range(axis, x.rank))
    found = layer_normalised(context, x, scale, bias, axis, eps)
    if not (context.wants(1) or context.wants(2)):
        return [found]
    wide = _wide(x)
    return [found, ops.mean(wide, over, True), ops.rsqrt(ops.var(wide, over, True, correction=0) + eps)]


def layer_normalised(
    context: Context, x: ops.Tensor, scale: ops.Tensor, bias: ops.Tensor | None, axis: int, eps: float
) -> ops.Tensor:
    """x normalised over the axes from `axis` on."""
    x, scale, *rest = context.fit(x, scale, *(() if bias is None else (bias,)))
    bias, over = rest[0] if rest else None, list(range(axis, x.rank))
    whole = scale.dims == x.dims[axis:] and (bias is None or bias.dims == scale.dims) and scale.dtype is x.dtype
    if whole:
        return ops.layernorm(x, scale, bias, eps, over)
    wide = _wide(x)
    found = ops.multiply(ops.layernorm(wide, None, None, eps, over), ops.cast(scale, wide.dtype))
    return ops.cast(found if bias is None else ops.add(found, ops.cast(bias, wide.dtype)), x.dtype)


@operator("RMSNormalization")
def rms_normalization(context: Context, x: ops.Tensor, scale: ops.Tensor) -> ops.Tensor:
    axis = context.axis(x.rank, context.attribute("axis", -1))
    return _rms(context, x, scale, axis, context.attribute("epsilon", 1e-5))


def _rms(context: Context, x: ops.Tensor, scale: ops.Tensor, axis: int, eps: float) -> ops.Tensor:
    x, scale = context.fit(x, scale)
    over = list(range(axis, x.rank))
    if scale.dims == x.dims[axis:] and scale.dtype is x.dtype:
        return ops.rmsnorm(x, scale, eps, over)
    wide = _wide(x)
    return ops.cast(ops.multiply(ops.rmsnorm(wide, None, eps, over), ops.cast(scale, wide.dtype)), x.dtype)


@operator("com.microsoft.SkipLayerNormalization")
def skip_layer_normalization(
    context: Context,
    x: ops.Tensor,
    skip: ops.Tensor,
    scale: ops.Tensor,
    shift: ops.Tensor | None = None,
    bias: ops.Tensor | None = None,
) -> list[ops.Tensor]:
    total = _skipped(context, x, skip, bias)
    found = layer_normalised(context, total, scale, shift, x.rank - 1, context.attribute("epsilon", 1e-12))
    return [found, total, total, total]


@operator("com.microsoft.SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    context: Context, x: ops.Tensor, skip: ops.Tensor, scale: ops.Tensor, bias: ops.Tensor | None = None
) -> list[ops.Tensor]:
    total = _skipped(context, x, skip, bias)
    return [_rms(context, total, scale, x.rank - 1, context.attribute("epsilon", 1e-12)), total, total, total]


def _skipped(context: Context, x: ops.Tensor, skip: ops.Tensor, bias: ops.Tensor | None) -> ops.Tensor:
    context.require(
        not (context.wants(1) or context.wants(2)), "mean and deviation as results of this fusion", "Export without this fusion"
    )
    total = context.binary(context.node.op_type, Scalar.__add__, x, skip)
    return total if bias is None else context.binary(context.node.op_type, Scalar.__add__, total, bias)


@operator("GroupNormalization", "InstanceNormalization")
def group_normalization(context: Context, x: ops.Tensor, scale: ops.Tensor, bias: ops.Tensor) -> ops.Tensor:
    channels, eps = x.dims[1], context.attribute("epsilon", 1e-5)
    instance = context.node.op_type == "InstanceNormalization"
    groups = channels if instance else Expr.of(context.attribute("num_groups"))
    context.require((channels % groups) == Expr.of(0), f"{channels} channels do not split into {groups} groups")
    if scale.dims[0] != channels:  # before opset 21 one factor per group
        scale, bias = (_per_channel(t, channels // groups) for t in (scale, bias))
    return ops.groupnorm(x, groups, scale, bias, eps)


def _per_channel(parameter: ops.Tensor, each: Expr) -> ops.Tensor:
    """A parameter of groups for each of their channels."""
    count = parameter.dims[0]
    return ops.reshape(ops.broadcast_to(ops.unsqueeze(parameter, 1), [count, each]), [count * each])


@operator("BatchNormalization")
def batch_normalization(
    context: Context, x: ops.Tensor, scale: ops.Tensor, bias: ops.Tensor, mean: ops.Tensor, variance: ops.Tensor
) -> list[ops.Tensor]:
    eps, momentum = float(context.attribute("epsilon", 1e-5)), context.attribute("momentum", 0.9)
    results = []
    if context.attribute("training_mode", 0):
        over = [a for a in range(x.rank) if a != 1]
        now, spread = ops.mean(x, over), ops.var(x, over, correction=0)
        results = [old * momentum + ops.cast(new, old.dtype) * (1 - momentum) for old, new in ((mean, now), (variance, spread))]
        mean, variance = now, spread
    return [ops.batchnorm(x, (mean, variance), scale, bias, eps), *results]


@operator("MeanVarianceNormalization")
def mean_variance_normalization(context: Context, x: ops.Tensor) -> ops.Tensor:
    return ops.layernorm(x, None, None, 1e-9, context.axes(x.rank, context.attribute("axes", [0, 2, 3])))


@operator("LRN")
def local_response_normalization(context: Context, x: ops.Tensor) -> ops.Tensor:
    size, alpha = int(context.attribute("size")), float(context.attribute("alpha", 1e-4))
    beta, bias = float(context.attribute("beta", 0.75)), float(context.attribute("bias", 1.0))
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    rows = ops.reshape(ops.multiply(x, x), [x.dims[0], 1, x.dims[1], math.prod(x.dims[2:], start=Expr.of(1))])
    total = ops.reshape(ops.sum_pool(rows, (size, 1), 1, ((before, after), 0)), x.dims)

    def scalar(v: Scalar, s: Scalar) -> Scalar:
        return v / ((s * (alpha / size) + bias).math("log") * beta).math("exp")

    return context.graph.pointwise("LRN", scalar, x, total)
