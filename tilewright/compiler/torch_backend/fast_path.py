"""PyTorch's fused encoder layer and attention, which Dynamo captures whole, as the operators that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import functional


def expand_fast_path(gm: GraphModule) -> None:
    """Replaces, in place, the fused calls that have no mask; those with one stay, for their rows without any key."""
    for node in gm.graph.nodes:
        replacement = _EXPANDED.get(node.target) if node.op == "call_function" else None
        if replacement is not None and all(node.args[i] is None for i in replacement[1] if i < len(node.args)):
            node.target = replacement[0]
    gm.recompile()


def _attention(x: Tensor, heads: int, in_weight: Tensor, in_bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> Tensor:
    """Self attention of x [B, S, D] with the three projections in one weight [3D, D]."""
    batch, length, width = x.shape
    parts = functional.linear(x, in_weight, in_bias).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
    return functional.linear(mixed.transpose(1, 2).reshape(batch, length, width), out_weight, out_bias)


def _encoder_layer(
    x: Tensor, width: int, heads: int, in_weight: Tensor, in_bias: Tensor, out_weight: Tensor, out_bias: Tensor, use_gelu: bool,
    norm_first: bool, eps: float, *weights: Any,
) -> Tensor:  # fmt: skip
    """torch._transformer_encoder_layer_fwd without a mask."""
    scale1, shift1, scale2, shift2, weight1, bias1, weight2, bias2 = weights[:8]
    activation: Callable[[Tensor], Tensor] = functional.gelu if use_gelu else functional.relu

    def norm1(v: Tensor) -> Tensor:
        return functional.layer_norm(v, (width,), scale1, shift1, eps)

    def norm2(v: Tensor) -> Tensor:
        return functional.layer_norm(v, (width,), scale2, shift2, eps)

    def attend(v: Tensor) -> Tensor:
        return _attention(v, heads, in_weight, in_bias, out_weight, out_bias)

    def feed(v: Tensor) -> Tensor:
        return functional.linear(activation(functional.linear(v, weight1, bias1)), weight2, bias2)

    if norm_first:
        x = x + attend(norm1(x))
        return x + feed(norm2(x))
    x = norm1(x + attend(x))
    return norm2(x + feed(x))


_EXPANDED: dict[Any, tuple[Callable[..., Any], tuple[int, ...]]] = {
    torch._transformer_encoder_layer_fwd: (_encoder_layer, (18, 19)),  # positions of the arguments that must be None
}
