from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from search_surfaces import LIMITS, Clock, dense, matmul_seconds, rows_up_to
from tuning_tables import CurveArm

from tilewright.search.database.records import TuningLog
from tilewright.search.runner.replay import SurfaceRunner
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner
from tilewright.search.space.task import Task
from tilewright.search.task_scheduler.bandit import UNLIMITED, Trials
from tilewright.search.task_scheduler.belief import EmceeSampler
from tilewright.search.task_scheduler.belief_pool import BeliefPool, cost_of_fit
from tilewright.search.task_scheduler.model_tuner import (
    ModelBudget,
    ModelProgress,
    ModelTuneOptions,
    ModelTuner,
    recorded_policy,
)
from tilewright.search.task_scheduler.operator_arms import OperatorUse, best_of, finish, operator_arms
from tilewright.search.task_scheduler.peak import Peak, measure_peak
from tilewright.search.task_scheduler.policies import RoundRobin, Sequential, Ucb
from tilewright.search.task_scheduler.simulation import SimulatedClock

SHORT = EmceeSampler(40, 20, 4)
OPTIONS = ModelTuneOptions(slot_seconds=4.0)


def arms(clock: SimulatedClock, count: int = 40) -> list[CurveArm]:
    x = np.arange(count)
    return [
        CurveArm(f"arm{i}", (fall + (1 - fall) / (1 + x / 6)).tolist(), clock, ideal=0.1)
        for i, fall in enumerate((0.9, 0.2, 0.5))
    ]


def tuner(
    budget: ModelBudget,
    options: ModelTuneOptions = OPTIONS,
    log: TuningLog | None = None,
    states: list[ModelProgress] | None = None,
) -> tuple[ModelTuner, list[CurveArm], SimulatedClock]:
    clock = SimulatedClock()
    made = arms(clock)
    keep = states.append if states is not None else lambda state: None
    return ModelTuner(made, budget, clock, options, log, BeliefPool(sampler=SHORT), keep), made, clock


def test_seconds_and_trials_are_kept_to() -> None:
    for budget, most in ((ModelBudget(seconds=21.0), 21.0), (ModelBudget(trials=10), 10.0)):
        found, _, clock = tuner(budget)
        untuned = found.latency
        assert found.run() < untuned
        assert 8.0 <= clock.now <= most and found.trials == clock.now


def test_trials_are_measurements_however_many_a_point_stands_for() -> None:
    class Coarse(CurveArm):
        def tune(self, seconds: float, trials: Trials = UNLIMITED) -> list[tuple[int, float]]:
            return super().tune(seconds, trials)[-1:]

    clock = SimulatedClock()
    found = ModelTuner([Coarse("a", [1.0] * 40, clock)], ModelBudget(trials=10), clock, OPTIONS, pool=BeliefPool(sampler=SHORT))
    found.run()
    assert found.trials == clock.now == 10.0


def test_until_regret_stops_when_little_is_left() -> None:
    early, _, short = tuner(ModelBudget(until_regret=0.5))
    late, _, long = tuner(ModelBudget(until_regret=0.05))
    early.run()
    late.run()
    assert short.now < long.now <= 120.0


