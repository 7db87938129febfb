"""CpuShare: work that keeps to a share of the machine: after each piece it rests until what it used is no more than that.

Whoever runs it in slices (slices.py) cuts pieces shorter.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.host.giving_way import give_way
from tilewright.runtime.host.host_cpu import affinity
from tilewright.runtime.host.whole_timing import WHOLE, Whole
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.protocols import Builder, BuildResult, Measurement, Runner
from tilewright.search.runner.host_worker import REST
from tilewright.search.runner.runner_process import ProcessRunner

LOWEST = 19  # niceness
_TICK = 0.05  # seconds of a rest, at most, between two looks at the time
_SAVED = 1.0  # seconds of a share that may be used later
_MOST_REST = 20.0  # seconds between slices, for each second of work
_PIECE = 0.004  # seconds that are timed at once, about


@dataclass
class CpuShare:
    """share: of the time of all cores, in (0, 1]. used: processor seconds of this process and what it started. clock, sleep: as
    of `time`. cores: that the process may use when this is made. whole: what is timed is done within it."""

    share: float
    used: Callable[[], float] = field(default_factory=lambda: process_seconds)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    cores: int = field(default_factory=affinity)
    whole: Whole = field(default_factory=lambda: Whole(None))

    def __post_init__(self) -> None:
        self._begin, self._before = self.clock(), self.used()
        self.rested = 0.0

    @property
    def rest_for_each(self) -> float:
        """Seconds between slices for each second of work on one core. What a small share asks for beyond comes after a piece, so
        that a build and a measurement are within their limits of time."""
        return min(_MOST_REST, max(0.0, 1 / (self.share * self.cores) - 1))

    def runner(self, weights: str) -> ProcessRunner:
        """Of a process that gives way between two batches, and times each of them whole. weights: where it finds them."""
        lock = () if self.whole.descriptor is None else (self.whole.descriptor,)
        asked = (weights, f"{REST}{self.rest_for_each}", *(f"{WHOLE}{d}" for d in lock))
        return ProcessRunner(arguments=asked, slower=1 + self.rest_for_each, inherited=lock)

    def rest(self, until: float | None = None) -> None:
        """Wait until the work so far is within the share, or, by `clock`, until then. Of time in which it did not work, as while
        the machine slept, a second at most is made up for."""
        begin = self.clock()
        earliest = self._begin + (self.used() - self._before) / (self.share * self.cores)
        self._begin += max(0.0, begin - earliest - _SAVED)
        end = earliest if until is None else min(earliest, until)
        while self.share < 1 and (left := end - self.clock()) > 0:
            self.sleep(min(left, _TICK))
        self.rested += self.clock() - begin

    def before_timing(self) -> None:
        """Rest, then until others leave half of the cores alone, as between slices."""
        self.rest()
        if self.rest_for_each:
            self.rested += give_way(_PIECE * self.rest_for_each, self.sleep)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """What is done within is timed: it comes after a rest and is not cut into slices."""
        self.before_timing()
        with self.whole.whole():
            yield


@dataclass
class SharedBuilder:
    """A Builder that builds one kernel at a time and rests between two."""

    builder: Builder
    cpu: CpuShare

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        end = None if seconds is None else self.cpu.clock() + seconds
        found: list[BuildResult] = []
        for candidate in candidates:
            left = None if end is None else max(0.0, end - self.cpu.clock())
            found += self.builder.build([candidate], left)
            self.cpu.rest(end)
        return found


@dataclass
class SharedRunner:
    """A Runner that rests after each measurement."""

    runner: Runner
    cpu: CpuShare

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        end = None if seconds is None else self.cpu.clock() + seconds
        found = self.runner.run(workload, kernel, code, dims, threads, seconds)
        self.cpu.rest(end)
        return found


def yield_to_others() -> None:
    """Let every other process of the machine come first, from now on; processes that this one starts too."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # gives way at once, not at the end of its slice


def interrupt_nobody() -> None:
    """From now on this process waits for a core that nobody needs when it wakes up, but takes one at once from work of the lowest
    priority (SCHED_BATCH against SCHED_IDLE): whoever stops such work is in time, and takes nothing from others."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_to_cores(count: int) -> None:
    """So many of the last cores that the process may use are all that it uses from now on, and processes that it starts: what
    others run on the rest finds its caches as it left them."""
    allowed = sorted(os.sched_getaffinity(0))
    if count < len(allowed):
        os.sched_setaffinity(0, allowed[-count:])


def process_seconds() -> float:
    """Processor seconds of this process, its threads, the processes it started that run, and those that ended."""
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system + sum(map(_seconds, started_by(os.getpid())))


def started_by(process: int) -> list[int]:
    """Processes that it started, and those that they started."""
    found: list[int] = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError, ValueError):
            for child in map(int, listed.read_text().split()):
                found += [child, *started_by(child)]
    return found


def _seconds(process: int) -> float:
    """Its own and those of what it started and waited for."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
