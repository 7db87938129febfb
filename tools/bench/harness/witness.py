"""A witness of what no counter of this machine shows: whether the core has its caches for itself.

On a shared host another machine's work on the same core or cache slows programs down by what they read from it, some by a third
where others lose nothing, for seconds or minutes. Two cores of a guest may also be the two threads of one core of its host for a
while: each then runs at half its speed, though the guest's clock says that both worked all the time. Each turn of a system begins
and ends with reads of a buffer that fills most of the second cache, on as many threads at once as the system has; their time over
the least of the run says how much was left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np

SLOW = 1.25  # time of the reads over the least of the run from which a measurement counts as disturbed
_SHARE = 0.75  # of the second cache
_DEFAULT = 512 << 10
_READS = 8
_MANY = 250  # some milliseconds
_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")


def second_cache(path: Path = _SIZE) -> int:
    """Bytes of the second cache of a core; 512 KiB where the machine does not say."""
    try:
        return int(path.read_text().strip().removesuffix("K")) << 10
    except (OSError, ValueError):
        return _DEFAULT


def reader(threads: int = 1) -> Callable[[], float]:
    """A function that reads a buffer and gives the seconds of the fastest of some reads; of threads that read one each at once,
    the median of the slowest."""
    buffers = [np.ones(int(second_cache() * _SHARE) // 4, np.float32) for _ in range(threads)]

    def seconds(buffer: np.ndarray) -> float:
        start = time.perf_counter()
        np.maximum.reduce(buffer)
        return time.perf_counter() - start

    def beside_others(buffer: np.ndarray) -> float:
        return median(seconds(buffer) for _ in range(_MANY))

    if threads == 1:
        return lambda: min(seconds(buffers[0]) for _ in range(_READS))
    pool = ThreadPoolExecutor(threads)
    return lambda: max(pool.map(beside_others, buffers))


class Witness:
    """The least time of each system's reads in a run."""

    def __init__(self) -> None:
        self._least: dict[str, float] = {}

    def slowdown(self, reads: Mapping[str, Sequence[float]]) -> float:
        """The largest median of a system's reads over its least so far, these counted; 1 without reads."""
        found = [1.0]
        for system, seconds in reads.items():
            if seconds:
                self._least[system] = min(self._least.get(system, seconds[0]), *seconds)
                found.append(median(seconds) / self._least[system])
        return max(found)
