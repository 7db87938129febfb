"""TimeLeft: until when a search may go on. A part of it that would not be over by then is not begun."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeLeft:
    """A deadline, which builds and measurements are told, and what the parts that cannot be cut short took last.

    Args:
        clock: seconds. costs: part -> seconds; searches that share them know what a part takes before their first.
    """

    def __init__(self, clock: Callable[[], float], costs: dict[str, float] | None = None) -> None:
        self.clock, self.end = clock, math.inf
        self.costs: dict[str, float] = {} if costs is None else costs

    @property
    def seconds(self) -> float:
        """Until the deadline; infinite where there is none, 0 after it."""
        return max(0.0, self.end - self.clock())

    @property
    def limit(self) -> float | None:
        """`seconds` as builders and runners take it: None where there is no deadline."""
        return None if math.isinf(self.end) else self.seconds

    def affords(self, *parts: str) -> bool:
        """Is there time for these parts, by what they took last?"""
        return self.seconds > sum(self.costs.get(part, 0.0) for part in parts)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Do a part, and keep what it took."""
        begin = self.clock()
        try:
            yield
        finally:
            self.costs[name] = self.clock() - begin

    @contextmanager
    def until(self, end: float) -> Iterator[None]:
        """With this deadline, where it is the earlier one."""
        kept = self.end
        self.end = min(kept, end)
        try:
            yield
        finally:
            self.end = kept


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that never jump: the time of day when it is made, and what has gone by since."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()
