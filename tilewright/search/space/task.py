"""Task: one operator to tune over a range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.passes.spaces.in_order import default_of
from tilewright.passes.spaces.threads import one_thread_when_small, small_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits, Limits
from tilewright.runtime.program.dispatch import Node
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.shapes import Dims, Points, ShapeDemand, evaluation_points, held_out

Untuned = tuple[tuple[TileConfig, ...], Node]  # configurations and the tree that dispatches among them


@dataclass(frozen=True)
class Task:
    """points: shapes of the local dims that count, with weights; held_out: those that only the certificate may measure.

    configs: the space to search, when it is not the whole of the families'. ordered: only kernels whose sums have one order for
    every number of rows (passes/spaces/in_order.py). incumbent: what runs now, where that is not what the rules of the family
    say: a kernel takes its place only where it is measurably faster.
    """

    workload: Workload
    limits: Limits
    families: tuple[str, ...]
    points: Points
    held_out: tuple[Dims, ...] = ()
    configs: tuple[TileConfig, ...] = ()
    ordered: bool = False
    incumbent: Untuned | None = None

    def lattice(self) -> Lattice:
        """The space, with the default configurations in it, so that tuning does not make it slower."""
        if self.configs:
            return Lattice(self.workload, self.limits, self.configs)
        return Lattice.of(self.workload, self.limits, self.families, self.defaults(), self.ordered)

    def untuned(self, small: int | None = None) -> Untuned:
        """What runs untuned: configurations of the preferred family, and the tree that dispatches among them.

        small: effort up to which one thread runs it (passes/spaces/threads.py); None: the machine's own.
        """
        if self.incumbent is not None:
            return self.incumbent
        configs, root = self._preferred
        if not isinstance(self.limits, HostLimits):
            return configs, root
        return configs, one_thread_when_small(root, self.workload, small_of(self.limits) if small is None else small)

    def defaults(self) -> list[TileConfig]:
        """What each family runs untuned, and what runs now."""
        return [*(self.incumbent[0] if self.incumbent else ()), *(c for f in self.families for c in self._default(f)[0])]

    @cached_property
    def _preferred(self) -> tuple[tuple[TileConfig, ...], Node]:
        """What the preferred family runs untuned: searches ask at every measurement."""
        return self._default(self.families[0])

    def _default(self, family: str) -> tuple[tuple[TileConfig, ...], Node]:
        return default_of(family, self.workload, self.limits, self.ordered)

    @staticmethod
    def of(workload: Workload, limits: Limits, families: Sequence[str], demand: ShapeDemand, seed: int = 0,
           held: int = 16) -> Task:
        """A task over what a model asks of the workload.

        Args:
            held: most held-out shapes; fewer, down to none, where the range is small.
        """
        ranges, uses, traffic = demand.ranges, demand.uses, demand.traffic
        if demand.local:
            points = Points.of(demand.local, measured_weights=True)
            apart = dict.fromkeys(tuple(shape.items()) for shape in demand.held)
            return Task(workload, limits, tuple(families), points, tuple(s for s in apart if s not in points.shapes)[:held])
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
