"""Tensors made from numbers and sizes; embeddings."""

from __future__ import annotations

from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context


@register(
    "torch",
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.empty_permuted.default",
)
def zeros(context: Context, *_: Any, **__: Any) -> ops.Tensor:
    """Of zeros; what PyTorch leaves open is zero, too."""
    return context.graph.filled(0, context.dtype(), context.shape())


@register("torch", "aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(context: Context, *_: Any, **__: Any) -> ops.Tensor:
    return context.graph.filled(1, context.dtype(), context.shape())


@register("torch", "aten.embedding.default")
def embedding(_: Context, weight: ops.Tensor, indices: ops.Tensor, *__: Any, **___: Any) -> ops.Tensor:
    return ops.gather(weight, indices)
