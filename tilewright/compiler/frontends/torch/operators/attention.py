"""Scaled dot-product attention."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context


@register("torch", "aten.scaled_dot_product_attention.default")
def attention(
    context: Context, query: ops.Tensor, key: ops.Tensor, value: ops.Tensor, attn_mask: ops.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> ops.Tensor:  # fmt: skip
    if dropout_p:
        context.refuse("dropout in attention makes random numbers", "export the model in eval mode")
    return ops.attention(query, key, value, is_causal, scale)
