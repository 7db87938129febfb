"""Cover: the smallest set of kernels within a regret of the best at every point, then the best set of that size.

Two integer programs (HiGHS): a set cover for the count, a weighted p-median for the members. Both are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.runtime.errors import OptionError
from tilewright.runtime.wording import option_name
from tilewright.search.space.array_types import Floats

_EXCESS = 10.0  # price of regret beyond what is allowed, where max_kernels leaves no other choice


@dataclass(frozen=True)
class Cover:
    """kernels: rows of the matrix, ascending. mean, worst: regret over the points with the best of them at each."""

    kernels: tuple[int, ...]
    mean: float
    worst: float


def cover(times: Floats, weights: Floats, max_regret: float, max_kernels: int | None = None) -> Cover:
    """Choose rows of `times`.

    Args:
        times: [kernel, point] seconds; inf where a kernel is not legal. Every point has a kernel.
        weights: of the points. max_regret: allowed fraction above the best kernel of a point. max_kernels: most rows;
            where it does not allow max_regret everywhere, the excess is kept small.
    Raises:
        OptionError: no max_kernels rows serve every point.
    """
    best = times.min(axis=0)
    if not np.all(np.isfinite(best)):
        raise OptionError("a shape has no legal kernel")
    regret = times / best - 1
    kept = _undominated(regret)
    near = regret[kept] <= max_regret + 1e-12
    needed = _fewest(near)
    count = needed if max_kernels is None else min(needed, max_kernels)
    price = np.where(np.isfinite(regret[kept]), regret[kept], 0.0)
    allowed = np.isfinite(regret[kept]) if count < needed else near
    price = price + _EXCESS * np.maximum(price - max_regret, 0)
    chosen = _median(price * weights, allowed, count)
    rows = tuple(sorted(int(kept[i]) for i in chosen))
    left = regret[list(rows)].min(axis=0)
    return Cover(rows, float(left @ weights / weights.sum()), float(left.max()))


def _undominated(regret: Floats) -> np.ndarray:
    """Rows that no other row beats or equals everywhere; of equal rows the first."""
    keep = []
    for i, row in enumerate(regret):
        worse = np.all(regret <= row, axis=1)
        worse[i] = False
        strictly = np.any(regret < row, axis=1)
        if not np.any(worse & (strictly | (np.arange(len(regret)) < i))):
            keep.append(i)
    return np.array(keep)


def _fewest(near: np.ndarray) -> int:
    """Fewest rows that between them are near at every point."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    columns = np.unique(near, axis=1)
    found = milp(np.ones(len(near)), constraints=LinearConstraint(columns.T.astype(float), lb=1), integrality=np.ones(len(near)),
                 bounds=Bounds(0, 1))
    assert found.x is not None, found.message
    return round(float(found.fun))


def _median(price: Floats, allowed: np.ndarray, count: int) -> list[int]:
    """Rows, at most `count`, with the least total price when each point takes its cheapest allowed row.

    Variables: x of each row (integer), y of each allowed (row, point); y <= x, each point's y sum to 1.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    rows, points = np.nonzero(allowed)
    n, m = len(price), len(rows)
    ahead = np.arange(m)
    ones, place = np.ones(m), np.concatenate([n + ahead, rows])
    use = coo_array((np.concatenate([ones, -ones]), (np.concatenate([ahead, ahead]), place)), shape=(m, n + m))
    once = coo_array((ones, (points, n + ahead)), shape=(price.shape[1], n + m))
    size = coo_array((np.ones(n), (np.zeros(n, int), np.arange(n))), shape=(1, n + m))
    cost = np.concatenate([np.full(n, 1e-9), price[rows, points]])
    rules = [LinearConstraint(use.tocsr(), ub=0), LinearConstraint(once.tocsr(), lb=1, ub=1),
             LinearConstraint(size.tocsr(), ub=count)]
    found = milp(cost, integrality=np.concatenate([np.ones(n), np.zeros(m)]), bounds=Bounds(0, 1), constraints=rules)
    if found.x is None:
        raise OptionError(f"no {count} kernels serve every shape; raise " + option_name("max_kernels"))
    return [i for i in range(n) if found.x[i] > 0.5]
