"""The attention of the encoder layer alone, over batches of the lengths of eight data sets."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tools.bench.ragged import compiled_peers
from tools.bench.ragged.case import Call, Case, first_lengths
from tools.bench.ragged.encoder import HEADS, LONGEST, WIDTH


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """One a data set."""
    fn = tw.compile(_graph(), {"B": tw.Dim(0, 128), "S": tw.Ragged(0, LONGEST, over="B")})
    for name in given.sets.split(","):
        yield _case(name, first_lengths()[name][: given.batch], fn, given.threads)


def _graph() -> ops.Graph:
    """q, k, v [B, S, WIDTH] -> [B, S, WIDTH]."""
    g = ops.Graph()
    rows = [g.input(name, ["B", "S", WIDTH]) for name in "qkv"]
    b, s, _ = rows[0].dims
    q, k, v = (ops.transpose(ops.reshape(x, (b, s, HEADS, WIDTH // HEADS)), (0, 2, 1, 3)) for x in rows)
    g.output(ops.reshape(ops.transpose(ops.attention(q, k, v), (0, 2, 1, 3)), (b, s, WIDTH)))
    return g


def _case(name: str, lengths: Sequence[int], fn: tw.CompiledFunction, threads: int) -> Case:
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    total, longest = sum(lengths), max(lengths)
    packed = [torch.randn(total, WIDTH) for _ in range(3)]
    out = torch.empty(total, WIDTH)
    offsets = torch.from_numpy(np.append(0, np.cumsum(lengths)))
    mask = torch.arange(longest)[None, :] >= torch.tensor(lengths)[:, None]
    seen = torch.zeros(len(lengths), 1, 1, longest).masked_fill(mask[:, None, None, :], -math.inf)
    wide = []
    for x in packed:
        padded = torch.zeros(len(lengths), longest, WIDTH)
        padded[~mask] = x
        wide.append(padded.view(len(lengths), longest, HEADS, -1).transpose(1, 2))

    def loop() -> Any:
        for q, k, v, o in zip(*(x.split(list(lengths)) for x in packed), out.split(list(lengths)), strict=True):
            own = (x.view(1, len(x), HEADS, -1).transpose(1, 2) for x in (q, k, v))
            o.view(len(o), HEADS, -1).copy_(attend(*own)[0].transpose(0, 1))
        return out

    apart = [x.unsqueeze(0) for x in packed]

    @cache
    def blocks() -> Any:
        return compiled_peers.block_mask(lengths)

    @cache
    def jagged() -> list[Any]:
        first = compiled_peers.nested(packed[0], lengths)
        return [first, *(torch.nested.nested_tensor_from_jagged(x, first.offsets()) for x in packed[1:])]

    calls: dict[str, Call] = {
        "ours": lambda: fn(*packed, offsets, threads=threads),
        "padded": lambda: attend(*wide, attn_mask=seen),
        "loop": loop,
        "flex": lambda: compiled_peers.attention("flex", HEADS)(*apart, blocks()),
        "njt": lambda: compiled_peers.attention("njt", HEADS)(*jagged()),
    }
    return Case(name, calls, float((calls["ours"]() - loop()).abs().max()))
