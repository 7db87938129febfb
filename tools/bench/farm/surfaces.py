"""Searches over known surfaces: what a farm's decisions find with as many measurements as a search of one candidate at a time.

    python -m tools.bench farm-surfaces --model mlp --trials 240 --sizes 2x1,8x8 --seeds 6 [--noise 0.01]

The operators, their spaces, the cost models and the decisions are those of a real search of the model; times are those of a
surface: what the model that ships for the family expects, times a factor of each configuration and one of each configuration
and shape that are drawn once. So all searches are held against one truth, and nothing of a machine's noise is in what they find.
Searches start from no prior, since the surface is made of one. `plain` is what `tune` does without a farm; a size is
BUILDERSxRUNNERS, with as many candidates under way as keep the runners at work. Time is simulated.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.options import default_policy
from tilewright.compiler.compilation.outlined_model import OutlinedModel, outline
from tilewright.compiler.tuning.dispatch_tables import default_tables, numerics_of
from tilewright.compiler.tuning.operator_tuning import search_options, task_of, weight_of
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.dispatch import select
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.target import Target
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.forms import form_of
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.database.records import TuningLog
from tilewright.search.prior.shipped import shipped
from tilewright.search.protocols import BuildResult, Measurement
from tilewright.search.runner.measurer import Environment, MeasureContext
from tilewright.search.runner.replay import ReplayBuilder
from tilewright.search.search_strategy.outcome import Progress, Tuned
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner, tune
from tilewright.search.space.array_types import Floats
from tilewright.search.space.task import Task
from tilewright.search.task_scheduler.candidate_jobs import BuildJob, JobEnd, RunJob
from tilewright.search.task_scheduler.model_search import Flight, Opening, SearchPlan, search_model
from tilewright.search.task_scheduler.model_tuner import ModelBudget, ModelTuneOptions
from tilewright.search.task_scheduler.operator_arms import OperatorUse
from tilewright.search.task_scheduler.peak import Peak
from tilewright.search.task_scheduler.policies import policies
from tilewright.search.task_scheduler.simulation import SimulatedClock
from tools.bench import command
from tools.bench.farm.cluster import MODELS

_PEAK = Peak(1e11, 2e10)
_OWN, _AT_SHAPE = 0.06, 0.02  # deviations of the logarithm: of a configuration, and of one at a shape
_SIZES, _FIRST = 9, TuneOptions().first
_MODEL = "host_matmul"  # whose shipped model stands for families without one


class Surface:
    """True seconds of the configurations of a task on one thread, at all of its points and held-out shapes."""

    def __init__(self, task: Task, calls: int) -> None:
        self.task, self.calls = task, calls
        self.lattice = task.lattice()
        shapes = tuple(dict.fromkeys((*task.points.shapes, *task.held_out)))
        self._shape = {s: i for i, s in enumerate(shapes)}
        space = FeatureSpace(form_of(self.lattice), shapes)
        pairs = Pairs.product(range(len(self.lattice)), range(len(shapes)), [1])
        model = shipped(task.families[0]) or shipped(_MODEL)
        assert model is not None
        mean = model.predict(space, pairs)[0].reshape(len(self.lattice), len(shapes))
        rng = np.random.default_rng([len(self.lattice), int(task.workload.key[:8], 16)])
        drawn = _OWN * rng.standard_normal((len(self.lattice), 1)) + _AT_SHAPE * rng.standard_normal(mean.shape)
        legal = space.legal(pairs).reshape(mean.shape)
        self.seconds: Floats = np.where(legal, np.exp(mean + drawn), np.inf)

    def at(self, config: str, dims: Mapping[str, int]) -> float:
        """Infinite where the kernel does not serve the shape; of a shape between, that of the nearest."""
        number = self.lattice.number(config)
        assert number is not None, "the search measures what its space has"
        shape = tuple(dims.items())
        if shape not in self._shape:
            shape = min(self._shape, key=lambda s: sum(abs(np.log(a / b)) for (_, a), (_, b) in zip(s, shape, strict=True)))
        return float(self.seconds[number, self._shape[shape]])

    def found(self, tuned: Tuned) -> Floats:
        """Seconds of a choice at each point."""
        texts = [config_text(c) for c in tuned.configs]
        return np.array([self.at(texts[select(tuned.root, dict(s)).kernel], dict(s)) for s in self.task.points.shapes])


@dataclass
class SurfaceRunner:
    """A Runner that answers from surfaces. noise: deviation of the logarithm of a measurement. each: seconds that it takes."""

    surfaces: Mapping[str, Surface]
    advance: Callable[[float], None]
    noise: float
    seed: int
    each: float

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng([self.seed, 5])

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        self.advance(self.each)
        true = self.surfaces[workload.key].at(kernel.config, dims)
        if not np.isfinite(true):
            return Measurement(error="not legal here")
        return Measurement(tuple(float(true * np.exp(self.noise * n)) for n in self._rng.standard_normal(3)))


class TimedBuilder(ReplayBuilder):
    """A Builder of nothing that takes its time."""

    def __init__(self, advance: Callable[[float], None], each: float) -> None:
        super().__init__()
        self.advance, self.each = advance, each

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        self.advance(self.each * len(candidates))
        return super().build(candidates, seconds)


@dataclass
class SurfaceJobs:
    """Jobs on a simulated clock: builds and runs begin when a builder or a runner is free and take their time."""

    runner: SurfaceRunner
    clock: SimulatedClock
    builders: int
    runners: int
    build_seconds: float
    _ends: list[tuple[float, int, JobEnd]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free: tuple[list[float], list[float]] = ([0.0] * self.builders, [0.0] * self.runners)

    def build(self, job: BuildJob, seconds: float | None) -> None:
        (built,) = ReplayBuilder().build([(job.workload, job.config)])
        self._end(0, self.build_seconds, JobEnd(job.number, built, seconds=self.build_seconds))

    def run(self, job: RunJob, seconds: float | None) -> None:
        assert job.built.kernel is not None, "what is run was built"
        kernel, spent = job.built.kernel, self.runner.each * len(job.places)
        found = [self.runner.run(job.workload, kernel, b"", dict(dims), threads) for dims, threads in job.places]
        self._end(1, spent, JobEnd(job.number, None, job.places, tuple(found), spent))

    def done(self, seconds: float | None) -> list[JobEnd]:
        if not self._ends:
            return []
        at, _, end = heapq.heappop(self._ends)
        self.clock.now = max(self.clock.now, at)
        return [end]

    def _end(self, kind: int, duration: float, end: JobEnd) -> None:
        at = max(self.clock.now, heapq.heappop(self._free[kind])) + duration
        heapq.heappush(self._free[kind], at)
        heapq.heappush(self._ends, (at, end.number, end))


@dataclass(frozen=True)
class Subject:
    """A model's operators, ready to be searched again and again."""

    model: OutlinedModel
    surfaces: tuple[Surface, ...]

    @staticmethod
    def of(name: str, trials: int) -> Subject:
        source, dims = MODELS[name]()
        compilation = Compilation(source, dims, Target.parse("host"), tw.CompileOptions(threads=1, trials=trials))
        with WorkerBuilder(compilation.target) as builder:
            model = outline(compilation)
            tables = default_tables(model.workloads, compilation.limits, builder, numerics_of(compilation.options))
        tasks = [task_of(w, model, tables) for w in model.workloads]
        return Subject(model, tuple(Surface(t, len(model.uses[t.workload.key])) for t in tasks))

    def latency(self, found: Mapping[str, Tuned]) -> Floats:
        """Seconds of the model at each of some sizes: sums over the operators, with their calls, each at its own points there."""
        parts = []
        for s in self.surfaces:
            seconds = s.found(found[s.task.workload.key])
            at = np.round(np.linspace(0, len(seconds) - 1, _SIZES)).astype(int)
            parts.append(s.calls * seconds[at])
        return np.asarray(np.sum(parts, axis=0))


