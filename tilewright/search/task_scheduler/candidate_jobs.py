"""Candidates on their way: built, then measured, several at once. Builder and Runner do the work; a thread waits for each.

What is learned of a candidate, and what is recorded, stays with whoever asks `done`.
"""

from __future__ import annotations

import queue
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.search.protocols import Builder, BuildResult, KernelAt, Measurement, Runner, RunnerOfMany
from tilewright.search.space.shapes import Dims

At = tuple[Dims, int]  # a shape and the threads of its launch


@dataclass(frozen=True)
class Candidate:
    """A configuration and where it is to be measured. built: what it was built to, where it was. again: also where it was
    measured before."""

    workload: Workload
    config: TileConfig
    places: tuple[At, ...]
    built: BuildResult | None = None
    again: bool = False


@dataclass(frozen=True)
class BuildJob:
    """A configuration to build. number: by which its end is told."""

    number: int
    workload: Workload
    config: TileConfig


@dataclass(frozen=True)
class RunJob:
    """A built kernel to measure at some places, one after the other, on one runner."""

    number: int
    workload: Workload
    built: BuildResult
    places: tuple[At, ...]


@dataclass(frozen=True)
class JobEnd:
    """What came of a job: of a build `built`, of a run `measured`, one for each of its `places`. seconds: from its begin to its
    end."""

    number: int
    built: BuildResult | None = None
    places: tuple[At, ...] = ()
    measured: tuple[Measurement, ...] = ()
    seconds: float = 0.0


class Jobs(Protocol):
    """Where candidates go. builders, runners: how many of each work at once."""

    builders: int
    runners: int

    def build(self, job: BuildJob, seconds: float | None) -> None: ...

    def run(self, job: RunJob, seconds: float | None) -> None: ...

    def done(self, seconds: float | None) -> list[JobEnd]:
        """What has ended since; waits for one, at most so long."""


@dataclass
class ThreadedJobs:
    """Jobs over a Builder and a Runner that may be called from several threads at once.

    It is a context: at its end, jobs that did not begin are dropped, and those that did are waited for, but after an error or an
    interrupt.
    """

    builder: Builder
    runner: Runner
    builders: int
    runners: int
    _ends: queue.SimpleQueue[JobEnd] = field(default_factory=queue.SimpleQueue)

    def __enter__(self) -> ThreadedJobs:
        self._building = ThreadPoolExecutor(self.builders, "tilewright-build")
        self._running = ThreadPoolExecutor(self.runners, "tilewright-run")
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for pool in (self._building, self._running):
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in (self._building, self._running):
            pool.shutdown(wait=kind is None)

    def build(self, job: BuildJob, seconds: float | None) -> None:
        end = None if seconds is None else time.monotonic() + seconds

        def work() -> None:
            begin = time.monotonic()
            left = None if end is None else max(0.0, end - begin)
            (built,) = self.builder.build([(job.workload, job.config)], left)
            self._ends.put(JobEnd(job.number, built, seconds=time.monotonic() - begin))

        self._building.submit(_told, work, job.number, self._ends)

    def run(self, job: RunJob, seconds: float | None) -> None:
        end = None if seconds is None else time.monotonic() + seconds

        def work() -> None:
            begin, found = time.monotonic(), list[Measurement]()
            kernel = job.built.kernel
            assert kernel is not None, "what is run was built"
            left = None if end is None else max(0.0, end - begin)
            if isinstance(self.runner, RunnerOfMany):
                launches = [KernelAt(kernel, job.built.code, dims, threads) for dims, threads in job.places]
                found = self.runner.run_all(job.workload, launches, left)
            else:
                for dims, threads in job.places:
                    left = None if end is None else max(0.0, end - time.monotonic())
                    found.append(self.runner.run(job.workload, kernel, job.built.code, dict(dims), threads, left))
            self._ends.put(JobEnd(job.number, None, job.places, tuple(found), time.monotonic() - begin))

        self._running.submit(_told, work, job.number, self._ends)

    def done(self, seconds: float | None) -> list[JobEnd]:
        found: list[JobEnd] = []
        try:
            found.append(self._ends.get(timeout=seconds))
            while True:
                found.append(self._ends.get_nowait())
        except queue.Empty:
            return found


def _told(work: object, number: int, ends: queue.SimpleQueue[JobEnd]) -> None:
    """An end is told whatever happens: a Builder or Runner that raises has lost the candidate, not the search."""
    assert callable(work)
    try:
        work()
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        ends.put(JobEnd(number, BuildResult(None, error=reason, late=True)))
        raise
