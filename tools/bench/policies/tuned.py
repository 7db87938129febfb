"""Tuning of whole models on this machine by several policies, each run from an empty log, and how soon each is near the best.

    python -m tools.bench tune --folder /tmp/real --only bert_layer:ucb:1 --seconds 180
    python -m tools.bench tune --folder /tmp/real --measure bert_layer
    python -m tools.bench tune --folder /tmp/real --report

A run needs a quiet machine. It appends a line to FOLDER/runs.jsonl, with the model's latency after every slot (calls counted, the
range of shapes weighted as in the search), and keeps the tuned model. Without --only all models, policies and seeds run in turn.

What a run says of its own latency has the noise of that run. `--measure` calls the tuned models of all runs in turns, with
the same operands, at the model's usual sizes; `--report` scales each run's latencies so that its last one is what was measured
then, and says so where there is no such measurement.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

import tilewright as tw
from tilewright.search.task_scheduler.model_tuner import ModelProgress
from tools.bench import command
from tools.bench.models import models
from tools.bench.operator_spec import Operator
from tools.bench.ours import compiled
from tools.bench.policies.replayed import interval

MODELS = ("bert_layer", "resnet_block")
POLICIES = ("ucb", "sequential", "round_robin")
SEEDS = (1, 2, 3)


class Run(msgspec.Struct, frozen=True, tag="run", tag_field="record"):
    """One tuning. history: (seconds since the untuned kernels were measured, latency of the model). overhead: share of the time
    that beliefs took. warm_up: seconds before, the compile included."""

    model: str
    policy: str
    seed: int
    seconds: float
    threads: int
    warm_up: float
    trials: int
    overhead: float
    history: list[tuple[float, float]]

    @property
    def name(self) -> str:
        return f"{self.model}.{self.policy}.{self.seed}"


class Measured(msgspec.Struct, frozen=True, tag="measured", tag_field="record"):
    """The tuned models of a model's runs, measured in turns. latencies: run -> seconds, the mean over the sizes."""

    model: str
    rounds: int
    latencies: dict[str, float]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("tune", __doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of runs.jsonl and the tuned models")
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--only", metavar="MODEL:POLICY:SEED", help="a single run")
    step.add_argument("--measure", metavar="MODEL", choices=MODELS, help="measure the tuned models of all runs in turns")
    step.add_argument("--report", action="store_true", help="print the table")
    parser.add_argument("--seconds", type=float, default=180.0, help="of a run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each tuned model at each size")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "runs.jsonl"
    if args.report:
        print(report(read(path)))
    elif args.measure:
        append(path, measure(args.measure, read(path), args.folder, args.rounds))
    else:
        chosen = [parse(args.only)] if args.only else [(m, p, s) for m in MODELS for s in SEEDS for p in POLICIES]
        for model, policy, seed in chosen:
            found = tune(model, policy, seed, args.seconds, args.threads, args.folder)
            append(path, found)
            first, last = found.history[0][1], min(v for _, v in found.history)
            print(f"{found.name}: {1e3 * first:.3f} to {1e3 * last:.3f} ms in {len(found.history) - 1} slots, {found.trials} "
                  f"trials, {found.overhead:.1%} for beliefs", flush=True)  # fmt: skip
    return 0


def parse(text: str) -> tuple[str, str, int]:
    """MODEL:POLICY:SEED."""
    model, policy, seed = text.split(":")
    if model not in MODELS:
        raise SystemExit(f"--only {text}: no model {model!r}; wanted one of {', '.join(MODELS)}")
    return model, policy, int(seed)


def subject(model: str) -> Operator:
    return next(m for m in models() if m.name == model)


def tune(model: str, policy: str, seed: int, seconds: float, threads: int, folder: Path) -> Run:
    """One run, from an empty log."""
    operator, states = subject(model), list[tuple[float, ModelProgress]]()
    began = time.perf_counter()

    def follow(state: object) -> None:
        assert isinstance(state, ModelProgress)
        states.append((time.perf_counter() - began, state))

    with tempfile.TemporaryDirectory() as empty:
        log = Path(empty) / "tuning.jsonl"
        options = tw.CompileOptions(threads=threads, seconds=seconds, seed=seed, policy=policy, log=log)
        fn = compiled(operator, operator.constants(), options, follow)
    last = states[-1][1]
    found = Run(model, policy, seed, seconds, threads, states[0][0], last.trials, last.overhead, list(last.history))
    fn.save(folder / f"{found.name}.tw")
    return found


def measure(model: str, records: Sequence[Run | Measured], folder: Path, count: int) -> Measured:
    """Call the tuned models of all runs in turns at each size; the least of the rounds counts."""
    operator = subject(model)
    names = [r.name for r in latest(records, model)]
    loaded = {n: tw.load(folder / f"{n}.tw") for n in names}
    totals = dict.fromkeys(names, 0.0)
    for shape in operator.points:
        given, output = tuple(operator.arguments(shape).values()), operator.empty_output(shape)
        calls = {n: _call(fn, given, output) for n, fn in loaded.items()}
        least = dict.fromkeys(names, float("inf"))
        for number in range(count + 1):
            for name in names if number % 2 else reversed(names):
                spent = timed(calls[name])
                least[name] = min(least[name], spent) if number else least[name]
        totals = {n: totals[n] + least[n] / len(operator.points) for n in names}
    for name in sorted(names, key=lambda n: totals[n]):
        print(f"{name}: {1e3 * totals[name]:.3f} ms", flush=True)
    return Measured(model, count, totals)


def timed(call: Callable[[], object], least: float = 0.02) -> float:
    """Seconds of a call: the mean over about so long."""
    begin, calls = time.perf_counter(), 0
    while True:
        call()
        calls += 1
        spent = time.perf_counter() - begin
        if spent >= least:
            return spent / calls


def report(records: Sequence[Run | Measured]) -> str:
    """A table for each model: seconds to within 5 % and 1 % of the best final latency of all its runs, and the mean excess."""
    lines = []
    for model in dict.fromkeys(r.model for r in records):
        runs = latest(records, model)
        if not runs:
            continue
        measured = next((r for r in reversed(records) if isinstance(r, Measured) and r.model == model), None)
        scaled = {r.name: trace(r, measured) for r in runs}
        best = min(t[-1][1] for t in scaled.values())
        together = measured is not None and all(r.name in measured.latencies for r in runs)
        note = "" if together else "; NOT measured together: has the noise of each run"
        lines.append(f"{model}: best final latency {1e3 * best:.3f} ms of {len(runs)} runs{note}")
        for policy in dict.fromkeys(r.policy for r in runs):
            own = [r for r in runs if r.policy == policy]
            cells = [f"  {policy:12} {len(own)} seeds"]
            for label, factor in (("to 5 %", 1.05), ("to 1 %", 1.01)):
                cells.append(shown(label, [until(scaled[r.name], factor * best) for r in own], ".1f", " s"))
            cells.append(shown("area", [excess(scaled[r.name], best, r.seconds) for r in own], ".4f", ""))
            cells.append(shown("final", [1e3 * scaled[r.name][-1][1] for r in own], ".3f", " ms"))
            cells.append(f"beliefs {np.median([r.overhead for r in own]):.1%}")
            lines.append("  ".join(cells))
    return "\n".join(lines)


def latest(records: Sequence[Run | Measured], model: str) -> list[Run]:
    """The last run of each name."""
    return list({r.name: r for r in records if isinstance(r, Run) and r.model == model}.values())


def trace(run: Run, measured: Measured | None) -> list[tuple[float, float]]:
    """(seconds, best latency so far), on the scale of the common measurement where there is one."""
    least = np.minimum.accumulate([v for _, v in run.history])
    final = measured.latencies.get(run.name) if measured else None
    factor = final / least[-1] if final else 1.0
    return [(s, float(v * factor)) for (s, _), v in zip(run.history, least, strict=True)]


def until(points: Sequence[tuple[float, float]], latency: float) -> float:
    """Seconds until the latency is no more than this; infinite where it never is."""
    return next((s for s, v in points if v <= latency * (1 + 1e-9)), float("inf"))


def excess(points: Sequence[tuple[float, float]], best: float, seconds: float) -> float:
    """Mean of latency / best - 1 over the time of a run; the last latency holds to its end."""
    times = [s for s, _ in points] + [max(seconds, points[-1][0])]
    return float(np.sum(np.diff(times) * np.array([v / best - 1 for _, v in points]))) / times[-1]


def shown(label: str, values: Sequence[float], digits: str, unit: str) -> str:
    """Median with its 95 % interval; a median that is not reached reads `never`."""
    reached = int(np.isfinite(values).sum())
    if reached < len(values):
        middle = float(np.sort(values)[len(values) // 2])
        text = "never" if np.isinf(middle) else f"{middle:{digits}}{unit}"
        return f"{label} {text} ({reached} of {len(values)} reach it)"
    middle, low, high = interval(values)
    return f"{label} {middle:{digits}}{unit} [{low:{digits}}, {high:{digits}}]"


def read(path: Path) -> list[Run | Measured]:
    if not path.exists():
        raise SystemExit(f"{path} is not there: run with --only first")
    return [msgspec.json.decode(line, type=Run | Measured) for line in path.read_bytes().splitlines()]


def append(path: Path, record: Run | Measured) -> None:
    with path.open("ab") as out:
        out.write(msgspec.json.encode(record) + b"\n")


def _call(fn: Callable[..., object], given: Sequence[object], output: object) -> Callable[[], object]:
    return lambda: fn(*given, out=output)
