"""Searches with many candidates under way: threads, a simulated farm, faults, and what is under way counting in decisions."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_surfaces import dense
from tuning_tables import planted_table

from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.database.records import TuningLog
from tilewright.search.protocols import BuildResult, Measurement
from tilewright.search.runner.measurer import Environment, MeasureContext
from tilewright.search.runner.replay import ReplayBuilder
from tilewright.search.search_strategy.reckoner import LocalReckoner
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner
from tilewright.search.space.shapes import Points
from tilewright.search.space.task import Task
from tilewright.search.task_scheduler.belief import EmceeSampler
from tilewright.search.task_scheduler.belief_pool import BeliefOptions, BeliefPool
from tilewright.search.task_scheduler.candidate_jobs import BuildJob, RunJob, ThreadedJobs
from tilewright.search.task_scheduler.model_search import Flight, Opening, SearchPlan, search_model
from tilewright.search.task_scheduler.model_tuner import ModelBudget, ModelTuneOptions
from tilewright.search.task_scheduler.operator_arms import OperatorUse
from tilewright.search.task_scheduler.parallel_tuner import ParallelTuner
from tilewright.search.task_scheduler.peak import Peak
from tilewright.search.task_scheduler.policies import RoundRobin, Thompson
from tilewright.search.task_scheduler.simulated_jobs import Faults, SimulatedJobs, TableBatchArm
from tilewright.search.task_scheduler.simulation import SimulatedClock, table_arms
from tools.bench.farm.simulate import Size, main, mean_ratio, simulate
from tools.bench.farm.surfaces import Outcome, Surface, SurfaceJobs, SurfaceRunner, compared

PEAK = Peak(1e11, 1e10)
TILES = planted_table("a", 64, 3.0, 1).tiles
SHAPES = tuple((("d0", m),) for m in (8, 32, 128))


class SlowRunner:
    """Times fall with the block's height. Notes how many run at once."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.at_once, self.most, self.runs = seconds, 0, 0, 0
        self._lock = threading.Lock()

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        with self._lock:
            self.at_once += 1
            self.runs += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self.seconds)
        with self._lock:
            self.at_once -= 1
        digits = sum(map(int, filter(str.isdigit, kernel.config)))
        return Measurement((1e-6 * dims["d0"] * (1 + 1 / (1 + digits % 17)),))


class CountingBuilder(ReplayBuilder):
    def __init__(self) -> None:
        super().__init__()
        self.built: list[str] = []

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        self.built += [f"{w.key} {config_text(c)}" for w, c in candidates]
        return super().build(candidates, seconds)


def searched(runner: SlowRunner, builder: ReplayBuilder, log: TuningLog, trials: int = 60, at_once: int = 4) -> ParallelTuner:
    """Two operators on threads."""
    context = MeasureContext(builder, runner, Environment("here", time.time), log, at_once=at_once)
    points = Points.of([(dict(s), 1.0) for s in SHAPES])

    def opening(key: str) -> Opening:
        def opened() -> OperatorUse:
            task = Task(dense(64, key=key), HostLimits(), ("host_matmul",), points, (), TILES)
            options = TuneOptions(first=0, verify=0.2)
            return OperatorUse(Tuner(task, context, Budget(), options, None))

        return Opening(1.0, opened)

    plan = SearchPlan(ModelBudget(trials=trials), time.monotonic, ModelTuneOptions(RoundRobin()))
    with ThreadedJobs(builder, runner, 3, at_once) as jobs:
        found = search_model([opening("00000001"), opening("00000002")], plan, PEAK, log, flight=Flight(jobs))
    assert isinstance(found.tuner, ParallelTuner) and len(found.tuned) == 2
    return found.tuner


def test_several_run_at_once_and_all_is_in_the_log(tmp_path: Path) -> None:
    runner, builder, log = SlowRunner(0.005), CountingBuilder(), TuningLog(tmp_path / "log.jsonl")
    tuner = searched(runner, builder, log)
    assert runner.most == 4
    assert tuner.trials >= 36  # of the search; the rest is kept for the choice
    good = [r for r in log.records if r.seconds]
    assert len(good) == runner.runs
    assert len(builder.built) == len(set(builder.built))  # no idea is built twice
    again, known = SlowRunner(), len(log.records)
    reread = TuningLog(tmp_path / "log.jsonl")
    assert len(reread.records) == known and reread.slots
    searched(again, CountingBuilder(), reread)
    assert not {(r.workload, r.config, r.shape) for r in log.records} & {
        (r.workload, r.config, r.shape) for r in reread.records[known:] if len([x for x in log.records if x == r])}


