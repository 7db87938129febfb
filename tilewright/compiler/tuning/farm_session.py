"""FarmSession: a Ray cluster while a search uses it: its builders and runners, what happens to them, and their end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.compiler.builder.fingerprint import farm_fingerprint, fingerprint
from tilewright.compiler.builder.kernel_shelf import KernelShelf
from tilewright.compiler.builder.ray_builder import BuilderActor, RayBuilder, RayWorkers
from tilewright.compiler.compilation.farm import Farm
from tilewright.compiler.tuning.farm_cluster import Placed, alive_nodes, connected, placed
from tilewright.compiler.tuning.operator_tuning import environment
from tilewright.runtime import knobs
from tilewright.runtime.errors import OptionError
from tilewright.runtime.log import LOG
from tilewright.runtime.target import Target, TargetKind
from tilewright.search.database.farm_records import FarmRecord, MarkRecord
from tilewright.search.database.records import TuningLog
from tilewright.search.runner.core_claim import claim_cores
from tilewright.search.runner.gpu_environment import is_for
from tilewright.search.runner.gpu_process import GPU_WORKER, time_limit
from tilewright.search.runner.measurer import Environment
from tilewright.search.runner.ray_actors import ray_module
from tilewright.search.runner.ray_runner import Quarantine, RayRunner, RunnerActor, RunnerWork
from tilewright.search.runner.serving import WITH_PARENT
from tilewright.search.task_scheduler.farm_progress import FarmProgress
from tilewright.search.task_scheduler.parallel_tuner import FlightProgress
from tilewright.search.task_scheduler.ray_reckoner import RayReckoners, ReckonerActor
from tilewright.search.time_left import steady_clock

_RECORD_SECONDS = 10.0  # between two records of a farm in the log
_TOLD_SECONDS = 0.5  # between two states that are told


@dataclass
class FarmSession:
    """builder, runner, reckoners: of the cluster. log: takes marks and states."""

    farm: Farm
    target: Target
    builder: RayBuilder
    runner: RayRunner
    workers: RayWorkers
    reckoners: RayReckoners
    nodes: int
    progress: Callable[[FarmProgress], None]
    run: str = field(default_factory=lambda: f"{time.time():.6f}")
    log: TuningLog | None = None
    _quarantined: list[str] = field(default_factory=list)
    _marks: list[MarkRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began, self._used = time.monotonic(), _own_seconds()
        self._recorded = self._told = -1e9
        self._last = (0.0, 0, 0)

    @property
    def environment(self) -> Environment:
        """Of the runners, as records name it."""
        return Environment(self.runner.device, steady_clock(), {"compiler": fingerprint()[:12]})

    def event(self, what: str, facts: Mapping[str, Any]) -> None:
        """Something happened to an actor."""
        LOG.info("farm: %s %s", what, ", ".join(f"{k}={v}" for k, v in facts.items()))

    def quarantine(self, found: Quarantine) -> None:
        """A runner drifted: what it measured since it was last seen good is marked."""
        self._quarantined.append(found.runner)
        self._marks.append(MarkRecord(found.runner, found.since, found.until, found.reason))

    def follow(self, flight: FlightProgress) -> None:
        """Take the state of the search, in the thread that writes the log; tell and record it now and then."""
        now = time.monotonic()
        while self._marks and self.log is not None:
            self.log.mark(self._marks.pop(0))
        if now - self._told < _TOLD_SECONDS:
            return
        self._told = now
        if now - self._recorded >= _RECORD_SECONDS:
            self.nodes = alive_nodes()
        record = self.record(flight)
        before, builds, measured = self._last
        span = max(record.seconds - before, 1e-9)
        self.progress(FarmProgress(record, (record.builds - builds) / span, (record.measurements - measured) / span,
                                   str(self.target)))
        self._last = (record.seconds, record.builds, record.measurements)
        if now - self._recorded >= _RECORD_SECONDS and self.log is not None:
            self._recorded = now
            self.log.add_farm(record)

    def finish(self, flight: FlightProgress) -> None:
        """The last state of a search."""
        self._told = self._recorded = -1e9
        self.follow(flight)

    def record(self, flight: FlightProgress) -> FarmRecord:
        """The state now."""
        states = (self.workers.actors.state, self.runner.pool.state, self.reckoners.pool.state)
        seconds = time.monotonic() - self._began
        driver = (_own_seconds() - self._used) / max(seconds, 1e-9)
        overheads = [s.overhead / max(s.answered, 1) for s in states]
        return FarmRecord(self.run, seconds, self.nodes, self.workers.actors.alive, self.runner.pool.alive, flight.in_flight,
                          flight.ready, flight.builds, flight.measurements, sum(s.lost for s in states),
                          sum(s.retried for s in states), sum(len(s.refused) for s in states), tuple(self._quarantined), driver,
                          overheads[0], overheads[1])


@contextmanager
def farm_session(farm: Farm, target: Target, shelf: KernelShelf | None,
                 progress: Callable[[FarmProgress], None]) -> Iterator[FarmSession]:
    """Connect, start builders and runners, and wait until one of each has joined. At the end nothing of them is left.

    Raises:
        OptionError: no cluster, too few resources, or all nodes are refused.
    """
    ray = ray_module()
    with connected(farm), ExitStack() as stack:
        room = placed(farm, target)
        stack.callback(_give_up, ray, room)
        session = _session(ray, farm, target, shelf, room, progress, stack)
        for pool, what in ((session.workers.actors, "builder"), (session.runner.pool, "runner")):
            if not pool.wait(farm.join_seconds):
                why = "; ".join(dict.fromkeys(pool.state.refused.values())) or f"none started within {farm.join_seconds:g} s"
                raise OptionError(f"farm: no {what} joined: {why}")
        yield session


def _give_up(ray: Any, room: Placed) -> None:
    if ray.is_initialized():
        ray.util.remove_placement_group(room.group)


def runner_work(target: Target) -> RunnerWork:
    """What runners for a target measure with."""
    if target.kind is TargetKind.HOST:
        return RunnerWork()
    return RunnerWork(GPU_WORKER, (str(target), "0", WITH_PARENT), time_limit(target), by_kernel=True)


def _session(ray: Any, farm: Farm, target: Target, shelf: KernelShelf | None, room: Placed,
             progress: Callable[[FarmProgress], None], stack: ExitStack) -> FarmSession:
    """The session; what it makes is closed with `stack`."""
    events: list[tuple[str, Mapping[str, Any]]] = []
    marks: list[Quarantine] = []
    session: list[FarmSession] = []

    def told(what: str, facts: Mapping[str, Any]) -> None:
        session[0].event(what, facts) if session else events.append((what, facts))

    def quarantined(found: Quarantine) -> None:
        session[0].quarantine(found) if session else marks.append(found)

    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    runtime = {"env_vars": _variables()}

    actor = {"max_restarts": 0, "max_task_retries": 0, "runtime_env": runtime}

    def start(kind: type, number: int, needs: Mapping[str, Any], *arguments: Any) -> Any:
        bundle = strategy(room.group, placement_group_bundle_index=number)
        return ray.remote(kind).options(**actor, scheduling_strategy=bundle, **needs).remote(*arguments)

    def start_anywhere(kind: type, *arguments: Any) -> Any:
        return ray.remote(kind).options(**actor, num_cpus=0).remote(*arguments)

    identify, work = partial(identity, str(target)), runner_work(target)
    needs = {"num_cpus": farm.cores, "resources": dict(room.runner),
             **({"num_gpus": 1} if target.kind is TargetKind.CUDA else {})}
    workers = RayWorkers(lambda place: start(BuilderActor, room.runners + place, {"num_cpus": 1}), room.builders, told)
    stack.callback(workers.close)
    # a GPU may be elsewhere: what runners say decides
    expect = (farm_fingerprint(), "") if target.kind is TargetKind.CUDA else identify()

    def runner_at(place: int, takes: Mapping[str, Any] = needs) -> Any:
        return start(RunnerActor, place, takes, farm.cores, identify, claim_cores, work)

    waits = farm.standby and target.kind is TargetKind.HOST  # a GPU is lent to one actor
    runner = RayRunner(runner_at, room.runners, expect, told, quarantined, work, partial(_fits, target),
                       stand_by=partial(runner_at, takes={"num_cpus": 0}) if waits else None)
    stack.callback(runner.close)
    builder = RayBuilder(target, workers, shelf=shelf, inspect=True)
    reckoners = RayReckoners(lambda place: start_anywhere(ReckonerActor, farm_fingerprint), farm_fingerprint(), told)
    stack.callback(reckoners.close)
    session.append(FarmSession(farm, target, builder, runner, workers, reckoners, alive_nodes(), progress))
    for what, facts in events:
        session[0].event(what, facts)
    for found in marks:
        session[0].quarantine(found)
    return session[0]


def _fits(target: Target, device: str) -> bool:
    return target.kind is TargetKind.HOST or is_for(device, target)


def identity(target: str) -> tuple[str, str]:
    """(fingerprint, device) of the machine that this runs on, for a target: Tilewright's version and libraries; CPU and flags, or
    the GPU."""
    return farm_fingerprint(), environment(Target.parse(target)).device


def _variables() -> dict[str, str]:
    """Of actors: this installation, in case that it is a checkout, our knobs, and one thread in the libraries."""
    package = sys.modules["tilewright"].__file__
    assert package is not None
    path = os.pathsep.join(filter(None, [str(Path(package).resolve().parents[1]), os.environ.get("PYTHONPATH")]))
    own = {name: os.environ[name] for name, *_ in knobs.table() if name in os.environ}
    return {**own, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system
