"""The bound on work for a second thread, found on machines of known hand-over."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from search_surfaces import Clock, dense, dense_task, matmul_seconds

from tilewright.passes.spaces.threads import SMALL, effort
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.program.dispatch import select
from tilewright.search.database.records import TuningLog, TuningRecord
from tilewright.search.runner.replay import Surface, SurfaceRunner
from tilewright.search.search_strategy.outcome import Tuned
from tilewright.search.search_strategy.thread_bound import compared, next_compared, thread_bound
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner
from tilewright.search.space.task import Task


def alone(config: TileConfig, dims: Mapping[str, int]) -> float:
    return matmul_seconds(config, dims, 1, 64, 64)


def searched(task: Task, crossing: int, steps: int = 1, slow: float = 1.0) -> tuple[Tuned, TuningLog, Surface]:
    """The first steps of a search where two threads take half the time and so much more that they pay from `crossing` rows on.

    slow: what they take so many times as long in the first step.
    """
    at = {"d0": crossing}
    configs, root = task.untuned()
    late = alone(configs[select(root, at).kernel], at) / 2

    def seconds(config: TileConfig, dims: Mapping[str, int], threads: int) -> float:
        return alone(config, dims) / threads + (late * spell if threads > 1 else 0.0)

    clock, log = Clock(), TuningLog()
    tuner = Tuner(task, clock.context(SurfaceRunner(seconds, clock.advance), log), Budget(seconds=1e6), TuneOptions(threads=2))
    spell = slow
    tuner.step()
    spell = 1.0
    for _ in range(steps - 1):
        tuner.step()
    return tuner.best(), log, seconds


@pytest.mark.sampled(2)
@pytest.mark.parametrize("crossing", [4, 13, 24, 40, 70])
def test_threads_are_used_from_where_they_pay_after_a_few_measurements(crossing: int) -> None:
    task = dense_task(workload=dense(64, 64))
    found, log, seconds = searched(task, crossing)
    for shape in task.points.shapes:
        leaf = select(found.root, dict(shape))
        one, two = (seconds(found.configs[leaf.kernel], dict(shape), n) for n in (1, 2))
        assert (one if leaf.threads == 1 else two) < 1.2 * min(one, two)
    assert len(compared(task, 2, log.records)) <= 7


@pytest.mark.parametrize("crossing", [13, 24])
def test_the_bound_lies_where_times_cross(crossing: int) -> None:
    task = dense_task(workload=dense(64, 64))
    records = searched(task, crossing)[1].records
    work = effort(task.workload)
    assert 0.8 < thread_bound(task, 2, records) / work.evaluate({"d0": crossing}) < 1.25


def test_with_nothing_compared_the_usual_bound_stays() -> None:
    task = dense_task(workload=dense(64, 64))
    assert thread_bound(task, 2, ()) == thread_bound(task, 1, searched(task, 24)[1].records) == SMALL


def test_a_slow_spell_in_the_first_step_is_forgotten() -> None:
    task, work = dense_task(workload=dense(64, 64)), effort(dense(64, 64))
    bounds = [thread_bound(task, 2, searched(task, 13, steps, 4.0)[1].records) / work.evaluate({"d0": 13}) for steps in (1, 3)]
    assert bounds[0] > 1.5 and 0.6 < bounds[1] < 1.4


def test_a_disturbed_measurement_moves_the_bound_only_as_far_as_it_outweighs_others() -> None:
    task = dense_task(workload=dense(64, 64))
    log = searched(task, 24)[1]
    records = [log_record(r, 1.1 if r.threads == 1 and r.dims["d0"] < 16 else 1.0) for r in log.records]
    assert thread_bound(task, 2, records) == thread_bound(task, 2, log.records) > SMALL


def test_much_work_and_one_thread_are_not_compared() -> None:
    task = dense_task()
    assert next_compared(task, task.points.shapes, 2, ()) is None
    small = dense_task(workload=dense(64, 64))
    assert next_compared(small, small.points.shapes, 1, ()) is None
    assert next_compared(small, small.points.shapes, 2, ()) is not None


def log_record(r: TuningRecord, factor: float) -> TuningRecord:
    return TuningRecord(r.workload, r.name, r.family, r.config, r.dims, r.threads, tuple(s * factor for s in r.seconds))
