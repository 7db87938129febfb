"""How much of the machine other processes took while something was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

IDLE, IO_WAIT, GUEST = 3, 4, 8  # columns of /proc/stat that are not work, or counted twice
MOST = 0.15  # cores that others may use before a measurement counts as disturbed


@dataclass(frozen=True)
class Snapshot:
    """Seconds: the clock, the work of all cores with what a hypervisor withheld, and that of some processes."""

    clock: float
    all: float
    own: float


def snapshot(processes: Iterable[int]) -> Snapshot:
    """The counters now; `own` are these processes and this one. They advance in steps of a hundredth of a second."""
    tick = os.sysconf("SC_CLK_TCK")
    columns = [int(c) for c in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    work = sum(c for i, c in enumerate(columns[:GUEST]) if i not in (IDLE, IO_WAIT))
    return Snapshot(time.monotonic(), work / tick, sum(_worked(p) for p in {os.getpid(), *processes}) / tick)


def others(before: Snapshot, after: Snapshot) -> float:
    """Cores that all other processes used on average between two snapshots."""
    return max(0.0, (after.all - before.all - after.own + before.own) / max(after.clock - before.clock, 1e-9))


def _worked(process: int) -> int:
    """Ticks of a process and its threads; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0
    return int(fields[11]) + int(fields[12])
