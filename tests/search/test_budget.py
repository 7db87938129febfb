"""Searches keep to their time, by a clock that moves when something is built, measured or worked out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hand_workloads import with_loops
from search_surfaces import LIMITS, Clock, rows_up_to

from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.tuning import operator_tuning
from tilewright.compiler.tuning.dispatch_tables import Tables
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Kind, Loop, Operand, Workload
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType
from tilewright.search.cost_model.model import CostModel
from tilewright.search.database.records import TuningLog
from tilewright.search.protocols import BuildResult, Measurement
from tilewright.search.runner.measurer import MeasureContext
from tilewright.search.runner.replay import ReplayBuilder
from tilewright.search.search_strategy import reckoner as reckoner_module
from tilewright.search.search_strategy.evidence import Evidence
from tilewright.search.search_strategy.propose import Proposer
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner, tune
from tilewright.search.space.task import Task
from tilewright.search.task_scheduler.model_search import FoundModel, Opening, SearchPlan, search_model
from tilewright.search.task_scheduler.model_tuner import ModelBudget, ModelTuneOptions
from tilewright.search.task_scheduler.operator_arms import OperatorUse
from tilewright.search.task_scheduler.peak import Peak
from tilewright.search.task_scheduler.policies import RoundRobin
from tilewright.search.time_left import TimeLeft


@dataclass
class SlowMachine:
    """A Builder and a Runner whose every work takes virtual time, and which stop at the time they are given."""

    clock: Clock
    build_seconds: float
    run_seconds: float
    late: int = 0

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        end = self.clock.now + (math.inf if seconds is None else seconds)
        built = ReplayBuilder().build(candidates)
        return [r if self._spend(self.build_seconds, end) else BuildResult(None, late=True) for r in built]

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        end = self.clock.now + (math.inf if seconds is None else seconds)
        taken = 1e-6 * dims["d0"] * (1 + len(kernel.config) % 7)
        return Measurement((taken,)) if self._spend(self.run_seconds, end) else Measurement(error="stopped", late=True)

    def _spend(self, seconds: float, end: float) -> bool:
        done = self.clock.now + seconds <= end
        self.late += not done
        self.clock.now = self.clock.now + seconds if done else max(self.clock.now, end)
        return done


def rows(name: str) -> Workload:
    """Rows of [12, d0, d0]."""
    height, columns = Expr.dim("d0") * 12, Expr.dim("d0")
    x = Operand(DType.F32, (height, columns), 1)
    found = Workload(name, name, Kind.ROWS, "", ("d0",), (x,), (x,), (Loop("row", height), Loop("col", columns)),
                     height * columns * 8, height * columns * 8)
    return with_loops(found, "row col,row col")


def task(name: str = "softmax") -> Task:
    return Task.of(rows(name), LIMITS, ("host_rows",), rows_up_to(128))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Its time passes in what a search works out, too."""
    made = Clock()

    def slow(owner: Any, name: str, seconds: float) -> None:
        plain = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            made.now += seconds
            return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, staticmethod(timed) if owner is Evidence else timed)

    for owner, name, seconds in ((CostModel, "fit", 0.4), (Proposer, "propose", 0.3), (Evidence, "of", 0.05),
                                 (reckoner_module, "select_kernels", 0.1)):
        slow(owner, name, seconds)
    return made


def searched(clock: Clock, machine: SlowMachine, operators: int, budget: ModelBudget, opening: float = 0.3) -> FoundModel:
    log = TuningLog()
    context = MeasureContext(machine, machine, clock.environment(), log)

    def opened(name: str) -> OperatorUse:
        clock.now += opening
        return OperatorUse(Tuner(task(name), context, Budget(), TuneOptions(first=0)))

    openings = [Opening(1.0 + i, lambda i=i: opened(f"rows{i}")) for i in range(operators)]
    plan = SearchPlan(budget, clock, ModelTuneOptions(RoundRobin()))
    return search_model(openings, plan, Peak(1e12, 1e12), log)


@pytest.mark.parametrize(("seconds", "operators", "build", "run"), [
    (10.0, 1, 0.1, 0.1), (10.0, 20, 0.1, 0.1), (60.0, 20, 0.5, 0.5), (10.0, 20, 3.0, 0.1), (60.0, 20, 3.0, 0.1),
    (10.0, 1, 0.1, 5.0), (60.0, 20, 0.1, 5.0),
])
def test_a_model_is_searched_in_its_time(clock: Clock, seconds: float, operators: int, build: float, run: float) -> None:
    found = searched(clock, SlowMachine(clock, build, run), operators, ModelBudget(seconds))
    assert clock.now <= 1.1 * seconds
    assert found.tuned
    if build < 1 and run < 1:
        assert clock.now >= 0.7 * seconds  # it is used, too
        assert any(t.certificate.trials for t in found.tuned.values())