def test_what_there_was_no_time_for_is_no_measurement() -> None:
    class Late(SlowRunner):
        def run(self, *given: Any, **named: Any) -> Measurement:
            found = super().run(*given, **named)
            return Measurement(error="there is no time left", late=True) if self.runs % 3 == 1 else found

    runner, log = Late(), TuningLog()
    tuner = searched(runner, CountingBuilder(), log)
    recorded = sum(1 for r in log.records if r.seconds)
    assert runner.runs > recorded >= tuner.flown.measurements > 0


def test_a_builder_that_raises_loses_its_candidate_and_is_told() -> None:
    class Broken(ReplayBuilder):
        def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
            raise RuntimeError("out of everything")

    planted = planted_table("a", 64, 3.0, 1)
    with ThreadedJobs(Broken(), SlowRunner(), 1, 1) as jobs:
        jobs.build(BuildJob(7, planted.operator, planted.tiles[0]), None)
        (end,) = jobs.done(5.0)
    assert end.number == 7 and end.built is not None and end.built.late and "out of everything" in end.built.error


def test_what_is_under_way_counts_as_the_model_expects() -> None:
    planted = planted_table("a", 64, 3.0, 1)
    points = Points.of([(dict(s), 1.0) for s in planted.shapes])
    task = Task(planted.operator, HostLimits(), ("host_matmul",), points, (), planted.tiles)
    context = MeasureContext(ReplayBuilder(), SlowRunner(), Environment("here", time.time))
    tuner = Tuner(task, context, Budget(), TuneOptions(first=6, shapes_each=2), None)
    tuner.step()
    first = tuner.propose_beside([], 8)
    second = tuner.propose_beside([p.config for p in first], 8)
    assert first and not {p.config for p in first} & {p.config for p in second}
    evidence = tuner.ledger.evidence
    reckoner = tuner.ledger.reckoner
    assert isinstance(reckoner, LocalReckoner)
    believed = reckoner.proposer.believed(reckoner.model, evidence.best, [p.config for p in first])
    assert (believed <= evidence.best).all()
    assert sum(p.gain for p in second) <= sum(p.gain for p in first) + 1e-12


def arms_and_jobs(faults: Faults, size: tuple[int, int] = (8, 4)) -> tuple[list[TableBatchArm], SimulatedJobs, SimulatedClock]:
    tables = [planted_table(name, 64, 4.0, seed, count=24) for seed, name in ((1, "a"), (2, "b"))]
    clock = SimulatedClock()
    return table_arms(tables, PEAK, 0, kind=TableBatchArm), SimulatedJobs(tables, clock, *size, 0, faults), clock


@pytest.mark.parametrize("policy", [RoundRobin(), Thompson()])
def test_everything_is_tried_in_the_end(policy: RoundRobin | Thompson) -> None:
    arms, jobs, clock = arms_and_jobs(Faults())
    pool = BeliefPool(BeliefOptions(), EmceeSampler(60, 36, 2))
    tuner = ParallelTuner(arms, ModelBudget(), clock, jobs, ModelTuneOptions(policy, slot_seconds=3.0), pool=pool)
    tuner.run()
    assert all(a.exhausted for a in arms)
    assert sum(a.latency for a in arms) == pytest.approx(sum(a.floor for a in arms))
    assert not tuner.flown.in_flight and not tuner.flown.ready


@pytest.mark.parametrize(("faults", "size"), [(Faults(share=0.2, node_seconds=5.0, nodes=4, away=3.0, back=1.0), (8, 4)),
                                              (Faults(share=0.2, node_seconds=5.0, nodes=1, away=3.0, back=9.0), (1, 1))])
def test_faults_lose_candidates_only(faults: Faults, size: tuple[int, int]) -> None:
    arms, jobs, clock = arms_and_jobs(faults, size)
    tuner = ParallelTuner(arms, ModelBudget(), clock, jobs, ModelTuneOptions(RoundRobin(), slot_seconds=3.0))
    tuner.run()
    assert jobs.lost > 10
    assert sum(a.latency for a in arms) == pytest.approx(sum(a.floor for a in arms))
    while jobs._away:
        clock.now = max(at for at, *_ in jobs._away)
        jobs._return()
    assert jobs._free == [jobs.builders, jobs.runners]


