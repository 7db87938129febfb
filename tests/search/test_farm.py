"""A Ray cluster of three nodes on this machine: a search there, and actors that die, hang, are slow, drift or do not fit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.errors import OptionError
from tilewright.search.database.records import TuningLog
from tilewright.search.runner.drift import Reference
from tilewright.search.runner.ray_actors import ActorKind, ActorLostError, ActorPool
from tools.farm_faults import processes

ray = pytest.importorskip("ray", reason="needs Ray: the extra `ray`")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": 80 << 20,
                                                         "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=2, object_store_memory=80 << 20)
    ray.init(made.address, logging_level="ERROR", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


class Toy:
    """Answers, or does not."""

    def __init__(self, place: int) -> None:
        self.place = place

    def who(self) -> tuple[int, int]:
        return self.place, os.getpid()

    def work(self, what: str) -> str:
        if what == "die once" and self.place == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "hang once" and self.place == 0:
            time.sleep(1000)
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "raise":
            raise ValueError("a reason")
        return f"{what} {self.place}"


def toys(refuse: int = -1, size: int = 2) -> tuple[ActorPool, list[tuple[str, Any]]]:
    events: list[tuple[str, Any]] = []
    made: dict[int, int] = {}

    def make(place: int) -> Any:
        made[place] = made.get(place, 0) + 1  # the second one in a place is good
        return ray.remote(Toy).options(num_cpus=0).remote(place if made[place] == 1 else 10 + place)

    def join(actor: Any, patience: float) -> str:
        place, process = ray.get(actor.who.remote(), timeout=patience)
        if place == refuse:
            raise OptionError(f"toy {place} is refused: wanted another")
        return f"toy {place} {process}"

    pool = ActorPool(ActorKind("toy", make, join), size, lambda what, facts: events.append((what, facts)))
    return pool, events


def test_requests_of_lost_actors_are_tried_once_elsewhere(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.search.runner.ray_actors._GRACE", 0.5)
    pool, events = toys()
    assert pool.wait(60) == 2
    while pool._idle[0].place:  # the first request goes to place 0
        pool._idle.append(pool._idle.pop(0))
    assert pool.request(lambda a: a.work.remote("die once"), 30)[0] == "die once 1"
    assert pool.wait(60) == 2 and pool.state.lost == 1 and pool.state.retried == 1
    with pytest.raises(ActorLostError, match="a reason"):  # of a task that raises the actor is good
        pool.request(lambda a: a.work.remote("raise"), 30)
    assert pool.state.lost == 1
    with pytest.raises(ActorLostError, match=r"toy .*; toy"):
        pool.request(lambda a: a.work.remote("die"), 30)
    assert pool.state.failed == 1 and pool.wait(60) == 2
    answers: list[str] = []

    def ask() -> None:
        answers.append(pool.request(lambda a: a.work.remote("x"), 30)[0])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert len(answers) == 6
    pool.close()
    assert {what for what, _ in events} == {"joined", "lost"}


def test_a_hung_actor_and_one_that_does_not_fit(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.search.runner.ray_actors._GRACE", 0.2)
    pool, events = toys(refuse=1)
    assert pool.wait(60) == 1 and "wanted another" in pool.state.refused[1]
    hung, _ = toys(size=2)
    assert hung.wait(60) == 2
    while hung._idle[0].place:
        hung._idle.append(hung._idle.pop(0))
    assert hung.request(lambda a: a.work.remote("hang once"), 0.5)[0] == "hang once 1"
    for made in (pool, hung):
        made.close()
    with pytest.raises(ActorLostError):
        pool.request(lambda a: a.work.remote("x"), 1)
    assert ("refused", {"kind": "toy", "reason": "toy 1 is refused: wanted another"}) in events


def test_a_search_with_a_runner_killed(cluster: Any, tmp_path: Path) -> None:
    graph = ops.Graph()
    graph.output(ops.matmul(graph.input("x", ["M", 32]), graph.input("w", [32, 48])))
    states: list[Any] = []
    killed: list[int] = []

    def told(state: Any) -> None:
        states.append(state)
        if type(state).__name__ == "FarmProgress" and state.record.measurements > 4 and not killed:
            killed.extend(processes("ray::RunnerActor")[:1])
            for process in killed:
                os.kill(process, signal.SIGKILL)

    options = {"farm": tw.Farm(cluster.address, builders=1, runners=2), "trials": 30, "log": tmp_path / "log.jsonl", "threads": 1,
               "progress": told}
    fn = tw.tune(graph, {"M": (1, 24)}, options=options)
    x, w = np.ones((5, 32), np.float32), np.ones((32, 48), np.float32)
    np.testing.assert_allclose(fn(x, w), x @ w)
    farms = [s.record for s in states if type(s).__name__ == "FarmProgress"]
    assert killed and farms[-1].lost >= 1 and farms[-1].measurements >= 20
    log = TuningLog(tmp_path / "log.jsonl")
    assert sum(1 for r in log.records if r.seconds) >= 20 and log.farms and log.slots
    assert {r.runner[:6] for r in log.records if r.seconds} == {"runner"}
    time.sleep(0.5)
    assert not processes("ray::RunnerActor") and not processes("ray::BuilderActor")
    assert not processes("tilewright.search.runner.host_worker --with-parent")


def test_drift_is_beyond_a_runner_s_own_noise() -> None:
    steady = Reference.of([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0])
    assert steady.drift([1.03, 1.02, 1.04]) == 0.0 and steady.drift([1.2, 1.21, 1.19]) == pytest.approx(0.2)
    noisy = Reference.of([1.0, 1.3, 0.8, 1.1, 0.9, 1.25, 1.0])
    assert noisy.drift([1.4, 1.4, 1.4]) == 0.0


def test_a_cluster_that_is_not_there() -> None:
    with pytest.raises(OptionError, match="wanted an integer >= 1"):
        tw.Farm(runners=0)
    with pytest.raises(OptionError, match="amounts by name"):
        tw.Farm(resources={"zen3": -1})
