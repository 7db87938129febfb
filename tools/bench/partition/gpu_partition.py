"""What lies between the products of a training step, and optimizers' steps, on one GPU against torch and Inductor.

    python -m tools.bench gpu-partition --build artifacts/        # anywhere: compiles our side, needs no GPU
    python -m tools.bench gpu-partition --artifacts artifacts/ --json out.jsonl --compile 70 --budget 42

The second command needs torch and the runtime's packages, no compiler and no network. A process for each subject compiles its
peers and compares all results, at most 16 at once, the largest T first, which Inductor takes its hints from; a peer that is not
compiled in time is missing alone. Then they are timed one after the other, while the others wait: as `gpu` does, by CUDA graphs
over operands that rotate through more than the L2 cache holds (an optimizer has one set), systems in turns. launches: nodes of
the graph of one call.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench import command
from tools.bench.gpu.compare_gpu import Bench, told, within
from tools.bench.gpu.device_run import Records
from tools.bench.partition.gpu_subjects import COMPILED, EAGER, OURS, OWN, TOLERANCE, Subject, subjects
from tools.bench.partition.in_turns import Worker, in_turns, prepared

_SETS = 16
_AT_ONCE = 16  # processes that prepare
_OWN = 8.0  # seconds that a system which compiles nothing has at least
_LATE = 6.0  # seconds after which a process is given up that is still not ready


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("gpu-partition", __doc__)
    parser.add_argument("--build", type=Path, help="compile our side into this folder and end")
    parser.add_argument("--artifacts", type=Path, help="folder that --build filled")
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--filter", default="*", help="patterns of names such as layernorm_*_f32, comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.006, help="of a system in a round")
    parser.add_argument("--budget", type=float, default=42.0, help="seconds of timing")
    parser.add_argument("--compile", type=float, default=70.0, help="seconds after which a peer that is not compiled is left out")
    parser.add_argument("--turn", type=float, default=6.0, help="seconds of a subject at most, once it is timed")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # by the monotonic clock, which processes share
    given = parser.parse_args(argv)
    if (given.build is None) == (given.artifacts is None):
        parser.error("one of --build and --artifacts is wanted")
    return given


def chosen(patterns: str) -> list[Subject]:
    """Subjects whose name and element type fit one of the patterns."""
    wanted = patterns.split(",")
    return [s for s in subjects() if any(fnmatch.fnmatchcase(f"{s.name}_{s.element}", p) for p in wanted)]


class Graphs(Bench):
    """With the launches of a call."""

    def launches(self, call: Callable[[], Any]) -> int | None:
        """Nodes of the graph of a call: kernels, copies and fills. None where torch does not tell."""
        count = ctypes.c_size_t()
        try:
            graph = self.torch.cuda.CUDAGraph(keep_graph=True)
            with self.torch.cuda.graph(graph):
                call()
            raw = ctypes.c_void_p(graph.raw_cuda_graph())
            status = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(raw, None, ctypes.byref(count))
        except (RuntimeError, AttributeError, TypeError, OSError):
            return None
        return count.value if status == 0 else None


class Timed:
    """A subject in all systems, on the device that tensors are made on."""

    def __init__(self, torch: Any, subject: Subject, folder: Path, device: str = "cuda") -> None:
        self.torch, self.subject, self.device = torch, subject, device
        self.failed, self.errors = dict[str, str](), dict[tuple[str, int], float | None]()
        self.systems = subject.systems(torch, folder)
        self.kept: dict[str, Callable[[], Any]] = {}  # calls of subjects that own their arguments
        self.results: dict[int, int] = {}  # bytes

    def prepare(self, until: float) -> None:
        """Calls each system at each point once, which compiles it, and compares; what fails, or is late, is left out."""
        subject, torch = self.subject, self.torch
        points = sorted(subject.points, reverse=True)
        given = {at: subject.given(torch, at, 0, self.device) for at in points}
        wanted = {at: subject.wanted(torch, given[at]) for at in points}
        for name, bind in list(self.systems.items()):
            left = until - time.monotonic()
            try:
                with within(max(left, 0.001) if name in COMPILED else max(left, _OWN)):
                    for at in points:
                        self._first(name, at, bind(*given[at]), wanted[at])
            except Exception as error:  # whatever a peer's compiler raises is data
                self.failed[name] = told(error)
                del self.systems[name]
        for at in points:
            self.results[at] = sum(t.numel() for t in wanted[at]) * given[at][0].element_size()
        self.give_back()

    def _first(self, name: str, at: int, call: Callable[[], Any], wanted: Sequence[Any]) -> None:
        got = call()
        if self.subject.rotates or name in OWN:
            self.errors[name, at] = error_of(self.torch, got, wanted if name != EAGER else None)
        if not self.subject.rotates:
            self.kept[name] = call

    def give_back(self) -> None:
        """What torch keeps of the device's memory."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()

    def at(self, bench: Graphs, at: int) -> dict[str, Any]:
        """The record of a point."""
        subject, device = self.subject, self.device
        given = subject.given(self.torch, at, 0, device)
        size = sum(t.numel() * t.element_size() for t in given)
        count = min(_SETS, 1 + 2 * bench.cache // size) if subject.rotates else 1
        sets = [given, *(subject.given(self.torch, at, seed, device) for seed in range(1, count))]
        failed, graphs, launches = dict(self.failed), dict[str, Any](), dict[str, int | None]()
        for name, bind in self.systems.items():
            try:
                calls = [bind(*s) for s in sets] if subject.rotates else [self.kept[name]]
                graphs[name] = bench.graph(_called, [(c,) for c in calls])
                launches[name] = bench.launches(calls[0])
            except Exception as error:  # as above
                graphs.pop(name, None)
                failed[name] = told(error)
        found = bench.timed(graphs, len(sets))
        errors = {name: self.errors.get((name, at)) for name in found}
        made = record(subject, at, found, errors, launches, failed)
        return made | {"bytes": size + self.results[at], "sets": len(sets)}


def _called(call: Callable[[], Any]) -> Any:
    return call()


def error_of(torch: Any, got: Any, wanted: Sequence[Any] | None) -> float | None:
    """Error of all results in the 2-norm; infinite where one is not finite, None where nothing is to be compared."""
    if wanted is None:
        return None
    found = got if isinstance(got, tuple | list) else (got,)
    norms = [(float(torch.linalg.norm(a.double() - b.double())), float(torch.linalg.norm(b.double())))
             for a, b in zip(found, wanted, strict=True)]
    error = max(off / max(size, 1e-30) for off, size in norms)
    return error if error == error else float("inf")


def record(subject: Subject, at: int, times: Mapping[str, Sequence[float]], errors: Mapping[str, float | None],
           launches: Mapping[str, int | None], failed: Mapping[str, str]) -> dict[str, Any]:
    """over: time of each peer over ours."""
    median = {name: statistics.median(each) * 1e6 for name, each in times.items()}
    known = {name: e for name, e in errors.items() if e is not None}
    systems = {name: {"median_us": round(m, 3), "rounds_us": [round(x * 1e6, 3) for x in times[name]],
                      "launches": launches.get(name), "error": None if name not in known else float(f"{known[name]:.2e}")}
               for name, m in median.items()}
    own = median.get(OURS)
    return {"record": "case", "name": subject.name, "element": subject.element, "T": at, "systems": systems,
            "wrong": [n for n, e in known.items() if not e <= TOLERANCE[subject.element]], "failed": dict(failed),
            "over": {n: round(m / own, 4) for n, m in median.items() if n != OURS} if own else {}}


def worker(args: argparse.Namespace) -> int:
    """Prepares a subject, says so, waits for its turn, and gives its records, a line each."""
    import torch

    subject = chosen(args.filter)[args.worker]
    timed = Timed(torch, subject, args.artifacts)
    timed.prepare(args.until)
    bench = Graphs(torch, args.rounds, args.seconds)
    print("ready", flush=True)
    sys.stdin.readline()
    for at in subject.points:
        try:
            with within(args.turn / len(subject.points)):
                made = timed.at(bench, at)
        except (TimeoutError, RuntimeError) as error:
            made = {"record": "late", "name": subject.name, "element": subject.element, "T": at, "error": told(error)}
        print(json.dumps(made), flush=True)
    timed.give_back()
    print("done", flush=True)
    sys.stdin.readline()
    return 0


def workers(args: argparse.Namespace, caches: str, until: float) -> Iterator[Worker]:
    """A process for each subject, which compiles in its own thread."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": caches, "TRITON_CACHE_DIR": f"{caches}/triton",
                   "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_MAX_AUTOTUNE": "0",
                   "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "0", "OMP_NUM_THREADS": "1"}
    for number, subject in enumerate(chosen(args.filter)):
        line = [sys.executable, "-m", "tools.bench", "gpu-partition", "--artifacts", str(args.artifacts), "--filter", args.filter,
                "--worker", str(number), "--until", str(until), "--turn", str(args.turn), "--rounds", str(args.rounds),
                "--seconds", str(args.seconds)]
        yield Worker(f"{subject.name}_{subject.element}", line, environment)


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All records, written as they come."""
    until, records = time.monotonic() + args.compile, Records(args.json)
    with tempfile.TemporaryDirectory() as caches:
        started = list(workers(args, caches, until))
        waiting = prepared(started, until + _LATE, _AT_ONCE)
        import torch  # while they begin

        records.begin(torch)
        waiting.shutdown()
        begun = time.monotonic()
        for made in in_turns(started, begun + args.budget, args.turn):
            records.add(made)
        records.add({"record": "seconds", "preparing": round(begun - until + args.compile, 1),
                     "timing": round(time.monotonic() - begun, 1)})
    return records


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """Of each peer, by element type, the geometric mean of its times over ours, and the worst."""
    groups: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for r in records:
        for name, ratio in r.get("over", {}).items():
            if name not in r["wrong"] and OURS not in r["wrong"]:
                groups.setdefault((r["element"], name), []).append((ratio, f"{r['name']} at {r['T']}"))
    return "\n".join(f"{element:5} {name:14} geomean {statistics.geometric_mean(n for n, _ in found):.3f}  "
                     f"worst {min(found)[0]:.3f} {min(found)[1]}  of {len(found)}" for (element, name), found in groups.items())


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.worker is not None:
        return worker(args)
    if args.build is None:
        print(summary(run(args)))
        return 0
    args.build.mkdir(parents=True, exist_ok=True)
    for subject in chosen(args.filter):
        subject.build(args.build, args.target)
        print(subject.name, subject.element, flush=True)
    return 0
