"""An encoder layer over batches of the lengths of eight data sets."""

from __future__ import annotations

import argparse
import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

import tilewright as tw
from tools.bench.ragged import compiled_peers
from tools.bench.ragged.case import Call, Case, first_lengths

WIDTH, HEADS, INNER, LONGEST = 512, 8, 2048, 512


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """One a data set."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True).eval()
    x = torch.randn(3, 7, WIDTH)
    fn = tw.compile(layer, {"B": tw.Dim(0, 128), "S": tw.Ragged(0, LONGEST, over="B")}, args=(x,),
                    dynamic_shapes=({0: "B", 1: "S"},))
    alone = tw.compile(layer, {"S": tw.Dim(2, LONGEST)}, args=(x[:1],), dynamic_shapes=({1: "S"},))
    session = _session(layer, given.threads)
    compiled = {kind: compiled_peers.encoder(kind, HEADS, layer) for kind in ("flex", "njt")}
    for name in given.sets.split(","):
        yield _case(name, first_lengths()[name][: given.batch], layer, (fn, alone), session, compiled, given.threads)


def _case(name: str, lengths: Sequence[int], layer: Any, fns: tuple[tw.CompiledFunction, tw.CompiledFunction], session: Any,
          compiled: Mapping[str, Any], threads: int) -> Case:
    import torch

    (fn, alone), total, longest = fns, sum(lengths), max(lengths)
    packed = torch.randn(total, WIDTH)
    offsets = torch.from_numpy(np.append(0, np.cumsum(lengths)))
    mask = torch.arange(longest)[None, :] >= torch.tensor(lengths)[:, None]
    padded = torch.zeros(len(lengths), longest, WIDTH)
    padded[~mask] = packed
    seen = torch.zeros(len(lengths), 1, 1, longest).masked_fill(mask[:, None, None, :], -math.inf)
    stack = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True), 1)
    stack.layers[0].load_state_dict(layer.state_dict())
    stack.eval()
    mean = max(1, round(total / len(lengths)))
    even_rows = torch.randn(mean * len(lengths), WIDTH)
    even_offsets = torch.arange(len(lengths) + 1) * mean
    one = even_rows[:mean].unsqueeze(0)

    @cache
    def blocks() -> Any:
        return compiled_peers.block_mask(lengths)

    @cache
    def jagged() -> Any:
        return compiled_peers.nested(packed, lengths)

    calls: dict[str, Call] = {
        "ours": lambda: fn(packed, offsets, threads=threads),
        "padded": lambda: _Padded.of(layer, padded, seen),
        "nested": lambda: stack(padded, src_key_padding_mask=mask),
        "ort": lambda: session.run(None, {"x": padded.numpy(), "seen": seen.numpy()}),
        "careful": lambda: _careful(layer, packed, lengths),
        "flex": lambda: compiled["flex"](packed.unsqueeze(0), blocks()),
        "njt": lambda: compiled["njt"](jagged()),
        "even": lambda: fn(even_rows, even_offsets, threads=threads),
        "alone": lambda: [alone(one, threads=threads) for _ in lengths],
    }
    error = float((calls["ours"]() - calls["careful"]()).abs().max())
    share = _operations(lengths) / _operations([mean] * len(lengths))
    return Case(name, calls, error, {"even": share, "alone": share})


def _session(layer: Any, threads: int) -> Any:
    """The padded layer in ONNX Runtime, for any batch and length."""
    import onnxruntime
    import torch

    file = io.BytesIO()
    axes = {"x": {0: "B", 1: "S"}, "seen": {0: "B", 3: "S"}, "y": {0: "B", 1: "S"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(_Padded.module(layer), (torch.randn(3, 7, WIDTH), torch.zeros(3, 1, 1, 7)), file, dynamo=False,
                          input_names=["x", "seen"], output_names=["y"], dynamic_axes=axes, opset_version=17)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])


def _operations(lengths: Sequence[int]) -> int:
    """Useful multiply-adds of the layer."""
    return sum(n * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER) + 2 * n * n * WIDTH for n in lengths)


def _projected(layer: Any, x: Any) -> Any:
    import torch

    return torch.nn.functional.linear(x, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias)


def _rest(layer: Any, x: Any, mixed: Any) -> Any:
    x = layer.norm1(x + layer.self_attn.out_proj(mixed))
    return layer.norm2(x + layer.linear2(layer.linear1(x).relu()))


class _Padded:
    """The padded layer with a key mask, by one fused attention for the whole batch."""

    @staticmethod
    def of(layer: Any, x: Any, seen: Any) -> Any:
        """x: [B, S, WIDTH]; seen: [B, 1, 1, S], 0 where a key is seen and -inf elsewhere."""
        import torch

        batch, longest = x.shape[:2]
        q, k, v = _projected(layer, x).view(batch, longest, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return _rest(layer, x, mixed.transpose(1, 2).reshape(batch, longest, WIDTH))

    @staticmethod
    def module(layer: Any) -> Any:
        """As a module, for an exporter."""
        import torch

        class Module(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, x: Any, seen: Any) -> Any:
                return _Padded.of(self.layer, x, seen)

        return Module().eval()


def _careful(layer: Any, x: Any, lengths: Sequence[int]) -> Any:
    """Dense layers over packed rows, one attention for each sequence."""
    import torch

    parts = []
    for part in _projected(layer, x).split(list(lengths)):
        q, k, v = part.view(1, len(part), 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        parts.append(mixed.transpose(1, 2).reshape(len(part), WIDTH))
    return _rest(layer, x, torch.cat(parts))
