"""The CUDA target against torch, torch.compile and Triton on one GPU, interleaved in one run.

    python -m tools.bench gpu --build artifacts/            # anywhere: compiles our side, needs no GPU
    python -m tools.bench gpu --artifacts artifacts/ --json out.jsonl

The second command needs torch and the runtime's packages, no compiler and no network. Each call is captured as a CUDA graph over
operands that rotate through more memory than the L2 cache holds; systems take turns in rounds, timed by events; every result is
compared with torch's in f64. The ceilings of copy and matmul are taken in the same run, and the host's cost of a call.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import TilewrightError
from tools.bench import command
from tools.bench.gpu.cases import TOLERANCE, Case, build, cases
from tools.bench.gpu.codes_cases import CodesCase
from tools.bench.gpu.device_peers import PEERS, peers, reference
from tools.bench.gpu.device_run import Records, build_or_run

OURS = "tilewright"
_SETS = 16
_CEILING = 8192


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("gpu", __doc__)
    parser.add_argument("--build", type=Path, help="compile the cases into this folder and end")
    parser.add_argument("--artifacts", type=Path, help="folder that --build filled")
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--log", help="tuning log for --build; default: the configurations of the rules")
    parser.add_argument("--filter", default="*", help="patterns of names such as dense_*_f16, comma-separated")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a system in a round")
    parser.add_argument("--deadline", type=float, help="seconds of a case at one value of T, after which it is given up")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no case is begun")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    given = parser.parse_args(argv)
    if (given.build is None) == (given.artifacts is None):
        parser.error("one of --build and --artifacts is wanted")
    return given


def chosen(patterns: str) -> list[Case]:
    """Cases whose name and precision fit one of the patterns."""
    wanted = patterns.split(",")
    return [c for c in cases() if any(fnmatch.fnmatchcase(f"{c.name}_{c.precision}", p) for p in wanted)]


class Bench:
    """Times calls on the current device of torch."""

    def __init__(self, torch: Any, rounds: int, seconds: float) -> None:
        self.torch, self.rounds, self.seconds = torch, rounds, seconds
        self.cache = torch.cuda.get_device_properties(0).L2_cache_size

    def tensors(self, case: Case, at: int, seed: int) -> list[Any]:
        """Seeded arguments; products stay near 1."""
        make = self.torch.Generator("cuda").manual_seed(seed)
        kind = self.torch.float16 if case.element == "f16" else self.torch.float32
        found = []
        for number, shape in enumerate(case.shapes(at)):
            scale = shape[-2] ** -0.5 if number and len(shape) == 2 else 1.0
            found.append((self.torch.randn(shape, generator=make, device="cuda") * scale).to(kind))
        return found

    def graph(self, call: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> Any:
        """A captured round: one call on each set. Every set is called before: each may be of a program of its own, whose first
        call takes memory and loads code, which a capture must not do."""
        stream = self.torch.cuda.Stream()
        stream.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(stream):
            for given in (sets[0], *sets):
                call(*given)
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for given in sets:
                call(*given)
        return graph

    def timed(self, graphs: Mapping[str, Any], count: int) -> dict[str, list[float]]:
        """Seconds of a call, by system and round."""
        times = {name: self.replay(graph, 3) / 3 for name, graph in graphs.items()}
        turns = {name: max(1, int(self.seconds / max(each, 1e-7))) for name, each in times.items()}
        found: dict[str, list[float]] = {name: [] for name in graphs}
        names = list(graphs)
        for number in range(self.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                found[name].append(self.replay(graphs[name], turns[name]) / (turns[name] * count))
        return found

    def replay(self, graph: Any, turns: int) -> float:
        """Seconds on the device."""
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(turns):
            graph.replay()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e-3

    def case(self, case: Case, at: int, systems: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        """The record of a case at a value of T."""
        self.torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
        self.torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
        given = self.tensors(case, at, 0)
        size = sum(t.numel() * t.element_size() for t in given)
        sets = [given, *(self.tensors(case, at, n) for n in range(1, min(_SETS, 1 + 2 * self.cache // size)))]
        made, failed = self.measured({n: (call, sets) for n, call in systems.items()}, reference(self.torch, case, given))
        return record(case, at, made, failed)

    def measured(self, systems: Mapping[str, tuple[Callable[..., Any], Sequence[Sequence[Any]]]],
                 wanted: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """Times and errors of the systems, and why others failed. systems: each with its own operands, of one number of sets."""
        graphs, errors, failed = {}, {}, {}
        for name, (call, sets) in systems.items():
            try:
                errors[name] = relative(self.torch, call(*sets[0]), wanted)
                graphs[name] = self.graph(call, sets)
            except (RuntimeError, ValueError, TypeError, AttributeError, TilewrightError) as error:
                failed[name] = "; ".join(told(e) for e in (error, error.__context__) if e is not None)
        found = self.timed(graphs, len(next(iter(systems.values()))[1]))
        made = {n: {"median_us": round(statistics.median(t) * 1e6, 3), "rounds_us": [round(x * 1e6, 3) for x in t],
                    "error": float(f"{errors[n]:.2e}")} for n, t in found.items()}
        return made, failed

    def copy_rate(self) -> dict[str, Any]:
        """Of torch, the best of all rounds: bytes read and written."""
        source = self.torch.empty(1 << 30, dtype=self.torch.float32, device="cuda")
        target = self.torch.empty_like(source)
        best = min(self.timed({"copy": self.graph(lambda to, of: to.copy_(of), [(target, source)])}, 1)["copy"])
        return figure("copy", 2 * source.numel() * 4 / best * 1e-9, "GB/s")

    def ceilings(self) -> list[dict[str, Any]]:
        """Copy and matmul rates of torch, the best of all rounds."""
        torch, found = self.torch, [self.copy_rate()]
        for precision in TOLERANCE:
            kind = torch.float16 if precision == "f16" else torch.float32
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            x, w = (torch.randn(_CEILING, _CEILING, device="cuda").to(kind) for _ in range(2))
            best = min(self.timed({"matmul": self.graph(torch.matmul, [(x, w)])}, 1)["matmul"])
            found.append(figure(f"matmul_{precision}", 2 * _CEILING**3 / best * 1e-12, "TFLOP/s"))
        return found

    def host_cost(self, name: str, call: Callable[..., Any], given: Sequence[Any], calls: int = 2000) -> dict[str, Any]:
        """Seconds that the host spends in a call, the best of five batches; the device keeps up with small ones."""
        best = float("inf")
        for _ in range(5):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call(*given)
            best = min(best, (time.perf_counter() - start) / calls)
        self.torch.cuda.synchronize()
        return figure(f"host_{name}", best * 1e6, "us")


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


@contextlib.contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """TimeoutError in the block once it has taken so long, where a signal can interrupt it, and again each half second, as what
    is called may catch it; None: as long as it needs."""
    if seconds is None:
        yield
        return

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def relative(torch: Any, got: Any, wanted: Any) -> float:
    """Error in the 2-norm; infinite where one is not finite."""
    error = float(torch.linalg.norm(got.double() - wanted) / torch.linalg.norm(wanted))
    return error if error == error else float("inf")


def record(case: Case | CodesCase, at: int, systems: Mapping[str, Mapping[str, Any]],
           failed: Mapping[str, str]) -> dict[str, Any]:
    """ratio: time of the best peer with a right result over ours; None where there is none."""
    wrong = [n for n, s in systems.items() if not s["error"] <= case.tolerance]
    right = {n: s["median_us"] for n, s in systems.items() if n not in wrong}
    best = min((n for n in right if n != OURS), key=right.__getitem__, default=None)
    ratio = None if best is None or OURS not in right else round(right[best] / right[OURS], 4)
    rate = round(case.flops(at) / right[OURS] * 1e-6, 2) if OURS in right else None
    return {"record": "case", "name": case.name, "kind": case.kind, "precision": case.precision, "T": at,
            "systems": dict(systems), "wrong": wrong, "failed": dict(failed), "best_peer": best, "ratio": ratio,
            "tflops": rate}


def figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"record": "figure", "name": name, "value": round(value, 3), "unit": unit}


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """Geometric mean and worst of the ratios, by kind and precision."""
    groups: dict[tuple[str, str], list[float]] = {}
    for r in records:
        if r["record"] == "case" and r["ratio"] is not None:
            groups.setdefault((r["name"] if r["kind"] == "matmul" else r["kind"], r["precision"]), []).append(r["ratio"])
    return "\n".join(f"{name:24} {precision:5} geomean {statistics.geometric_mean(x):.3f}  worst {min(x):.3f}  of {len(x)}"
                     for (name, precision), x in groups.items())


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All records, written as they come."""
    import torch

    import tilewright as tw

    records = Records(args.json)
    add, end = records.add, time.monotonic() + args.budget
    bench = Bench(torch, args.rounds, args.seconds)
    records.begin(torch)
    for made in bench.ceilings():
        add(made)
    listed = [c for c in chosen(args.filter) if (args.artifacts / c.file).exists()]
    for number, case in enumerate(listed):
        systems: dict[str, Callable[..., Any]] = {OURS: tw.load(args.artifacts / case.file)}
        systems |= peers(torch, case, args.peers.split(","))
        for at in case.points:
            if time.monotonic() >= end:
                add({"record": "left", "name": case.name, "precision": case.precision, "T": at})
                continue
            try:
                with within(args.deadline):
                    add(bench.case(case, at, systems))
            except TimeoutError as late:
                add({"record": "late", "name": case.name, "precision": case.precision, "T": at, "error": str(late)})
        if not number:
            given = bench.tensors(case, case.points[0], 0)
            for name, call in systems.items():
                add(bench.host_cost(name, call, given))
    return records


def _built(args: argparse.Namespace, folder: Path) -> Iterator[Path]:
    for case in chosen(args.filter):
        build(case, folder, args.target, args.log)
        yield folder / case.file


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    return build_or_run(args.build, partial(_built, args), lambda: summary(run(args)))
