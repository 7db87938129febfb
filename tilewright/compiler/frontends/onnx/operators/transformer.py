"""Fused operators of transformers."""

from __future__ import annotations

from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.ops import scalar_functions
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr

_ONE = Expr.of(1)
_PLAIN_ATTENTION = {"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision"}


@operator("com.microsoft.BiasGelu")
def bias_gelu(context: Context, x: ops.Tensor, bias: ops.Tensor) -> ops.Tensor:
    return ops.gelu(context.binary("BiasGelu", Scalar.__add__, x, bias))


@operator("com.microsoft.FastGelu")
def fast_gelu(context: Context, x: ops.Tensor, bias: ops.Tensor | None = None) -> ops.Tensor:
    total = x if bias is None else context.binary("FastGelu", Scalar.__add__, x, bias)
    return context.graph.pointwise("FastGelu", scalar_functions.gelu_tanh, total)


@operator("com.microsoft.QuickGelu")
def quick_gelu(context: Context, x: ops.Tensor) -> ops.Tensor:
    alpha = context.attribute("alpha", 1.702)
    return context.graph.pointwise("QuickGelu", lambda v: v / ((v * -alpha).math("exp") + 1), x)


@operator("Attention")
def attention(
    context: Context,
    q: ops.Tensor,
    k: ops.Tensor,
    v: ops.Tensor,
    mask: ops.Tensor | None = None,
    *rest: ops.Tensor | None,
) -> Any:
    """One attention, where it is no more than that; what ONNX defines the operator by in all other cases.

    Those are a cache, its lengths, capped scores, scores as a result, a mask of bools, and a causal one that is not square.
    """
    given = {a.name for a in context.node.attribute}
    plain = given <= _PLAIN_ATTENTION and not rest and not any(context.wants(i) for i in (1, 2, 3))
    plain &= not context.attribute("softcap", 0.0)
    causal = bool(context.attribute("is_causal", 0))
    plain &= (
        (mask is None or mask.dtype is q.dtype) and (not causal or q.dims[-2] == k.dims[-2]) and q.dtype is k.dtype is v.dtype
    )
    if not plain or (context.has("softmax_precision") and q.dtype.bytes != 4):
        return NotImplemented
    heads, shared = context.attribute("q_num_heads"), context.attribute("kv_num_heads")
    if q.rank == 3:
        context.require(bool(heads and shared), "inputs of rank 3 without q_num_heads and kv_num_heads")
        q, k, v = _heads(context, q, heads), _heads(context, k, shared), _heads(context, v, shared)
    k = context.restated(k, [q.dims[0], k.dims[1], k.dims[2], q.dims[3]])
    v = context.restated(v, [q.dims[0], k.dims[1], k.dims[2], v.dims[3]])
    if mask is not None:
        scores = zip(mask.dims[-2:], (q.dims[2], k.dims[2]), strict=True)
        mask = context.restated(mask, [*mask.dims[:-2], *(d if d == _ONE else wanted for d, wanted in scores)])
    found = ops.attention(q, k, v, causal, context.attribute("scale"), mask)
    if not heads:
        return found
    return ops.reshape(ops.swap_axes(found, 1, 2), [q.dims[0], q.dims[2], found.dims[1] * found.dims[3]])


def _heads(context: Context, x: ops.Tensor, count: int) -> ops.Tensor:
    """[B, S, heads * D] as [B, heads, S, D]."""
    context.require((x.dims[2] % count) == Expr.of(0), f"{x.dims[2]} features do not split into {count} heads")
    return ops.swap_axes(ops.reshape(x, [x.dims[0], x.dims[1], count, x.dims[2] // count]), 1, 2)


@operator("com.microsoft.RotaryEmbedding")
def rotary_embedding(
    context: Context, x: ops.Tensor, positions: ops.Tensor, cosines: ops.Tensor, sines: ops.Tensor
) -> ops.Tensor:
    """x [B, S, heads * D] or [B, heads, S, D] turned by the angles of its positions [B, S], or [1]: of the first."""
    context.require(
        not context.attribute("is_packed_batching", 0) and context.attribute("scale", 1.0) == 1.0,
        "packed batches or a scale",
        "Export without this fusion",
    )
    half = cosines.dims[1]
    heads = context.attribute("num_heads", 0)
    turned = context.attribute("rotary_embedding_dim", 0)
    if x.rank == 4:
        rows = ops.swap_axes(x, 1, 2)
    else:
        width = (x.dims[2] // heads) if heads else half * 2
        rows = ops.reshape(x, [x.dims[0], x.dims[1], x.dims[2] // width, width])
    length = rows.dims[1]
    if positions.rank == 1:
        positions = ops.add(ops.arange(context.graph, length, dtype=positions.dtype), positions)
    found = rotated(rows, positions, cosines, sines, bool(context.attribute("interleaved", 0)), not turned)
    return ops.swap_axes(found, 1, 2) if x.rank == 4 else ops.reshape(found, x.dims)


def rotated(
    rows: ops.Tensor, positions: ops.Tensor, cosines: ops.Tensor, sines: ops.Tensor, interleaved: bool, whole: bool = False
) -> ops.Tensor:
    """rows [B, S, heads, D] turned by the angles of positions [B, S], of D as much as the tables [places, half] have angles for.

    Args:
        interleaved: pairs are neighbours, else halves. whole: the tables are known to have angles for all of D.
    """
    half = cosines.dims[1]
    cosine, sine = (ops.unsqueeze(ops.gather(t, positions, 0), -2) for t in (cosines, sines))
    part = rows if whole or rows.dims[-1] == half * 2 else ops.narrow(rows, -1, 0, half * 2)
    if interleaved:
        pairs = ops.reshape(part, [*part.dims[:-1], half, 2])
        first, second = ops.select(pairs, -1, 0), ops.select(pairs, -1, 1)
    else:
        first, second = ops.narrow(part, -1, 0, half), ops.narrow(part, -1, half, half)
    left = ops.subtract(ops.multiply(first, cosine), ops.multiply(second, sine))
    right = ops.add(ops.multiply(first, sine), ops.multiply(second, cosine))
    found = ops.reshape(ops.stack([left, right], -1), part.dims) if interleaved else ops.concat([left, right], -1)
    if part is rows:
        return found
    return ops.concat([found, ops.narrow(rows, -1, half * 2, rows.dims[-1] - half * 2)], -1)
