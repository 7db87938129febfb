"""Tuning policies compared exactly, on replayed measurement tables; no compiler and no device is used.

    python -m tools.bench policies --models resnet18,squeezenet --seeds 5 [--ablations] [--json out.jsonl]

Time is what building and measuring took when the tables were made, plus --fit-seconds for every belief that is sampled. The final
latency is that of the best configuration of the table at every shape. Figures are medians over the seeds with a 95 % interval
(bootstrap); the area is the mean of latency / final - 1 over the time that trying everything takes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilewright.passes.spaces.workload import Kind
from tilewright.search.database.measurement_table import OperatorTable, read_tables
from tilewright.search.database.records import TuningLog
from tilewright.search.database.slot_records import SlotRecord
from tilewright.search.task_scheduler.bandit import Arm
from tilewright.search.task_scheduler.belief import EmceeSampler
from tilewright.search.task_scheduler.belief_pool import BeliefOptions, BeliefPool, FitCache
from tilewright.search.task_scheduler.model_tuner import ModelBudget, ModelProgress, ModelTuneOptions, ModelTuner
from tilewright.search.task_scheduler.peak import Peak
from tilewright.search.task_scheduler.policies import Policy, Ucb, policies
from tilewright.search.task_scheduler.simulation import SimulatedClock, TableArm, table_arms
from tools.bench import command

TABLES = Path(__file__).resolve().parent / "tables"
_END = 1.0005  # of the final latency
ABLATIONS = {"ucb-independent": BeliefOptions(shared=False), "ucb-no-segments": BeliefOptions(segments=False)}


@dataclass
class Trace:
    """The model's latency after every trial, on a simulated clock."""

    clock: SimulatedClock
    arms: list[TableArm] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.mark()

    def mark(self) -> None:
        self.times.append(self.clock.now)
        self.latencies.append(sum(a.latency for a in self.arms))


@dataclass(frozen=True)
class Outcome:
    """within: factor of the final latency -> seconds until then. area: mean excess. slots: the run's records.

    overhead: share of the time that is charged for beliefs. cpu: processor seconds of the simulation.
    """

    within: dict[float, float]
    area: float
    slots: list[SlotRecord]
    fits: int
    overhead: float
    cpu: float


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("policies", __doc__)
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument("--models", default="", help="names, all by default")
    parser.add_argument("--policies", default=",".join(policies()), help="names")
    parser.add_argument("--ablations", action="store_true", help="also UCB with independent arms and without segments")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--slot", type=float, default=3.0, help="seconds of a slot")
    parser.add_argument("--fit-seconds", type=float, default=0.1, help="charged for each belief that is sampled")
    parser.add_argument("--steps", type=int, default=500, help="of each chain; the first 60 % are dropped")
    parser.add_argument("--c", type=float, default=Ucb().c, help="exploration of ucb")
    parser.add_argument("--buckets", type=int, default=2, help="of the shapes of an operator")
    parser.add_argument(
        "--from-defaults", action="store_true", help="begin with the default kernel, else with a random configuration"
    )
    parser.add_argument("--patience", type=int, default=32)
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    names = [n for n in args.models.split(",") if n] or sorted(p.stem for p in args.tables.glob("*.jsonl"))
    known = {**policies(), "ucb": Ucb(args.c)}
    chosen: dict[str, tuple[Policy, BeliefOptions]] = {n: (known[n], BeliefOptions()) for n in args.policies.split(",") if n}
    if args.ablations:
        chosen |= {n: (Ucb(args.c), o) for n, o in ABLATIONS.items()}
    for name in names:
        tables = read_tables(args.tables / f"{name}.jsonl")
        cache, results = FitCache(), {}
        for policy, (found, beliefs) in chosen.items():
            results[policy] = [simulate(tables, found, beliefs, seed, args, cache) for seed in range(args.seeds)]
        report(name, results, args)
    return 0


