"""Timing of short native calls: batches long enough for the clock, repeated until the median is steady."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """How to time: seconds of warm-up, seconds of a batch at least, batches at least and at most, relative error wanted."""

    warmup: float = 0.002
    batch: float = 0.001
    fewest: int = 5
    most: int = 40
    error: float = 0.02


def time_call(call: Callable[[], object], timing: Timing = Timing()) -> list[float]:
    """Seconds per call, one figure a batch, until the interquartile range of the median is within the wanted error."""
    start = time.perf_counter()
    count = 0
    while count < 1 or time.perf_counter() - start < timing.warmup:
        call()
        count += 1
    each = (time.perf_counter() - start) / count
    repeat = max(1, round(timing.batch / max(each, 1e-9)))
    times: list[float] = []
    while len(times) < timing.most:
        begin = time.perf_counter()
        for _ in range(repeat):
            call()
        times.append((time.perf_counter() - begin) / repeat)
        if len(times) >= timing.fewest and spread(times) <= timing.error:
            break
    return times


def spread(times: list[float]) -> float:
    """Half the interquartile range over the median, shrunk by the square root of the count."""
    low, middle, high = statistics.quantiles(times, n=4)
    return float((high - low) / 2 / middle / len(times) ** 0.5)
