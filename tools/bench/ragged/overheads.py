"""What a batch costs beside its work: tables and kinds of arguments in time, the order of sequences, the arena in bytes."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tools.bench.ragged.case import first_lengths
from tools.bench.ragged.encoder import HEADS, INNER, LONGEST, WIDTH
from tools.bench.turns import rounds_of

_EMPTY, _CALLS = 128, 2000
_BATCH = (3, 1, 0, 8, 2, 5, 5, 8)  # lengths of the calls whose arguments are of every kind


def main(given: argparse.Namespace) -> int:
    """Print the time of a call without rows, of calls of every kind, of a batch in three orders, and a line for each data set."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True).eval()
    x = torch.randn(3, 7, WIDTH)
    fn = tw.compile(layer, {"B": tw.Dim(0, 128), "S": tw.Ragged(0, LONGEST, over="B")}, args=(x,),
                    dynamic_shapes=({0: "B", 1: "S"},))
    whole = tw.compile(layer, {"S": tw.Dim(2, 128 * LONGEST)}, args=(x[:1],), dynamic_shapes=({1: "S"},))
    rows = np.zeros((0, WIDTH), np.float32)
    for count in (0, _EMPTY):
        offsets = np.zeros(count + 1, np.int64)
        taken = _microseconds({"": partial(fn, rows, offsets, threads=given.threads)}, given.rounds)[""]
        print(f"{count:4} empty sequences: {taken:.2f} us a call", flush=True)
    _kinds(given.rounds)
    _orders(fn, given)
    for name in given.sets.split(","):
        lengths = first_lengths()[name][: given.batch]
        ours, useful = fn.memory(S=lengths, threads=1).arena, whole.memory(S=sum(lengths), threads=1).arena
        print(f"{name:10} arena {ours:,} bytes, {ours / useful:.4f}x that of one sequence of {sum(lengths)} rows")
    return 0


def _microseconds(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Of each call the median over the rounds, in which they take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(_CALLS):
                call()
            times[name].append((time.perf_counter() - start) / _CALLS * 1e6)
    return {name: statistics.median(own) for name, own in times.items()}


def _kinds(rounds: int) -> None:
    """A relu over rows of 16: dense, and with the sequences in each form."""
    models = []
    shapes: tuple[list[int | str], ...] = (["N", 16], ["B", "S", 16])
    for dims in shapes:
        g = ops.Graph()
        g.output(ops.relu(g.input("x", dims)))
        models.append(g)
    dense = tw.compile(models[0], {"N": tw.Dim(0, 4096)})
    fn = tw.compile(models[1], {"B": tw.Dim(0, 64), "S": tw.Ragged(0, 64, over="B")})
    jagged = tw.Jagged(np.ones((sum(_BATCH), 16), np.float32), lengths=_BATCH)
    apart = list(jagged)
    calls: dict[str, Callable[[], Any]] = {
        "dense": partial(dense, jagged.values), "packed rows": partial(fn, jagged.values, jagged.offsets),
        "tw.Jagged": partial(fn, jagged), "a list": partial(fn, apart),
        "(NumPy: join and split a list)": lambda: np.split(np.concatenate(apart), jagged.offsets[1:-1])}
    for name, taken in _microseconds(calls, rounds).items():
        print(f"{len(_BATCH)} sequences, {name}: {taken:.2f} us a call", flush=True)


def _orders(fn: tw.CompiledFunction, given: argparse.Namespace) -> None:
    """One sequence of 512 rows and 31 of 8: first, in the middle, last."""
    calls = {}
    for place in (0, 16, 31):
        lengths = [8] * 31
        lengths.insert(place, 512)
        rows = np.random.default_rng(0).standard_normal((sum(lengths), WIDTH)).astype(np.float32)
        calls[f"place {place}"] = partial(fn, rows, np.append(0, np.cumsum(lengths)), threads=given.threads)
    for name, taken in rounds_of(calls, given.rounds).seconds.items():
        print(f"the longest of 32 sequences at {name}: {taken * 1e3:.2f} ms with {given.threads} threads", flush=True)
