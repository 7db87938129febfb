"""Softmax, and norms over axes, groups and batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context


@register("torch", "aten.softmax.int", "aten._softmax.default", "aten.special_softmax.int")
def softmax(context: Context, x: ops.Tensor, dim: int, *_: Any, **__: Any) -> ops.Tensor:
    wide = ops.cast(x, context.dtype())
    return ops.softmax(wide, dim) if x.rank else ops.reshape(ops.softmax(ops.reshape(wide, [1])), [])


@register("torch", "aten._safe_softmax.default")
def safe_softmax(context: Context, x: ops.Tensor, dim: int, *_: Any, **__: Any) -> ops.Tensor:
    """Zeros where all elements of a row are -inf."""
    wide = ops.cast(x, context.dtype())
    seen = ops.compare(ops.max(wide, dim, keepdims=True), -math.inf, "ne")
    return ops.where(seen, ops.softmax(wide, dim), 0)


@register("torch", "aten.log_softmax.int", "aten._log_softmax.default", "aten.special_log_softmax.int")
def log_softmax(context: Context, x: ops.Tensor, dim: int, *_: Any, **__: Any) -> ops.Tensor:
    wide = ops.cast(x, context.dtype())
    if not x.rank:
        return wide - wide
    away = wide - ops.max(wide, dim, keepdims=True)
    return away - ops.log(ops.sum(ops.exp(away), dim, keepdims=True))


@register("torch", "aten.layer_norm.default")
def layer_norm(
    context: Context, x: ops.Tensor, normalized_shape: Sequence[Any], weight: ops.Tensor | None = None,
    bias: ops.Tensor | None = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> ops.Tensor:  # fmt: skip
    return _layer_norm(context, x, len(normalized_shape), (weight, bias), eps)


@register("torch", "aten.native_layer_norm.default")
def native_layer_norm(
    context: Context, x: ops.Tensor, normalized_shape: Sequence[Any], weight: ops.Tensor | None, bias: ops.Tensor | None,
    eps: float,
) -> list[ops.Tensor]:
    axes = list(range(x.rank - len(normalized_shape), x.rank))
    mean = ops.mean(x, axes, keepdims=True)
    away = x - mean
    rows = ops.rsqrt(ops.mean(away * away, axes, keepdims=True) + eps)
    return [_layer_norm(context, x, len(axes), (weight, bias), eps), mean, rows]


def _layer_norm(
    context: Context, x: ops.Tensor, axes: int, parameters: tuple[ops.Tensor | None, ops.Tensor | None], eps: float
) -> ops.Tensor:
    flat, (weight, bias) = _last(x, axes, parameters)
    gamma = context.graph.full(flat.dims[-1:], 1, x.dtype) if weight is None else weight
    return ops.reshape(ops.layernorm(flat, gamma, bias, eps), context.shape())


@register("torch", "aten.rms_norm.default")
def rms_norm(
    context: Context, x: ops.Tensor, normalized_shape: Sequence[Any], weight: ops.Tensor | None = None, eps: float | None = None
) -> ops.Tensor:
    flat, (weight,) = _last(x, len(normalized_shape), (weight,))
    gamma = context.graph.full(flat.dims[-1:], 1, x.dtype) if weight is None else weight
    least = {"f16": 2.0**-10, "bf16": 2.0**-7, "f64": 2.0**-52}.get(x.dtype.value, 2.0**-23)  # torch.finfo(dtype).eps
    return ops.reshape(ops.rmsnorm(flat, gamma, least if eps is None else eps), context.shape())


def _last(x: ops.Tensor, axes: int, parameters: Sequence[ops.Tensor | None]) -> tuple[ops.Tensor, list[ops.Tensor | None]]:
    """The last axes as one, of the input and of its parameters."""
    if axes == 1:
        return x, list(parameters)
    flat = ops.reshape(x, [*x.dims[: x.rank - axes], -1])
    return flat, [p if p is None else ops.reshape(p, flat.dims[-1:]) for p in parameters]


@register("torch", "aten.group_norm.default")
def group_norm(
    context: Context, x: ops.Tensor, num_groups: int, weight: ops.Tensor | None = None, bias: ops.Tensor | None = None,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> ops.Tensor:  # fmt: skip
    return _scaled(_grouped(context, x, num_groups, eps), weight, bias)


@register("torch", "aten.instance_norm.default")
def instance_norm(
    context: Context, x: ops.Tensor, weight: ops.Tensor | None, bias: ops.Tensor | None, running_mean: ops.Tensor | None,
    running_var: ops.Tensor | None, use_input_stats: bool, *rest: Any,
) -> ops.Tensor:  # fmt: skip
    eps = float(rest[1])
    if not use_input_stats and running_mean is not None and running_var is not None:
        return _affine(x, running_mean, running_var, (weight, bias), eps)
    channels = x.dims[1].constant
    if channels is None:
        context.refuse(f"{x.dims[1]} channels", "give the channel axis a fixed extent")
    return _scaled(_grouped(context, x, channels or 1, eps), weight, bias)


def _grouped(context: Context, x: ops.Tensor, groups: int, eps: float) -> ops.Tensor:
    """Every group of channels normalised over all of its elements."""
    flat = ops.reshape(x, [x.dims[0], groups, -1])
    wide = context.graph.full(flat.dims[-1:], 1, x.dtype)
    return ops.reshape(ops.layernorm(flat, wide, None, eps), x.dims)


def _scaled(x: ops.Tensor, weight: ops.Tensor | None, bias: ops.Tensor | None) -> ops.Tensor:
    """weight and bias per channel, axis 1."""
    x = x if weight is None else ops.multiply(x, weight.on(1))
    return x if bias is None else ops.add(x, bias.on(1))


@register("torch", "aten.batch_norm.default")
def batch_norm(
    context: Context, x: ops.Tensor, weight: ops.Tensor | None, bias: ops.Tensor | None, running_mean: ops.Tensor | None,
    running_var: ops.Tensor | None, training: bool, momentum: float, eps: float, *_: Any,
) -> ops.Tensor:  # fmt: skip
    if running_mean is None or running_var is None or training:
        axes = [a for a in range(x.rank) if a != 1]
        mean = ops.mean(x, axes)
        away = ops.subtract(x, mean.on(1))
        return _affine(x, mean, ops.mean(away * away, axes), (weight, bias), eps)
    return _affine(x, running_mean, running_var, (weight, bias), eps)


@register("torch", "aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    context: Context, x: ops.Tensor, weight: ops.Tensor | None, bias: ops.Tensor | None, running_mean: ops.Tensor,
    running_var: ops.Tensor, momentum: float, eps: float,
) -> list[ops.Tensor]:  # fmt: skip
    nothing = context.graph.full(context.shape(1), 0, context.dtype(1))
    return [_affine(x, running_mean, running_var, (weight, bias), eps), nothing, nothing]


def _affine(
    x: ops.Tensor, mean: ops.Tensor, variance: ops.Tensor, parameters: tuple[ops.Tensor | None, ops.Tensor | None], eps: float
) -> ops.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias per channel, as one scale and one shift."""
    weight, bias = parameters
    scale = ops.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight
    shift = (-mean) * scale
    return _scaled(x, scale, shift if bias is None else shift + bias)
