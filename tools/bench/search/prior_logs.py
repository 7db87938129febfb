"""Searches of small operators of the kernel families on a host, into a log that `tilewright logs train` makes priors of.

    python -m tools.bench prior-logs --families host_winograd,host_attention --trials 60 --log work/prior.jsonl [--even 30]
    tilewright logs train work/prior.jsonl -o work/priors

Each family has operators of several shapes, small enough that a measurement takes a millisecond or two; one thread. A family
that a search measures besides, such as host_matmul beside host_winograd, is in the log too. With --even so many kernels of each
family are drawn evenly and measured at three shapes, in place of a search, which measures few kernels where most are alike.
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
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.ops import Graph
from tilewright.compiler.tuning.dispatch_tables import default_tables, numerics_of
from tilewright.compiler.tuning.operator_tuning import environment, task_of
from tilewright.runtime.target import Target
from tilewright.search.database.records import TuningLog
from tilewright.search.runner.measurer import MeasureContext, Measurer
from tilewright.search.runner.runner_process import ProcessRunner
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


def pools() -> Iterator[Made]:
    """Products with weights out of a pool: rows and columns of the weight, and entries of the pool."""
    rng = np.random.default_rng(0)
    for rows, depth, entries in ((256, 256, 64), (512, 256, 64), (256, 512, 128), (384, 384, 32), (768, 256, 256)):
        graph = Graph()
        x, index = graph.input("x", ["M", depth]), graph.input("index", [rows, depth // 8], "ui8")
        weight = ops.decode_pool(index, graph.input("pool", [entries, 8]), graph.input("scale", [rows]))
        graph.output(ops.dense(x, weight, transposed=True))
        yield graph, {"M": (1, 48)}, {"index": rng.integers(0, entries, (rows, depth // 8), np.uint8),
                                      "pool": _normal(entries, 8), "scale": _normal(rows)}


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
    "host_winograd": winograd, "host_attention": attention, "host_window": windows, "host_codes": codes, "host_pools": pools,
    "generic": rest}


def main(argv: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = command.parser("prior-logs", __doc__)
    parser.add_argument("--families", default=",".join(FAMILIES), help="of " + ", ".join(FAMILIES))
    parser.add_argument("--trials", type=int, default=60, help="measurements of an operator")
    parser.add_argument("--seconds", type=float, default=20.0, help="of an operator at most")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which no further operator is begun")
    parser.add_argument("--even", type=int, default=0, help="kernels of each operator that are drawn evenly")
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
        if args.even:
            found = evenly(graph, dims, constants, name, args)
            print(f"{time.monotonic() - begin:6.0f} s  {name}: {found} measurements", flush=True)
            continue
        options = {"trials": args.trials, "seconds": args.seconds, "threads": 1, "log": args.log, "prior": False}
        fn = tw.tune(graph, dims, options=options, constants=constants)
        families = sorted({k.family for t in fn.program.tables for k in t.kernels})
        print(f"{time.monotonic() - begin:6.0f} s  {name}: {', '.join(families)}", flush=True)
    return 0


def evenly(graph: Graph, dims: dict[str, tuple[int, int]], constants: dict[str, Any], family: str,
           args: argparse.Namespace) -> int:
    """Measure kernels of a family that are drawn evenly from the space of each operator; returns how many times were taken."""
    compilation = Compilation(graph, dims, Target.parse("host"), tw.CompileOptions(threads=1), constants=constants)
    log, end = TuningLog(args.log), time.monotonic() + args.seconds
    with WorkerBuilder(compilation.target) as builder, ProcessRunner() as runner:
        model = outline(compilation)
        tables = default_tables(model.workloads, compilation.limits, builder, numerics_of(compilation.options))
        taken = 0
        for workload in model.workloads:
            task = task_of(workload, model, tables)
            lattice = task.lattice()
            of_family = [c for c in lattice.configs if c.family == family]
            measurer = Measurer(workload, MeasureContext(builder, runner, environment(compilation.target), log))
            shapes = task.points.shapes
            at = [shapes[i] for i in sorted({len(shapes) // 5, len(shapes) // 2, len(shapes) - 1})]
            chosen = np.random.default_rng(0).permutation(len(of_family))[: args.even]
            measurer.build([of_family[i] for i in chosen])
            for shape in at:
                for i in chosen:
                    if time.monotonic() < end:
                        measurer.measure(of_family[i], shape, 1)
            taken += measurer.trials
    return taken


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)
