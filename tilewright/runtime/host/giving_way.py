"""Work that gives way to others: between two slices it rests, then waits until they leave half of the machine's cores alone.

Two cores that Linux lists are often the two threads of one; with less than half of them at work, a slice slows no call that runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

PATIENCE = 10.0  # rests until a slice is begun whatever others do
_LOOK, _LONGER = 0.0005, 1.25  # seconds until the second look, and how much longer it is to each further one
_BYTES = 128  # of /proc/loadavg, at most


def give_way(seconds: float, wait: Callable[[float], object] = time.sleep) -> float:
    """Rest so many seconds and, where others are at work then, up to PATIENCE times as long; returns seconds. wait: rests so
    long; where it returns true, the rest is over."""
    over, rested, look = wait(seconds), seconds, _LOOK
    most, longest = free_cores(), seconds * (1 + PATIENCE)
    while not over and rested < longest and running_tasks() > most:  # this one is among them
        over = wait(look)
        rested, look = rested + look, look * _LONGER
    return rested


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
