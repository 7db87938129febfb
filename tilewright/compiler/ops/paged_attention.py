"""Attention over keys and values in pages, as caches of servers hold them.

After Kwon et al. 2023 (PagedAttention). Keys and values are read through the table where the target has a kernel for it;
elsewhere they are gathered first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compiler.ops.attention import attention
from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.graph import Tensor, shown, want_rank
from tilewright.compiler.ops.indexing import gather, want_indices
from tilewright.compiler.ops.pointwise import where
from tilewright.compiler.ops.reshaping import reshape, transpose
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_ONE = Expr.of(1)


def paged_attention(
    q: Tensor, k: Tensor, v: Tensor, block_table: Tensor, lengths: Tensor | None = None, causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(q @ k^T * scale) @ v where key t of sequence b is k[block_table[b, t // page], t % page].

    q [B, H, S, D], k [pages, page, G, D], v [pages, page, G, E], block_table [B, N] of integers -> [B, H, S, E]. With G < H,
    which divides it, each head of k and v serves H / G heads of q in a row. For 16-bit floats scores and softmax are in f32. An
    entry that names no page names the last one; entries behind a sequence's keys are not looked at.

    Args:
        lengths: [B] of signed integers, how many keys each sequence has; 0 to N * page of them, which is also what more counts
            as. By default all have N * page.
        causal: query i sees the keys up to i + length - S, so that the last query sees all.
        scale: default 1 / sqrt(D).
    Returns: a query that sees no key gets zeros where `lengths` are given or `causal`; else it gets NaN.
    Raises:
        ShapeError: shapes do not fit. DTypeError: q, k and v differ or are no floats, or others are no integers.
    """
    for what, x, rank in (("q", q, 4), ("k", k, 4), ("v", v, 4), ("block_table", block_table, 2)):
        want_rank("paged_attention", what, x, rank)
    want_indices("paged_attention", block_table)
    batch, pages, page = q.dims[0], *k.dims[:2]
    if v.dims[:3] != k.dims[:3] or block_table.dims[0] != batch:
        raise ShapeError(f"paged_attention: q {shown(q.dims)}, k {shown(k.dims)}, v {shown(v.dims)} and block_table "
                         f"{shown(block_table.dims)} do not fit; wanted [B, H, S, D], [{pages}, {page}, G, D], "
                         f"[{pages}, {page}, G, E] and [B, N]")
    if lengths is not None:
        want_indices("paged_attention", lengths)
        if lengths.dims != (batch,):
            raise ShapeError(f"paged_attention: lengths {shown(lengths.dims)}; wanted one of each sequence, [{batch}]")
    keys, values = (_in_order(x, block_table) for x in (k, v))
    every = block_table.dims[1] * page
    if lengths is None and not causal:
        return attention(q, keys, values, scale=scale)
    if lengths is None:
        return attention(q, keys, values, causal, scale, safe=True)
    rows = q.dims[2] if causal else _ONE

    def inside(region: Body, length: Scalar, key: Scalar | None = None) -> Scalar:
        """Is the key, or the first one, before the end of what the query sees?"""
        end = length.cast("index")
        own = q.graph.number(region, rows, "index")
        return (own if key is None else key + own).compare("le", end + region.index(2) if causal else end)

    seen = _of_lengths(lengths, [batch, _ONE, rows, every], lambda region, n: inside(region, n, region.index(3)))
    some = _of_lengths(lengths, [batch, _ONE, rows, _ONE], inside)
    return where(some, attention(q, keys, values, scale=scale, mask=seen), 0)


def _in_order(x: Tensor, table: Tensor) -> Tensor:
    """[pages, page, G, D] -> [B, G, N * page, D]."""
    found = gather(x, table)
    batch, blocks, page, heads, depth = found.dims
    return transpose(reshape(found, [batch, blocks * page, heads, depth]), [0, 2, 1, 3])


def _of_lengths(lengths: Tensor, dims: Sequence[Expr], test: Callable[[Body, Scalar], Scalar]) -> Tensor:
    """An i1 tensor whose elements follow from their place and the length of the sequence."""
    graph, loops = lengths.graph, [f"d{i}" for i in range(len(dims))]

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        return test(region, scalars[0])

    return graph.generic([(lengths, ["d0"])], (graph.empty(DType.I1, dims), loops), ["parallel"] * len(dims), body)
