"""Certificates of kernels that a runner times beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from search_surfaces import Clock, dense_task, matmul_seconds, regret

from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.workload import Workload
from tilewright.search.database.records import TuningLog
from tilewright.search.protocols import KernelAt, Turns
from tilewright.search.runner.measurer import Measurer
from tilewright.search.runner.replay import ReplayBuilder, SurfaceRunner
from tilewright.search.search_strategy.selection import Selection
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner, tune
from tilewright.search.space.array_types import Floats
from tilewright.search.space.task import Task


class Beside(SurfaceRunner):
    """Rounds on a machine whose pace changes from one to the next, each time with noise. One in seven requests is in vain."""

    def __init__(self, clock: Clock, noise: float = 0.04) -> None:
        super().__init__(matmul_seconds, clock.advance)
        self.rng, self.noise = np.random.default_rng(0), noise
        self.asked: list[int] = []

    def run_in_turns(self, workload: Workload, asked: Sequence[KernelAt], rounds: int, seconds: float | None = None,
                     within: int = 0) -> Turns:
        self.advance(0.0)
        self.asked.append(len(asked))
        if len(self.asked) % 7 == 0:
            return Turns(error="a kernel crashed")
        true = [self.surface(parse_config(x.kernel.config), dict(x.dims), x.threads) for x in asked]
        paces = [float(p) for p in self.rng.choice((1.0, 1.7), rounds)]
        return Turns(tuple(tuple(p * t * float(np.exp(self.noise * self.rng.standard_normal())) for t in true) for p in paces))


def test_rounds_go_on_until_the_worst_regret_is_known() -> None:
    task, clock, log = dense_task(), Clock(), TuningLog()
    runner = Beside(clock)
    tuned = tune(task, clock.context(runner, log), Budget(seconds=60.0), TuneOptions(certify=0.4))
    found = tuned.certificate
    shapes = [tuple(d.items()) for d in found.held_out]
    assert set(shapes) <= set(task.held_out) and len(shapes) > 3
    low, high = found.worst_within
    assert high - low <= 0.06  # what differs from time to time stays open
    truth: Floats = np.array(regret(task, tuned, shapes, 1))
    assert max(found.regrets) <= truth.max() + 0.05  # rivals are a part of the space
    assert len(runner.asked) > len(shapes) and {r.shape for r in log.records if r.seconds} > set(shapes)


def test_what_runs_untuned_is_certified_where_little_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several default kernels a short search does not come to all; certificates time them where they are held out."""
    task, clock = dense_task(), Clock()
    tuner = Tuner(task, clock.context(Beside(clock)), Budget(trials=80))
    while not tuner.done:
        tuner.step()
    whole = tuner.ledger.selection

    def half(hopeful: bool = False) -> Selection | None:
        chosen = whole(hopeful)
        assert chosen is not None
        untuned = chosen.untuned.copy()
        untuned[::2] = 0.0
        return replace(chosen, untuned=untuned)

    monkeypatch.setattr(tuner.ledger, "selection", half)
    found = tuner.certified()
    assert found.usual is not None and found.usual.held_out == found.certificate.held_out != ()
    assert found.usual.points == len(task.points) // 2 and 0 <= found.usual.predicted_worst < 10


def test_what_was_not_measured_is_a_rival_of_a_short_search() -> None:
    """Else a search that measured one kernel alone would certify that it loses nothing."""
    task, clock = dense_task(), Clock()
    runner = Beside(clock)
    tuner = Tuner(task, clock.context(runner), Budget(), TuneOptions(first=0, rivals=6))
    tuner.step()
    before = tuner.ledger.kernels()
    found = tuner.finish(20.0)
    assert len(before) < 7 <= len(tuner.ledger.kernels())
    assert found.certificate.held_out and max(runner.asked) > len(before)


def test_equal_code_has_one_turn() -> None:
    class OneCode(ReplayBuilder):
        def _build(self, workload: Workload, text: str, family: str):  # type: ignore[no-untyped-def]
            built = super()._build(workload, text, family)
            return type(built)(built.kernel, b"the same code")

    task, clock = dense_task(), Clock()
    runner = Beside(clock, noise=0.0)
    measurer, configs = measurer_of(task, clock, runner, OneCode()), task.lattice().configs
    rows = measurer.in_turns(runner, [(configs[0], 1), (configs[1], 1), (configs[1], 2)], (("d0", 5),), 3)
    assert runner.asked == [2] and len(rows) == 3
    assert all(a == b for a, b, _ in rows)
    assert measurer.trials == 2


def test_what_does_not_run_takes_no_turn() -> None:
    task, clock = dense_task(), Clock()
    texts, configs = task.lattice().texts, task.lattice().configs
    runner = Beside(clock)
    measurer = measurer_of(task, clock, runner, ReplayBuilder({texts[1]: "out of registers"}))
    rows = measurer.in_turns(runner, [(configs[0], 1), (configs[1], 1)], (("d0", 5),), 2)
    assert runner.asked == [1] and np.isinf([b for _, b in rows]).all() and np.isfinite([a for a, _ in rows]).all()
    assert measurer.in_turns(runner, [(configs[1], 1)], (("d0", 5),), 2) == [] and runner.asked == [1]
    measured = [r for r in measurer.records if r.seconds]
    assert [r.config for r in measured] == [texts[0]]


def measurer_of(task: Task, clock: Clock, runner: SurfaceRunner, builder: ReplayBuilder) -> Measurer:
    return Measurer(task.workload, clock.context(runner, builder=builder))