@pytest.mark.parametrize("trials", [40, 100])
def test_a_model_is_searched_in_its_trials(clock: Clock, trials: int) -> None:
    found = searched(clock, SlowMachine(clock, 0.1, 0.1), 3, ModelBudget(trials=trials))
    assert 0.15 * trials <= found.tuner.trials <= 0.6 * trials
    assert max(s.pulls for s in found.tuner.bandit.states) <= min(s.pulls for s in found.tuner.bandit.states) + 1


@pytest.mark.parametrize(("seconds", "build", "run"), [(2.0, 0.1, 0.1), (20.0, 3.0, 0.1), (20.0, 0.1, 5.0)])
def test_an_operator_is_searched_in_its_time(clock: Clock, seconds: float, build: float, run: float) -> None:
    machine = SlowMachine(clock, build, run)
    tuned = tune(task(), MeasureContext(machine, machine, clock.environment()), Budget(seconds=seconds))
    assert clock.now <= 1.1 * seconds
    assert tuned.configs


@pytest.mark.parametrize("seconds", [10.0, 60.0])
def test_operators_one_after_the_other_keep_to_the_time_of_all(
    clock: Clock, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def opened(workload: Workload, model: object, tables: object, limits: object) -> Task:
        clock.now += 0.6
        return task(workload.name)

    replaced = {"task_of": opened, "prior_of": lambda *a: None, "weight_of": lambda w, m: 1.0 + int(w.name[4:]) / 100,
                "environment": lambda target: clock.environment(), "tune_options": lambda o, t: TuneOptions(),
                "tuned_table": lambda workload, found, builder, tables: made.append(workload.name)}
    for name, function in replaced.items():
        monkeypatch.setattr(operator_tuning, name, function)
    options = CompileOptions(seconds=seconds, prior=False)
    plan = SimpleNamespace(bound=(), ragged=())
    model: Any = SimpleNamespace(workloads=[rows(f"rows{i}") for i in range(20)], bound={}, plan=plan,
                                 compilation=SimpleNamespace(options=options, target=None, on_gpu=False, limits=LIMITS,
                                                             seconds_left=seconds))
    machine = SlowMachine(clock, 0.2, 0.1)
    chosen = operator_tuning.tune_tables(model, Tables(), machine, machine, TuningLog())
    assert 0.5 * seconds <= clock.now <= 1.1 * seconds
    assert chosen <= set(made)
    assert made == [f"rows{i}" for i in range(19, 19 - len(made), -1)] and (len(made) == 20) == (seconds == 60.0)


def test_what_was_stopped_is_no_record_and_may_be_built_again(clock: Clock) -> None:
    log, machine = TuningLog(), SlowMachine(clock, 3.0, 0.02)
    context = MeasureContext(machine, machine, clock.environment(), log)
    tune(task(), context, Budget(seconds=10.0))
    assert machine.late and all(r.seconds and not r.error for r in log.records)
    tuner = Tuner(task(), replace(context, costs={}), Budget(seconds=10.0))
    assert not tuner.ledger.measurer.refused


def test_operators_without_time_keep_what_runs_untuned(clock: Clock) -> None:
    found = searched(clock, SlowMachine(clock, 0.1, 0.02), 20, ModelBudget(10.0), opening=1.0)
    assert 1 <= len(found.tuned) < 20 and {f"rows{i}" for i in range(20 - len(found.tuned), 20)} == set(found.tuned)
    assert clock.now <= 11.0


def test_a_space_that_takes_most_of_the_time_leaves_little_else_to_do(clock: Clock) -> None:
    found = searched(clock, SlowMachine(clock, 0.1, 0.02), 20, ModelBudget(10.0), opening=8.0)
    assert len(found.tuned) == 1 and clock.now <= 11.0


def test_parts_are_begun_when_there_is_time_for_them() -> None:
    clock = Clock()
    time = TimeLeft(clock)
    assert time.limit is None and time.affords("fit")
    with time.part("fit"):
        clock.now += 2.0
    time.end = 5.0
    assert time.affords("fit") and not time.affords("fit", "fit") and time.seconds == time.limit == 3.0
    with time.until(3.0):
        assert not time.affords("fit") and time.seconds == 1.0
    assert time.affords("fit")
    clock.now = 9.0
    assert time.seconds == 0.0 and not time.affords()
