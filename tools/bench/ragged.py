"""An encoder layer over batches of sequences of different lengths, against what PyTorch users write.

    python -m tools.bench ragged [--sets mnli,race] [--batch 32] [--threads 1] [--rounds 9] [--json out.jsonl]

The batches are the first sequences of eight data sets (ragged_lengths.json). Peers, in one process and in turns: `padded`, the
layer with a padding mask; `nested`, torch's fast path of nn.TransformerEncoder; `careful`, dense layers over packed rows and one
attention for each sequence; `even`, this compiler's layer on as many sequences of equal length and about equal work, over which
the ragged efficiency is told. Ratios are medians over the rounds of peer time / ours.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tools.bench.turns import rounds_of

WIDTH, HEADS, INNER, LONGEST = 512, 8, 2048, 512
LENGTHS = Path(__file__).with_name("ragged_lengths.json")


def main(argv: Sequence[str]) -> int:
    """Run the data sets and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench ragged", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    sets: dict[str, list[int]] = json.loads(LENGTHS.read_text())["first"]
    parser.add_argument("--sets", default=",".join(sets), help="data sets (default all)")
    parser.add_argument("--batch", type=int, default=32, help="sequences, at most 128")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, default=None, help="append a record for each data set")
    given = parser.parse_args(argv)
    import torch

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    encoder = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True).eval()
    fn = tw.compile(encoder, {"B": tw.Dim(0, 128), "S": tw.Ragged(0, LONGEST, over="B")}, args=(torch.randn(3, 7, WIDTH),),
                    dynamic_shapes=({0: "B", 1: "S"},))
    ratios: dict[str, list[float]] = {}
    with torch.inference_mode():
        for name in given.sets.split(","):
            lengths = sets[name][: given.batch]
            record = _measure(fn, encoder, lengths, given)
            for peer, ratio in record["ratios"].items():
                ratios.setdefault(peer, []).append(ratio)
            shown = "  ".join(f"{peer} {ratio:.2f}x" for peer, ratio in record["ratios"].items())
            print(f"{name:9} {record['seconds'] * 1e3:8.2f} ms  {shown}  error {record['error']:.1e}", flush=True)
            if given.json is not None:
                with given.json.open("a") as file:
                    file.write(json.dumps({"set": name, "batch": len(lengths), "threads": given.threads, **record}) + "\n")
    for peer, found in ratios.items():
        print(f"{peer}: geomean {statistics.geometric_mean(found):.3f}x, worst {min(found):.3f}x")
    return 0


def _measure(fn: tw.CompiledFunction, encoder: Any, lengths: Sequence[int], given: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds in which all take turns. even: its ratio is the ragged efficiency, work by work."""
    import torch

    total, longest = sum(lengths), max(lengths)
    packed = torch.randn(total, WIDTH)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    mask = torch.arange(longest)[None, :] >= torch.tensor(lengths)[:, None]
    padded = torch.zeros(len(lengths), longest, WIDTH)
    padded[~mask] = packed
    stack = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True), 1)
    stack.layers[0].load_state_dict(encoder.state_dict())
    stack.eval()
    mean = max(1, round(total / len(lengths)))
    even_rows = torch.randn(mean * len(lengths), WIDTH)
    even_offsets = np.arange(len(lengths) + 1, dtype=np.int64) * mean
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: fn(packed, S_offsets=offsets, threads=given.threads),
        "padded": lambda: _plain(encoder, padded, mask),
        "nested": lambda: stack(padded, src_key_padding_mask=mask),
        "careful": lambda: _careful(encoder, packed, lengths),
        "even": lambda: fn(even_rows, S_offsets=even_offsets, threads=given.threads),
    }
    wanted = calls["careful"]()
    error = float((calls["ours"]() - wanted).abs().max())
    turns = rounds_of(calls, given.rounds)
    share = _operations(lengths) / _operations([mean] * len(lengths))
    found = turns.ratios("ours")
    found["even"] *= share
    return {"seconds": turns.seconds["ours"], "ratios": found, "error": error}


def _operations(lengths: Sequence[int]) -> int:
    """Useful multiply-adds of the layer."""
    return sum(n * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER) + 2 * n * n * WIDTH for n in lengths)


def _projected(encoder: Any, x: Any) -> Any:
    import torch

    return torch.nn.functional.linear(x, encoder.self_attn.in_proj_weight, encoder.self_attn.in_proj_bias)


def _rest(encoder: Any, x: Any, mixed: Any) -> Any:
    x = encoder.norm1(x + encoder.self_attn.out_proj(mixed))
    return encoder.norm2(x + encoder.linear2(encoder.linear1(x).relu()))


def _plain(encoder: Any, x: Any, mask: Any) -> Any:
    """The padded layer with a key mask, by one fused attention for the whole batch."""
    import torch

    batch, longest, _ = x.shape
    q, k, v = _projected(encoder, x).view(batch, longest, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
    seen = torch.zeros(batch, 1, 1, longest).masked_fill(mask[:, None, None, :], -math.inf)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return _rest(encoder, x, mixed.transpose(1, 2).reshape(batch, longest, WIDTH))


def _careful(encoder: Any, x: Any, lengths: Sequence[int]) -> Any:
    """Dense layers over packed rows, one attention for each sequence."""
    import torch

    parts = []
    for part in _projected(encoder, x).split(list(lengths)):
        q, k, v = part.view(1, len(part), 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        parts.append(mixed.transpose(1, 2).reshape(len(part), WIDTH))
    return _rest(encoder, x, torch.cat(parts))
