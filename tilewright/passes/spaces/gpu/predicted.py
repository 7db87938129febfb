"""Default configurations by predicted time: which of some candidates runs for how many rows. MLIR-free.

Where the other extents of a contraction are known, arithmetic alone (`gpu_grid.py`, on the cost descriptions that a search begins
with too) gives the time of every candidate at every number of rows. A few of them come close to the best of all everywhere; each
runs for the rows that it is best for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, TypeVar

import numpy as np

from tilewright.passes.spaces.gpu.default_tree import decided
from tilewright.passes.spaces.gpu.gpu_grid import Occupancy, block_row, grid_of
from tilewright.passes.spaces.gpu.gpu_rates import Floats, GpuRates
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Node
from tilewright.runtime.shape import Expr

Config = TypeVar("Config", bound=TileConfig)
_LINEAR, _GEOMETRIC = 256, 64  # numbers of rows that are looked at: every grain of the fewest, then ever fewer of more
_LEAST = 1e-4  # of the time: what an exchange saves at least
_WAVES = 12  # of tiles of 128 x 256: behind them the number of waves matters little


@dataclass(frozen=True)
class Wanted:
    """kernels: different ones at most. gain: share of the time that one more must save on average. near: how much longer than
    the best a configuration may take at a number of rows before another takes its place. grain: all tiles have a multiple of so
    many rows."""

    kernels: int
    gain: float
    near: float
    grain: int = 64


@dataclass(frozen=True)
class Intervals(Generic[Config]):
    """The configuration up to each of ascending numbers of rows, and that behind them."""

    bounds: tuple[tuple[int, Config], ...]
    last: Config

    @property
    def configs(self) -> tuple[Config, ...]:
        """All, in the order of their rows; one may be there twice."""
        return (*(config for _, config in self.bounds), self.last)

    def tree(self, rows: Expr, leaf: Callable[[Config], Node]) -> Node:
        """The tree over numbers of rows with `leaf` of each."""
        return decided(rows, [(bound, leaf(config)) for bound, config in self.bounds], leaf(self.last))


def by_rows(candidates: Sequence[Config], workload: Workload, limits: GpuLimits, costs: ModuleType,
            wanted: Wanted) -> Intervals[Config] | None:
    """Of candidates of one family, whose cost descriptions are in the module `costs`; None where another extent than rows is not
    known. Numbers of rows count by their logarithm."""
    known = {name: extent.constant for name, extent in costs.extents(workload).items() if name != "rows"}
    others = {name: n for name, n in known.items() if n is not None}
    if len(others) < len(known) or 0 in others.values() or not candidates:
        return None
    points = _points(limits, others["columns"] * others["batch"], wanted.grain)
    cycles = predicted(candidates, workload, limits, costs, {**others, "rows": points})
    lost = np.log(cycles / cycles.min(axis=0))
    chosen = _chosen(lost, np.diff(np.log(points), prepend=np.log(points[0] / 2)), wanted)
    near, current = np.log(1 + wanted.near), chosen[int(lost[chosen, 0].argmin())]
    bounds = list[tuple[int, Config]]()
    for i in range(len(points)):
        best = chosen[int(lost[chosen, i].argmin())]
        if lost[current, i] > lost[best, i] + near:
            bounds.append((int(points[i - 1]), candidates[current]))
            current = best
    return Intervals(tuple(bounds), candidates[current])


def predicted(candidates: Sequence[TileConfig], workload: Workload, limits: GpuLimits, costs: ModuleType,
              extents: Mapping[str, int | Floats]) -> Floats:
    """[candidate, number of rows]: cycles of their launches, which find their operands in memory."""
    made = [costs.kernel_cost(c, workload, limits) for c in candidates]
    rows = [block_row(cost.block, limits) for cost in made]
    columns = {name: np.array([row[name] for row in rows])[:, None] for name in rows[0]}
    units = np.ones(1)
    for name, extent in extents.items():
        size = np.array([cost.units[name] for cost in made], np.float64)[:, None]
        units = units * np.where(size > 0, np.ceil(extent / np.maximum(size, 1.0)), 1.0)
    grid = grid_of(columns, units, np.asarray(extents["depth"], np.float64), _bytes(workload, extents), limits)
    return np.exp(grid.log_cycles(Occupancy(GpuRates.of(limits).launch)))


def _points(limits: GpuLimits, columns: int, grain: int) -> Floats:
    largest = max(2 * _LINEAR * grain, _WAVES * limits.multiprocessors * 128 * 256 // columns)
    behind = np.geomspace(_LINEAR * grain, largest, _GEOMETRIC)[1:]
    return np.concatenate([np.arange(1, _LINEAR + 1) * grain, np.unique(behind // grain) * grain]).astype(np.float64)


def _chosen(lost: Floats, weights: Floats, wanted: Wanted) -> list[int]:
    """Numbers of few candidates that together lose little: each the one that saves most beside those before it, then exchanged as
    long as that saves more."""
    weights = weights / weights.sum()

    def beside(others: list[int]) -> tuple[float, int]:
        """What is lost with the best further one, and its number."""
        left = lost[others].min(axis=0, initial=np.inf)
        totals = np.minimum(lost, left) @ weights
        return float(totals.min()), int(totals.argmin())

    found, loses = list[int](), np.inf
    while len(found) < wanted.kernels:
        total, best = beside(found)
        if loses - total < wanted.gain:
            break
        loses = total
        found.append(best)
        exchanged = True
        while exchanged:
            exchanged = False
            for place in range(len(found)):
                total, best = beside(found[:place] + found[place + 1 :])
                if total < loses - _LEAST:
                    found[place], loses, exchanged = best, total, True
    return found


def _bytes(workload: Workload, extents: Mapping[str, int | Floats]) -> Floats:
    """Distinct bytes of both factors and of the result."""
    b, m, n, k = (np.asarray(extents[name], np.float64) for name in ("batch", "rows", "columns", "depth"))
    size = max((f.dtype.bytes for f in workload.factors), default=4)
    return np.asarray(b * ((m + n) * k * size + m * n * workload.outputs[0].dtype.bytes))
