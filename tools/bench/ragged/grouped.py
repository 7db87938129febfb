"""Grouped products: rows by expert times the weights of the expert."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tools.bench.ragged.case import Call, Case

ROWS = (64, 256, 1024, 4096)
K, N = 512, 2048


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """8 and 64 experts, equal chances and Zipf's, ROWS rows."""
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["E", "R", K]), g.input("w", ["E", K, N])))
    fn = tw.compile(g, {"E": tw.Dim(1, 64), "R": tw.Ragged(0, max(ROWS), over="E")})
    rng = np.random.default_rng(0)
    for experts in (8, 64):
        for routing, chances in (("uniform", np.ones(experts)), ("zipf", 1 / np.arange(1, experts + 1))):
            for rows in ROWS:
                lengths = rng.multinomial(rows, chances / chances.sum())
                yield _case(f"{experts} {routing} {rows}", lengths.tolist(), fn, given.threads)


def _case(name: str, lengths: list[int], fn: tw.CompiledFunction, threads: int) -> Case:
    import torch

    x, w = torch.randn(sum(lengths), K), torch.randn(len(lengths), K, N)
    out = torch.empty(sum(lengths), N)
    offsets = torch.from_numpy(np.append(0, np.cumsum(lengths)))

    def loop() -> Any:
        for rows, weights, result in zip(x.split(lengths), w, out.split(lengths), strict=True):
            if len(rows):
                torch.mm(rows, weights, out=result)
        return out

    mine = torch.empty_like(out)
    calls: dict[str, Call] = {"ours": lambda: fn(x, w, offsets, out=mine, threads=threads), "loop": loop}
    return Case(name, calls, float((calls["ours"]() - loop()).abs().max()))
