"""FarmSession: a Ray cluster while a search uses it: its builders and runners, what happens to them, and their end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.compiler.builder.fingerprint import fingerprint
from tilewright.compiler.builder.kernel_shelf import KernelShelf
from tilewright.compiler.builder.ray_builder import BuilderActor, RayBuilder, RayWorkers
from tilewright.compiler.compilation.farm import LOCAL, Farm
from tilewright.compiler.tuning.operator_tuning import environment
from tilewright.runtime import knobs
from tilewright.runtime.errors import OptionError
from tilewright.runtime.log import LOG
from tilewright.runtime.target import Target, TargetKind
from tilewright.search.database.farm_records import FarmRecord, MarkRecord
from tilewright.search.database.records import TuningLog
from tilewright.search.runner.core_claim import claim_cores
from tilewright.search.runner.ray_actors import ray_module
from tilewright.search.runner.ray_runner import Quarantine, RayRunner, RunnerActor
from tilewright.search.task_scheduler.farm_progress import FarmProgress
from tilewright.search.task_scheduler.parallel_tuner import FlightProgress

_STORE_BYTES = 100 << 20  # of the object store of a local cluster
_RECORD_SECONDS = 10.0  # between two records of a farm in the log
_TOLD_SECONDS = 0.5  # between two states that are told


@dataclass
class FarmSession:
    """builder, runner: of the cluster. sizes: how many of each are wanted. log: takes marks and states."""

    farm: Farm
    builder: RayBuilder
    runner: RayRunner
    workers: RayWorkers
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
        record = self.record(flight)
        before, builds, measured = self._last
        span = max(record.seconds - before, 1e-9)
        self.progress(FarmProgress(record, (record.builds - builds) / span, (record.measurements - measured) / span))
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
        states = (self.workers.actors.state, self.runner.pool.state)
        seconds = time.monotonic() - self._began
        driver = (_own_seconds() - self._used) / max(seconds, 1e-9)
        return FarmRecord(self.run, seconds, self.nodes, self.workers.actors.alive, self.runner.pool.alive, flight.in_flight,
                          flight.ready, flight.builds, flight.measurements, sum(s.lost for s in states),
                          sum(s.retried for s in states), sum(len(s.refused) for s in states), tuple(self._quarantined), driver)


@contextmanager
def farm_session(farm: Farm, target: Target, shelf: KernelShelf | None,
                 progress: Callable[[FarmProgress], None]) -> Iterator[FarmSession]:
    """Connect, start builders and runners, and wait until one of each has joined. At the end nothing of them is left.

    Raises:
        OptionError: no cluster, too few resources, all nodes are refused, or a target that a farm does not measure for.
    """
    if target.kind is not TargetKind.HOST:
        raise OptionError(f"farm: target {target} is not measured by a farm yet; wanted one for hosts. Use `tilewright "
                          "build-kernels` here and `tilewright measure` where the GPU is")
    ray = ray_module()
    own = _connect(ray, farm)
    made: list[Any] = []
    group = None
    try:
        builders, runners = _sizes(ray, farm)
        group = _placed(ray, farm, builders, runners)
        session = _session(ray, farm, target, shelf, (builders, runners, group), progress, made)
        for pool, what in ((session.workers.actors, "builder"), (session.runner.pool, "runner")):
            if not pool.wait(farm.join_seconds):
                why = "; ".join(dict.fromkeys(pool.state.refused.values())) or f"none started within {farm.join_seconds:g} s"
                raise OptionError(f"farm: no {what} joined: {why}")
        yield session
    finally:
        for part in made:
            part.close()
        if group is not None and ray.is_initialized():
            ray.util.remove_placement_group(group)
        if own:
            ray.shutdown()


def _connect(ray: Any, farm: Farm) -> bool:
    """Join the cluster; True where this process did and has to leave it."""
    if ray.is_initialized():
        return False
    address = None if farm.address == LOCAL else farm.address
    options: dict[str, Any] = {"object_store_memory": _STORE_BYTES, "include_dashboard": False} if address is None else {}
    try:
        ray.init(address, logging_level="ERROR", log_to_driver=False, namespace="tilewright", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise OptionError(f"farm: no Ray cluster at {farm.address!r}: {str(error).splitlines()[0]}; start one with `ray start "
                          "--head`, or give --ray local for one on this machine") from error
    return True


def _sizes(ray: Any, farm: Farm) -> tuple[int, int]:
    """How many builders and runners."""
    nodes = [n for n in ray.nodes() if n["Alive"]]
    runners = farm.runners or len(nodes)
    left = int(ray.cluster_resources().get("CPU", 1)) - runners * farm.cores
    return farm.builders or max(1, left), runners


def _placed(ray: Any, farm: Farm, builders: int, runners: int) -> Any:
    """Room for all of them, over the nodes; OptionError where there is too little."""
    bundles = [{"CPU": farm.cores, **farm.resources}] * runners + [{"CPU": 1}] * builders
    group = ray.util.placement_group(bundles, strategy="SPREAD")
    if not group.wait(min(farm.join_seconds, 60.0)):
        have = {k: v for k, v in ray.cluster_resources().items() if not k.startswith(("node:", "object", "memory"))}
        ray.util.remove_placement_group(group)
        besides = f" and {dict(farm.resources)}" if farm.resources else ""
        raise OptionError(f"farm: wanted {runners} runners of {farm.cores} cores{besides} and {builders} builders, and the "
                          f"cluster has {have}; ask for fewer")
    return group


def _session(ray: Any, farm: Farm, target: Target, shelf: KernelShelf | None, placed: tuple[int, int, Any],
             progress: Callable[[FarmProgress], None], made: list[Any]) -> FarmSession:
    """The session; what it makes that has to be closed goes to `made` at once."""
    builders, runners, group = placed
    events: list[tuple[str, Mapping[str, Any]]] = []
    marks: list[Quarantine] = []
    session: list[FarmSession] = []

    def told(what: str, facts: Mapping[str, Any]) -> None:
        session[0].event(what, facts) if session else events.append((what, facts))

    def quarantined(found: Quarantine) -> None:
        session[0].quarantine(found) if session else marks.append(found)

    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    runtime = {"env_vars": _variables()}

    def start(kind: type, number: int, cores: int, resources: Mapping[str, float], *arguments: Any) -> Any:
        options = {"num_cpus": cores, "resources": dict(resources), "max_restarts": 0, "max_task_retries": 0,
                   "runtime_env": runtime, "scheduling_strategy": strategy(group, placement_group_bundle_index=number)}
        return ray.remote(kind).options(**options).remote(*arguments)

    identify = partial(host_identity, str(target))
    workers = RayWorkers(lambda place: start(BuilderActor, runners + place, 1, {}), builders, told)
    made.append(workers)
    runner = RayRunner(lambda place: start(RunnerActor, place, farm.cores, farm.resources, farm.cores, identify, claim_cores),
                       runners, identify(), told, quarantined)
    made.append(runner)
    builder = RayBuilder(target, workers, shelf=shelf, inspect=True)
    alive = len([n for n in ray.nodes() if n["Alive"]])
    session.append(FarmSession(farm, builder, runner, workers, alive, progress))
    for what, facts in events:
        session[0].event(what, facts)
    for found in marks:
        session[0].quarantine(found)
    return session[0]


def host_identity(target: str) -> tuple[str, str]:
    """(fingerprint, device) of the machine that this runs on, for a target: Tilewright's version and libraries, CPU and flags."""
    return fingerprint(), environment(Target.parse(target)).device


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
