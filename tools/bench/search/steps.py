"""What the search of one operator reaches, against the best of its whole space.

    python -m tools.bench search dense_768x768 --threads 1 --seconds 60 --folder work --json found.jsonl [--step tune]

Steps, each a process that leaves its findings in the folder, so that only `build` and `report` need no quiet machine:
tune: from an empty log, no prior and an empty kernel cache, over the operator's whole range.
build: the kernels of the oracle: the whole space where it is small, else the defaults, the best of the log with their
neighbours, and random ones.
oracle: all of them at shapes drawn now; the best of each shape are timed again in turns with the dispatched and the untuned.
settle: where a choice of the replay seems slow, it and the fastest are timed again in turns.
report: the ratios; by replay of the log, the measurements and the time until the choice was good.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

import tilewright as tw
from tilewright.runtime.host.host_cpu import affinity
from tools.bench import command
from tools.bench.harness.interleave import environment
from tools.bench.operators import operators
from tools.bench.ours import compiled
from tools.bench.search import oracle, replay, settle
from tools.bench.search.tuning import TABLE, Tuning

STEPS = ("tune", "build", "oracle", "settle", "report")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("search", __doc__)
    parser.add_argument("operator", choices=TABLE)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the compile that tunes")
    parser.add_argument("--configs", type=int, default=256, help="least kernels of the oracle, where the space has so many")
    parser.add_argument("--shapes", type=int, default=16, help="shapes of the oracle")
    parser.add_argument("--folder", type=Path, default=Path("search-bench"), help="where steps leave what they found")
    parser.add_argument("--prior", action="store_true", help="start from the cost model that ships with the package")
    parser.add_argument("--step", choices=STEPS, help="one step; default: all")
    parser.add_argument("--json", type=Path, help="JSON Lines file that the report is appended to")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    args = arguments(argv)
    if args.step is None:
        for step in STEPS:
            command = [sys.executable, "-m", "tools.bench", "search", *argv, "--step", step]
            done = subprocess.run(command, env=environment(args.threads), check=False)
            if done.returncode:
                return done.returncode
        return 0
    args.folder = args.folder / f"{args.operator}-t{args.threads}"
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.step == "tune":
        os.environ["TILEWRIGHT_CACHE_DIR"] = str((args.folder / "cache").absolute())
        tune(args.operator, tw.CompileOptions(threads=args.threads, seconds=args.seconds, prior=args.prior), args.folder)
    elif args.step == "build":
        oracle.build(args.folder, args.threads, args.configs)
    elif args.step == "oracle":
        oracle.sweep(args.folder, args.threads, args.shapes)
    elif args.step == "settle":
        settle.settle(args.folder, args.threads)
    else:
        found = replay.report(args.folder)
        print(found)
        if args.json:
            with args.json.open("ab") as file:
                file.write(msgspec.json.encode(found) + b"\n")
    return 0


def import_compiler() -> None:
    """Which `tw.compile` else does when it is first called; no part of a search."""
    importlib.import_module("tilewright.compiler.api")


def tune(name: str, options: tw.CompileOptions, folder: Path) -> None:
    """Compile with a budget; leaves log.jsonl, tuned.tw, default.tw and tuning.json."""
    log = folder / "log.jsonl"
    if log.exists() or (folder / "cache").exists():
        raise SystemExit(f"{folder} holds a log or a kernel cache already; wanted an empty folder")
    operator = next(o for o in operators() if o.name == name)
    constants = operator.constants()
    import_compiler()
    started = time.time()
    fn = compiled(operator, constants, replace(options, log=log))
    took = time.time() - started
    fn.save(folder / "tuned.tw")
    tuning = Tuning(name, options.threads or affinity(), options.seconds or 0.0, started, took)
    (folder / "tuning.json").write_bytes(msgspec.json.encode(tuning))
    compiled(operator, constants, tw.CompileOptions(threads=options.threads)).save(folder / "default.tw")
    for table, certificate in zip(fn.program.tables, fn.program.certificates, strict=True):
        print(f"{name} t{tuning.threads}: {took:.1f} s, {table.name}, {len(table.kernels)} kernels, {certificate}")
