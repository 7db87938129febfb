"""Products of few rows with weights in few bits on a GPU, against torch (f16, and its kernel for 4 bits) and Triton.

    python -m tools.bench gpu-codes --build artifacts/            # anywhere: compiles our side, needs no GPU
    python -m tools.bench gpu-codes --artifacts artifacts/ --json out.jsonl --budget 60

Times are taken as `tools.bench gpu` takes them, from graphs over more weights than the L2 cache holds; results are compared with
the product by the decoded weights in f64. Beside the times stand the bytes of weights a second, and their share of what a copy
reaches in the same run.
"""

from __future__ import annotations

import argparse
import fnmatch
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import TilewrightError
from tools.bench import command
from tools.bench.gpu.codes_cases import CodesCase, build, cases, unpacked
from tools.bench.gpu.codes_peers import PEERS, Operands, Peers
from tools.bench.gpu.compare_gpu import OURS, Bench, record, summary, within
from tools.bench.gpu.device_run import Records, build_or_run

_SETS = 16  # of operands at most


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("gpu-codes", __doc__)
    parser.add_argument("--build", type=Path, help="compile the cases into this folder and end")
    parser.add_argument("--artifacts", type=Path, help="folder that --build filled")
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--filter", default="*", help="patterns of names such as 4bit_*, comma-separated")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.01, help="of a system in a round")
    parser.add_argument("--deadline", type=float, default=15.0, help="seconds of a number of rows, after which it is given up")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no number of rows is begun")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    given = parser.parse_args(argv)
    if (given.build is None) == (given.artifacts is None):
        parser.error("one of --build and --artifacts is wanted")
    return given


def chosen(patterns: str) -> list[CodesCase]:
    """Cases whose name and element type fit one of the patterns."""
    return [c for c in cases() if any(fnmatch.fnmatchcase(f"{c.name}_{c.element}", p) for p in patterns.split(","))]


class CodesBench:
    """A case after the other. load: of our side, given a file. device: where torch's operands are."""

    def __init__(self, bench: Bench, load: Callable[[Path], Callable[..., Any]], copy: float, device: str = "cuda") -> None:
        self.bench, self.load, self.copy, self.device = bench, load, copy, device

    def timer(self, call: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> float:
        """Seconds of a call, the best of three."""
        graph = self.bench.graph(call, sets)
        return min(self.bench.replay(graph, 2) for _ in range(3)) / (2 * len(sets))

    def case(self, case: CodesCase, file: Path, names: Sequence[str]) -> Callable[[int], dict[str, Any]]:
        """What gives the record of a number of rows."""
        count = min(_SETS, 2 + 2 * self.bench.cache // case.weight_bytes)
        operands = Operands(self.bench.torch, case, self.device)
        ours, peers = [self.load(file) for _ in range(count)], Peers(operands, count, self.timer, names)

        def at(rows: int) -> dict[str, Any]:
            x = operands.x(rows)
            systems = {OURS: (_called, [(fn, x) for fn in ours]), **peers.systems(x)}
            made, failed = self.bench.measured(systems, operands.wanted(x))
            return self.told(case, record(case, rows, made, {**failed, **peers.failed}))

        return at

    def told(self, case: CodesCase, made: dict[str, Any]) -> dict[str, Any]:
        """The record with the speed at which our side reads the weights. share: of what a copy reads and writes."""
        us = made["systems"].get(OURS, {}).get("median_us")
        rate = None if us is None else case.weight_bytes / us * 1e-3
        found = {"M" if name == "T" else name: value for name, value in made.items()}
        return {**found, "weight_bytes": case.weight_bytes, "gb_s": None if rate is None else round(rate, 1),
                "share_of_copy": None if rate is None or not self.copy else round(rate / self.copy, 3)}


def _called(fn: Callable[..., Any], x: Any) -> Any:
    return fn(x)


def measure(args: argparse.Namespace, bench: CodesBench, add: Callable[[dict[str, Any]], None], end: float) -> None:
    """Every case that there is an artifact of. add: takes a record as it comes; end: of time.monotonic(), no rows begin after."""
    with tempfile.TemporaryDirectory() as room:
        for case in (c for c in chosen(args.filter) if (args.artifacts / c.file).exists()):
            if time.monotonic() >= end:
                add({"record": "left", "name": case.name, "precision": case.precision})
                continue
            try:
                with within(args.deadline):
                    at = bench.case(case, unpacked(case, args.artifacts, Path(room)), args.peers.split(","))
                    begun = list(case.points)
                while begun and time.monotonic() < end:
                    with within(args.deadline):
                        add(at(begun.pop(0)))
                if begun:
                    add({"record": "left", "name": case.name, "precision": case.precision, "M": begun})
            except (TimeoutError, RuntimeError, TilewrightError) as error:
                why = f"{type(error).__name__}: {error}"
                add({"record": "late", "name": case.name, "precision": case.precision, "error": why})
            bench.bench.torch.cuda.empty_cache()


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All records, written as they come."""
    import torch

    import tilewright as tw

    end, records = time.monotonic() + args.budget, Records(args.json)
    bench = Bench(torch, args.rounds, args.seconds)
    records.begin(torch)
    copy = bench.copy_rate()
    records.add(copy)
    measure(args, CodesBench(bench, tw.load, copy["value"]), records.add, end)
    return records


def _built(args: argparse.Namespace, folder: Path) -> Iterator[Path]:
    for case in chosen(args.filter):
        build(case, folder, args.target)
        yield folder / case.file


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    return build_or_run(args.build, partial(_built, args), lambda: summary(run(args)))