@dataclass(frozen=True)
class Outcome:
    """latency: Subject.latency of what was found. cpu: processor seconds of this process for it. trials: measurements taken."""

    latency: Floats
    cpu: float
    seconds: float
    trials: int


def searched(subject: Subject, size: tuple[int, int] | None, seed: int, args: argparse.Namespace) -> Outcome:
    """One search. size: builders and runners; None: one candidate after the other."""
    clock, begin = SimulatedClock(), time.process_time()
    surfaces = {s.task.workload.key: s for s in subject.surfaces}
    log = TuningLog()
    plain = size is None
    runner = SurfaceRunner(surfaces, clock.advance if plain else lambda s: None, args.noise, seed, args.run_seconds)
    builder = TimedBuilder(clock.advance if plain else lambda s: None, args.build_seconds)
    context = MeasureContext(builder, runner, Environment("surface", clock), log, at_once=1 if size is None else size[1])
    options = replace(search_options(subject.model), first=0, seed=seed, threads=1)

    if plain:
        found = one_by_one(subject, context, replace(options, first=_FIRST), args.trials)
        return Outcome(subject.latency(found), time.process_time() - begin, clock.now, sum(1 for r in log.records if r.dims))

    def opened(surface: Surface) -> OperatorUse:
        return OperatorUse(Tuner(surface.task, context, Budget(), options, None), surface.calls)

    openings = [Opening(weight_of(s.task.workload, subject.model), partial(opened, s)) for s in subject.surfaces]
    assert size is not None
    plan = SearchPlan(ModelBudget(None, args.trials, None), clock, ModelTuneOptions(policies()[default_policy(True)], seed=seed))
    flight = Flight(SurfaceJobs(runner, clock, *size, args.build_seconds))
    done = search_model(openings, plan, _PEAK, log, flight=flight)
    taken = sum(1 for r in log.records if r.dims)
    return Outcome(subject.latency(done.tuned), time.process_time() - begin, clock.now, taken)


