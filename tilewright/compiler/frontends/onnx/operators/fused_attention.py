"""Attention as ONNX Runtime fuses it: with the projections, biases, masks, caches and rotary embeddings around it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.operators.normalization import layer_normalised
from tilewright.compiler.frontends.onnx.operators.transformer import rotated
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_ONE = Expr.of(1)
_Maybe = ops.Tensor | None


def _split(context: Context, x: ops.Tensor, heads: int) -> ops.Tensor:
    """[B, S, heads * D] as [B, heads, S, D]; four axes are taken as they are."""
    if x.rank == 4:
        return x
    context.require(x.rank == 3, f"an operand of rank {x.rank}; wanted 3 or 4")
    context.require((x.dims[2] % heads) == Expr.of(0), f"{x.dims[2]} features do not split into {heads} heads")
    return ops.swap_axes(ops.reshape(x, [x.dims[0], x.dims[1], heads, x.dims[2] // heads]), 1, 2)


def _joined(x: ops.Tensor) -> ops.Tensor:
    """[B, heads, S, D] as [B, S, heads * D]."""
    return ops.reshape(ops.swap_axes(x, 1, 2), [x.dims[0], x.dims[2], x.dims[1] * x.dims[3]])


def _appended(context: Context, past: _Maybe, new: ops.Tensor) -> ops.Tensor:
    """The cache [B, heads, P, D] and what comes behind it."""
    if past is None:
        return new
    return ops.concat([context.restated(past, [new.dims[0], new.dims[1], past.dims[2], new.dims[3]]), new], 2)


def _mask(context: Context, mask: _Maybe, like: ops.Tensor, keys: Expr) -> _Maybe:
    """What is added to the scores: 0, or mask_filter_value where a key is masked.

    mask: [B] lengths, [B, T] or [B, S, T] of 0 and 1.
    """
    if mask is None:
        return None
    batch, queries = like.dims[0], like.dims[2]
    if mask.rank == 1:
        lengths = ops.reshape(context.restated(mask, [batch]), [batch, 1, 1, 1])
        places = ops.reshape(ops.arange(context.graph, keys, dtype=mask.dtype), [1, 1, 1, keys])
        seen = ops.compare(places, lengths, "lt")
    else:
        context.require(mask.rank in (2, 3), f"a mask of rank {mask.rank}", "Use a mask [B, T] or [B, S, T]")
        dims = [batch, keys] if mask.rank == 2 else [batch, queries, keys]
        given = ops.reshape(context.restated(mask, dims), [batch, 1, 1 if mask.rank == 2 else queries, keys])
        seen = given if given.dtype is DType.I1 else ops.compare(given, 0, "gt")
    filled = ops.full(context.graph, [], context.attribute("mask_filter_value", -10000.0), like.dtype)
    return ops.where(seen, ops.zeros(context.graph, [], like.dtype), filled)


def _bias(context: Context, bias: _Maybe, q: ops.Tensor, keys: Expr) -> _Maybe:
    """What is added to the scores [B or 1, heads or 1, S, T]."""
    if bias is None:
        return None
    wanted = [q.dims[0], q.dims[1], q.dims[2], keys]
    context.require(bias.rank == 4, f"an attention bias of rank {bias.rank}; wanted 4")
    return context.restated(bias, [d if d == _ONE else w for d, w in zip(bias.dims, wanted, strict=True)])


def _attended(context: Context, q: ops.Tensor, k: ops.Tensor, v: ops.Tensor, masks: list[_Maybe]) -> ops.Tensor:
    """[B, S, heads * E] of q, k, v [B, heads, length, size] and what is added to the scores."""
    k = context.restated(k, [q.dims[0], q.dims[1], k.dims[2], q.dims[3]])
    v = context.restated(v, [q.dims[0], q.dims[1], k.dims[2], v.dims[3]])
    given = [m for m in masks if m is not None]
    added = given[0] if given else None
    for more in given[1:]:
        added = context.binary(context.node.op_type, Scalar.__add__, added, more) if added is not None else more
    causal = bool(context.attribute("unidirectional", 0))
    return _joined(ops.attention(q, k, v, causal, context.attribute("scale") or None, added))


@operator("com.microsoft.MultiHeadAttention")
def multi_head_attention(
    context: Context,
    q: ops.Tensor,
    k: _Maybe = None,
    v: _Maybe = None,
    bias: _Maybe = None,
    mask: _Maybe = None,
    added: _Maybe = None,
    past_k: _Maybe = None,
    past_v: _Maybe = None,
    *rest: _Maybe,
) -> list[ops.Tensor]:
    """q [B, S, heads * D], k [B, T, heads * D], v [B, T, heads * E]; packed [B, S, heads, 3, D]; k and v as in a cache."""
    context.require(all(r is None for r in rest), "a shared buffer for past and present", "Export with a cache that grows")
    context.require(not context.wants(3), "the scores as a result", "Export without this result")
    heads = context.attribute("num_heads")
    if k is None:
        context.require(q.rank == 5, f"no key and a query of rank {q.rank}; wanted [B, S, heads, 3, D]")
        q, k, v = (_flat(ops.select(q, 3, i)) for i in range(3))
    elif v is None:
        context.require(k.rank == 5, f"no value and a key of rank {k.rank}; wanted [B, T, heads, 2, D]")
        k, v = (_flat(ops.select(k, 3, i)) for i in range(2))
    if bias is not None:
        features, at, parts = q.dims[2], Expr.of(0), []
        for part in (q, k, v):
            size = part.dims[2] if part.rank == 3 else features
            parts.append(part if part.rank == 4 else ops.add(part, ops.narrow(bias, 0, at, size)))
            at = at + size
        q, k, v = parts
    q, k, v = (_split(context, x, heads) for x in (q, k, v))
    k, v = _appended(context, past_k, k), _appended(context, past_v, v)
    return [_attended(context, q, k, v, [_mask(context, mask, q, k.dims[2]), _bias(context, added, q, k.dims[2])]), k, v]


def _flat(x: ops.Tensor) -> ops.Tensor:
    return ops.reshape(x, [x.dims[0], x.dims[1], x.dims[2] * x.dims[3]])


@operator("com.microsoft.Attention")
def attention_with_projection(
    context: Context,
    x: ops.Tensor,
    weights: ops.Tensor,
    bias: _Maybe = None,
    mask: _Maybe = None,
    past: _Maybe = None,
    added: _Maybe = None,
    *rest: _Maybe,
) -> list[ops.Tensor]:
    """x [B, S, inputs] times weights [inputs, q + k + v features], then attention; past [2, B, heads, P, D]."""
    context.require(
        all(r is None for r in rest) and not context.attribute("past_present_share_buffer", 0),
        "a shared buffer for past and present",
        "Export with a cache that grows",
    )
    context.require(not context.attribute("do_rotary", 0), "rotary embeddings inside", "Export without this fusion")
    heads, sizes = context.attribute("num_heads"), context.attribute("qkv_hidden_sizes")
    third = weights.dims[1] // 3
    widths = [third] * 3 if sizes is None else [Expr.of(s) for s in sizes]
    x = context.restated(x, [*x.dims[:-1], weights.dims[0]])
    whole = ops.matmul(x, weights)
    if bias is not None:
        whole = ops.add(whole, context.restated(bias, [weights.dims[1]]))
    starts = [Expr.of(0), widths[0], widths[0] + widths[1]]
    q, k, v = (_split(context, ops.narrow(whole, -1, at, size), heads) for at, size in zip(starts, widths, strict=True))
    if past is not None:
        k, v = (_appended(context, ops.select(past, 0, i), t) for i, t in enumerate((k, v)))
    found = _attended(context, q, k, v, [_mask(context, mask, q, k.dims[2]), _bias(context, added, q, k.dims[2])])
    return [found, ops.stack([k, v], 0)] if context.wants(1) else [found]


@dataclass(frozen=True)
class _Places:
    """Where the new tokens of a batch stand. past: [B, 1] tokens before them, of i32. own: [B, S] their places."""

    past: ops.Tensor
    own: ops.Tensor


@operator("com.microsoft.GroupQueryAttention", either=[6])
def group_query_attention(
    context: Context,
    q: ops.Tensor,
    k: _Maybe,
    v: _Maybe,
    past_k: _Maybe,
    past_v: _Maybe,
    lengths: ops.Tensor,
    total: Known | ops.Tensor,
    cosines: _Maybe = None,
    sines: _Maybe = None,
    positions: _Maybe = None,
    added: _Maybe = None,
    sink: _Maybe = None,
    *rest: _Maybe,
) -> list[ops.Tensor]:
    """Causal attention of heads that share keys, behind a cache [B, kv heads, P, D] that the result appends to.

    lengths: [B], the tokens of a sequence with the new ones, less one. Sequences of a batch may have different lengths.
    """
    context.require(all(r is None for r in rest), "a cache in codes", "Export with a cache of floats")
    heads, shared = context.attribute("num_heads"), context.attribute("kv_num_heads")
    if k is None or v is None:
        each = q.dims[2] // (heads + 2 * shared)
        k, v = (ops.narrow(q, -1, each * at, each * shared) for at in (heads, heads + shared))
        q = ops.narrow(q, -1, 0, each * heads)
    q, k, v = (_split(context, x, n) for x, n in ((q, heads), (k, shared), (v, shared)))
    batch, length = q.dims[0], q.dims[2]
    if isinstance(total, Known):
        context.equal(total.exprs()[0], length + (past_k.dims[2] if past_k is not None else 0))
    else:
        context.require(past_k is None, "the length of its cache is computed from data",
                        "Compute total_sequence_length from the shape of the attention mask")
    places = _places(context, lengths, batch, length, past_k is not None)
    if context.attribute("do_rotary", 0):
        context.require(cosines is not None and sines is not None, "rotary embeddings without their tables")
        where = places.own if positions is None else positions
        q, k = (_turned(context, x, where, cosines, sines) for x in (q, k))
    k, v = (_in_place(context, _appended(context, p, x), p, places) for x, p in ((k, past_k), (v, past_v)))
    return [_shared_attention(context, (q, k, v), places, added, sink), k, v]


def _places(context: Context, lengths: ops.Tensor, batch: Expr, length: Expr, cached: bool) -> _Places:
    lengths = ops.reshape(ops.cast(lengths, DType.I32), [batch, 1])
    steps = ops.reshape(ops.arange(context.graph, length, dtype=DType.I32), [1, length])
    past = lengths + 1 - length if cached else lengths * 0
    return _Places(past, ops.add(past, steps))


def _turned(context: Context, x: ops.Tensor, places: ops.Tensor, cosines: _Maybe, sines: _Maybe) -> ops.Tensor:
    assert cosines is not None and sines is not None
    rows = rotated(ops.swap_axes(x, 1, 2), ops.cast(places, DType.I64), cosines, sines,
                   bool(context.attribute("rotary_interleaved", 0)))
    return ops.swap_axes(rows, 1, 2)


def _in_place(context: Context, joined: ops.Tensor, past: _Maybe, places: _Places) -> ops.Tensor:
    """The cache with the new tokens behind those of each sequence, which may be fewer than the cache has room for."""
    if past is None or joined.dims[0] == _ONE:
        return joined
    total, room = joined.dims[2], past.dims[2]
    at = ops.reshape(ops.arange(context.graph, total, dtype=DType.I32), [1, total])
    moved = ops.add(ops.subtract(at, places.past), ops.full(context.graph, [], room, DType.I32))
    last = ops.full(context.graph, [], total - 1, DType.I32)
    source = ops.minimum(ops.where(ops.compare(at, places.past, "lt"), at, moved), last)
    rows = ops.reshape(ops.cast(source, DType.I64), [joined.dims[0], 1, total, 1])
    return ops.gather_elements(joined, ops.broadcast_to(rows, joined.dims), 2)


def _shared_attention(
    context: Context, operands: tuple[ops.Tensor, ops.Tensor, ops.Tensor], places: _Places, added: _Maybe,
    sink: _Maybe,
) -> ops.Tensor:
    q, k, v = operands
    batch, length, keys = q.dims[0], q.dims[2], k.dims[2]
    own = ops.reshape(places.own, [batch, 1, length, 1])
    at = ops.reshape(ops.arange(context.graph, keys, dtype=DType.I32), [1, 1, 1, keys])
    seen = ops.compare(at, own, "le")
    window = context.attribute("local_window_size", -1)
    if window > 0:
        near = ops.compare(at, own - window, "gt")
        seen = context.graph.pointwise("GroupQueryAttention", Scalar.__and__, seen, near)
    mask, bias = seen, _bias(context, added, q, keys)
    if bias is not None:
        lowest = ops.full(context.graph, [], q.dtype.limits[0], q.dtype)
        mask = ops.where(seen, bias, lowest)
    scale, cap = context.attribute("scale", 0.0) or None, context.attribute("softcap", 0.0)
    if sink is None and context.attribute("smooth_softmax", 0) > 0:
        sink = ops.zeros(context.graph, [q.dims[1]], q.dtype)
    if not cap and sink is None:
        return _joined(ops.attention(q, k, v, False, scale, mask))
    return _joined(_written_out(context, (q, k, v), seen, (scale, cap), bias, sink))


def _written_out(
    context: Context, operands: tuple[ops.Tensor, ops.Tensor, ops.Tensor], seen: ops.Tensor, numbers: tuple[float | None, float],
    bias: _Maybe, sink: _Maybe,
) -> ops.Tensor:
    """Attention whose scores are capped, to cap * tanh(score / cap), or that has a sink [heads]: a score of no key.

    numbers: scale, None for 1 / sqrt(D), and cap, 0 for none.
    """
    (q, k, v), (scale, cap) = operands, numbers
    batch, heads, length, size = q.dims
    shared, keys = k.dims[1], k.dims[2]
    context.require(scale is not None or size.constant is not None, "heads of dynamic size without a scale")
    factor = 1 / math.sqrt(size.constant or 1) if scale is None else scale

    def capped(s: Scalar) -> Scalar:
        return (s * (factor / cap)).math("tanh") * cap if cap else s * factor

    rows = ops.reshape(ops.cast(q, DType.F32), [batch, shared, heads // shared * length, size])
    scores = ops.matmul(rows, ops.swap_axes(ops.cast(k, DType.F32), 2, 3))
    scores = ops.reshape(context.graph.pointwise("GroupQueryAttention", capped, scores), [batch, heads, length, keys])
    if bias is not None:
        scores = ops.add(scores, ops.cast(bias, DType.F32))
    scores = ops.where(seen, scores, ops.full(context.graph, [], -math.inf, DType.F32))
    if sink is not None:
        column = ops.reshape(ops.cast(context.restated(sink, [heads]), DType.F32), [1, heads, 1, 1])
        scores = ops.concat([scores, ops.broadcast_to(column, [batch, heads, length, 1])], 3)
    weights = ops.narrow(ops.softmax(scores), 3, 0, keys)
    mixed = ops.matmul(ops.reshape(weights, [batch, shared, heads // shared * length, keys]), ops.cast(v, DType.F32))
    return ops.cast(ops.reshape(mixed, [batch, heads, length, v.dims[3]]), q.dtype)


@operator("com.microsoft.EmbedLayerNormalization")
def embed_layer_normalization(
    context: Context,
    tokens: ops.Tensor,
    segments: _Maybe,
    words: ops.Tensor,
    positions: ops.Tensor,
    kinds: _Maybe,
    gamma: ops.Tensor,
    beta: ops.Tensor,
    mask: _Maybe = None,
    places: _Maybe = None,
) -> list[ops.Tensor]:
    """Embeddings of tokens, places and segments [B, S], added and normalised; and how many tokens each row of the mask has."""
    batch, length = tokens.dims
    total = ops.gather(words, tokens, 0)
    own = ops.narrow(positions, 0, 0, length) if places is None else ops.gather(positions, places, 0)
    total = ops.add(total, own)
    if segments is not None and kinds is not None:
        total = ops.add(total, ops.gather(kinds, context.restated(segments, [batch, length]), 0))
    made = layer_normalised(context, total, gamma, beta, 2, context.attribute("epsilon", 1e-12))
    counts = ops.zeros(context.graph, [batch], DType.I32) if mask is None else ops.sum(ops.cast(mask, DType.I32), 1)
    return [made, ops.cast(counts, DType.I32), total]
