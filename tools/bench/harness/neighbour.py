"""Measuring beside a neighbour: a process that streams through memory on another core, or a cache that is half cold.

    hog     a process on the first core, which systems on fewer threads than cores leave free, adds to every cache line of a
            buffer of several times the last cache, from end to end; beside as many threads as cores it shares theirs
    cold    every system reads half the last cache between calls, which is not counted
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tools.bench.harness.quiet import Snapshot, snapshot

NEIGHBOURS = ("hog", "cold")
_TIMES = 4  # of the last cache, that the hog streams through
_DEFAULT = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def last_cache(folder: Path = _CACHES) -> int:
    """Bytes of the last-level cache of a core; 32 MiB where the machine does not say."""
    sizes = [p.read_text().strip() for p in sorted(folder.glob("index*/size"))]
    return max((int(s[:-1]) * _UNITS[s[-1]] if s[-1] in _UNITS else int(s) for s in sizes if s), default=_DEFAULT)


def touching_half_the_cache() -> Callable[[], object]:
    """A function that reads half the last cache, a memory of its own."""
    buffer = np.ones(last_cache() // 2 // 8, np.float64)
    return lambda: buffer.sum()


@contextmanager
def neighbour(kind: str) -> Iterator[list[int]]:
    """Runs the hog while the block runs, if it is that kind; the ids of its processes."""
    if kind != "hog":
        yield []
        return
    with subprocess.Popen([sys.executable, "-m", "tools.bench.harness.neighbour"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            yield [process.pid]
        finally:
            process.kill()


def snapshot_with(own: Iterable[int], processes: Iterable[int]) -> Snapshot:
    """The counters, the neighbour's work counted as our own."""
    return snapshot([*own, *processes])


def main() -> None:
    """The hog: one line when it has its memory, then work without end."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    buffer = np.zeros((last_cache() * _TIMES // 64, 8), np.float64)
    print("ready", flush=True)
    while True:
        buffer[:, 0] += 1.0


if __name__ == "__main__":
    main()
