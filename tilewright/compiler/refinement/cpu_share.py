"""CpuShare: work that keeps to a share of the machine: after each piece it rests until what it used is no more than that.

Pieces are cut into slices of milliseconds, with rests between them that last until others leave half of the cores alone. While
work of the lowest priority runs on a core, Linux takes that core for busy and leaves a process that waits for another core where
it is (no new-idle balance); a core that rests takes it over at once. So what others wait for is a slice at most.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.host.giving_way import give_way
from tilewright.runtime.host.host_cpu import affinity
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.protocols import Builder, BuildResult, Measurement, Runner

LOWEST = 19  # niceness
_TICK = 0.05  # seconds of a rest, at most, between two looks at the time
_SAVED = 1.0  # seconds of a share that may be used later
_MOST_REST = 20.0  # seconds between slices, for each second of work
_LOOK = 0.2  # seconds between two looks at which processes there are
_SLICE = 0.002  # seconds of work between two rests, of processes that this one started
_OWN_SLICE = 0.004  # of this one: a tick of Linux


@dataclass
class CpuShare:
    """share: of the time of all cores, in (0, 1]. used: processor seconds of this process and what it started. clock, sleep: as
    of `time`. cores: that the process may use when this is made."""

    share: float
    used: Callable[[], float] = field(default_factory=lambda: process_seconds)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    cores: int = field(default_factory=affinity)

    def __post_init__(self) -> None:
        self._begin, self._before = self.clock(), self.used()
        self.rested, self._whole = 0.0, 0
        self._waits, self._alone = threading.Event(), threading.Event()  # for others, or not: one of them is set
        self._stopping, self._ended = threading.Lock(), False

    @property
    def rest_for_each(self) -> float:
        """Seconds between slices for each second of work on one core. What a small share asks for beyond comes after a piece, so
        that a build and a measurement are within their limits of time."""
        return min(_MOST_REST, max(0.0, 1 / (self.share * self.cores) - 1))

    @contextlib.contextmanager
    def sliced(self) -> Iterator[None]:
        """This process rests after each few milliseconds of processor time, where it is in Python, and so do those that it starts
        while it waits in `children_sliced`. Does nothing but in the main thread, which alone takes signals.

        Whoever stops the others has to come before them: what makes this process come last (yield_to_others) is called within."""
        if not self.rest_for_each or os.name != "posix" or threading.current_thread() is not threading.main_thread():
            yield
            return

        def pause(number: int, frame: object) -> None:
            if not self._whole:
                with self.whole():  # what it takes to wait is processor time too
                    self.rested += give_way(_OWN_SLICE * self.rest_for_each, self.sleep)

        thread = threading.Thread(target=self._slice, name="tilewright-share", daemon=True)
        before = signal.signal(signal.SIGPROF, pause)
        signal.siginterrupt(signal.SIGPROF, False)
        thread.start()
        signal.setitimer(signal.ITIMER_PROF, _OWN_SLICE, _OWN_SLICE)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)
            self._ended = True
            self._waits.set()
            thread.join()
            self._ended = False
            self._waits.clear()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Meanwhile there are no slices: what is done is timed."""
        self._whole += 1
        try:
            yield
        finally:
            self._whole -= 1

    @contextlib.contextmanager
    def children_sliced(self) -> Iterator[None]:
        """Within `sliced`: processes that this one started are stopped and go on again, a few milliseconds each."""
        self._alone.clear()
        self._waits.set()
        try:
            yield
        finally:
            self._waits.clear()
            self._alone.set()
            with self._stopping:  # what is stopped goes on
                pass

    def _slice(self) -> None:
        """Of a thread of its own: slices of other processes."""
        started, looked = list[int](), -_LOOK
        while self._waits.wait() and not self._ended:
            self._alone.wait(_SLICE)
            if time.monotonic() - looked >= _LOOK:
                started, looked = started_by(os.getpid()), time.monotonic()
            with self._stopping:
                if self._alone.is_set():
                    continue
                try:
                    _send(started, signal.SIGSTOP)
                    give_way(_SLICE * self.rest_for_each, self._alone.wait)
                finally:
                    _send(started, signal.SIGCONT)

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
        """Rest, then until others leave half of the cores alone, as a slice does."""
        self.rest()
        if self.rest_for_each:
            self.rested += give_way(_OWN_SLICE * self.rest_for_each, self.sleep)


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
            with self.cpu.children_sliced():
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


def _send(processes: Sequence[int], what: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, what)


def _seconds(process: int) -> float:
    """Its own and those of what it started and waited for."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
