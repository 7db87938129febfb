"""Work units of convolutions out of pools that are strips of whole rows of pixels of images of known extents."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from tilewright.passes.codegen.emit import loop, when
from tilewright.passes.codegen.host_kernel import Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_pools_products import PoolsEmitter
from tilewright.passes.families.host.host_pools_window import window_loops
from tilewright.passes.spaces.host.pool_plane import PlaneShape


@dataclass(frozen=True)
class PlaneLoops:
    """Row and pixel of the result, and the window's loops along them."""

    row: int
    pixel: int
    down: int
    across: int
    shape: PlaneShape

    @staticmethod
    def of(plan: Plan) -> PlaneLoops:
        """ValueError where rows are no pixels, in rows of known number and length, that windows pass over."""
        view, where, found = plan.view, f"{plan.view.op.name} at {plan.view.op.location}", window_loops(plan)
        row, pixel = plan.rows[-2:]
        sizes = [view.extents[d].constant for d in (row, pixel, found[row][0], found[pixel][0])]
        if any(e is None for e in sizes):
            raise ValueError(f"{where}: wanted a window and an image of known extents")
        height, width, down, across = (e or 0 for e in sizes)
        shape = PlaneShape(height, width, (down, across), (found[row][1], found[pixel][1]))
        return PlaneLoops(row, pixel, found[row][0], found[pixel][0], shape)


@dataclass(frozen=True)
class StripEmitter(PoolsEmitter):
    """Of units of `config.mc` rows of pixels."""

    @property
    def _loops(self) -> PlaneLoops:
        return PlaneLoops.of(self.plan)

    def units(self, begin: Index, end: Index) -> Grid:
        ev, plan, index = self.kernel.evaluator, self.plan, self.kernel.index
        count, at, wide = ev.emit(plan.view.extents[plan.column]), self.kernel.loops[0].numbers(ev), self._loops.shape.width

        def unit(u: Index) -> None:
            here = at(u)
            (low, _), first = here.span("rows"), here.first("columns")
            self._unit(low // wide, first, count)

        when(begin.lt(end), self._fill)
        loop(begin, end, 1, unit, index=index)
        return self._grid

    @abstractmethod
    def _fill(self) -> None:
        """What all units of a call read of the pool."""

    @abstractmethod
    def _unit(self, low: Index, first: Index, count: Index) -> None:
        """The strip of rows of pixels from `low` on, by the columns from `first` on."""
