"""RayRunner: measures in Ray actors that own a device each: some cores, or a GPU. Records and decisions stay where it is asked.

An actor measures in a process of its own (runner_process.py), so that a kernel that crashes costs neither the actor nor the
candidate of another. Code, and what kernels for a GPU have to give, go through Ray's object store, once a node; no more code is
under way at a time than `most_bytes`.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.protocols import KernelAt, Measurement
from tilewright.search.runner.actor_process import ActorProcess
from tilewright.search.runner.case_form import CaseForm
from tilewright.search.runner.drift import Reference, reference_seconds
from tilewright.search.runner.ray_actors import ActorFacts, ActorKind, ActorLostError, ActorPool, ray_module, want_fingerprint
from tilewright.search.runner.runner_process import HOST_WORKER, ProcessRunner
from tilewright.search.runner.serving import WITH_PARENT
from tilewright.search.runner.verification import Case

MOST_BYTES = 64 << 20  # of code under way
_CHECK_SECONDS = 20.0  # between two looks at the reference kernel of a runner


@dataclass(frozen=True)
class RunnerWork:
    """What a runner measures with: a process of this module (runner_process.py), and seconds that a measurement may take there.
    by_kernel: its reference is the first kernel that it measured, on a GPU; else a product on its core."""

    module: str = HOST_WORKER
    arguments: tuple[str, ...] = (WITH_PARENT,)
    time_limit: float = 20.0
    by_kernel: bool = False


class RunnerFacts(ActorFacts, frozen=True):
    """What a runner is: what it runs, on which cores, and its reference kernel's seconds, where it has one yet."""

    device: str
    cores: tuple[int, ...]
    reference: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.named('runner')} cores {','.join(map(str, self.cores))}"


class MeasureRequest(msgspec.Struct, frozen=True):
    """Measurements of kernels of a workload, as JSON. launches: (number of the kernel, dims, threads) of each. seconds: that all
    may take. arguments: of the process that measures, beside its own."""

    workload: WorkloadForm
    kernels: tuple[MicroKernel, ...]
    launches: tuple[tuple[int, dict[str, int], int], ...]
    seconds: float | None
    arguments: tuple[str, ...] = ()


class Measured(msgspec.Struct, frozen=True):
    """The fields of a Measurement."""

    seconds: tuple[float, ...] = ()
    error: str = ""
    cache: str = "warm"
    late: bool = False


class MeasureReply(msgspec.Struct, frozen=True):
    """measured: of each launch. reference: seconds of the reference kernel, where it was due. worked: seconds that the runner
    took for all of it."""

    measured: tuple[Measured, ...]
    reference: tuple[float, ...] = ()
    worked: float = 0.0


