"""Grouped products: rows by expert times the weights of the expert."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tools.bench.ragged.case import Call, Case

ROWS = (64, 256, 1024, 4096)
K, N = 512, 2048


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """8 and 64 experts, equal chances and Zipf's, ROWS rows; weights that are given in each call, and constants."""
    import torch

    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["E", "R", K]), g.input("w", ["E", K, N])))
    dims = {"E": tw.Dim(1, 64), "R": tw.Ragged(0, max(ROWS), over="E")}
    fn = tw.compile(g, dims)
    rng = np.random.default_rng(0)
    for experts in (8, 64):
        w = torch.randn(experts, K, N)
        bound = tw.compile(g, dims, constants={"w": w})
        for routing, chances in (("uniform", np.ones(experts)), ("zipf", 1 / np.arange(1, experts + 1))):
            for rows in ROWS:
                lengths = rng.multinomial(rows, chances / chances.sum()).tolist()
                name = f"{experts} {routing} {rows}"
                yield _case(name, lengths, w, lambda *args, w=w, **named: fn(args[0], w, args[1], **named), given.threads)
                yield _case(f"{name} bound", lengths, w, bound, given.threads)


def _case(name: str, lengths: list[int], w: Any, fn: Callable[..., Any], threads: int) -> Case:
    """fn: takes rows and offsets."""
    import torch

    x, out = torch.randn(sum(lengths), K), torch.empty(sum(lengths), N)
    offsets = torch.from_numpy(np.append(0, np.cumsum(lengths)))

    def loop() -> Any:
        for rows, weights, result in zip(x.split(lengths), w, out.split(lengths), strict=True):
            if len(rows):
                torch.mm(rows, weights, out=result)
        return out

    mine = torch.empty_like(out)
    calls: dict[str, Call] = {"ours": lambda: fn(x, offsets, out=mine, threads=threads), "loop": loop}
    return Case(name, calls, float((calls["ours"]() - loop()).abs().max()))
