"""Searches of small operators of the kernel families on a host, into a log that `tilewright logs train` makes priors of.

    python -m tools.bench prior-logs --families host_winograd,host_attention --trials 60 --log work/prior.jsonl
    tilewright logs train work/prior.jsonl -o work/priors

Each family has operators of several shapes, small enough that a measurement takes a millisecond or two; one thread. A family
that a search measures besides, such as host_matmul beside host_winograd, is in the log too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.ops import Graph
from tools.bench import command

Made = tuple[Graph, dict[str, tuple[int, int]], dict[str, Any]]


def winograd() -> Iterator[Made]:
    """3x3 convolutions of stride 1: channels in and out, width of the image."""
    for channels, features, width in ((16, 16, 16), (32, 32, 14), (64, 64, 8), (32, 64, 10), (64, 32, 12)):
        graph = Graph()
        x, w = graph.input("x", ["N", channels, width, width]), graph.input("w", [features, channels, 3, 3])
        graph.output(ops.conv2d(x, w, padding=1))
        yield graph, {"N": (1, 4)}, {"w": _normal(features, channels, 3, 3)}


def attention() -> Iterator[Made]:
    """Heads, their width, and whether they look back only."""
    for heads, width, causal in ((4, 32, False), (4, 64, False), (2, 64, True), (8, 16, False), (2, 128, False), (4, 32, True)):
        graph = Graph()
        q, k, v = (graph.input(n, [heads, "S", width]) for n in "qkv")
        graph.output(ops.attention(q, k, v, causal=causal))
        yield graph, {"S": (1, 160)}, {}


def windows() -> Iterator[Made]:
    """Pools, and convolutions of a channel each."""
    for channels, width, kernel, stride in ((16, 24, 3, 1), (32, 16, 2, 2), (64, 12, 3, 2), (24, 20, 5, 1)):
        graph = Graph()
        graph.output(ops.max_pool2d(graph.input("x", ["N", channels, width, width]), kernel, stride))
        yield graph, {"N": (1, 8)}, {}
    for channels, width, kernel in ((16, 24, 3), (64, 14, 3), (32, 16, 5)):
        graph = Graph()
        x, w = graph.input("x", ["N", channels, width, width]), graph.input("w", [channels, 1, kernel, kernel])
        graph.output(ops.conv2d(x, w, groups=channels, padding=kernel // 2))
        yield graph, {"N": (1, 4)}, {"w": _normal(channels, 1, kernel, kernel)}


def codes() -> Iterator[Made]:
    """Products with weights in few bits: rows, columns, bits and groups of the weight."""
    rng = np.random.default_rng(0)
    for rows, depth, bits, group in ((256, 256, 4, 32), (512, 256, 4, 128), (256, 512, 8, 64), (384, 384, 2, 128)):
        graph = Graph()
        x = graph.input("x", ["M", depth])
        packed = graph.input("codes", [rows, depth * bits // 8], "ui8")
        weight = ops.decode(packed, graph.input("scale", [rows, depth // group]), bits=bits, group=group)
        graph.output(ops.dense(x, weight, transposed=True))
        yield graph, {"M": (1, 48)}, {"codes": rng.integers(0, 256, (rows, depth * bits // 8), np.uint8),
                                      "scale": _normal(rows, depth // group)}


def rest() -> Iterator[Made]:
    """What falls to `generic`: reorderings and rows that are gathered."""
    for columns in (64, 96, 200):
        graph = Graph()
        graph.output(ops.transpose(graph.input("x", ["N", columns, 12]), [2, 0, 1]))
        yield graph, {"N": (1, 96)}, {}
    for columns in (32, 128):
        graph = Graph()
        graph.output(ops.gather(graph.input("x", [500, columns]), graph.input("at", ["N"], "i64")))
        yield graph, {"N": (1, 256)}, {}


FAMILIES: dict[str, Callable[[], Iterator[Made]]] = {
    "host_winograd": winograd, "host_attention": attention, "host_window": windows, "host_codes": codes, "generic": rest}


def main(argv: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = command.parser("prior-logs", __doc__)
    parser.add_argument("--families", default=",".join(FAMILIES), help="of " + ", ".join(FAMILIES))
    parser.add_argument("--trials", type=int, default=60, help="measurements of an operator")
    parser.add_argument("--seconds", type=float, default=20.0, help="of an operator at most")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which no further operator is begun")
    parser.add_argument("--log", type=Path, required=True)
    args = parser.parse_args(argv)
    begin = time.monotonic()
    waiting = [(name, FAMILIES[name]()) for name in args.families.split(",")]
    while waiting and time.monotonic() - begin < args.until:  # the families in turn
        name, made = waiting.pop(0)
        one = next(made, None)
        if one is None:
            continue
        waiting.append((name, made))
        graph, dims, constants = one
        options = {"trials": args.trials, "seconds": args.seconds, "threads": 1, "log": args.log, "prior": False}
        fn = tw.tune(graph, dims, options=options, constants=constants)
        families = sorted({k.family for t in fn.program.tables for k in t.kernels})
        print(f"{time.monotonic() - begin:6.0f} s  {name}: {', '.join(families)}", flush=True)
    return 0


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)
