"""Scaled dot-product attention, in the form that becomes one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.contractions import contract, product
from tilewright.compiler.ops.creation import iota
from tilewright.compiler.ops.graph import Tensor, same_dtype, shown, want_float
from tilewright.compiler.ops.normalization import softmax
from tilewright.compiler.ops.pointwise import cast, compare, where
from tilewright.compiler.ops.reductions import narrowed
from tilewright.compiler.ops.reshaping import reshape, squeeze, unsqueeze
from tilewright.compiler.ops.statistics import any  # noqa: A004
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

CAUSAL = {False: None, True: "bottom-right", "bottom-right": "bottom-right", "top-left": "top-left"}


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool | str = False, scale: float | None = None, mask: Tensor | None = None,
    safe: bool = False,
) -> Tensor:
    """softmax(q @ k^T * scale + mask) @ v over the last two axes.

    q [..., H, S, D], k [..., G, T, D], v [..., G, T, E] -> [..., H, S, E], the leading axes equal. With G < H, which divides it,
    each head of k and v serves H / G heads of q in a row; nothing is copied. For 16-bit floats scores and softmax are in f32.

    Args:
        causal: "bottom-right" (or True): query i sees the keys up to i + T - S, so that the last query sees all. "top-left": the
            keys up to i.
        scale: default 1 / sqrt(D).
        mask: broadcast to [..., H, S, T]. Of i1: true where the query sees the key; of floats: added to the scores.
        safe: a query that sees no key gets zeros; else it gets NaN.
    Raises:
        ShapeError: shapes do not fit. DTypeError: q, k and v differ or are no floats, or the mask is of integers.
        OptionError: an unknown `causal`.
    """
    want_float("attention", q, k, v)
    same_dtype("attention", [q, k, v])
    if causal not in CAUSAL:
        raise OptionError(f"attention: causal={causal!r}; use True, False, 'top-left' or 'bottom-right'")
    groups = _groups(q, k, v)
    kept, each_its_own = q.dims, q.dims[-3] == k.dims[-3]
    if each_its_own:
        scores = product("attention", q, k, transpose_b=True)
    else:
        k, v = (squeeze(x, -3) if groups is None else x for x in (k, v))
        q = q if groups is None else reshape(q, [*q.dims[:-3], *groups, *q.dims[-2:]])
        scores = _shared_scores(q, k)
    mask = None if mask is None else _aligned(mask, [*kept[:-1], k.dims[-2]], groups)
    logits = _logits(scores, mask, CAUSAL[causal], scale, kept[-1])
    weights = cast(softmax(logits), v.dtype)
    mixed = product("attention", weights, v) if each_its_own else _shared_mix(weights, v)
    result = narrowed("attention", mixed, v.dtype)
    seen = _seen(mask, CAUSAL[causal], logits) if safe else None
    if seen is not None:
        result = where(seen, result, 0)
    return result if groups is None else reshape(result, [*kept[:-1], v.dims[-1]])


def _groups(q: Tensor, k: Tensor, v: Tensor) -> tuple[Expr, Expr] | None:
    """(heads of k and v, heads of q that share one); None where there are as many of both, or all share one."""
    for what, x in (("q", q), ("k", k), ("v", v)):
        if x.rank < 3 or x.rank != q.rank:
            raise ShapeError(f"attention: {what} has rank {x.rank}, shape {shown(x.dims)}; wanted rank 3 or more, that of q")
    if q.dims[:-3] != k.dims[:-3] or k.dims[:-1] != v.dims[:-1] or q.dims[-1] != k.dims[-1]:
        raise ShapeError(f"attention: q {shown(q.dims)}, k {shown(k.dims)} and v {shown(v.dims)} do not fit; "
                         "wanted [..., H, S, D], [..., G, T, D] and [..., G, T, E]")
    heads, shared = q.dims[-3], k.dims[-3]
    if shared in (heads, Expr.of(1)):
        return None
    each = heads // shared
    if each * shared != heads:
        raise ShapeError(f"attention: {heads} heads of q do not divide among {shared} heads of k and v")
    return shared, each


def _shared_scores(q: Tensor, k: Tensor) -> Tensor:
    """q [..., R, S, D] and k [..., T, D] -> [..., R, S, T]."""
    lead = [f"b{i}" for i in range(q.rank - 3)]
    return contract("attention", q, k, [*lead, "r", "s", "d"], [*lead, "t", "d"], [*lead, "r", "s", "t"])


def _shared_mix(weights: Tensor, v: Tensor) -> Tensor:
    lead = [f"b{i}" for i in range(weights.rank - 3)]
    return contract("attention", weights, v, [*lead, "r", "s", "t"], [*lead, "t", "e"], [*lead, "r", "s", "e"])


def _aligned(mask: Tensor, scores: Sequence[Expr], groups: tuple[Expr, Expr] | None) -> Tensor:
    """The mask with as many axes as the scores, its heads split as theirs."""
    if mask.dtype is not DType.I1 and not mask.dtype.is_float:
        raise DTypeError(f"attention: a mask of {mask.dtype.value}; wanted i1 (true: seen) or floats that are added")
    if mask.rank > len(scores) or [
        d for d, s in zip(mask.dims[::-1], scores[::-1], strict=False) if d not in (Expr.of(1), s)
    ]:
        raise ShapeError(f"attention: a mask of {shown(mask.dims)} does not broadcast to the scores {shown(scores)}")
    if groups is None or mask.rank < 3:
        return mask
    if mask.dims[-3] == Expr.of(1):
        return unsqueeze(mask, mask.rank - 2)
    return reshape(mask, [*mask.dims[:-3], *groups, *mask.dims[-2:]])


def _logits(scores: Tensor, mask: Tensor | None, causal: str | None, scale: float | None, depth: Expr) -> Tensor:
    """Scaled, masked scores; all that is known of them in one elementwise operation."""
    g, rank = scores.graph, scores.rank
    loops = [f"d{i}" for i in range(rank)]
    queries, keys = scores.dims[-2:]

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        value = scalars[0]
        if scale is not None or depth.constant is not None:
            value = value * (scale if scale is not None else 1 / math.sqrt(depth.constant or 1))
        else:
            value = value / g.number(region, depth, value.kind).math("sqrt")
        if mask is not None and mask.dtype.is_float:
            value = value + scalars[1].cast(value.kind)
        elif mask is not None:
            value = region.select(scalars[1], value, -math.inf)
        if causal is None:
            return value
        return region.select(_before(region, rank, causal, keys - queries, g.number), value, -math.inf)

    inputs = [(scores, loops)]
    if mask is not None:
        offset = rank - mask.rank
        inputs.append((mask, ["0" if d == Expr.of(1) and scores.dims[offset + a] != Expr.of(1) else loops[offset + a]
                              for a, d in enumerate(mask.dims)]))
    return g.generic(inputs, (g.empty(scores.dtype, scores.dims), loops), ["parallel"] * rank, body)


def _before(region: Body, rank: int, causal: str, offset: Expr, number: Callable[[Body, Expr, str], Scalar]) -> Scalar:
    """Does the key stand where the query may see it? Queries and keys are the last two loops."""
    last = region.index(rank - 2)
    if causal == "bottom-right" and offset != Expr.of(0):
        last = last + number(region, offset, "index")
    return region.index(rank - 1).compare("le", last)


def _seen(mask: Tensor | None, causal: str | None, scores: Tensor) -> Tensor | None:
    """An i1 tensor that broadcasts to the result: does the query see any key? None where all do."""
    g, one, rank = scores.graph, Expr.of(1), scores.rank
    offset = scores.dims[-1] - scores.dims[-2]
    truth = mask
    if mask is not None and mask.dtype is not DType.I1:
        truth = compare(mask, -math.inf, "gt")
    if truth is None or truth.dims[-1] == one:  # whether a query sees a key is known from its place
        if causal != "bottom-right":
            return truth
        late = compare(iota(g, [scores.dims[-2], one]) + offset, 0, "ge")
        return late if truth is None else g.pointwise("attention", lambda a, b: a & b, late, truth)
    if causal is None:
        return any(truth, -1, keepdims=True)
    own = [one] * (rank - truth.rank) + list(truth.dims)
    dims = [*own[: rank - 2], *scores.dims[-2:]]
    loops = [f"d{i}" for i in range(rank)]

    def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        return out | (scalars[0] & _before(region, rank, causal, offset, g.number))

    seen = [(truth, ["0" if d == one and dims[a] != one else loops[a] for a, d in enumerate(own)][rank - truth.rank:])]
    into = g.filled(False, DType.I1, [*dims[:-1], one])
    return g.generic(seen, (into, [*loops[:-1], "0"]), ["parallel"] * (rank - 1) + ["reduction"], body)
