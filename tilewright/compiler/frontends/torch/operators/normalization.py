"""Softmax, and norms over axes, groups and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context


@register("torch", "aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default", "aten.special_softmax.int")
def softmax(context: Context, x: ops.Tensor, dim: int, *_: Any, **__: Any) -> ops.Tensor:
    wide = ops.cast(x, context.dtype())
    if not x.rank:
        return ops.reshape(ops.softmax(ops.reshape(wide, [1])), [])
    return ops.softmax(wide, dim)


@register("torch", "aten.layer_norm.default")
def layer_norm(
    context: Context, x: ops.Tensor, normalized_shape: Sequence[Any], weight: ops.Tensor | None = None,
    bias: ops.Tensor | None = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> ops.Tensor:  # fmt: skip
    flat, (weight, bias) = _last(x, len(normalized_shape), (weight, bias))
    gamma = context.graph.filled(1, x.dtype, flat.dims[-1:]) if weight is None else weight
    return ops.reshape(ops.layernorm(flat, gamma, bias, eps), context.shape())


@register("torch", "aten.rms_norm.default")
def rms_norm(
    context: Context, x: ops.Tensor, normalized_shape: Sequence[Any], weight: ops.Tensor | None = None, eps: float | None = None
) -> ops.Tensor:
    flat, (weight,) = _last(x, len(normalized_shape), (weight,))
    gamma = context.graph.filled(1, x.dtype, flat.dims[-1:]) if weight is None else weight
    least = {"f16": 2.0**-10, "bf16": 2.0**-7, "f64": 2.0**-52}.get(x.dtype.value, 2.0**-23)  # torch.finfo(dtype).eps
    return ops.reshape(ops.rmsnorm(flat, gamma, least if eps is None else eps), context.shape())


def _last(x: ops.Tensor, axes: int, parameters: Sequence[ops.Tensor | None]) -> tuple[ops.Tensor, list[ops.Tensor | None]]:
    """The last axes as one, of the input and of its parameters."""
    if axes == 1:
        return x, list(parameters)
    flat = ops.reshape(x, [*x.dims[: x.rank - axes], -1])
    return flat, [p if p is None else ops.reshape(p, flat.dims[-1:]) for p in parameters]
