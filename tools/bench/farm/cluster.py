"""A search on a local Ray cluster of some nodes against the same search in one process: what it finds and what it costs.

    python -m tools.bench cluster --model mlp --trials 120 --nodes 3 --builders 2 --runners 1 [--rounds 15]

Both searches have the same budget of measurements, a log of their own and no kernels in the cache. Their models are then called
in turns at shapes of the range: `regret` is the geometric mean of the farm's time over the other's, less 1. Overhead is what a
request takes beside the work of the actor; the driver's processor time is that of all its threads while the farm was there, and,
apart (`plain_cpu`), what this process takes for the search without one; that builds and measures in others too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.verification.verify_in_turns import why_other
from tilewright.runtime.load.function import CompiledFunction
from tilewright.search.database.farm_records import FarmRecord
from tools.bench import command
from tools.bench.farm.refined import MODELS as LARGE
from tools.bench.farm.refined import arguments_at
from tools.ray_cluster import started

_OPEN = 20  # builds after which the default kernels of all operators were measured


def mlp() -> Any:
    """Two products, small enough that a search of seconds tries a good part of their kernels."""
    graph = ops.Graph()
    x = graph.input("x", ["T", 256])
    inner = ops.relu(ops.matmul(x, graph.input("up", [256, 512])))
    graph.output(ops.matmul(inner, graph.input("down", [512, 256])))
    return graph, {"T": (1, 128)}


MODELS = {"mlp": mlp, **LARGE}


def main(argv: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = command.parser("cluster", __doc__)
    parser.add_argument("--model", default="mlp", choices=sorted(MODELS))
    parser.add_argument("--trials", type=int, default=120, help="measurements of each search")
    parser.add_argument("--seconds", type=float, help="search on the cluster alone for so long, with no budget of measurements")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--builders", type=int, default=2)
    parser.add_argument("--runners", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=15, help="of calls in turns, at each shape")
    parser.add_argument("--shapes", default="1,7,16,33,64,100,128")
    parser.add_argument("--keep", type=Path, help="folder for both models; a search whose model is there is not made again")
    parser.add_argument("--part", choices=("plain", "farm", "turns"), help="that alone, with --keep, where time is short")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    args = parser.parse_args(argv)
    if args.seconds is not None:
        print(json.dumps(costs(args)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = args.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        paths, row = {"plain": folder / "plain.tw", "farm": folder / "farm.tw"}, dict[str, Any](model=args.model)
        for part, search in (("plain", plainly), ("farm", farmed)):
            if args.part in (None, part) and not paths[part].exists():
                row |= search(args, paths[part])
                print(json.dumps(row), flush=True)
        if args.part in (None, "turns"):
            both = (tw.load(paths["plain"]), tw.load(paths["farm"]))
            row |= in_turns(*both, list(map(int, args.shapes.split(","))), args.rounds)
    print(json.dumps(row))
    if args.json is not None:
        with args.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return 0


def plainly(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    """The search in one process; writes its model."""
    model, dims = MODELS[args.model]()
    begin, used = time.monotonic(), _used()
    states: list[Any] = []
    plain = _tuned(model, dims, args, path, {"progress": states.append})
    return {"trials": args.trials, "seed": args.seed, "plain_seconds": time.monotonic() - begin, "plain_cpu": _used() - used,
            "plain_searched": searched(states), "kernels": len(plain.program.tables)}


def farmed(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    """The search on a cluster; writes its model."""
    model, dims = MODELS[args.model]()
    states: list[Any] = []

    def search(farm: tw.Farm, progress: Callable[[Any], None]) -> None:
        def told(state: Any) -> None:
            progress(state)
            states.append(state)

        _tuned(model, dims, args, path, {"farm": farm, "progress": told})

    record, seconds = on_cluster(args, search)
    return {"seed": args.seed, "nodes": args.nodes, "farm_searched": searched(states),
            "builders": args.builders, "runners": args.runners, "trials": args.trials,
            "farm_seconds": seconds, "builds": record.builds, "measurements": record.measurements,
            "requests": record.builds + record.measurements, "build_overhead_ms": 1e3 * record.build_overhead,
            "run_overhead_ms": 1e3 * record.run_overhead, "driver": record.driver,
            "driver_cpu_ms_a_candidate": 1e3 * record.driver * record.seconds / max(record.builds, 1),
            "search_seconds": record.seconds}


def searched(states: Sequence[Any]) -> int:
    """Measurements that the slots of a search took, apart from those before, and those that verify and certify."""
    trials: list[int] = [s.trials for s in states if type(s).__name__ == "ModelProgress"]
    return trials[-1] - trials[0]


def costs(args: argparse.Namespace) -> dict[str, Any]:
    """What a long search costs the driver: in all, and from the time that its operators were open."""
    model, dims = MODELS[args.model]()
    states: list[FarmRecord] = []
    with tempfile.TemporaryDirectory() as folder:

        def search(farm: tw.Farm, progress: Callable[[Any], None]) -> None:
            def told(state: Any) -> None:
                progress(state)
                if type(state).__name__ == "FarmProgress":
                    states.append(state.record)

            more = {"farm": farm, "progress": told, "seconds": args.seconds, "trials": None}
            _tuned(model, dims, args, Path(folder) / "farm.tw", more)

        record, _ = on_cluster(args, search)
    first = next((s for s in states if s.builds >= _OPEN), states[0])
    later = [s for s in states if s.seconds > first.seconds]
    last = later[-1] if later else first
    used = last.driver * last.seconds - first.driver * first.seconds
    return {"model": args.model, "builds": record.builds, "measurements": record.measurements, "seconds": record.seconds,
            "driver": record.driver, "driver_once_open": used / max(last.seconds - first.seconds, 1e-9),
            "ms_a_candidate_once_open": 1e3 * used / max(last.builds - first.builds, 1), "open_seconds": first.seconds,
            "build_overhead_ms": 1e3 * record.build_overhead, "run_overhead_ms": 1e3 * record.run_overhead}


def on_cluster(args: argparse.Namespace, search: Callable[[tw.Farm, Callable[[Any], None]], object]) -> tuple[FarmRecord, float]:
    """Run a search on a cluster of its own; the last state of its farm, and seconds with the start of actors."""
    states: list[Any] = []
    with started(args.nodes) as cluster:
        begin = time.monotonic()
        search(tw.Farm(cluster.address, args.builders, args.runners), states.append)
        seconds = time.monotonic() - begin
    found: FarmRecord = [s.record for s in states if type(s).__name__ == "FarmProgress"][-1]
    return found, seconds


def _tuned(model: Any, dims: Any, args: argparse.Namespace, path: Path, more: dict[str, Any]) -> CompiledFunction:
    """A search that finds no kernel in the cache."""
    from tilewright.runtime import knobs

    name, before = knobs.CACHE_DIR.name, os.environ.get(knobs.CACHE_DIR.name)
    with tempfile.TemporaryDirectory() as cache:
        os.environ[name] = cache
        try:
            fn = tw.tune(model, dims, options={"threads": 1, "trials": args.trials, "seed": args.seed,
                                               "log": Path(cache) / "log.jsonl", **more})
        finally:
            os.environ.pop(name) if before is None else os.environ.update({name: before})
    fn.save(path)
    return fn


def in_turns(plain: CompiledFunction, farm: CompiledFunction, shapes: Sequence[int], rounds: int) -> dict[str, Any]:
    """The farm's model over the other at each shape, medians of rounds."""
    ratios = {}
    for n in shapes:
        given = arguments_at(plain, n)
        wrong = why_other(plain.outputs, plain(*given), farm(*given), False)
        if wrong:
            return {"wrong": f"{wrong} at {n}"}
        each = max(_seconds(plain, given, 1), 1e-6)
        count, found = max(1, round(0.02 / each)), []
        for i in range(rounds):
            pair = {fn: _seconds(fn, given, count) for fn in ((plain, farm) if i % 2 else (farm, plain))}
            found.append(pair[farm] / pair[plain])
        ratios[n] = statistics.median(found)
    logs = np.log(list(ratios.values()))
    return {"regret": float(np.exp(logs.mean()) - 1), "worst": max(ratios.values()), "ratios": ratios}


def _seconds(fn: CompiledFunction, given: Sequence[Any], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        fn(*given)
    return (time.perf_counter() - begin) / count


def _used() -> float:
    used = os.times()
    return used.user + used.system