@pytest.mark.parametrize(("ready", "wanted"), [(None, [4.0, 4.0, 4.0]), (0.5, [0.5, 4.0, 0.5])])
def test_what_stands_by_is_back_sooner(ready: float | None, wanted: list[float]) -> None:
    _, jobs, clock = arms_and_jobs(Faults(share=0.1, back=4.0, ready=ready), (8, 1))
    found = []
    for clock.now in (0.0, 1.0, 10.0):  # another one stands by again after 4 s
        found.append(jobs._back(True))
    assert found == wanted and jobs._back(False) == 4.0


@pytest.mark.parametrize(("trials", "candidates"), [(60, 2), (300, 5), (10_000, 8), (None, 8)])
def test_slots_are_short_where_the_budget_is(trials: int | None, candidates: int) -> None:
    arms, jobs, clock = arms_and_jobs(Faults())
    assert ParallelTuner(arms, ModelBudget(trials=trials), clock, jobs)._slot_size == candidates


def test_a_budget_of_trials_is_kept() -> None:
    arms, jobs, clock = arms_and_jobs(Faults())
    tuner = ParallelTuner(arms, ModelBudget(trials=30), clock, jobs, ModelTuneOptions(RoundRobin(), slot_seconds=3.0))
    tuner.run()
    assert 30 <= tuner.trials <= 34  # whole candidates


def test_many_builders_and_runners_are_faster_and_decide_as_well() -> None:
    from tilewright.search.database.measurement_table import read_tables
    from tools.bench.policies.replayed import TABLES

    tables = read_tables(TABLES / "squeezenet.jsonl")[:6]
    seeds = range(4)
    serial = [simulate(tables, Size(1, 1, 1), s, Faults(), 0.0, "round_robin") for s in seeds]
    eight = [simulate(tables, Size(16, 8, 8), s, Faults(), 0.0, "round_robin") for s in seeds]
    ratios = [b.trials[1] / a.trials[1] for a, b in zip(serial, eight, strict=True)]
    assert np.exp(np.mean(np.log(ratios))) < 1.15  # of few seeds; the bench has many
    assert statistics.median(a.seconds[1] / b.seconds[1] for a, b in zip(serial, eight, strict=True)) > 4


def test_the_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "farm.jsonl"
    line = ["--models", "squeezenet", "--builders", "8", "--runners", "4", "--seeds", "1", "--policy", "round_robin", "--json"]
    assert main([*line, str(out)]) == 0
    assert "4 runners" in capsys.readouterr().out and len(out.read_text().splitlines()) == 2


def test_jobs_over_a_surface_take_their_time() -> None:
    planted, clock = planted_table("a", 64, 3.0, 1), SimulatedClock()
    task = Task(planted.operator, HostLimits(), ("host_matmul",), Points.of([(dict(s), 1.0) for s in SHAPES]), (), planted.tiles)
    surface = Surface(task, 1)
    runner = SurfaceRunner({planted.operator.key: surface}, lambda seconds: None, 0.0, 0, 0.1)
    jobs = SurfaceJobs(runner, clock, 2, 1, 0.5)
    for number in range(3):  # two at once, then the third
        jobs.build(BuildJob(number, planted.operator, planted.tiles[number]), None)
    ends = [jobs.done(None)[0] for _ in range(3)]
    assert [e.number for e in ends] == [0, 1, 2] and clock.now == 1.0
    assert ends[0].built is not None
    jobs.run(RunJob(3, planted.operator, ends[0].built, tuple((s, 1) for s in SHAPES)), None)
    (end,) = jobs.done(None)
    assert clock.now == pytest.approx(1.3) and len(end.measured) == 3
    true = surface.at(config_text(planted.tiles[0]), dict(SHAPES[0]))
    assert np.isfinite(true) == bool(end.measured[0].seconds) and (not np.isfinite(true) or end.measured[0].seconds[0] == true)


def test_searches_over_surfaces_are_compared_over_seeds() -> None:
    plain = [Outcome(np.array([1.0, 2.0]) * f, 1.0, 9.0, 100) for f in (1.0, 1.02)]
    row = compared([Outcome(o.latency * 1.1, 1.0, 3.0, 100) for o in plain], plain)
    assert row["regret"] == pytest.approx(0.1) and row["two_plain"] == pytest.approx(0.02) and row["trials"] == 100


def test_a_mean_of_ratios_has_its_error() -> None:
    assert mean_ratio([2.0, 8.0], [1.0, 2.0]) == (pytest.approx(8**0.5), pytest.approx(8**0.5 * np.log(2) / 2))
    assert mean_ratio([2.0], [1.0]) == (pytest.approx(2.0), 0.0)
