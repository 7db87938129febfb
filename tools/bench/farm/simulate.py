"""Farms of many sizes, simulated: how fast a model is tuned by so many builders and runners, and what faults cost.

    python -m tools.bench farm --models bert_base,resnet18 --runners 1,2,4,8,16,32 --builders 1,16,64,256 --seeds 5

Durations of builds and of measurements, and the times that are found, are those of the measurement tables (make_tables.py); the
scheduler is that of a real farm (search/task_scheduler/parallel_tuner.py). Time is simulated, so that no machine is needed; the
driver's decisions are charged with --decide seconds for each candidate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tilewright.search.database.measurement_table import OperatorTable, read_tables
from tilewright.search.task_scheduler.belief_pool import BeliefOptions, quick_beliefs
from tilewright.search.task_scheduler.model_tuner import ModelBudget, ModelTuneOptions
from tilewright.search.task_scheduler.parallel_tuner import FlightProgress, ParallelTuner
from tilewright.search.task_scheduler.policies import policies
from tilewright.search.task_scheduler.simulated_jobs import Faults, SimulatedJobs, TableBatchArm
from tilewright.search.task_scheduler.simulation import SimulatedClock, table_arms
from tools.bench import command
from tools.bench.policies.replayed import TABLES, peak_of

_WITHIN = (1.05, 1.01)
_COUNTS = (32, 64, 96, 128, 192, 256)  # measurements after which the latency is compared


@dataclass(frozen=True)
class Run:
    """seconds, trials: until within 5 % and 1 % of the best latency that the table has. busy: share of the runners' time that
    measured, until the second. area: mean of latency over the best, less 1, over the trials until within 1 %. reached: latency
    over the best after _COUNTS of trials."""

    seconds: tuple[float, float]
    trials: tuple[int, int]
    busy: float
    area: float
    reached: tuple[float, ...]
    lost: int
    failed: int


@dataclass(frozen=True)
class Size:
    """Of a farm. in_flight: None: as many as keep the runners at work."""

    builders: int
    runners: int
    in_flight: int | None = None


def simulate(tables: Sequence[OperatorTable], size: Size, seed: int, faults: Faults, decide: float, policy: str) -> Run:
    """Until within 1 % of the best, or nothing is left to try."""
    clock = SimulatedClock()
    arms = table_arms(tables, peak_of(tables), seed, kind=TableBatchArm)
    jobs = SimulatedJobs(tables, clock, size.builders, size.runners, seed, faults, decide=decide)
    final = sum(a.floor for a in arms)
    seconds: dict[float, float] = {}
    trials: dict[float, int] = {}
    excess: list[float] = []
    reached: list[float] = []

    class Enough(Exception):  # noqa: N818
        """The best is as near as is asked for."""

    def told(flight: FlightProgress) -> None:
        latency = sum(a.latency for a in arms)
        excess.append(latency / final - 1)
        reached.extend([latency / final] * sum(n <= flight.measurements for n in _COUNTS[len(reached) :]))
        for factor in _WITHIN:
            if latency <= factor * final and factor not in seconds:
                seconds[factor], trials[factor] = clock.now, flight.measurements
        if len(seconds) == len(_WITHIN):
            raise Enough

    options = ModelTuneOptions(policies()[policy], BeliefOptions(seed=seed), 3.0, seed=seed)
    pool = quick_beliefs(options.beliefs)
    tuner = ParallelTuner(arms, ModelBudget(), clock, jobs, options, pool=pool, in_flight=size.in_flight, flight=told)
    with contextlib.suppress(Enough):
        tuner.run()
    end, count = clock.now, tuner.measurements
    found = (tuple(seconds.get(f, end) for f in _WITHIN), tuple(trials.get(f, count) for f in _WITHIN))
    area = statistics.fmean(excess) if excess else 0.0
    return Run((found[0][0], found[0][1]), (int(found[1][0]), int(found[1][1])), jobs.busy / max(end * size.runners, 1e-9), area,
               (*reached, *[_WITHIN[-1]] * (len(_COUNTS) - len(reached))), jobs.lost, jobs.failed)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("farm", __doc__)
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument("--models", default="bert_base,resnet18")
    parser.add_argument("--builders", default="1,4,16,64,256")
    parser.add_argument("--runners", default="1,2,4,8,16,32")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--policy", default="thompson", choices=sorted(policies()))
    parser.add_argument("--decide", type=float, default=0.005, help="seconds of the driver for each candidate")
    parser.add_argument("--in-flight", type=int, help="most candidates under way; as many as keep the runners at work by default")
    parser.add_argument("--faults", type=float, default=0.0, help="share of tasks whose actor is lost")
    parser.add_argument("--node-seconds", type=float, default=0.0, help="time between two losses of a node")
    parser.add_argument("--notice", type=float, default=Faults.notice, help="seconds until a lost actor is missed")
    parser.add_argument("--back", type=float, default=Faults.back, help="seconds from then on until another one is there")
    parser.add_argument("--ready", type=float, help="the same for a runner, where another one stands by; none does by default")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    faults = Faults(args.faults, args.node_seconds, notice=args.notice, back=args.back, ready=args.ready)
    for model in args.models.split(","):
        tables = read_tables(args.tables / f"{model}.jsonl")
        serial = [simulate(tables, Size(1, 1, 1), seed, Faults(), args.decide, args.policy) for seed in range(args.seeds)]
        show(model, Size(1, 1, 1), serial, serial, args.json)
        for runners in map(int, args.runners.split(",")):
            for builders in map(int, args.builders.split(",")):
                size = Size(builders, runners, args.in_flight)
                runs = [simulate(tables, size, seed, Faults(), args.decide, args.policy) for seed in range(args.seeds)]
                show(model, size, runs, serial, args.json)
                if faults.share or faults.node_seconds:
                    lossy = [simulate(tables, size, seed, faults, args.decide, args.policy) for seed in range(args.seeds)]
                    show(model, size, lossy, serial, args.json, runs)
    return 0


def mean_ratio(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Geometric mean of values over others, seed by seed, and its standard error."""
    logs = [math.log(max(a, 1e-9) / max(b, 1e-9)) for a, b in zip(values, others, strict=True)]
    mean = math.exp(statistics.fmean(logs))
    return mean, mean * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0


