"""Scaled dot-product attention."""

from __future__ import annotations

import math

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


@register("torch", "aten.scaled_dot_product_attention.default")
def attention(
    context: Context, query: ops.Tensor, key: ops.Tensor, value: ops.Tensor, attn_mask: ops.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> ops.Tensor:  # fmt: skip
    """softmax(Q K^T * scale + mask) V over the last two axes; a query that sees no key gets zeros."""
    if dropout_p:
        context.refuse("dropout in attention makes random numbers", "export the model in eval mode")
    batch = list(context.shape()[:-2])
    if enable_gqa:
        key, value = (_shared(x, query.dims[-3]) for x in (key, value))
    query, key, value = (_batched(x, batch) for x in (query, key, value))
    if scale is None:
        scale = 1 / math.sqrt(_static(context, query.dims[-1]))
    if is_causal and query.dims[-2] == key.dims[-2] and query.rank == 4:
        return ops.attention(query, key, value, causal=True, scale=scale)
    mask = _triangle(context, query.dims[-2], key.dims[-2]) if is_causal else attn_mask
    wide = DType.F32 if query.dtype.bytes < 4 else query.dtype
    scores = ops.cast(ops.matmul(query, key, transpose_b=True), wide) * scale
    if mask is None:
        return ops.matmul(ops.cast(ops.softmax(scores), value.dtype), value)
    if mask.dtype is DType.I1:
        scores = ops.where(mask, scores, -math.inf)
        seen = ops.max(ops.cast(mask, DType.F32), -1, keepdims=True)
    else:
        scores = scores + ops.cast(mask, wide)
        seen = ops.cast(ops.compare(ops.max(mask, -1, keepdims=True), -math.inf, "gt"), DType.F32)
    mixed = ops.matmul(ops.cast(ops.softmax(scores), value.dtype), value)
    return mixed if is_causal else ops.where(ops.compare(seen, 0, "gt"), mixed, 0)


def _shared(x: ops.Tensor, heads: Expr) -> ops.Tensor:
    """Every head of keys or values as often as queries share it."""
    own = x.dims[-3]
    if own == heads:
        return x
    lead, tail, count = list(x.dims[:-3]), list(x.dims[-2:]), heads // own
    many = ops.broadcast_to(ops.reshape(x, [*lead, own, 1, *tail]), [*lead, own, count, *tail])
    return ops.reshape(many, [*lead, heads, *tail])


def _batched(x: ops.Tensor, batch: list[Expr]) -> ops.Tensor:
    return x if list(x.dims[:-2]) == batch else ops.broadcast_to(x, [*batch, *x.dims[-2:]])


def _static(context: Context, extent: Expr) -> int:
    if extent.constant is None:
        context.refuse(f"heads of {extent} elements", "pass scale=")
    return extent.constant or 1


def _triangle(context: Context, queries: Expr, keys: Expr) -> ops.Tensor:
    """Query i sees the keys up to i."""
    return ops.triangle(context.graph, queries, keys)
