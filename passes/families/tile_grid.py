"""TileGrid: which tile of a contraction's result a block computes, and which part of k."""

from __future__ import annotations

from dataclasses import dataclass

from passes.families.stage_ring import Steps
from passes.gpu_kernel import GpuKernel, Grid
from passes.gpu_space import CollapsedLoops
from passes.index import Index
from runtime.shape import Expr


@dataclass(frozen=True)
class Tile:
    """Numbers of the batch, of the first row and of the first column."""

    batch: Index
    row: Index
    column: Index


@dataclass(frozen=True)
class TileGrid:
    """Tiles of bm rows by bn columns of every batch; bands of `group_m` rows of tiles are walked column by column, so that the
    operands of neighbouring blocks stay in the cache."""

    kernel: GpuKernel
    rows: CollapsedLoops
    columns: CollapsedLoops
    batch: CollapsedLoops
    bm: int
    bn: int
    group_m: int

    @property
    def tiles(self) -> Expr:
        """How many there are, over all batches."""
        return self.rows.size.ceildiv(self.bm) * self.columns.size.ceildiv(self.bn) * self.batch.size

    def blocks(self, split_k: int = 1) -> Grid:
        """A block per tile and part of k."""
        self.kernel.bound(self.tiles)
        return self.tiles, Expr.of(split_k), Expr.of(1)

    def place(self, number: Index) -> Tile:
        """The tile of a number from 0 on."""
        ev = self.kernel.evaluator
        down, across = ev.emit(self.rows.size.ceildiv(self.bm)), ev.emit(self.columns.size.ceildiv(self.bn))
        batch, tile = Index(0), number
        if self.batch.loops:
            batch, tile = number // (down * across), number % (down * across)
        if self.group_m == 1:
            return Tile(batch, tile // across * self.bm, tile % across * self.bn)
        band = tile // (across * self.group_m)
        first = band * self.group_m
        height = (down - first).min(self.group_m)
        inside = tile - band * (across * self.group_m)
        return Tile(batch, (first + inside % height) * self.bm, inside // height * self.bn)


def part_of(kernel: GpuKernel, depth: CollapsedLoops, step: int, parts: int) -> tuple[Steps, Index]:
    """The steps of part number block_id("y"), and where it ends along k."""
    extent = depth.extent
    if parts == 1:
        return Steps(Index(0), extent.ceildiv(step), step, Index(0)), extent
    part = extent.ceildiv(step * parts) * step
    begin = kernel.block_id("y") * part
    end = (begin + part).min(extent)
    return Steps(Index(0), (end - begin).max(0).ceildiv(step), step, begin), end
