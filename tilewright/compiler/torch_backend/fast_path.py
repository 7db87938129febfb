"""PyTorch's fused encoder layer, which Dynamo captures whole in inference, as the operators that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import functional


def expand_fast_path(gm: GraphModule) -> None:
    """Replaces the fused calls, in place."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is torch._transformer_encoder_layer_fwd:
            node.target = _encoder_layer
    gm.recompile()


def _kept(mask: Tensor | None, kind: int | None) -> Tensor | None:
    """Where attention may look, [B or 1, H or 1, S or 1, S], from what is masked.

    kind: 0 for a mask [S, S], 1 for one of keys [B, S], 2 for one [B, H, S, S]. Numbers that are not 0 are masked, -inf for one.
    """
    if mask is None:
        return None
    kept = mask.to(torch.bool).logical_not()
    return kept[:, None, None, :] if kind == 1 else kept


def _attention(
    x: Tensor, heads: int, in_weight: Tensor, in_bias: Tensor, out_weight: Tensor, out_bias: Tensor, kept: Tensor | None
) -> Tensor:
    """Self attention of x [B, S, D] with the three projections in one weight [3D, D]."""
    batch, length, width = x.shape
    parts = functional.linear(x, in_weight, in_bias).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=kept)
    return functional.linear(mixed.transpose(1, 2).reshape(batch, length, width), out_weight, out_bias)


def _encoder_layer(
    x: Tensor, width: int, heads: int, in_weight: Tensor, in_bias: Tensor, out_weight: Tensor, out_bias: Tensor, use_gelu: bool,
    norm_first: bool, eps: float, *weights: Any,
) -> Tensor:  # fmt: skip
    """torch._transformer_encoder_layer_fwd; `weights` end with the mask and its kind."""
    scale1, shift1, scale2, shift2, weight1, bias1, weight2, bias2, *masked = weights
    kept = _kept(*masked) if len(masked) == 2 else None
    activation: Callable[[Tensor], Tensor] = functional.gelu if use_gelu else functional.relu

    def norm1(v: Tensor) -> Tensor:
        return functional.layer_norm(v, (width,), scale1, shift1, eps)

    def norm2(v: Tensor) -> Tensor:
        return functional.layer_norm(v, (width,), scale2, shift2, eps)

    def attend(v: Tensor) -> Tensor:
        return _attention(v, heads, in_weight, in_bias, out_weight, out_bias, kept)

    def feed(v: Tensor) -> Tensor:
        return functional.linear(activation(functional.linear(v, weight1, bias1)), weight2, bias2)

    if norm_first:
        x = x + attend(norm1(x))
        return x + feed(norm2(x))
    x = norm1(x + attend(x))
    return norm2(x + feed(x))

