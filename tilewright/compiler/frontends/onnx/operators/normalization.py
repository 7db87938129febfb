"""Normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.ops.body import Scalar, computed_in
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_ONE = Expr.of(1)


def _statistics(x: ops.Tensor, axes: Sequence[int], eps: float) -> tuple[ops.Tensor, ops.Tensor]:
    """Mean and 1 / sqrt(variance + eps) over axes, which are kept."""
    mean = ops.mean(x, axes, True)
    away = ops.subtract(x, mean)
    variance = ops.mean(ops.multiply(away, away), axes, True)
    return mean, variance.graph.pointwise("normalise", lambda v: (v + eps).math("rsqrt"), variance)


def _normalised(context: Context, x: ops.Tensor, axes: Sequence[int], eps: float) -> ops.Tensor:
    mean, inverse = _statistics(x, axes, eps)
    return context.graph.pointwise(context.node.op_type, lambda v, m, s: (v - m) * s, x, mean, inverse)


def _wide(context: Context, x: ops.Tensor) -> ops.Tensor:
    """In the type that stash_type asks for: f32 unless the node says otherwise."""
    return ops.cast(x, DType.F32) if x.dtype.is_float and x.dtype.bytes < 4 else x


@operator("LayerNormalization", "SimplifiedLayerNormalization")
def layer_normalization(context: Context, x: ops.Tensor, scale: ops.Tensor, bias: ops.Tensor | None = None) -> list[ops.Tensor]:
    axis, eps = context.axis(x.rank, context.attribute("axis", -1)), context.attribute("epsilon", 1e-5)
    if context.node.op_type == "SimplifiedLayerNormalization":
        return [_rms(context, x, scale, axis, eps)]
    over = list(range(axis, x.rank))
    found = _layer(context, x, scale, bias, axis, eps)
    if not (context.wants(1) or context.wants(2)):
        return [found]
    return [found, *_statistics(_wide(context, x), over, eps)]


def _layer(context: Context, x: ops.Tensor, scale: ops.Tensor, bias: ops.Tensor | None, axis: int, eps: float) -> ops.Tensor:
    x, scale, *rest = context.fit(x, scale, *(() if bias is None else (bias,)))
    bias = rest[0] if rest else None
    whole = scale.dims == x.dims[axis:] and (bias is None or bias.dims == scale.dims) and scale.dtype is x.dtype
    if whole:
        row = math.prod(x.dims[axis:], start=_ONE)
        flat = ops.reshape(x, [*x.dims[:axis], row])
        shift = None if bias is None else ops.reshape(bias, [row])
        return ops.reshape(ops.layernorm(flat, ops.reshape(scale, [row]), shift, eps), x.dims)
    wide = _wide(context, x)
    found = ops.multiply(_normalised(context, wide, list(range(axis, x.rank)), eps), ops.cast(scale, wide.dtype))
    return ops.cast(found if bias is None else ops.add(found, ops.cast(bias, wide.dtype)), x.dtype)


@operator("RMSNormalization")
def rms_normalization(context: Context, x: ops.Tensor, scale: ops.Tensor) -> ops.Tensor:
    axis = context.axis(x.rank, context.attribute("axis", -1))
    return _rms(context, x, scale, axis, context.attribute("epsilon", 1e-5))


def _rms(context: Context, x: ops.Tensor, scale: ops.Tensor, axis: int, eps: float) -> ops.Tensor:
    x, scale = context.fit(x, scale)
    if scale.dims == x.dims[axis:] and scale.dtype is x.dtype:
        row = math.prod(x.dims[axis:], start=_ONE)
        flat = ops.reshape(x, [*x.dims[:axis], row])
        return ops.reshape(ops.rmsnorm(flat, ops.reshape(scale, [row]), eps), x.dims)
    wide = _wide(context, x)
    squares = ops.mean(ops.multiply(wide, wide), list(range(axis, x.rank)), True)
    return ops.cast(
        context.graph.pointwise(
            "RMSNormalization", lambda v, s, g: v * (s + eps).math("rsqrt") * g, wide, squares, ops.cast(scale, wide.dtype)
        ),
        x.dtype,
    )


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
    found = _layer(context, total, scale, shift, x.rank - 1, context.attribute("epsilon", 1e-12))
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
    spatial = math.prod(x.dims[2:], start=_ONE)
    wide = _wide(context, x)
    grouped = ops.reshape(wide, [x.dims[0], groups, channels // groups, spatial])
    mean, inverse = _statistics(grouped, [2, 3], eps)
    # one factor per channel; before opset 21 one per group
    per_channel = scale.dims[0] == channels and (instance or context.opset >= 21 or scale.dims[0] != groups)
    shape = [groups, channels // groups, _ONE] if per_channel else [groups, _ONE, _ONE]
    factor, shift = (ops.reshape(ops.cast(t, wide.dtype), shape) for t in (scale, bias))
    found = context.graph.pointwise(
        context.node.op_type, lambda v, m, s, g, b: (v - m) * s * g + b, grouped, mean, inverse, factor, shift
    )
    return ops.cast(ops.reshape(found, x.dims), x.dtype)


@operator("BatchNormalization")
def batch_normalization(
    context: Context, x: ops.Tensor, scale: ops.Tensor, bias: ops.Tensor, mean: ops.Tensor, variance: ops.Tensor
) -> list[ops.Tensor]:
    eps, momentum = float(context.attribute("epsilon", 1e-5)), context.attribute("momentum", 0.9)
    results = []
    if context.attribute("training_mode", 0):
        over = [a for a in range(x.rank) if a != 1]
        now = ops.mean(x, over)
        away = ops.subtract(x, _per_channel(x, now))
        spread = ops.mean(ops.multiply(away, away), over)
        results = [old * momentum + ops.cast(new, old.dtype) * (1 - momentum) for old, new in ((mean, now), (variance, spread))]
        mean, variance = now, spread

    def scalar(v: Scalar, g: Scalar, b: Scalar, m: Scalar, s: Scalar) -> Scalar:
        return (v - m) * ((s + eps).math("rsqrt") * g) + b

    kind = computed_in(x.dtype)
    parameters = [_per_channel(x, ops.cast(p, kind)) for p in (scale, bias, mean, variance)]
    found = context.graph.pointwise("BatchNormalization", scalar, ops.cast(x, kind), *parameters)
    return [ops.cast(found, x.dtype), *results]


def _per_channel(x: ops.Tensor, parameter: ops.Tensor) -> ops.Tensor:
    return ops.reshape(parameter, [parameter.dims[0], *[_ONE] * (x.rank - 2)])


@operator("MeanVarianceNormalization")
def mean_variance_normalization(context: Context, x: ops.Tensor) -> ops.Tensor:
    return _normalised(context, x, context.axes(x.rank, context.attribute("axes", [0, 2, 3])), 1e-9)


@operator("LRN")
def local_response_normalization(context: Context, x: ops.Tensor) -> ops.Tensor:
    size, alpha = int(context.attribute("size")), float(context.attribute("alpha", 1e-4))
    beta, bias = float(context.attribute("beta", 0.75)), float(context.attribute("bias", 1.0))
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    low, high = ([w if a == 1 else 0 for a in range(x.rank)] for w in (before, after))
    squares = ops.pad(ops.multiply(x, x), low, high)
    total = None
    for i in range(size):
        starts = [Expr.of(i if a == 1 else 0) for a in range(x.rank)]
        part = ops.slice(squares, starts, [s + d for s, d in zip(starts, x.dims, strict=True)])
        total = part if total is None else ops.add(total, part)

    def scalar(v: Scalar, s: Scalar) -> Scalar:
        return v / ((s * (alpha / size) + bias).math("log") * beta).math("exp")

    return context.graph.pointwise("LRN", scalar, x, total if total is not None else squares)
