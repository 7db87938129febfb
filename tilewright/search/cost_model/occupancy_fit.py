"""Fits the occupancy terms of GPU kernels: per kernel from the few grid sizes it was measured at, and per device.

A kernel's terms are tied to the device's, so that two measurements move them little; a device's are fitted to all kernels at
once, which is all that has to move when a log goes to another GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from tilewright.passes.spaces.gpu.gpu_grid import GpuGrid, Occupancy
from tilewright.search.space.array_types import Floats

_LAUNCHES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the launch that was expected
_TAILS = (0.0, 0.25, 0.5, 0.75, 1.0)
_NOISE = 0.03  # deviation of the logarithm that is left unexplained
_LAUNCH_TIE, _TAIL_TIE = 1.5, 0.75  # deviations of a kernel's terms from the device's: of the logarithm, and absolute
_DEVICE_TIE = 3.0  # times as far that a device's may lie from what was expected of it
_GRIDS = 2  # different numbers of blocks that a kernel must have been measured at


def kernel_terms(grid: GpuGrid, beyond: Floats, device: Occupancy) -> Occupancy:
    """One kernel's own terms; the device's where it was measured at too few numbers of blocks to tell.

    beyond: logarithm of measured over predicted times, of each of its pairs.
    """
    if len(np.unique(grid.blocks)) < _GRIDS:
        return device
    before = grid.log_cycles(device)
    return _best([(grid.log_cycles(o) - before, _tie(o, device, 1.0), o) for o in _choices(device)], beyond, _NOISE)


def device_terms(grid: GpuGrid, beyond: Floats, expected: Occupancy) -> Occupancy:
    """A device's terms from the pairs of all kernels. The kernels' rates stay as they are.

    beyond: logarithm of measured times over those predicted by `expected`.
    """
    before = grid.log_cycles(expected)
    scale = float(np.clip(np.median(np.abs(beyond - np.median(beyond))) / 2, _NOISE, 0.3))
    found = _best([(grid.log_cycles(o) - before, _tie(o, expected, _DEVICE_TIE), o) for o in _choices(expected)], beyond, scale)
    left = beyond - (grid.log_cycles(found) - before)
    return replace(found, slower=float(np.median(left)))


def _choices(around: Occupancy) -> list[Occupancy]:
    return [replace(around, launch=around.launch * f, tail=t) for f, t in product(_LAUNCHES, sorted({*_TAILS, around.tail}))]


def _tie(found: Occupancy, around: Occupancy, reach: float) -> float:
    """What it costs that the terms lie away from those around."""
    launch = np.log(found.launch / around.launch) / _LAUNCH_TIE
    return float((launch**2 + ((found.tail - around.tail) / _TAIL_TIE) ** 2) / reach**2)


def _best(choices: Sequence[tuple[Floats, float, Occupancy]], beyond: Floats, noise: float) -> Occupancy:
    """The terms that leave least beyond one constant, and lie least away."""
    costs = [float(((beyond - shift - np.mean(beyond - shift)) ** 2).sum() / noise**2) + tie for shift, tie, _ in choices]
    return choices[int(np.argmin(costs))][2]
