"""Work that gives way to others: between two slices it rests, then waits until they leave half of the machine's cores alone.

Two cores that Linux lists are often the two threads of one; with less than half of them at work, a slice slows no call that runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

PATIENCE = 10.0  # rests until a slice is begun whatever others do
_LOOK, _LONGER = 0.0005, 1.25  # seconds until the second look, and how much longer it is to each further one
_SPAN = 0.5  # seconds at least, over which the work of others is told
_BYTES = 128  # of /proc/loadavg, at most


def give_way(seconds: float, wait: Callable[[float], object] = time.sleep, times: float = 1.0) -> float:
    """Rest so many seconds, `times` as often, and, where others are at work then, until PATIENCE times as often; returns seconds.
    wait: rests so long; where it returns true, the rest is over."""
    rested, look = seconds * times, _LOOK
    over = wait(rested)
    most, longest = free_cores(), seconds * (1 + PATIENCE)
    while not over and rested < longest and running_tasks() > most:  # this one is among them
        over = wait(look)
        rested, look = rested + look, look * _LONGER
    return rested


class Others:
    """How much others are at work. used: processor seconds of those that are no others."""

    def __init__(self, used: Callable[[], float]) -> None:
        self._used, self._before = used, (time.monotonic(), busy_seconds(), used())
        self.cores = float("inf")  # until it is known

    def look(self) -> None:
        """Take the cores that they kept at work on average since the last look that told it."""
        now = (time.monotonic(), busy_seconds(), self._used())
        span, busy, own = (after - before for after, before in zip(now, self._before, strict=True))
        if span >= _SPAN:
            self.cores, self._before = max(0.0, busy - own) / span, now


def busy_seconds() -> float:
    """Processor seconds of the machine in all, without those in which it waited; infinite where that is not told, so that
    differences are no number."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:8])
    except (OSError, ValueError):
        return float("inf")
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def free_cores() -> int:
    """Cores that others leave alone where work that gives way may go on."""
    return max(1, (os.cpu_count() or 1) // 2)


def running_tasks() -> int:
    """Threads of the machine that run or wait for a core just now; 0 where that is not told."""
    try:
        descriptor = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(descriptor, _BYTES).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return 0
    finally:
        os.close(descriptor)
