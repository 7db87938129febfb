"""The transformer encoder layer."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tilewright.compiler.ops import slicing
from tilewright.compiler.ops.attention import attention
from tilewright.compiler.ops.contractions import dense
from tilewright.compiler.ops.graph import Graph, Size, Tensor, size, want_rank
from tilewright.compiler.ops.normalization import layernorm
from tilewright.compiler.ops.reshaping import reshape, transpose
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


@dataclass(frozen=True)
class EncoderWeights:
    """Parameters of an encoder layer of width E and inner width F; all matrices are [inputs, outputs].

    qkv: query, key and value projections side by side.
    """

    qkv_weight: Tensor  # [E, 3 E]
    qkv_bias: Tensor  # [3 E]
    out_weight: Tensor  # [E, E]
    out_bias: Tensor  # [E]
    up_weight: Tensor  # [E, F]
    up_bias: Tensor  # [F]
    down_weight: Tensor  # [F, E]
    down_bias: Tensor  # [E]
    gamma1: Tensor  # [E]
    beta1: Tensor  # [E]
    gamma2: Tensor  # [E]
    beta2: Tensor  # [E]

    @staticmethod
    def inputs(g: Graph, width: Size, inner: Size, prefix: str = "", dtype: str | DType = "f32") -> EncoderWeights:
        """Declares all parameters as inputs of a graph, named prefix + field name, in the order of the fields."""
        e, f = size("EncoderWeights", width), size("EncoderWeights", inner)
        shapes = {"qkv_weight": [e, e * 3], "qkv_bias": [e * 3], "out_weight": [e, e],
                  "up_weight": [e, f], "up_bias": [f], "down_weight": [f, e]}  # fmt: skip
        names = [field.name for field in fields(EncoderWeights)]
        return EncoderWeights(**{n: g.input(prefix + n, shapes.get(n, [e]), dtype) for n in names})


def transformer_encoder_layer(
    x: Tensor,
    weights: EncoderWeights,
    heads: int,
    causal: bool = False,
    activation: str = "gelu",
    norm_first: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Self-attention and feed-forward with residuals: x [B, S, E] -> [B, S, E].

    The norms follow the residuals (BERT), or with norm_first stand before attention and feed-forward.
    """
    want_rank("transformer_encoder_layer", "the input", x, 3)
    batch, length, width = x.dims
    if heads < 1 or (width % heads).constant != 0:
        raise ShapeError(f"transformer_encoder_layer: a width of {width} does not split into {heads} heads")
    w = weights
    inner = layernorm(x, w.gamma1, w.beta1, eps) if norm_first else x
    projected = dense(inner, w.qkv_weight, w.qkv_bias)
    q, k, v = (_heads(_columns(projected, width * i, width * (i + 1)), heads) for i in range(3))
    mixed = transpose(attention(q, k, v, causal), (0, 2, 1, 3))
    x = x + dense(reshape(mixed, (batch, length, width)), w.out_weight, w.out_bias)
    if not norm_first:
        x = layernorm(x, w.gamma1, w.beta1, eps)
    inner = layernorm(x, w.gamma2, w.beta2, eps) if norm_first else x
    x = x + dense(dense(inner, w.up_weight, w.up_bias, activation), w.down_weight, w.down_bias)
    return x if norm_first else layernorm(x, w.gamma2, w.beta2, eps)


def _columns(x: Tensor, begin: Expr, end: Expr) -> Tensor:
    return slicing.slice(x, (None, None, begin), (None, None, end))


def _heads(x: Tensor, heads: int) -> Tensor:
    """[B, S, E] -> [B, heads, S, E / heads]."""
    batch, length, width = x.dims
    return transpose(reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))
