"""Curves of tuning: best-so-far throughput over trials, as a piecewise log-power function (DynaTune, ICLR'21, section 4.3)."""

from __future__ import annotations

import numpy as np

from tilewright.search.space.array_types import Floats

JUMP = 0.2
# Bounds of a, b, c and of the logarithm of the deviation; a is a share of the peak of the device.
LOW = np.array([1e-6, -3.0, -4.0, np.log(1e-5)])
HIGH = np.array([1.0, 8.0, -0.05, 0.0])
START = (2.98, -0.51)  # b, c of the public code
MOST = 0.95  # observations are held below 1, so that a curve can lie above them


def log_power(x: Floats, parameters: Floats, floor: float = 0.0) -> Floats:
    """floor + (a - floor) / (1 + (x / e^b)^c), c < 0: rises from `floor` at 0 and saturates at a.

    The paper's curve begins at 0; a segment begins at a throughput that is known.

    Args:
        x: [point], at least 0. parameters: [curve, 3 or more]: a, b, c.
    Returns:
        [curve, point].
    """
    a, b, c = (parameters[:, i, None] for i in range(3))
    logarithms = np.log(np.maximum(x, 1e-12))[None, :]
    return np.asarray(floor + (a - floor) / (1.0 + np.exp(np.clip(c * (logarithms - b), -60.0, 60.0))))


def segment_start(y: Floats, jump: float = JUMP) -> int:
    """Where the last segment begins: the last point that is more than `jump` above the one before, or 0."""
    jumps = np.flatnonzero(y[1:] > (1.0 + jump) * y[:-1])
    return int(jumps[-1]) + 1 if len(jumps) else 0


def thinned(x: Floats, y: Floats, most: int) -> tuple[Floats, Floats]:
    """At most about `most` points: the ends, every rise, others spread evenly."""
    if len(x) <= most:
        return x, y
    rises = np.flatnonzero(np.diff(y) > 0) + 1
    even = np.round(np.linspace(0, len(x) - 1, most)).astype(int)
    keep = np.union1d(even, rises[-most:])
    return x[keep], y[keep]


def least_squares(x: Floats, y: Floats, floor: float = 0.0) -> Floats:
    """a, b, c and the logarithm of the deviation that fit best."""
    from scipy.optimize import least_squares as solve

    low, high = np.array([min(floor, 0.99), *LOW[1:3]]), HIGH[:3]
    start = np.clip([1.1 * y.max(), *START], low + 1e-6, high - 1e-6)
    found = solve(lambda p: log_power(x, p[None, :], floor)[0] - y, start, bounds=(low, high), max_nfev=40)
    deviation = max(float(np.sqrt(np.mean(found.fun**2))), 1e-3 * float(y[-1]))
    return np.asarray(np.clip(np.append(found.x, np.log(deviation)), LOW + 1e-6, HIGH - 1e-6))