def show(model: str, size: Size, runs: Sequence[Run], serial: Sequence[Run], out: Path | None,
         unharmed: Sequence[Run] | None = None) -> None:
    """A line, and a row of JSON: medians over the seeds, and against one candidate after the other: of the medians, and geometric
    means over the seeds with their standard errors. unharmed: the same without faults, against which these are held besides."""
    row: dict[str, object] = {"model": model, **asdict(size), "seeds": len(runs)}
    for i, name in enumerate(("to_5", "to_1")):
        seconds, before = (statistics.median(r.seconds[i] for r in x) for x in (runs, serial))
        trials, trials_before = (statistics.median(r.trials[i] for r in x) for x in (runs, serial))
        row |= {name: seconds, f"{name}_faster": before / max(seconds, 1e-9), f"{name}_trials": trials / max(trials_before, 1)}
        row[f"{name}_trials_mean"] = mean_ratio([r.trials[i] for r in runs], [r.trials[i] for r in serial])
        row[f"{name}_faster_mean"] = mean_ratio([r.seconds[i] for r in serial], [r.seconds[i] for r in runs])
        if unharmed is not None:
            row[f"{name}_slower"] = mean_ratio([r.seconds[i] for r in runs], [r.seconds[i] for r in unharmed])
    pairs = [zip(r.reached, s.reached, strict=True) for r, s in zip(runs, serial, strict=True)]
    row["latency"] = statistics.geometric_mean([a / b for pair in pairs for a, b in pair])
    row |= {"busy": statistics.median(r.busy for r in runs), "area": statistics.median(r.area for r in runs),
            "lost": sum(r.lost for r in runs), "failed": sum(r.failed for r in runs)}
    reached = "  ".join(f"{name} {row[name]:8.1f} s {row[f'{name}_faster']:6.2f}x" for name in ("to_5", "to_1"))
    means = "  ".join(f"{k} {v[0]:.3f}+-{v[1]:.3f}" for k, v in row.items() if isinstance(v, tuple))
    print(f"{model:10} {size.builders:4} builders {size.runners:3} runners  {reached}  trials {row['to_5_trials']:5.2f}x "
          f"{row['to_1_trials']:5.2f}x  latency after as many trials {row['latency']:.3f}x  "
          f"runners busy {row['busy']:4.0%}  lost {row['lost']} failed {row['failed']}  {means}", flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
