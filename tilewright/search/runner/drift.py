"""Drift: is a runner as fast as when it joined? A reference kernel of its own is timed now and then."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SIZE, _REPEAT = 160, 4  # of a product of squares, some 0.2 ms each
_FEWEST, _TIMES = 0.05, 3.0  # a drift is more than this share, and than so many times the noise


def reference_seconds(count: int = 7) -> list[float]:
    """The reference kernel, timed so often in this process: a product of two squares of f32."""
    x = np.full((_SIZE, _SIZE), 0.5, np.float32)
    out = np.empty_like(x)
    np.matmul(x, x, out=out)
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        for _ in range(_REPEAT):
            np.matmul(x, x, out=out)
        found.append((time.perf_counter() - begin) / _REPEAT)
    return found


@dataclass(frozen=True)
class Reference:
    """seconds: the median at first; noise: its relative spread then."""

    seconds: float
    noise: float

    @staticmethod
    def of(times: Sequence[float]) -> Reference:
        low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
        return Reference(middle, (high - low) / middle)

    def drift(self, times: Sequence[float]) -> float:
        """By how much a later median lies beside the first one, as a share; 0 where that is within the runner's own noise."""
        share = abs(statistics.median(times) / self.seconds - 1)
        return share if share > max(_FEWEST, _TIMES * self.noise) else 0.0
