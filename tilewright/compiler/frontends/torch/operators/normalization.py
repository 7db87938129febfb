"""Softmax, and norms over axes, groups and batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context

_EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f64": 2.0**-52}  # torch.finfo(dtype).eps


def _along(context: Context, x: ops.Tensor, build: Callable[[ops.Tensor], ops.Tensor]) -> ops.Tensor:
    """build(x) in the node's element type; a number is a row of one element."""
    wide = ops.cast(x, context.dtype())
    return build(wide) if x.rank else ops.reshape(build(ops.reshape(wide, [1])), [])


@register("torch", "aten.softmax.int", "aten._softmax.default", "aten.special_softmax.int")
def softmax(context: Context, x: ops.Tensor, dim: int, *_: Any, **__: Any) -> ops.Tensor:
    return _along(context, x, lambda t: ops.softmax(t, dim))


@register("torch", "aten._safe_softmax.default")
def safe_softmax(context: Context, x: ops.Tensor, dim: int, *_: Any, **__: Any) -> ops.Tensor:
    """Zeros where all elements of a row are -inf."""
    return _along(context, x, lambda t: ops.softmax(t, dim, safe=True))


@register("torch", "aten.log_softmax.int", "aten._log_softmax.default", "aten.special_log_softmax.int")
def log_softmax(context: Context, x: ops.Tensor, dim: int, *_: Any, **__: Any) -> ops.Tensor:
    return _along(context, x, lambda t: ops.log_softmax(t, dim))


@register("torch", "aten.layer_norm.default")
def layer_norm(
    context: Context, x: ops.Tensor, normalized_shape: Sequence[Any], weight: ops.Tensor | None = None,
    bias: ops.Tensor | None = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> ops.Tensor:  # fmt: skip
    return ops.layernorm(x, weight, bias, eps, _last(normalized_shape))


@register("torch", "aten.native_layer_norm.default")
def native_layer_norm(
    context: Context, x: ops.Tensor, normalized_shape: Sequence[Any], weight: ops.Tensor | None, bias: ops.Tensor | None,
    eps: float,
) -> list[ops.Tensor]:
    axes = _last(normalized_shape)
    rows = ops.rsqrt(ops.var(x, axes, keepdims=True, correction=0) + eps)
    return [ops.layernorm(x, weight, bias, eps, axes), ops.mean(x, axes, keepdims=True), rows]


@register("torch", "aten.rms_norm.default")
def rms_norm(
    context: Context, x: ops.Tensor, normalized_shape: Sequence[Any], weight: ops.Tensor | None = None, eps: float | None = None
) -> ops.Tensor:
    return ops.rmsnorm(x, weight, _EPSILON.get(x.dtype.value, 2.0**-23) if eps is None else eps, _last(normalized_shape))


def _last(shape: Sequence[Any]) -> list[int]:
    """The last axes, as many as a shape has."""
    return list(range(-len(shape), 0))


@register("torch", "aten.group_norm.default")
def group_norm(
    context: Context, x: ops.Tensor, num_groups: int, weight: ops.Tensor | None = None, bias: ops.Tensor | None = None,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> ops.Tensor:  # fmt: skip
    return ops.groupnorm(x, num_groups, weight, bias, eps)


@register("torch", "aten.native_group_norm.default")
def native_group_norm(
    context: Context, x: ops.Tensor, weight: ops.Tensor | None, bias: ops.Tensor | None, *sizes: Any
) -> list[ops.Tensor]:
    """sizes: batch, channels and the elements of one, groups, and the epsilon."""
    groups, eps = sizes[3], sizes[4]
    rows = ops.reshape(x, [x.dims[0], groups, -1])
    found = ops.groupnorm(x, groups, weight, bias, eps)
    return [found, ops.mean(rows, -1), ops.rsqrt(ops.var(rows, -1, correction=0) + eps)]


@register("torch", "aten.instance_norm.default")
def instance_norm(
    context: Context, x: ops.Tensor, weight: ops.Tensor | None, bias: ops.Tensor | None, running_mean: ops.Tensor | None,
    running_var: ops.Tensor | None, use_input_stats: bool, *rest: Any,
) -> ops.Tensor:  # fmt: skip
    eps = float(rest[1])
    if not use_input_stats and running_mean is not None and running_var is not None:
        return ops.batchnorm(x, (running_mean, running_var), weight, bias, eps)
    return ops.instancenorm(x, weight, bias, eps)


@register("torch", "aten.batch_norm.default")
def batch_norm(
    context: Context, x: ops.Tensor, weight: ops.Tensor | None, bias: ops.Tensor | None, running_mean: ops.Tensor | None,
    running_var: ops.Tensor | None, training: bool, momentum: float, eps: float, *_: Any,
) -> ops.Tensor:  # fmt: skip
    if running_mean is None or running_var is None or training:
        axes = [a for a in range(x.rank) if a != 1]
        running_mean, running_var = ops.mean(x, axes), ops.var(x, axes, correction=0)
    return ops.batchnorm(x, (running_mean, running_var), weight, bias, eps)


@register("torch", "aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    context: Context, x: ops.Tensor, weight: ops.Tensor | None, bias: ops.Tensor | None, running_mean: ops.Tensor,
    running_var: ops.Tensor, momentum: float, eps: float,
) -> list[ops.Tensor]:  # fmt: skip
    nothing = context.graph.full(context.shape(1), 0, context.dtype(1))
    return [ops.batchnorm(x, (running_mean, running_var), weight, bias, eps), nothing, nothing]