class RunnerActor:
    """In the actor. cores: how many it is pinned to. identify: (fingerprint, device name) of this machine. claim: gives it cores
    of its own, and what holds them (core_claim.py), when it joins: one that stands by has none."""

    def __init__(self, cores: int, identify: Callable[[], tuple[str, str]],
                 claim: Callable[[int], tuple[tuple[int, ...], list[int]]], work: RunnerWork) -> None:
        self._identity = identify()  # of the whole machine, before this process is pinned
        self._count, self._claim, self._held = cores, claim, list[int]()
        self._work, self._cases = work, dict[str, Sequence[Case]]()
        self._runner = ProcessRunner(work.time_limit, work.module, work.arguments, self._cases)
        self._first: tuple[MeasureRequest, bytes] | None = None
        self._checked = time.monotonic()

    def where(self) -> bytes:
        return msgspec.json.encode(ActorProcess.here())

    def facts(self) -> bytes:
        if not self._held:
            own, self._held = self._claim(self._count)
            os.sched_setaffinity(0, own)
        self._runner.start()  # so that the first measurement takes no longer than others
        fingerprint, device = self._identity
        node = os.uname().nodename
        cores = tuple(sorted(os.sched_getaffinity(0)))
        reference = () if self._work.by_kernel else tuple(reference_seconds(15))
        return msgspec.json.encode(RunnerFacts(fingerprint, node, os.getpid(), device, cores, reference))

    def measure(self, request: bytes, cases: bytes, *codes: bytes) -> bytes:
        """cases: what kernels of the workload have to give; empty where they are not verified. codes: of each kernel."""
        begin = time.monotonic()
        asked = msgspec.json.decode(request, type=MeasureRequest)
        workload = asked.workload.workload()
        wanted = (*self._work.arguments, *asked.arguments)
        if self._runner.arguments != wanted:
            self._runner.close()
            self._runner.arguments = wanted
        if cases and workload.key not in self._cases:
            self._cases[workload.key] = [c.case() for c in msgspec.msgpack.decode(cases, type=tuple[CaseForm, ...])]
        found, times = list[Measured](), tuple[float, ...]()
        for number, dims, threads in asked.launches:
            left = None if asked.seconds is None else max(0.0, asked.seconds - (time.monotonic() - begin))
            one = self._runner.run(workload, asked.kernels[number], codes[number], dims, threads, left)
            found.append(Measured(one.seconds, one.error, one.cache, one.late))
        good = next((launch for launch, one in zip(asked.launches, found, strict=True) if one.seconds), None)
        if good is not None:
            number, dims, threads = good
            one_alone = msgspec.structs.replace(asked, kernels=(asked.kernels[number],), launches=((0, dims, threads),))
            times = self._reference(one_alone, codes[number])
        return msgspec.json.encode(MeasureReply(tuple(found), times, time.monotonic() - begin))

    def _reference(self, asked: MeasureRequest, code: bytes) -> tuple[float, ...]:
        """The reference kernel now, where it is due: after some seconds, and, where it is a measured one, as it is chosen."""
        is_first = self._work.by_kernel and self._first is None
        if is_first:
            self._first = asked, code
        elif time.monotonic() - self._checked <= _CHECK_SECONDS:
            return ()
        self._checked = time.monotonic()
        if self._first is None:
            return tuple(reference_seconds())
        request, known = self._first
        ((_, dims, threads),) = request.launches
        return self._runner.run(request.workload.workload(), request.kernels[0], known, dims, threads).seconds


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
        make: starts a runner in a place and returns its handle; stand_by: as of ActorKind. expect: (fingerprint, device) that
            all have to have; a device of "" is that of the first that joins and `fits`.
        told: of what happens, for a live view. quarantined: called with each runner that drifted.
        cases: workload key -> what its kernels must give before they are timed, for runners that verify.
        arguments: of the processes that measure: in which state operands are found.
    """

    make: Callable[[int], Any]
    size: int
    expect: tuple[str, str]
    told: Callable[[str, Mapping[str, Any]], None] = lambda what, facts: None
    quarantined: Callable[[Quarantine], None] = lambda found: None
    work: RunnerWork = field(default_factory=RunnerWork)
    fits: Callable[[str], bool] = lambda device: True
    cases: Mapping[str, Sequence[Case]] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    most_bytes: int = MOST_BYTES
    stand_by: Callable[[int], Any] | None = None
    clock: Callable[[], float] = time.time
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _kept: OrderedDict[str, tuple[Any, int]] = field(default_factory=OrderedDict)
    _expected: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ray = ray_module()
        self._room = threading.Condition()
        self._under_way = 0
        self._lock, self._evaluating = threading.Lock(), threading.Lock()
        self._device = self.expect[1]
        kind = ActorKind("runner", self.make, self._join, stand_by=self.stand_by)
        self.pool = ActorPool(kind, self.size, self.told)

    @property
    def device(self) -> str:
        """That all runners have; "" while none has joined that says so."""
        return self._device

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        """What two runners lost is a Measurement with an error, or late where there was no more time."""
        return self.run_all(workload, [KernelAt(kernel, code, tuple(dims.items()), threads)], seconds)[0]

    def run_all(self, workload: Workload, asked: Sequence[KernelAt], seconds: float | None = None) -> list[Measurement]:
        """Several, one after the other on one runner, as one request."""
        if seconds is not None and seconds <= 0:
            return [Measurement(error="there is no time left", late=True) for _ in asked]
        most = self.work.time_limit * len(asked)
        limit = most if seconds is None else min(most, seconds)
        codes = {x.kernel: x.code for x in asked}
        number = {kernel: i for i, kernel in enumerate(codes)}
        launches = tuple((number[x.kernel], dict(x.dims), x.threads) for x in asked)
        form = WorkloadForm.of(workload)
        request = msgspec.json.encode(MeasureRequest(form, tuple(codes), launches, seconds, self.arguments))
        end = time.monotonic() + (limit if seconds is None else seconds)
        with self._bytes(sum(map(len, codes.values()))):
            stored, expected = [self._stored(code) for code in codes.values()], self._cases_of(workload)
            try:
                found = self.pool.request(lambda actor: actor.measure.remote(request, expected, *stored), limit)
            except ActorLostError as error:
                late = seconds is not None and time.monotonic() >= end
                return [Measurement(error=f"{x.kernel.config} at {dict(x.dims)}: {error}", late=late) for x in asked]
        reply = msgspec.json.decode(found.value, type=MeasureReply)
        self.pool.account(found, reply.worked)
        if reply.reference:
            self._look(found.name, reply.reference)
        return [Measurement(m.seconds, m.error, m.cache, m.late, found.name) for m in reply.measured]

    def close(self) -> None:
        self.pool.close()

    def _bytes(self, size: int) -> _Held:
        return _Held(self, min(size, self.most_bytes))

    def _stored(self, code: bytes) -> Any:
        """Ray's reference of a code, which is stored once; those used last are kept, `most_bytes` of them."""
        digest = hashlib.sha256(code).hexdigest()
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
                return self._kept[digest][0]
        made = self._ray.put(code)
        with self._lock:
            self._kept[digest] = made, len(code)
            while len(self._kept) > 1 and sum(size for _, size in self._kept.values()) > self.most_bytes:
                self._kept.popitem(last=False)
        return made

    def _cases_of(self, workload: Workload) -> Any:
        """Ray's reference of what kernels have to give; empty where nothing is known."""
        with self._evaluating:
            if workload.key not in self._expected and workload.key in self.cases:
                forms = tuple(map(CaseForm.of, self.cases[workload.key]))
                self._expected[workload.key] = self._ray.put(msgspec.msgpack.encode(forms))
            return self._expected.get(workload.key, b"")

    def _join(self, actor: Any, patience: float) -> str:
        facts = msgspec.json.decode(self._ray.get(actor.facts.remote(), timeout=patience), type=RunnerFacts)
        want_fingerprint(facts.name, facts.fingerprint, self.expect[0])
        with self._lock:
            if not self._device and self.fits(facts.device):
                self._device = facts.device
            device = self._device or "that the target's code runs on"
        if facts.device != device:
            raise OptionError(f"{facts.name} is refused: wanted a device {device!r}, got {facts.device!r}; give it to a job "
                              "of its own")
        if facts.reference:
            with self._lock:
                self._seen[facts.name] = _Seen(Reference.of(facts.reference), self.clock())
        return facts.name

    def _look(self, name: str, times: Sequence[float]) -> None:
        """Put a runner whose reference kernel takes longer or shorter than its own noise explains in quarantine."""
        with self._lock:
            if name not in self._seen:
                self._seen[name] = _Seen(Reference.of(times), self.clock())
            seen = self._seen[name]
            drift = seen.reference.drift(times)
            if not drift:
                seen.since = self.clock()
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
