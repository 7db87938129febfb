"""Ragged models of the GPU benchmark: an encoder layer in f16 and its attention, our artifacts, and batches to run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.ragged.encoder import HEADS, INNER, LONGEST, WIDTH

PARTS = ("encoder", "attention")


@dataclass(frozen=True)
class Form:
    """Sizes of the layer; longest: of a sequence; most: sequences of a batch."""

    width: int = WIDTH
    heads: int = HEADS
    inner: int = INNER
    longest: int = LONGEST
    most: int = 128

    @property
    def head(self) -> int:
        return self.width // self.heads

    def flops(self, part: str, lengths: Sequence[int]) -> int:
        """Useful operations of a part over a batch."""
        attention = sum(4 * n * n * self.width for n in lengths)
        dense = sum(lengths) * 2 * (4 * self.width * self.width + 2 * self.width * self.inner)
        return attention + (dense if part == "encoder" else 0)


def file_of(part: str) -> str:
    return f"ragged_{part}.tw"


def graph(part: str, form: Form) -> Any:
    """encoder: x, then the weights -> x. attention: q, k, v -> rows."""
    import tilewright as tw

    ops, made = tw.ops, tw.ops.Graph()
    if part == "encoder":
        x = made.input("x", ["B", "S", form.width], "f16")
        weights = ops.EncoderWeights.inputs(made, form.width, form.inner, dtype="f16")
        made.output(ops.transformer_encoder_layer(x, weights, form.heads, activation="relu"))
        return made
    rows = [made.input(name, ["B", "S", form.width], "f16") for name in "qkv"]
    b, s, _ = rows[0].dims
    q, k, v = (ops.transpose(ops.reshape(x, (b, s, form.heads, form.head)), (0, 2, 1, 3)) for x in rows)
    made.output(ops.reshape(ops.transpose(ops.attention(q, k, v), (0, 2, 1, 3)), (b, s, form.width)))
    return made


def build(folder: Path, target: str, form: Form) -> list[Path]:
    """Compile and save. Needs the compiler, not a GPU."""
    import tilewright as tw

    dims = {"B": tw.Dim(0, form.most), "S": tw.Ragged(0, form.longest, over="B")}
    for part in PARTS:
        tw.compile(graph(part, form), dims, target=target).save(folder / file_of(part))
    return [folder / file_of(part) for part in PARTS]


@dataclass(frozen=True)
class Batch:
    """What one call of any system reads.

    rows: packed arguments [total, width], one of the encoder, three of attention. weights: ours, in the order of EncoderWeights;
    layer: the same as nn.TransformerEncoderLayer. offsets: i64 on the device; host: the same in NumPy; starts: i32 on the device.
    padded: the arguments [B, S, width], zeros behind each sequence. missing: [B, S], True there; seen: [B, 1, 1, S], 0, and
    -inf there.
    """

    lengths: tuple[int, ...]
    rows: tuple[Any, ...]
    weights: tuple[Any, ...]
    layer: Any
    offsets: Any
    host: Any
    starts: Any
    padded: tuple[Any, ...]
    missing: Any
    seen: Any

    def packed(self, x: Any) -> Any:
        """[B, S, width] -> [total, width]."""
        return x[~self.missing]


def batch(torch: Any, part: str, lengths: Sequence[int], form: Form, seed: int, device: str = "cuda") -> Batch:
    """Seeded arguments of f16 on a device."""
    torch.manual_seed(seed)
    total, longest = sum(lengths), max(lengths)
    rows = tuple(torch.randn(total, form.width, device=device).half() for _ in range(1 if part == "encoder" else 3))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    missing = (torch.arange(longest)[None, :] >= torch.tensor(lengths)[:, None]).to(device)
    padded = []
    for x in rows:
        padded.append(torch.zeros(len(lengths), longest, form.width, device=device, dtype=x.dtype))
        padded[-1][~missing] = x
    layer, weights = None, ()
    seen = torch.zeros(len(lengths), 1, 1, longest, device=device, dtype=rows[0].dtype)
    if part == "encoder":
        layer = torch.nn.TransformerEncoderLayer(form.width, form.heads, form.inner, dropout=0.0, batch_first=True)
        with torch.no_grad():
            for p in layer.parameters():
                if p.dim() == 1:
                    p.add_(0.1 * torch.randn_like(p))
        layer = layer.eval().half().to(device)
        weights = weights_of(layer)
    return Batch(tuple(lengths), rows, weights, layer, offsets.to(device), offsets.numpy(), offsets.to(device, torch.int32),
                 tuple(padded), missing, seen.masked_fill(missing[:, None, None, :], -math.inf))


def weights_of(layer: Any) -> tuple[Any, ...]:
    """As ops.EncoderWeights has them: matrices [inputs, outputs]."""
    own = layer.self_attn
    found = (own.in_proj_weight.t(), own.in_proj_bias, own.out_proj.weight.t(), own.out_proj.bias,
             layer.linear1.weight.t(), layer.linear1.bias, layer.linear2.weight.t(), layer.linear2.bias,
             layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias)
    return tuple(w.detach().contiguous() for w in found)
