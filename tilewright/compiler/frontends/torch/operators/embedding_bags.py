"""Sums, means and maxima of bags of rows of a table."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.runtime.tensor import DType

_MODES = ("add", "mean", "max")


@register("torch", *names("embedding_bag", overloads=("default", "padding_idx")))
def embedding_bag(
    context: Context, table: ops.Tensor, indices: ops.Tensor, offsets: ops.Tensor, by_frequency: bool = False, mode: int = 0,
    sparse: bool = False, weights: ops.Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> list[ops.Tensor | None]:  # fmt: skip
    """[bags, features]: bag b holds the indices from offsets[b] on. What only a backward pass reads is left out."""
    g, (count,), features = context.graph, indices.dims, table.dims[1]
    bags = offsets.dims[0] - 1 if include_last_offset else offsets.dims[0]
    place = ops.arange(g, count, dtype=DType.I64)
    bag = ops.searchsorted(ops.cast(ops.narrow(offsets, 0, 0, bags), DType.I64), place, right=True) - 1
    rows = ops.gather(table, indices, 0)
    if weights is not None:
        rows = ops.multiply(rows, ops.unsqueeze(weights, 1))
    into = bag
    if padding_idx is not None:  # rows that count for nothing go to a bag behind the others
        behind = ops.broadcast_to(ops.full(g, [1], bags, DType.I64), [count])
        into = ops.where(ops.compare(indices, padding_idx, "eq"), behind, bag)
    at = ops.broadcast_to(ops.unsqueeze(into, 1), [count, features])
    found = ops.scatter(ops.zeros(g, [bags + 1, features], table.dtype), at, rows, 0, reduce=_MODES[mode], include_self=False)
    return [ops.narrow(found, 0, 0, bags), None, None, None]