def simulate(
    tables: Sequence[OperatorTable], policy: Policy, beliefs: BeliefOptions, seed: int, args: argparse.Namespace, cache: FitCache
) -> Outcome:
    """One run until nothing worth mentioning is left to gain."""
    start = time.process_time()
    clock = SimulatedClock()
    trace = Trace(clock)
    trace.arms = table_arms(tables, peak_of(tables), seed, args.buckets, trace.advance, args.from_defaults)
    trace.mark()
    sampler = EmceeSampler(args.steps, args.steps * 3 // 5, max(1, args.steps // 50))
    pool = BeliefPool(beliefs, sampler, cache)
    charged = [0]

    def charge(state: ModelProgress) -> None:
        clock.advance(args.fit_seconds * (pool.fits + pool.reused - charged[0]))
        charged[0] = pool.fits + pool.reused

    log = TuningLog()
    arms: list[Arm] = list(trace.arms)
    options = ModelTuneOptions(policy, beliefs, args.slot, patience=args.patience, seed=seed)
    final = sum(a.floor for a in trace.arms)
    tuner = ModelTuner(arms, ModelBudget(), clock, options, log, pool, charge)
    while tuner.latency > _END * final and tuner.step():
        pass
    times, latencies = np.array(trace.times), np.array(trace.latencies)
    within = {f: float(times[np.argmax(latencies <= f * final)]) for f in (1.05, 1.01)}
    whole = sum(sum(t.build_seconds) + len(t.shapes) * sum(t.measure_seconds) for t in tables)
    area = float(np.sum((latencies[:-1] / final - 1) * np.diff(times)) / whole)
    return Outcome(within, area, log.slots, pool.fits, args.fit_seconds * charged[0] / clock.now, time.process_time() - start)


def peak_of(tables: Sequence[OperatorTable]) -> Peak:
    """The most traffic a second that any configuration reaches, and the most arithmetic of any contraction.

    Causal attention skips arithmetic that is counted, so that its rate may be above what the device can do.
    """
    flops, bytes_ = [], []
    for table in tables:
        dims, best = [dict(s) for s in table.shapes], table.times.min(axis=0)
        if table.operator.kind is Kind.CONTRACTION:
            flops += [table.operator.flops.evaluate(d) / t for d, t in zip(dims, best, strict=True)]
        bytes_ += [table.operator.bytes.evaluate(d) / t for d, t in zip(dims, best, strict=True)]
    return Peak(1.1 * max(flops), 1.1 * max(bytes_))


def coverage(slots: Sequence[SlotRecord]) -> tuple[int, int]:
    """Slots whose outcome lies in the 80 % interval that was predicted, of all with a prediction."""
    inside = total = 0
    for s in slots:
        found = next((b for b in s.beliefs if b.arm == s.arm), None)
        if found is None or not s.points:
            continue
        reached = min(s.ideal / min(latency for _, latency in s.points), 0.95)
        inside += found.low * (1 - 1e-3) <= reached <= found.high * (1 + 1e-3)
        total += 1
    return inside, total


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and the 95 % interval of it."""
    found = np.array(values)
    drawn = np.median(np.random.default_rng(0).choice(found, (2000, len(found))), axis=1)
    return float(np.median(found)), float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


def report(model: str, results: dict[str, list[Outcome]], args: argparse.Namespace) -> None:
    """Print a table and append JSON."""
    first = next(iter(results))
    print(f"\n{model}: seconds to within 5 % and 1 % of the final latency, mean excess; ratios to {first}")
    for policy, outcomes in results.items():
        row: dict[str, object] = {"model": model, "policy": policy, "seeds": len(outcomes)}
        shown = [f"{policy:16}"]
        for label, values, base in (
            ("to_5", [o.within[1.05] for o in outcomes], [o.within[1.05] for o in results[first]]),
            ("to_1", [o.within[1.01] for o in outcomes], [o.within[1.01] for o in results[first]]),
            ("area", [o.area for o in outcomes], [o.area for o in results[first]]),
        ):
            middle, low, high = interval(values)
            ratio = middle / max(float(np.median(base)), 1e-9)
            row |= {label: middle, f"{label}_interval": [low, high], f"{label}_ratio": ratio}
            shown.append(f"{label} {middle:8.3f} [{low:8.3f}, {high:8.3f}] {ratio:5.2f}x")
        inside, total = (sum(v) for v in zip(*(coverage(o.slots) for o in outcomes), strict=True))
        overhead = float(np.median([o.overhead for o in outcomes]))
        row |= {
            "coverage": inside / total if total else None,
            "overhead": overhead if total else None,
            "cpu": sum(o.cpu for o in outcomes),
            "fits": sum(o.fits for o in outcomes),
        }
        if total:
            shown.append(f"80 % interval holds {inside / total:.0%} of {total} slots  beliefs take {overhead:.1%} of the time")
        print("  ".join(shown) + f"  ({row['cpu']:.0f} s)", flush=True)
        if args.json:
            with args.json.open("a") as out:
                out.write(json.dumps(row) + "\n")
