"""What torch.compile makes of ragged batches: FlexAttention over packed rows, and attention of nested tensors.

Compiled as torch.compile does by default, for one batch, then for all, but for FlexAttention, which is compiled for each batch:
what torch 2.14 makes of it for all sizes on a CPU is no valid C++ (`cur_qSplitSize8` is not declared). Block masks and nested
tensors are made outside of the call, as a model of many layers has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

Rows = Callable[..., Any]


@cache
def _flex() -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _attend(kind: str, heads: int, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Rows, of a kind: `flex` takes [1, rows, width] and a block mask, `njt` nested tensors and nothing."""
    import torch

    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    if kind == "flex":  # in a graph with what is around it, torch 2.14's lowering for CPUs fails
        made = _flex()(q.contiguous(), k.contiguous(), v.contiguous(), block_mask=mask)
    else:
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return made.transpose(1, 2).flatten(-2)


@cache
def attention(kind: str, heads: int) -> Rows:
    """(q, k, v, mask) -> rows."""
    import torch

    run: Rows = partial(_attend, kind, heads)
    made: Rows = run if kind == "flex" else torch.compile(run)
    return made


def encoder(kind: str, heads: int, layer: Any) -> Rows:
    """A post-norm layer of nn.TransformerEncoderLayer with this attention: (rows, mask) -> rows."""
    import torch

    own, flex = layer.self_attn, kind == "flex"

    def before(x: Any) -> Any:
        parts = torch.nn.functional.linear(x, own.in_proj_weight, own.in_proj_bias).chunk(3, -1)
        return parts if flex else tuple(part.contiguous() for part in parts)  # torch's attention of nested views fails

    def after(x: Any, mixed: Any) -> Any:
        x = layer.norm1(x + own.out_proj(mixed))
        return layer.norm2(x + layer.linear2(layer.linear1(x).relu()))

    first, second = (torch.compile(before), torch.compile(after)) if flex else (before, after)

    def run(x: Any, mask: Any = None) -> Any:
        q, k, v = first(x)
        return second(x, _attend(kind, heads, q, k, v, mask))

    whole: Rows = run if flex else torch.compile(run)
    return whole


def block_mask(lengths: Sequence[int]) -> Any:
    """Rows of a sequence see those of the same."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    total = len(number)
    return create_block_mask(lambda b, h, i, j: number[i] == number[j], None, None, total, total, device="cpu")


def nested(rows: Any, lengths: Sequence[int]) -> Any:
    import torch

    return torch.nested.nested_tensor(list(rows.split(list(lengths))), layout=torch.jagged)
