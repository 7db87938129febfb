"""What a batch costs beside its work: tables of sequences in time, and the arena in bytes."""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import tilewright as tw
from tools.bench.ragged.case import first_lengths
from tools.bench.ragged.encoder import HEADS, INNER, LONGEST, WIDTH

_EMPTY, _CALLS = 128, 2000


def main(given: argparse.Namespace) -> int:
    """Print the time of a call without rows, and a line for each data set."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True).eval()
    x = torch.randn(3, 7, WIDTH)
    fn = tw.compile(layer, {"B": tw.Dim(0, 128), "S": tw.Ragged(0, LONGEST, over="B")}, args=(x,),
                    dynamic_shapes=({0: "B", 1: "S"},))
    whole = tw.compile(layer, {"S": tw.Dim(2, 128 * LONGEST)}, args=(x[:1],), dynamic_shapes=({1: "S"},))
    rows = np.zeros((0, WIDTH), np.float32)
    for count in (0, _EMPTY):
        offsets, times = np.zeros(count + 1, np.int64), []
        for _ in range(given.rounds):
            start = time.perf_counter()
            for _ in range(_CALLS):
                fn(rows, offsets, threads=given.threads)
            times.append((time.perf_counter() - start) / _CALLS)
        print(f"{count:4} empty sequences: {statistics.median(times) * 1e6:.2f} us a call")
    for name in given.sets.split(","):
        lengths = first_lengths()[name][: given.batch]
        ours, useful = fn.memory(S=lengths, threads=1).arena, whole.memory(S=sum(lengths), threads=1).arena
        print(f"{name:10} arena {ours:,} bytes, {ours / useful:.4f}x that of one sequence of {sum(lengths)} rows")
    return 0
