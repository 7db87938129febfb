"""Calls that take turns in one process, and the ratios of their times."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SECONDS = 0.02  # of a turn, at least


@dataclass(frozen=True)
class Turns:
    """times: of each system a figure for each round, seconds of a call."""

    times: Mapping[str, Sequence[float]]

    @property
    def seconds(self) -> dict[str, float]:
        """Of each system the median over the rounds."""
        return {name: statistics.median(own) for name, own in self.times.items()}

    def ratios(self, ours: str) -> dict[str, float]:
        """Of every other system its time over that of `ours`, the median over the rounds."""
        return {name: statistics.median(t / o for t, o in zip(own, self.times[ours], strict=True))
                for name, own in self.times.items() if name != ours}


def rounds_of(calls: Mapping[str, Callable[[], Any]], rounds: int) -> Turns:
    """Each round all systems take turns; a turn is as many calls as take 20 ms."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, math.ceil(_SECONDS / (time.perf_counter() - start)))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return Turns(times)
