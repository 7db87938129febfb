"""Fits the occupancy terms of GPU kernels: per kernel from the few grid sizes it was measured at, and per device.

The terms are those of Occupancy. A kernel's are tied to the device's, so that two measurements move them little; a device's are
fitted to all kernels at once, which is all that has to move when a log goes to another GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from search.cost_model.feature_space import FeatureSpace, Pairs
from search.cost_model.gpu_form import Grid, Occupancy
from search.cost_model.model import CostModel
from search.database.records import TuningRecord, cells
from search.space.array_types import Floats, Ints
from search.space.lattice import Lattice
from search.space.shapes import Dims

_LAUNCHES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the launch that was expected
_TAILS = (0.0, 0.25, 0.5, 0.75, 1.0)
_NOISE = 0.03  # deviation of the logarithm that is left unexplained
_LAUNCH_TIE, _TAIL_TIE = 1.5, 0.75  # deviations of a kernel's terms from the device's: of the logarithm, and absolute
_DEVICE_TIE = 3.0  # times as far that a device's may lie from what was expected of it
_GRIDS = 2  # different numbers of blocks that a kernel must have been measured at


def kernel_shifts(space: FeatureSpace, measured: Pairs, beyond: Floats, targets: Pairs) -> tuple[Floats, Floats] | None:
    """What each kernel's own terms add to the logarithm of its time, at measured pairs and at targets; None on the host.

    beyond: logarithm of measured over predicted times.
    """
    form = space.lattice.form
    if form is None:
        return None
    at, to = np.zeros(len(measured)), np.zeros(len(targets))
    grid, wanted = space.grid(measured), space.grid(targets)
    before, before_there = form.log_cycles(grid), form.log_cycles(wanted)
    for config in np.unique(measured.configs):
        m, t = measured.configs == config, targets.configs == config
        if len(np.unique(grid.blocks[m])) < _GRIDS:
            continue
        here = _only(grid, m)
        found = _best([(form.log_cycles(here, o) - before[m], _tie(o, form.occupancy, 1.0), o) for o in _choices(form.occupancy)],
                      beyond[m], _NOISE)
        at[m] = form.log_cycles(here, found) - before[m]
        to[t] = form.log_cycles(_only(wanted, t), found) - before_there[t]
    return at, to


def refit_device(lattice: Lattice, records: Sequence[TuningRecord], prior: CostModel) -> None:
    """Set the device's terms by which what was learned elsewhere tells best what was measured here.

    prior: learned on other devices. The kernels' rates, its own, stay as they are.
    """
    form = lattice.form
    shapes: dict[Dims, int] = {}
    rows = [(n, shapes.setdefault(c.shape, len(shapes)), c.seconds) for c in cells(records)
            if (n := lattice.number(c.config)) is not None and {k for k, _ in c.shape} == set(lattice.workload.dims)]
    if form is None or len(rows) < _GRIDS:
        return
    numbers, places, seconds = zip(*rows, strict=True)
    pairs = Pairs(np.array(numbers, np.int64), np.array(places, np.int64), np.ones(len(rows), np.int64))
    space = FeatureSpace(lattice, tuple(tuple((n, dict(s)[n]) for n in lattice.workload.dims) for s in shapes))
    expected = Occupancy(form.rates.launch)
    form.occupancy = expected
    grid = space.grid(pairs)
    before = form.log_cycles(grid)
    beyond = np.log(seconds) - prior.predict(space, pairs)[0]
    scale = float(np.clip(np.median(np.abs(beyond - np.median(beyond))) / 2, _NOISE, 0.3))
    found = _best([(form.log_cycles(grid, o) - before, _tie(o, expected, _DEVICE_TIE), o) for o in _choices(expected)], beyond,
                  scale)
    left = beyond - (form.log_cycles(grid, found) - before)
    form.occupancy = replace(found, slower=float(np.median(left)))


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


def _only(grid: Grid, which: Ints | np.ndarray) -> Grid:
    return Grid(*(getattr(grid, name)[which] for name in grid.__dataclass_fields__))