def test_every_slot_is_in_the_log_and_a_schedule_replays(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl")
    first, _, _ = tuner(ModelBudget(seconds=40.0), log=log)
    latency = first.run()
    read = TuningLog(tmp_path / "log.jsonl")
    assert read.slots == log.slots and not read.skipped and len(read.slots) == 10
    slot = read.slots[3]
    assert slot.policy == "ucb" and len(slot.beliefs) == 3 and len(slot.curve) == 4 and slot.points
    assert all(a.after == b.before for a, b in zip(read.slots, read.slots[1:], strict=False))
    again, _, _ = tuner(ModelBudget(seconds=40.0), ModelTuneOptions(recorded_policy(read.slots), slot_seconds=4.0))
    assert again.run() == latency
    assert [s.arm for s in again.log.slots] == [s.arm for s in read.slots]


def test_an_interrupt_keeps_the_slot_and_the_next_run_goes_on(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl")
    found, made, _ = tuner(ModelBudget(seconds=60.0), ModelTuneOptions(RoundRobin(), slot_seconds=4.0), log)
    made[1].interrupt_at = 6
    with pytest.raises(KeyboardInterrupt):
        found.run()
    read = TuningLog(tmp_path / "log.jsonl")
    assert read.slots[-1].interrupted and read.slots[-1].arm == "arm1" and read.slots[-1].points[-1][0] == 7
    second, again, _ = tuner(ModelBudget(seconds=20.0), ModelTuneOptions(RoundRobin(), slot_seconds=4.0), read)
    for arm, old in zip(again, made, strict=True):
        arm.done = old.done
    assert second.resume() == len(read.slots)
    assert [s.pulls for s in second.bandit.states] == [2, 2, 1]
    assert second.bandit.states[0].curve == found.bandit.states[0].curve
    second.run()
    assert second.log.slots[len(read.slots) - 5].arm == "arm2"


def test_progress_tells_arms_and_time() -> None:
    states: list[ModelProgress] = []
    found, _, _ = tuner(ModelBudget(seconds=24.0), states=states)
    found.run()
    assert [s.slot for s in states] == list(range(1, 7))
    last = states[-1]
    assert last.share == 1.0 and last.eta == 0.0 and last.latency < last.untuned and len(last.history) == 7
    assert sum(a.pulls for a in last.arms) == 6 and sum(a.seconds for a in last.arms) == pytest.approx(24.0)
    assert any(a.gain > 0 for a in last.arms)


def test_a_slot_is_as_long_as_fifty_fits() -> None:
    ticks = iter(range(1000))
    assert cost_of_fit(lambda: 0.1 * next(ticks), SHORT) == pytest.approx(0.1)
    pool = BeliefPool(sampler=SHORT)
    clock = SimulatedClock()
    found = ModelTuner(arms(clock), ModelBudget(), lambda: 0.1 * next(ticks), ModelTuneOptions(Ucb()), pool=pool)
    assert found.bandit.slot_seconds == pytest.approx(5.0)
    baseline = ModelTuner(arms(clock), ModelBudget(), clock, ModelTuneOptions(Sequential()), pool=pool)
    assert baseline.bandit.slot_seconds == 1.0


def test_a_choice_that_took_many_fits_gets_a_longer_slot() -> None:
    """A slow clock of fits: each reading of it adds a tenth of a second."""
    ticks = iter(range(10**6))
    pool = BeliefPool(sampler=SHORT, clock=lambda: 0.1 * next(ticks))
    clock = SimulatedClock()
    found = ModelTuner(arms(clock, 400), ModelBudget(), clock, ModelTuneOptions(Ucb(), least=1.0), pool=pool)
    for _ in range(4):
        found.step()
    slots = found.log.slots
    assert all(s.seconds >= 50 * s.fit_seconds > 1.0 for s in slots) and found.pool.seconds <= 0.0201 * clock()


def model(clock: Clock, log: TuningLog) -> list[OperatorUse]:
    found = []
    for columns, calls in ((2304, 1), (512, 6)):
        task = Task.of(dense(columns), LIMITS, ("host_matmul",), rows_up_to(128))
        runner = SurfaceRunner(lambda c, d, t, n=columns: matmul_seconds(c, d, t, n), clock.advance)
        found.append(
            OperatorUse(Tuner(task, clock.context(runner, log), Budget(), TuneOptions(first=0)), calls)
        )
    return found


def test_real_searches_are_arms_and_the_best_model_can_be_taken_any_time() -> None:
    clock, log = Clock(), TuningLog()
    uses = model(clock, log)
    made = operator_arms(uses, Peak(1e12, 1e12), clock, buckets=2)
    assert [a.key.rpartition("/")[2] for a in made] == ["small", "large"] * 2
    for use in uses:
        use.tuner.step()
    assert sum(a.latency for a in made[2:]) == pytest.approx(6 * uses[1].tuner.ledger.evidence.latency)
    assert all(a.ideal < a.latency for a in made)
    found = ModelTuner(made, ModelBudget(seconds=12.0), clock, ModelTuneOptions(slot_seconds=2.0), log, BeliefPool(sampler=SHORT))
    untuned = found.latency
    assert found.step() and set(best_of(uses)) == {u.tuner.ledger.task.workload.key for u in uses}
    found.run()
    assert found.latency < untuned and log.slots and len(log) > 20
    tuned = finish(uses, 4.0)
    assert all(t.configs and t.certificate.trials > 0 for t in tuned.values())


def test_the_peak_of_this_machine_is_plausible() -> None:
    found = measure_peak(seconds=0.02)
    assert 1e8 < found.flops < 1e14 and 1e8 < found.bytes < 1e13
    assert found.seconds(found.flops, 0) == pytest.approx(1.0) and found.seconds(0, 3 * found.bytes) == pytest.approx(3.0)
