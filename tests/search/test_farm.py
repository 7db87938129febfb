"""A Ray cluster of three nodes on this machine: a search there, and actors that die, hang, are slow, drift or do not fit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from search_surfaces import dense

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.cli.main import main
from tilewright.compiler.tuning.farm_cluster import connected, placed
from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.target import Target
from tilewright.search.database.farm_records import MarkRecord
from tilewright.search.database.records import TuningLog
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.protocols import KernelAt, Measurement
from tilewright.search.runner.actor_process import ActorProcess
from tilewright.search.runner.drift import Reference
from tilewright.search.runner.ray_actors import ActorKind, ActorLostError, ActorPool
from tilewright.search.runner.ray_runner import (
    Measured,
    MeasureReply,
    MeasureRequest,
    Quarantine,
    RayRunner,
    RunnerActor,
    RunnerFacts,
    RunnerWork,
)
from tilewright.search.runner.serving import WITH_PARENT
from tools.farm_faults import OWN
from tools.ray_cluster import NODE, add_node, ancestors, processes, started

ray = pytest.importorskip("ray", reason="needs Ray: the extra `ray`")
NodeAffinitySchedulingStrategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # its actors need no test module where they run

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
func.func @main(%x: tensor<?x32xf32>, %w: tensor<32x64xf32>) -> tensor<?x64xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %t = tensor.dim %x, %c0 : tensor<?x32xf32>
  %empty = tensor.empty(%t) : tensor<?x64xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x64xf32>) -> tensor<?x64xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x32xf32>, tensor<32x64xf32>) outs(%filled : tensor<?x64xf32>) -> tensor<?x64xf32>
  return %y : tensor<?x64xf32>
}
"""
_PATIENCE = 200.0  # seconds for processes to start on a machine that has other work


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with started(3, cpus=4) as made:
        yield made


class Toy:
    """Answers, or does not."""

    def __init__(self, place: int) -> None:
        self.place = place

    def where(self) -> bytes:
        return msgspec.json.encode(ActorProcess.here())

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


def toys(refuse: int = -1, size: int = 2, nodes: Sequence[str] = ()) -> tuple[ActorPool, list[tuple[str, Any]]]:
    """nodes: identities of those that the first actor of each place begins on."""
    events: list[tuple[str, Any]] = []
    made: dict[int, int] = {}

    def make(place: int) -> Any:
        made[place] = made.get(place, 0) + 1  # the second one in a place is good
        where = NodeAffinitySchedulingStrategy(nodes[place], soft=made[place] > 1) if nodes else "DEFAULT"
        return ray.remote(Toy).options(num_cpus=0, scheduling_strategy=where).remote(place if made[place] == 1 else 10 + place)

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
    assert pool.wait(_PATIENCE) == 2, pool.state
    while pool._idle[0].place:  # the first request goes to place 0
        pool._idle.append(pool._idle.pop(0))
    assert pool.request(lambda a: a.work.remote("die once"), 30).value == "die once 1"
    assert pool.wait(_PATIENCE) == 2 and pool.state.lost == 1 and pool.state.retried == 1
    with pytest.raises(ActorLostError, match="a reason"):  # of a task that raises the actor is good
        pool.request(lambda a: a.work.remote("raise"), 30)
    assert pool.state.lost == 1
    with pytest.raises(ActorLostError, match=r"toy .*; toy"):
        pool.request(lambda a: a.work.remote("die"), 30)
    assert pool.state.failed == 1 and pool.wait(_PATIENCE) == 2
    answers: list[str] = []

    def ask() -> None:
        answers.append(pool.request(lambda a: a.work.remote("x"), 30).value)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert len(answers) == 6
    pool.close()
    assert {what for what, _ in events} == {"joined", "lost"}


class Broken:
    """It cannot start here."""

    def __init__(self) -> None:
        raise ValueError("no GPU is here")

    def where(self) -> bytes:
        return b""


