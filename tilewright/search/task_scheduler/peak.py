"""Peak: what a device can do at most, the scale of all throughputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.passes.spaces.gpu.gpu_rates import GpuRates
from tilewright.runtime.limits import GpuLimits

_REACHED = 0.8


@dataclass(frozen=True)
class Peak:
    """flops: f32 operations a second. bytes: a second, of data in the nearest large cache."""

    flops: float
    bytes: float

    def seconds(self, flops: float, bytes_: float) -> float:
        """Least time for so much arithmetic and traffic."""
        return max(flops / self.flops, bytes_ / self.bytes, 1e-12)


def gpu_peak(limits: GpuLimits) -> Peak:
    """Of a GPU, by published figures: its tensor cores on 16-bit elements, and its second cache."""
    rates = GpuRates.of(limits)
    cycles = rates.clock * limits.multiprocessors
    return Peak(2 * rates.matrix * cycles, rates.l2 * cycles)


def measure_peak(threads: int = 1, clock: Callable[[], float] = time.perf_counter, seconds: float = 0.15) -> Peak:
    """Of the host: a large product of matrices and a copy within the cache, the best of several runs, times the threads.

    An upper bound is all that is needed: kernels have been seen to reach 1.06 to 1.18 times the rate of the library's product,
    so it is taken for less of the peak than that. The library may itself use several threads.
    """
    a = np.ones((512, 512), np.float32)
    out = np.empty_like(a)
    source, target = np.ones(1 << 17, np.float32), np.empty(1 << 17, np.float32)
    product = _best(lambda: np.matmul(a, a, out=out), clock, seconds / 2)
    copy = _best(lambda: np.copyto(target, source), clock, seconds / 2)
    return Peak(2 * 512.0**3 / product / _REACHED * threads, 2.0 * source.nbytes / copy * threads)


def _best(call: Callable[[], object], clock: Callable[[], float], seconds: float) -> float:
    end = clock() + seconds
    least = float("inf")
    while True:
        begin = clock()
        call()
        now = clock()
        least = min(least, now - begin)
        if now >= end:
            return least
