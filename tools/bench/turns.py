"""Calls that take turns in one process, and the ratios of their times."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SECONDS = 0.02  # of a turn, at least
_LONG = 0.2  # seconds of a first call that tells by itself that one call is a turn


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

    def error(self, ours: str, other: str) -> float:
        """Deviation of such a median, as far as its rounds tell."""
        each = [t / o for t, o in zip(self.times[other], self.times[ours], strict=True)]
        if len(each) < 3:
            return math.inf
        low, _, high = statistics.quantiles(each, n=4)
        return 0.93 * (high - low) / math.sqrt(len(each))


def rounds_of(calls: Mapping[str, Callable[[], Any]], rounds: int) -> Turns:
    """Each round all systems take turns, in an order of its own, so that none always finds in the caches what the same other one
    left; a turn is as many calls as take 20 ms."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeats = {}
    for name, call in calls.items():
        taken = _seconds(call)
        if taken < _LONG:
            taken = _seconds(call)
        repeats[name] = max(1, math.ceil(_SECONDS / taken))
    order, names = random.Random(0), list(calls)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            start = time.perf_counter()
            for _ in range(repeats[name]):
                calls[name]()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return Turns(times)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
