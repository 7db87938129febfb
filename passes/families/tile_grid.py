"""TileGrid: which tile of a contraction's result a block computes, and which part of k."""

from __future__ import annotations

from dataclasses import dataclass

from passes.families.simt_plan import SimtPlan
from passes.gpu_kernel import GpuKernel, Grid
from passes.gpu_space import Space
from passes.index import Index
from passes.tiler import Part, Tiler
from passes.units import Units
from runtime.shape import Expr


@dataclass(frozen=True)
class Tile:
    """Numbers of the batch, of the first row and of the first column."""

    batch: Index
    row: Index
    column: Index


@dataclass(frozen=True)
class TileGrid:
    """The units of a contraction, tiles of the result of every batch; bands of `group` rows of tiles are walked column by column,
    so that the operands of neighbouring blocks stay in the cache."""

    kernel: GpuKernel
    group: int

    @property
    def units(self) -> Units:
        return self.kernel.loops[0]

    @property
    def tiles(self) -> Expr:
        """How many there are, over all batches."""
        return self.units.total

    def blocks(self, split: int = 1) -> Grid:
        """A block per tile and part of k."""
        self.kernel.bound(self.tiles)
        return self.tiles, Expr.of(split), Expr.of(1)

    def place(self, number: Index) -> Tile:
        """The tile of a number from 0 on."""
        down, across = (self.kernel.evaluator.emit(count) for count in self.units.counts[-2:])
        batch, tile = list[Index](), number
        if len(self.units.counts) > 2:
            batch, tile = [number // (down * across)], number % (down * across)
        if self.group == 1:
            return self._at(*batch, tile // across, tile % across)
        band = tile // (across * self.group)
        first = band * self.group
        height = (down - first).min(self.group)
        inside = tile - band * (across * self.group)
        return self._at(*batch, first + inside % height, inside // height)

    def _at(self, *place: Index) -> Tile:
        unit = self.units.at(self.kernel.evaluator, place)
        return Tile(unit.first("batch"), unit.first("rows"), unit.first("columns"))


def tile_contraction(plan: SimtPlan, bm: int, bn: int, tiler: Tiler) -> None:
    """Units of bm rows by bn columns of one batch."""
    rows, columns, batch = (plan.size(loops) for loops in (plan.rows, plan.columns, plan.view.batch))

    def parts(place: list[Index]) -> dict[str, Part]:
        return {"batch": Part(place[0]), "rows": tiler.span(place[-2], bm, rows), "columns": tiler.span(place[-1], bn, columns)}

    counts = [*([batch] if plan.view.batch else []), rows.ceildiv(bm), columns.ceildiv(bn)]
    tiler.loop(counts, parts, plan.view.cut({"batch": plan.view.batch, "rows": plan.rows, "columns": plan.columns}))


def part_of(kernel: GpuKernel, depth: Space, step: int, parts: int) -> tuple[Index, Index, Index]:
    """First and last position of k, and the number of steps, of part number block_id("y")."""
    extent = depth.extent
    if parts == 1:
        return Index(0), extent, extent.ceildiv(step)
    part = extent.ceildiv(step * parts) * step
    begin = kernel.block_id("y") * part
    end = (begin + part).min(extent)
    return begin, end, (end - begin).max(0).ceildiv(step)
