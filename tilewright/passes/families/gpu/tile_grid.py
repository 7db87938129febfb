"""TileGrid: which tile of a contraction's result a block computes, and which part of k."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_space import CollapsedLoops
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.codegen.units import Units
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.gpu.stage_ring import Steps
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class GridTile:
    """Numbers of the batch, of the first row and of the first column."""

    batch: Index
    row: Index
    column: Index


@dataclass(frozen=True)
class TileGrid:
    """The units of a contraction, tiles of the result of every batch; bands of `group_m` rows of tiles are walked column by
    column, so that the operands of neighbouring blocks stay in the cache."""

    kernel: GpuKernel
    group_m: int

    @property
    def units(self) -> Units:
        return self.kernel.loops[0]

    @property
    def tiles(self) -> Expr:
        """How many there are, over all batches."""
        return self.units.total

    def blocks(self, split_k: int = 1) -> Grid:
        """A block per tile and part of k."""
        self.kernel.bound(self.tiles)
        return self.tiles, Expr.of(split_k), Expr.of(1)

    def place(self, number: Index) -> GridTile:
        """The tile of a number from 0 on."""
        down, across = (self.kernel.evaluator.emit(count) for count in self.units.counts[-2:])
        batch, tile = list[Index](), number
        if len(self.units.counts) > 2:
            batch, tile = [number // (down * across)], number % (down * across)
        if self.group_m == 1:
            return self._at(*batch, tile // across, tile % across)
        band = tile // (across * self.group_m)
        first = band * self.group_m
        height = (down - first).min(self.group_m)
        inside = tile - band * (across * self.group_m)
        return self._at(*batch, first + inside % height, inside // height)

    def _at(self, *place: Index) -> GridTile:
        unit = self.units.at(self.kernel.evaluator, place)
        return GridTile(unit.first("batch"), unit.first("rows"), unit.first("columns"))


def tile_contraction(plan: SimtPlan, bm: int, bn: int, tiler: Tiler) -> None:
    """Units of bm rows by bn columns of one batch."""
    rows, columns, batch = (plan.size(loops) for loops in (plan.rows, plan.columns, plan.view.batch))

    def parts(place: list[Index]) -> dict[str, Part]:
        return {"batch": Part(place[0]), "rows": tiler.span(place[-2], bm, rows), "columns": tiler.span(place[-1], bn, columns)}

    counts = [*([batch] if plan.view.batch else []), rows.ceildiv(bm), columns.ceildiv(bn)]
    tiler.loop(counts, parts, plan.view.cut({"batch": plan.view.batch, "rows": plan.rows, "columns": plan.columns}))


def part_of(kernel: GpuKernel, depth: CollapsedLoops, step: int, parts: int, number: Index | None = None) -> tuple[Steps, Index]:
    """The steps of a part of k, number block_id("y") where none is said, and where it ends along k."""
    extent = depth.extent
    if parts == 1:
        return Steps(Index(0), extent.ceildiv(step), step, Index(0)), extent
    part = extent.ceildiv(step * parts) * step
    begin = (kernel.block_id("y") if number is None else number) * part
    end = (begin + part).min(extent)
    return Steps(Index(0), (end - begin).max(0).ceildiv(step), step, begin), end