def test_what_stands_by_takes_the_place_of_what_is_lost(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.search.runner.ray_actors._GRACE", 0.5)
    monkeypatch.setattr("tilewright.search.runner.ray_actors._STANDBY_PATIENCE", 0.5)
    remote = ray.remote(Toy).options(num_cpus=0).remote
    made, waiting = list[int](), list[int]()

    def join(actor: Any, patience: float) -> str:
        place, process = ray.get(actor.who.remote(), timeout=patience)
        return f"toy {place} {process}"

    pool = ActorPool(ActorKind("toy", lambda place: (made.append(place), remote(10 + place))[1], join,
                               stand_by=lambda place: (waiting.append(place), remote(20 + len(waiting)))[1]), 1)

    def ready() -> ActorProcess:
        end = time.monotonic() + _PATIENCE
        while not (0 in pool._standby._spares and pool._standby._spares[0].where) and time.monotonic() < end:
            time.sleep(0.05)
        return pool._standby._spares[0].where

    assert pool.wait(_PATIENCE) == 1 and pool._standby is not None
    first = ready()
    with pytest.raises(ActorLostError, match=r"toy 10 .*; toy 21"):  # one of those that are lost stood by
        pool.request(lambda a: a.work.remote("die"), 30)
    assert pool.wait(_PATIENCE) == 1 and made[0] == 0 and not first.is_alive
    second = ready()
    os.kill(second.process, signal.SIGSTOP)  # what does not answer is passed over
    with pytest.raises(ActorLostError):
        pool.request(lambda a: a.work.remote("die"), 30)
    assert pool.wait(_PATIENCE) == 1 and pool.request(lambda a: a.work.remote("x"), 30).value.startswith("x")
    third = ready()
    pool.close()
    assert not second.is_alive and not third.is_alive
    assert len(waiting) >= 3


def test_an_actor_that_cannot_start_is_refused_with_its_reason(cluster: Any) -> None:
    make = ray.remote(Broken).options(num_cpus=0).remote
    pool = ActorPool(ActorKind("runner", lambda place: make(), lambda actor, patience: ""), 1)
    assert pool.wait(_PATIENCE) == 0 and pool.state.refused == {0: "runner 0 cannot start: ValueError: no GPU is here"}
    pool.close()


def test_a_hung_actor_and_one_that_does_not_fit(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.search.runner.ray_actors._GRACE", 0.2)
    pool, events = toys(refuse=1)
    assert pool.wait(_PATIENCE) == 1 and "wanted another" in pool.state.refused[1]
    hung, _ = toys(size=2)
    assert hung.wait(_PATIENCE) == 2
    while hung._idle[0].place:
        hung._idle.append(hung._idle.pop(0))
    assert hung.request(lambda a: a.work.remote("hang once"), 0.5).value == "hang once 1"
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
            measuring = [p for p in processes("ray::RunnerActor") if len(ActorProcess.of(p).with_children()) > 1]
            killed.extend(measuring[:1])  # those that stand by have started nothing yet
            for process in killed:
                os.kill(process, signal.SIGKILL)

    options = {"farm": tw.Farm(cluster.address, builders=1, runners=2), "trials": 30, "log": tmp_path / "log.jsonl", "threads": 1,
               "progress": told}
    fn = tw.tune(graph, {"M": (1, 24)}, options=options)
    x, w = np.ones((5, 32), np.float32), np.ones((32, 48), np.float32)
    np.testing.assert_allclose(fn(x, w), x @ w)
    farms = [s.record for s in states if type(s).__name__ == "FarmProgress"]
    assert killed and farms[-1].lost >= 1 and farms[-1].measurements >= 15
    log = TuningLog(tmp_path / "log.jsonl")
    assert sum(1 for r in log.records if r.seconds) >= 20 and log.farms and log.slots
    assert {r.runner[:6] for r in log.records if r.seconds} == {"runner"}
    assert not left_of_actors()  # at return, not some time later


def left_of_actors() -> list[int]:
    return [process for word in OWN for process in processes(word)]


class Stranger:
    """A runner of another version, or with another device."""

    def __init__(self, fingerprint: str, device: str) -> None:
        self._fingerprint, self._device = fingerprint, device

    def where(self) -> bytes:
        return msgspec.json.encode(ActorProcess.here())

    def facts(self) -> bytes:
        return msgspec.json.encode(RunnerFacts(self._fingerprint, "there", os.getpid(), self._device, (0,), (1.0, 1.0, 1.1)))


class Drifting(Stranger):
    """A runner whose core takes twice as long all at once."""

    def measure(self, request: bytes, cases: bytes, *codes: bytes) -> bytes:
        asked = msgspec.json.decode(request, type=MeasureRequest)
        return msgspec.json.encode(MeasureReply(tuple(Measured((1e-6,)) for _ in asked.launches), (2.0, 2.1, 1.9), 0.0))


def test_a_runner_that_drifts_is_put_in_quarantine(cluster: Any) -> None:
    found: list[Quarantine] = []
    times = iter(range(100, 200))
    runner = RayRunner(lambda place: ray.remote(Drifting).options(num_cpus=0).remote("a" * 64, "this"), 1, ("a" * 64, "this"),
                       quarantined=found.append, clock=lambda: float(next(times)))
    try:
        assert runner.pool.wait(_PATIENCE) == 1
        kernel = MicroKernel("k", "w", "generic", "generic{}", (), ("1", "1", "1"))
        one, two = runner.run_all(dense(8), [KernelAt(kernel, b"code", (("d0", m),)) for m in (4, 8)])
        assert one.seconds == two.seconds == (1e-6,) and one.runner == found[0].runner
        assert (found[0].since, found[0].until) == (100.0, 101.0) and "drifted by 100.0%" in found[0].reason
        mark = MarkRecord(found[0].runner, found[0].since, found[0].until, found[0].reason)
        assert mark.covers(one.runner, 100.5) and not mark.covers(one.runner, 99.0) and not mark.covers("another", 100.5)
    finally:
        runner.close()


def test_what_does_not_fit_is_refused_by_name(cluster: Any) -> None:
    said = [("a" * 64, "this"), ("b" * 64, "this"), ("a" * 64, "that")]
    runner = RayRunner(lambda place: ray.remote(Stranger).options(num_cpus=0).remote(*said[place]), 3, ("a" * 64, "this"))
    try:
        assert runner.pool.wait(_PATIENCE) == 1
        other, device = runner.pool.state.refused[1], runner.pool.state.refused[2]
        assert re.match(r"runner there:\d+ cores 0 is refused: wanted Tilewright of fingerprint aaaaaaaaaaaa, got bbbbb", other)
        assert "wanted a device 'this', got 'that'" in device
    finally:
        runner.close()
    first = RayRunner(lambda place: ray.remote(Stranger).options(num_cpus=0).remote(*said[0]), 1, ("a" * 64, ""),
                      fits=lambda device: device == "that")
    try:
        assert first.pool.wait(_PATIENCE) == 0 and "the target's code runs on" in first.pool.state.refused[0]
    finally:
        first.close()


@pytest.mark.parametrize("fault", ["stop", "cut off"])
def test_what_is_stopped_or_cut_off_is_gone_at_the_end(cluster: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.search.runner.ray_actors._GRACE", 0.2)
    pool, _ = toys(nodes=[made.node_id for made in cluster.worker_nodes])
    assert pool.wait(_PATIENCE) == 2
    process = int(pool._idle[0].name.split()[2])
    raylet = ancestors(process)[0]
    assert ActorProcess.of(process) in pool._where.values()
    for one in [process] if fault == "stop" else [process, raylet]:
        os.kill(one, signal.SIGSTOP)
    try:
        assert pool.request(lambda a: a.work.remote("x"), 0.5).value.startswith("x")
        pool.close()
        assert not ActorProcess.of(process).is_alive
    finally:
        os.kill(raylet, signal.SIGCONT)


def test_one_job_for_a_host_and_a_gpu(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(MODEL)
    line = ["tune", str(tmp_path / "m.mlir"), "--dim", "T=1:16", "--target", "host,emulator:sm_90a", "--ray", cluster.address,
            "--builders", "1", "--runners", "1", "--trials", "6", "--threads", "1", "--log", str(tmp_path / "log.jsonl"),
            "-o", str(tmp_path / "m.tw"), "--no-isolate"]
    assert main(line) == 0
    good = [r for r in TuningLog(tmp_path / "log.jsonl").records if r.seconds]
    devices = {r.device.partition(":")[0].partition(" ")[0]: r.runner for r in good}
    assert set(devices) == {"host", "emulator"} and devices["host"] != devices["emulator"]
    x, w = np.ones((5, 32), np.float32), np.full((32, 64), 0.5, np.float32)
    for device in (None, "emulator"):
        np.testing.assert_allclose(tw.load(tmp_path / "m.tw", device=device)(x, w), x @ w)
    assert not left_of_actors()


def test_runners_are_where_nodes_have_the_label_that_is_asked_for(cluster: Any, tmp_path: Path,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    node = add_node(cluster, **NODE, labels={"tilewright-kind": "measured"})
    target = Target.parse("host")
    try:
        room = placed(tw.Farm(cluster.address, 1, 2, labels={"tilewright-kind": "measured"}, join_seconds=_PATIENCE), target)
        where = ray.util.placement_group_table(room.group)["bundles_to_node_id"]
        assert (room.runners, room.builders) == (2, 1) and where[0] == where[1] == node.node_id
        ray.util.remove_placement_group(room.group)
        with pytest.raises(OptionError, match=r"wanted 1 runners of 1 cores \(label tilewright-kind=other\)"):
            placed(tw.Farm(cluster.address, 1, 1, labels={"tilewright-kind": "other"}, join_seconds=2.0), target)
        (tmp_path / "m.mlir").write_text(MODEL)
        line = ["tune", str(tmp_path / "m.mlir"), "--dim", "T=1:16", "--ray", cluster.address, "--builders", "1",
                "--runners", "1", "--trials", "6", "--threads", "1", "--log", str(tmp_path / "log.jsonl"),
                "-o", str(tmp_path / "m.tw"), "--no-isolate", "--json"]
        assert main([*line, "--runner-label", "tilewright-kind=measured"]) == 0
        events = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
        farms = [e for e in events if e["event"] == "farm"]
        assert farms[-1]["measurements"] and farms[-1]["nodes"] == 4
        assert main([*line, "--runner-label", "tilewright-kind"]) == 1
        assert "--runner-label" in capsys.readouterr().err
    finally:
        cluster.remove_node(node)


def test_a_target_that_is_named_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.mlir").write_text(MODEL)
    assert main(["tune", str(tmp_path / "m.mlir"), "--dim", "T=1:16", "--target", "host,host", "--trials", "1"]) == 1
    assert "at most one target of each kind" in capsys.readouterr().err
    assert main(["tune", str(tmp_path / "m.mlir"), "--dim", "T=1:16", "--ray", "auto", "--runner-resource", "zen3"]) == 1
    assert "--runner-resource zen3=1" in capsys.readouterr().err


def test_a_driver_that_is_killed_or_interrupted(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(MODEL)
    log = tmp_path / "log.jsonl"
    line = [sys.executable, "-m", "tilewright", "tune", str(tmp_path / "m.mlir"), "--dim", "T=1:16", "--ray", cluster.address,
            "--builders", "1", "--runners", "1", "--seconds", "200", "--threads", "1", "--log", str(log), "-o",
            str(tmp_path / "m.tw")]
    known: list[int] = []
    for end in (signal.SIGKILL, signal.SIGINT):
        driver = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wanted, begin = (known[-1] if known else 0) + 4, time.monotonic()
        while good_records(log) < wanted and driver.poll() is None and time.monotonic() < begin + _PATIENCE:
            time.sleep(0.1)
        assert driver.poll() is None and good_records(log) >= wanted
        driver.send_signal(end)
        said, _ = driver.communicate(timeout=_PATIENCE)
        if end is signal.SIGINT:
            assert driver.returncode == 130 and "the same command goes on from there" in said
            assert not left_of_actors()
        known.append(good_records(log))
        begin = time.monotonic()
        while left_of_actors() and time.monotonic() < begin + 60:
            time.sleep(0.1)
        assert not left_of_actors()
    taken = [(r.config, r.shape) for r in TuningLog(log).records if r.seconds]
    assert known[1] > known[0] and len(set(taken[:known[0]]) & set(taken[known[0]:])) <= len(taken) // 3  # but what is unsure


def good_records(log: Path) -> int:
    return sum(1 for r in TuningLog(log).records if r.seconds) if log.exists() else 0


class Noted:
    """A ProcessRunner that tells how it was started."""

    def __init__(self, time_limit: float, module: str, arguments: tuple[str, ...], cases: Any) -> None:
        self.arguments, self.closed = arguments, 0

    def run(self, *request: Any) -> Measurement:
        return Measurement((1e-6,), cache=" ".join(self.arguments))

    def close(self) -> None:
        self.closed += 1


def test_weights_are_where_the_model_leaves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.search.runner.ray_runner.ProcessRunner", Noted)
    actor = RunnerActor(1, lambda: ("a" * 64, "this"), lambda count: (tuple(os.sched_getaffinity(0)), []), RunnerWork())
    kernel = MicroKernel("k", "w", "generic", "generic{}", (), ("1", "1", "1"))
    for state, restarts in (((), 0), (("--weights=memory:100",), 1), (("--weights=memory:100",), 1), ((), 2)):
        request = MeasureRequest(WorkloadForm.of(dense(8)), (kernel,), ((0, {"d0": 4}, 1),), None, state)
        reply = msgspec.json.decode(actor.measure(msgspec.json.encode(request), b"", b"code"), type=MeasureReply)
        assert reply.measured[0].cache == " ".join((WITH_PARENT, *state)) and actor._runner.closed == restarts


def test_drift_is_beyond_a_runner_s_own_noise() -> None:
    steady = Reference.of([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0])
    assert steady.drift([1.03, 1.02, 1.04]) == 0.0 and steady.drift([1.2, 1.21, 1.19]) == pytest.approx(0.2)
    noisy = Reference.of([1.0, 1.3, 0.8, 1.1, 0.9, 1.25, 1.0])
    assert noisy.drift([1.4, 1.4, 1.4]) == 0.0


class LateCluster:
    """A cluster whose nodes are not there in time at first."""

    def __init__(self, late: int, error: Exception) -> None:
        self.late, self.error, self.nodes, self.removed = late, error, list[int](), list[int]()

    def list_all_nodes(self) -> list[int]:
        return list(self.nodes)

    def add_node(self, number: int) -> int:
        self.nodes.append(number)
        if self.late:
            self.late -= 1
            raise self.error
        return number

    def remove_node(self, number: int, allow_graceful: bool) -> None:
        self.nodes.remove(number)
        self.removed.append(number)


def test_a_local_farm_is_none_of_the_cluster_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, bool]] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", lambda address, **options: asked.append((address, "object_store_memory" in options)))
    for address in ("local", "auto", "10.0.0.1:6379"):
        with connected(tw.Farm(address)):
            pass
    assert asked == [("local", True), ("auto", False), ("10.0.0.1:6379", False)]


AUTO = """
import sys
import ray, ray._private.services
import tilewright as tw
from tilewright.compiler.tuning.farm_cluster import connected

class Actor:
    def says(self):
        return "here"

# what `auto` finds where no other cluster is
ray._private.services.get_ray_address_from_environment = lambda address, folder: sys.argv[1]
with connected(tw.Farm("auto")):
    print(ray.get(ray.remote(Actor).options(num_cpus=0).remote().says.remote(), timeout=60))
"""


def test_auto_joins_a_cluster_without_tokens_where_one_lies_about(cluster: Any) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_A")}
    done = subprocess.run([sys.executable, "-c", AUTO, cluster.address], env={**own, "RAY_AUTH_TOKEN": "a" * 32}, cwd=ROOT,
                          capture_output=True, text=True, timeout=_PATIENCE, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "here"), done.stderr[-2000:]


def test_nodes_that_are_late_are_started_again() -> None:
    late = LateCluster(2, Exception("not there within 30 s"))
    assert add_node(late, number=7) == 7 and late.removed == [7, 7] and late.nodes == [7]
    for count, error in ((3, Exception("late")), (1, KeyError("another fault"))):
        with pytest.raises(type(error)):
            add_node(LateCluster(count, error), number=1)


def test_a_cluster_that_is_not_there() -> None:
    with pytest.raises(OptionError, match="wanted an integer >= 1"):
        tw.Farm(runners=0)
    with pytest.raises(OptionError, match="amounts by name"):
        tw.Farm(resources={"zen3": -1})
