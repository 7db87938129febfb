"""What follows from measurements, here and in an actor of a farm: the same answers, also when the actor is another one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from search_surfaces import Clock, dense_task, matmul_seconds

from tilewright.search.cost_model.forms import form_of
from tilewright.search.runner.ray_actors import ActorLostError, Answer
from tilewright.search.runner.replay import SurfaceRunner
from tilewright.search.search_strategy.reckoner import LocalReckoner, Subject, Wanted
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner
from tilewright.search.task_scheduler import ray_reckoner
from tilewright.search.task_scheduler.belief_pool import BeliefOptions, quick_beliefs
from tilewright.search.task_scheduler.ray_reckoner import RayBeliefs, RayReckoner, ReckonerActor


class Called:
    """A method of an actor that runs here."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method


class Handle:
    def __init__(self, actor: ReckonerActor) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Called:
        return Called(getattr(self._actor, name))


class FakePool:
    """One actor in this process, which may be replaced, or gone."""

    def __init__(self) -> None:
        self.lost, self.asked = False, 0
        self.replace()

    def replace(self) -> None:
        self.actor = ReckonerActor(lambda: "a" * 64)

    def request(self, ask: Callable[[Any], Any], seconds: float) -> Answer:
        self.asked += 1
        if self.lost:
            raise ActorLostError("all were lost")
        return Answer(ask(Handle(self.actor)), "reckoner", 0.1)

    def account(self, answer: Answer, worked: float) -> None:
        assert worked >= 0


class FakeRay:
    """Objects are their own references."""

    def put(self, value: Any) -> Any:
        return value

    def get(self, reference: Any) -> Any:
        return reference


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ray_reckoner, "ray_module", FakeRay)
    before = os.sched_getaffinity(0)
    yield FakePool()
    os.sched_setaffinity(0, before)


def searched(make: Any) -> Tuner:
    """Some steps of a search over a surface."""
    clock = Clock()
    tuner = Tuner(dense_task(), clock.context(SurfaceRunner(matmul_seconds, clock.advance)), Budget(trials=60),
                  TuneOptions(batch=4, seed=3), make=make)
    for _ in range(3):
        tuner.step()
    return tuner


def test_a_search_finds_the_same_where_an_actor_reckons(pool: FakePool) -> None:
    here = searched(LocalReckoner)
    there = searched(lambda subject, form: RayReckoner(pool, subject, form))  # type: ignore[arg-type]
    assert [(r.config, r.dims) for r in there.ledger.records] == [(r.config, r.dims) for r in here.ledger.records]
    assert pool.asked > 5
    found, wanted = there.certified(), here.certified()
    assert (found.configs, found.root) == (wanted.configs, wanted.root)


def test_an_actor_that_is_replaced_is_told_everything_and_without_any_the_driver_reckons(pool: FakePool) -> None:
    tuner = searched(LocalReckoner)
    ledger = tuner.ledger
    subject = Subject(ledger.task, ledger.points, ledger.options, None)
    asked, here = RayReckoner(pool, subject, form_of(ledger.task.lattice())), LocalReckoner(subject, ledger.form)  # type: ignore[arg-type]
    records = list(ledger.records)

    def same() -> None:
        for reckoner in (asked, here):
            reckoner.learn(records)
        one, other = asked.evidence(records), here.evidence(records)
        np.testing.assert_array_equal(one.best, other.best)
        wanted = Wanted(one.best, one.importance, frozenset(ledger.taken()), 3, (7, 11))
        assert asked.propose(records, wanted) == here.propose(records, wanted)
        assert asked.open_cells(one.importance, 4, 0.0) == here.open_cells(one.importance, 4, 0.0)
        assert asked.apart([0, 1, 2]) == here.apart([0, 1, 2])

    same()
    assert len(pool.actor._known) == 1
    pool.replace()  # the next question finds it without records
    here = LocalReckoner(subject, ledger.form)
    same()
    assert len(next(iter(pool.actor._known.values()))[1]) == len(records)
    pool.lost = True
    here = LocalReckoner(subject, ledger.form)
    same()
    before = pool.asked
    asked.evidence(records)
    assert pool.asked == before  # nobody is asked in vain
    with pytest.raises(ValueError, match="not asked for 'close'"):
        pool.actor.ask("key", [subject], 0, b"\x90", "close", ())


def test_beliefs_of_an_actor(pool: FakePool) -> None:
    options = BeliefOptions(seed=1)
    x, y = np.arange(1.0, 9.0), np.maximum.accumulate(np.linspace(0.2, 0.5, 8))
    histories = {"a/small": ("a", x, y, 8.0), "b/small": ("b", x, 0.5 * y, 8.0)}
    there, here = RayBeliefs(pool, options, lambda: 0.0), quick_beliefs(options)  # type: ignore[arg-type]

    def same() -> None:
        found, wanted = there.predictions(histories, {"a/small": 4}), here.predictions(histories, {"a/small": 4})
        assert {k: p.gain for k, p in found.items()} == {k: p.gain for k, p in wanted.items()}
        np.testing.assert_array_equal(there.likeliest("b/small"), here.likeliest("b/small"))

    same()
    assert there.predict("a/small", 0.5, 20.0).gain == here.predict("a/small", 0.5, 20.0).gain
    pool.replace()  # it knows nothing until it is told
    assert there.predict("a/small", 0.5, 20.0).gain > 0
    pool.lost = True
    here = quick_beliefs(options)
    same()
    assert there.predict("a/small", 0.5, 20.0).gain == here.predict("a/small", 0.5, 20.0).gain
