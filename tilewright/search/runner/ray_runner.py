"""RayRunner: measures in Ray actors that own a device each: some cores, or a GPU. Records and decisions stay where it is asked.

An actor measures in a process of its own (runner_process.py), so that a kernel that crashes costs neither the actor nor the
candidate of another. Code goes through Ray's object store, once a node, and no more of it at a time than `most_bytes`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.protocols import Measurement
from tilewright.search.runner.drift import Reference, reference_seconds
from tilewright.search.runner.ray_actors import ActorKind, ActorLostError, ActorPool, ray_module
from tilewright.search.runner.runner_process import HOST_WORKER, ProcessRunner

TIME_LIMIT = 20.0  # seconds of a measurement
MOST_BYTES = 64 << 20  # of code under way
_CHECK_SECONDS = 20.0  # between two looks at the reference kernel of a runner


class RunnerFacts(msgspec.Struct, frozen=True):
    """What a runner is: what it runs, on which cores of which node, and its reference kernel's seconds."""

    fingerprint: str
    device: str
    node: str
    process: int
    cores: tuple[int, ...]
    reference: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"runner {self.node[:12]}:{self.process} cores {','.join(map(str, self.cores))}"


class MeasureRequest(msgspec.Struct, frozen=True):
    """One measurement, as JSON."""

    workload: WorkloadForm
    kernel: MicroKernel
    dims: dict[str, int]
    threads: int
    seconds: float | None


class MeasureReply(msgspec.Struct, frozen=True):
    """The fields of a Measurement; reference: seconds of the reference kernel, where it was due."""

    seconds: tuple[float, ...] = ()
    error: str = ""
    cache: str = "warm"
    late: bool = False
    reference: tuple[float, ...] = ()


class RunnerActor:
    """In the actor. cores: how many it is pinned to. identify: (fingerprint, device name) of this machine. claim: gives it cores
    of its own, and what holds them (core_claim.py)."""

    def __init__(self, cores: int, identify: Callable[[], tuple[str, str]],
                 claim: Callable[[int], tuple[tuple[int, ...], list[int]]], module: str = HOST_WORKER) -> None:
        self._identity = identify()  # of the whole machine, before this process is pinned
        own, self._held = claim(cores)
        os.sched_setaffinity(0, own)
        self._runner = ProcessRunner(TIME_LIMIT, module, ("--with-parent",) if module == HOST_WORKER else ())
        self._checked = time.monotonic()

    def facts(self) -> bytes:
        self._runner.start()  # so that the first measurement takes no longer than others
        fingerprint, device = self._identity
        node = os.uname().nodename
        cores = tuple(sorted(os.sched_getaffinity(0)))
        return msgspec.json.encode(RunnerFacts(fingerprint, device, node, os.getpid(), cores, tuple(reference_seconds(15))))

    def measure(self, request: bytes, code: bytes) -> bytes:
        asked = msgspec.json.decode(request, type=MeasureRequest)
        found = self._runner.run(asked.workload.workload(), asked.kernel, code, asked.dims, asked.threads, asked.seconds)
        due = time.monotonic() - self._checked > _CHECK_SECONDS
        times = tuple(reference_seconds()) if due else ()
        self._checked = time.monotonic() if due else self._checked
        return msgspec.json.encode(MeasureReply(found.seconds, found.error, found.cache, found.late, times))

    def check(self) -> list[float]:
        """The reference kernel now."""
        return reference_seconds()


@dataclass
class _Seen:
    """A runner that joined. since: when its reference kernel was last as it was at first, seconds since 1970."""

    reference: Reference
    since: float


@dataclass
class Quarantine:
    """A runner that is used no more. since: its measurements from then on are in doubt."""

    runner: str
    since: float
    until: float
    reason: str


@dataclass
class RayRunner:
    """A Runner that many threads may call at once, one a runner.

    Args:
        make: starts a runner in a place and returns its handle. expect: (fingerprint, device) that all have to have.
        told: of what happens, for a live view. quarantined: called with each runner that drifted.
    """

    make: Callable[[int], Any]
    size: int
    expect: tuple[str, str]
    told: Callable[[str, Mapping[str, Any]], None] = lambda what, facts: None
    quarantined: Callable[[Quarantine], None] = lambda found: None
    most_bytes: int = MOST_BYTES
    clock: Callable[[], float] = time.time
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _codes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ray = ray_module()
        self._room = threading.Condition()
        self._under_way = 0
        self._lock = threading.Lock()
        self.pool = ActorPool(ActorKind("runner", self.make, self._join), self.size, self.told)

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        """What two runners lost is a Measurement with an error, or late where there was no more time."""
        if seconds is not None and seconds <= 0:
            return Measurement(error="there is no time left", late=True)
        limit = TIME_LIMIT if seconds is None else min(TIME_LIMIT, seconds)
        request = msgspec.json.encode(MeasureRequest(WorkloadForm.of(workload), kernel, dict(dims), threads, seconds))
        end = time.monotonic() + (limit if seconds is None else seconds)
        with self._bytes(len(code)):
            stored = self._ray.put(code)
            try:
                answer, name = self.pool.request(lambda actor: actor.measure.remote(request, stored), limit)
            except ActorLostError as error:
                return Measurement(error=f"{kernel.config} at {dict(dims)}: {error}", late=seconds is not None
                                   and time.monotonic() >= end)
        reply = msgspec.json.decode(answer, type=MeasureReply)
        if reply.reference:
            self._look(name, reply.reference)
        return Measurement(reply.seconds, reply.error, reply.cache, reply.late, name)

    def close(self) -> None:
        self.pool.close()

    def _bytes(self, size: int) -> _Held:
        return _Held(self, min(size, self.most_bytes))

    def _join(self, actor: Any, patience: float) -> str:
        facts = msgspec.json.decode(self._ray.get(actor.facts.remote(), timeout=patience), type=RunnerFacts)
        wanted, device = self.expect
        if facts.fingerprint != wanted:
            raise OptionError(f"{facts.name} is refused: wanted Tilewright of fingerprint {wanted[:12]}, got "
                              f"{facts.fingerprint[:12]}; install there what is here, libraries too")
        if facts.device != device:
            raise OptionError(f"{facts.name} is refused: wanted a device {device!r}, got {facts.device!r}; give it to a job "
                              "of its own")
        with self._lock:
            self._seen[facts.name] = _Seen(Reference.of(facts.reference), self.clock())
        return facts.name

    def _look(self, name: str, times: Sequence[float]) -> None:
        """Put a runner whose reference kernel takes longer or shorter than its own noise explains in quarantine."""
        with self._lock:
            seen = self._seen.get(name)
            drift = 0.0 if seen is None else seen.reference.drift(times)
            if seen is not None and not drift:
                seen.since = self.clock()
            if seen is None or not drift:
                return
            del self._seen[name]
        reason = f"its reference kernel drifted by {drift:.1%}, its own noise is {seen.reference.noise:.1%}"
        self.pool.remove(name, reason)
        self.told("quarantined", {"actor": name, "reason": reason})
        self.quarantined(Quarantine(name, seen.since, self.clock(), reason))


@dataclass
class _Held:
    """Room for code under way."""

    runner: RayRunner
    size: int

    def __enter__(self) -> None:
        with self.runner._room:
            while self.runner._under_way and self.runner._under_way + self.size > self.runner.most_bytes:
                self.runner._room.wait()
            self.runner._under_way += self.size

    def __exit__(self, *error: object) -> None:
        with self.runner._room:
            self.runner._under_way -= self.size
            self.runner._room.notify_all()