def one_by_one(subject: Subject, context: MeasureContext, options: TuneOptions, trials: int) -> dict[str, Tuned]:
    """The operators one after the other, each with its share of the budget, as operator_tuning.tune_tables."""
    left = {s.task.workload.key: weight_of(s.task.workload, subject.model) for s in subject.surfaces}
    found, taken = dict[str, Tuned](), 0
    for surface in sorted(subject.surfaces, key=lambda s: -left[s.task.workload.key]):
        key = surface.task.workload.key
        weight = left.pop(key)
        states: list[Progress] = []
        budget = Budget(trials=round((trials - taken) * weight / (weight + sum(left.values()))))
        found[key] = tune(surface.task, context, budget, options, None, states.append)
        taken += states[-1].trials if states else 0
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = command.parser("farm-surfaces", __doc__)
    parser.add_argument("--model", default="mlp", choices=sorted(MODELS))
    parser.add_argument("--trials", type=int, default=240, help="measurements of each search")
    parser.add_argument("--sizes", default="2x1,8x8", help="farms, as BUILDERSxRUNNERS")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--noise", type=float, default=0.01, help="deviation of a measurement")
    parser.add_argument("--build-seconds", type=float, default=0.4)
    parser.add_argument("--run-seconds", type=float, default=0.05)
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    args = parser.parse_args(argv)
    subject = Subject.of(args.model, args.trials)
    sizes: dict[str, tuple[int, int] | None] = {"plain": None}
    for text in filter(None, args.sizes.split(",")):
        builders, runners = map(int, text.split("x"))
        sizes[text] = builders, runners
    plain: list[Outcome] = []
    for name, size in sizes.items():
        runs = [searched(subject, size, seed, args) for seed in range(args.seeds)]
        plain = plain or runs
        row = compared(runs, plain)
        print(f"{args.model} {name:8} " + "  ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
        if args.json is not None:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"model": args.model, "size": name, "trials": args.trials, **row}) + "\n")
    return 0


def compared(runs: Sequence[Outcome], plain: Sequence[Outcome]) -> dict[str, Any]:
    """Of latencies over those of plain searches: the ratio of the geometric means over seeds and sizes, less 1, with its standard
    error, and of medians; how far one seed is from another, of these and, at the median, of two plain ones."""
    def log(outcome: Outcome) -> float:
        return float(np.log(outcome.latency).mean())

    ours, theirs = np.array([log(r) for r in runs]), np.array([log(r) for r in plain])
    apart = np.abs(np.subtract.outer(theirs, theirs)[np.triu_indices(len(theirs), 1)])
    return {"regret": float(np.expm1(ours.mean() - theirs.mean())),
            "median": float(np.expm1(np.median(ours) - np.median(theirs))),
            "error": float(np.sqrt(ours.var(ddof=1) / len(ours) + theirs.var(ddof=1) / len(theirs))) if len(ours) > 1 else 0.0,
            "of_seed": float(ours.std(ddof=1)) if len(ours) > 1 else 0.0,
            "two_plain": float(np.expm1(np.median(apart))) if len(apart) else 0.0,
            "cpu": statistics.fmean(r.cpu for r in runs), "seconds": statistics.fmean(r.seconds for r in runs),
            "trials": statistics.fmean(r.trials for r in runs)}
