"""Scaled dot-product attention."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.runtime.shape import Expr


@register("torch", "aten.scaled_dot_product_attention.default")
def attention(
    context: Context, query: ops.Tensor, key: ops.Tensor, value: ops.Tensor, attn_mask: ops.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> ops.Tensor:  # fmt: skip
    """softmax(Q K^T * scale + mask) V over the last two axes; a query that sees no key gets zeros."""
    if dropout_p:
        context.refuse("dropout in attention makes random numbers", "export the model in eval mode")
    shape = list(context.shape())
    lead = shape[:-3] if enable_gqa else shape[:-2]
    query, key, value = (_led(x, lead, 3 if enable_gqa else 2) for x in (query, key, value))
    value = _of_keys(value, key)
    if len(shape) < 3:
        query, key, value = (ops.unsqueeze(x, 0) for x in (query, key, value))
    made = ops.attention(query, key, value, "top-left" if is_causal else False, scale, attn_mask, safe=attn_mask is not None)
    return ops.reshape(made, shape)


def _of_keys(value: ops.Tensor, key: ops.Tensor) -> ops.Tensor:
    """With one value for each key: an exported program may give their numbers two names."""
    wanted = [*value.dims[:-2], key.dims[-2], value.dims[-1]]
    return value if list(value.dims) == wanted else ops.with_dims(value, wanted)


def _led(x: ops.Tensor, lead: list[Expr], own: int) -> ops.Tensor:
    """With these leading axes before its own last ones."""
    return x if list(x.dims[:-own]) == lead else ops.broadcast_to(x, [*lead, *x.dims[-own:]])
