"""Task: one operator to tune over a range; Budget and TuneOptions: how long and how."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from passes.spaces.in_order import default_of
from passes.spaces.threads import SMALL, one_thread_when_small
from passes.tile_config import TileConfig
from passes.workload import Workload
from runtime.dispatch import Node
from runtime.limits import HostLimits, Limits
from runtime.shape import Expr, ShapeRange
from search.space.lattice import Lattice
from search.space.shapes import Dims, Points, Traffic, evaluation_points, held_out

Untuned = tuple[tuple[TileConfig, ...], Node]  # configurations and the tree that dispatches among them


@dataclass(frozen=True)
class Budget:
    """What a search may spend; None: no limit of that kind. Both None: until nothing is left to gain.

    The measurements of the certificate stay within `seconds`; they come on top of `trials`.
    """

    seconds: float | None = None
    trials: int | None = None

    def share(self, seconds: float, trials: int) -> float:
        """What has been spent, 1 when the budget is used up."""
        shares = [0.0]
        if self.seconds is not None:
            shares.append(seconds / self.seconds if self.seconds > 0 else 1.0)
        if self.trials is not None:
            shares.append(trials / self.trials if self.trials > 0 else 1.0)
        return max(shares)


@dataclass(frozen=True)
class TuneOptions:
    """How to search.

    Args:
        max_regret, max_kernels: of the cover (search/search_strategy/cover.py).
        threads: most threads of a call; 1 and this many are tried.
        seed: of everything random.
        batch: new kernels a round. first: random ones before the model is asked. shapes_each: shapes a new one is measured at.
        cells: measurements a round of kernels that lead. points: shapes that are looked at in a round.
        verify, certify: shares of the budget that are kept to measure the chosen kernels where they are chosen, and for the
            certificate. rivals: kernels timed against the dispatched one.
        enough: gain, as a share of the weighted time, below which a kind of measurement is not worth taking.
    """

    max_regret: float = 0.05
    max_kernels: int | None = None
    threads: int = 1
    seed: int = 0
    batch: int = 8
    first: int = 4
    shapes_each: int = 3
    cells: int = 16
    points: int = 40
    verify: float = 0.3
    certify: float = 0.15
    rivals: int = 3
    enough: float = 0.0005

    @property
    def thread_choices(self) -> tuple[int, ...]:
        return (1,) if self.threads == 1 else (1, self.threads)


@dataclass(frozen=True)
class Task:
    """points: shapes of the local dims that count, with weights; held_out: those that only the certificate may measure.

    configs: the space to search, when it is not the whole of the families'. ordered: only kernels whose sums have one order for
    every number of rows (passes/spaces/in_order.py).
    """

    workload: Workload
    limits: Limits
    families: tuple[str, ...]
    points: Points
    held_out: tuple[Dims, ...] = ()
    configs: tuple[TileConfig, ...] = ()
    ordered: bool = False

    def lattice(self) -> Lattice:
        """The space: what runs untuned is in it, so that tuning does not make it slower."""
        if self.configs:
            return Lattice(self.workload, self.limits, self.configs)
        return Lattice.of(self.workload, self.limits, self.families, self.defaults(), self.ordered)

    def untuned(self, small: int = SMALL) -> Untuned:
        """What runs untuned: configurations of the preferred family, and the tree that dispatches among them.

        small: effort up to which one thread runs it (passes/spaces/threads.py).
        """
        configs, root = self._default(self.families[0])
        return configs, one_thread_when_small(root, self.workload, small) if isinstance(self.limits, HostLimits) else root

    def defaults(self) -> list[TileConfig]:
        """What each family runs untuned."""
        return [c for f in self.families for c in self._default(f)[0]]

    def _default(self, family: str) -> tuple[tuple[TileConfig, ...], Node]:
        return default_of(family, self.workload, self.limits, self.ordered)

    @staticmethod
    def of(workload: Workload, limits: Limits, families: Sequence[str], ranges: ShapeRange,
           uses: Sequence[Mapping[str, Expr]], traffic: Traffic = (), seed: int = 0, held: int = 16) -> Task:
        """A task over the range of a model's dims.

        Args:
            uses: for each call of the workload, each local dim over the model's dims. held: most held-out shapes; fewer, down
                to none, where the range is small.
        """
        points = evaluation_points(ranges, uses, traffic)
        size = math.prod(d.hi // d.multiple_of - -(-d.lo // d.multiple_of) + 1 for _, d in ranges.dims)
        taken = points.shapes if traffic or size > 4 * len(points) else _ends(points)
        aside = held_out(ranges, uses, taken, min(held, size // 8), seed)
        return Task(workload, limits, tuple(families), points, tuple(aside))


def _ends(points: Points) -> tuple[Dims, ...]:
    """Least and largest value of each dim: extrapolating beyond what was measured is no test."""
    found = set()
    for axis in range(len(points.shapes[0])):
        ordered = sorted(points.shapes, key=lambda s: s[axis][1])
        found |= {ordered[0], ordered[-1]}
    return tuple(found)
