"""GemvBlock: what a block of threads does whose weights go once from memory into registers, of any form.

Families say what the weights are (`weights`) and how a thread multiplies by them (`product`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.passes.codegen.emit import lanes_of, loop, vector_type, when_values
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_space import Point
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.families.gpu.cluster_sum import ClusterSum
from tilewright.passes.families.gpu.gemv_product import LaneProduct
from tilewright.passes.families.gpu.gpu_operand import OperandReader, Side
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.gpu.simt_store import Result, SplitSum
from tilewright.passes.families.gpu.tile_grid import GridTile, TileGrid, part_of
from tilewright.passes.mlir import ir, vector
from tilewright.passes.spaces.gpu.gemv import ALONG_K, ALONG_N, GemvConfig
from tilewright.runtime.limits import WARP


class Weights(Protocol):
    """run: columns that lie side by side in what `load` gives; each: values that it gives of a column."""

    @property
    def run(self) -> int: ...

    @property
    def each(self) -> int: ...

    def load(self, first: Sequence[Index], k: Index, end: Index | None) -> list[ir.Value]: ...


class Factor:
    """One factor as a thread reads it: runs of places along its outer loops, `positions` of k of each."""

    each = 1

    def __init__(self, reader: OperandReader, positions: int) -> None:
        reader.rely_on(reader.vec)
        self.reader, self.positions = reader, positions
        self.run = 1 if reader.along_k else reader.vec

    def load(self, first: Sequence[Index], k: Index, end: Index | None, count: int | None = None) -> list[ir.Value]:
        """So many positions, or all of a piece, from k on of every place of the runs that begin at `first`, a vector each; runs
        behind the last one are read as that. end: positions from there on are zero; None where none is."""
        reader, count = self.reader, self.positions if count is None else count
        last = reader.outer.extent - self.run
        starts = [at.min(last) for at in first]

        def read(at: Index, i: int) -> ir.Value:
            return reader.read(at, k + i, True if end is None else (k + i).lt(end))

        if reader.along_k:
            return [joined_values([read(at, i) for i in range(0, count, reader.vec)]) for at in starts]
        found = []
        for at in starts:
            rows = [read(at, i) for i in range(count)]
            found += [joined_values([_lane(row, j) for row in rows]) for j in range(self.run)]
        return found


@dataclass(frozen=True)
class _RowsAt:
    """Rows at a piece of k, of which some positions are asked for: loaded now, or all of them before."""

    rows: Factor
    at: Sequence[Index]
    place: Index
    end: Index | None
    loaded: Sequence[ir.Value] = ()

    def __call__(self, first: int, count: int) -> list[ir.Value]:
        return list(self.loaded) or self.rows.load(self.at, self.place + first, self.end, count)


class GemvBlock(ABC):
    """positions: of k, of a thread in a piece. late: are rows loaded where they are multiplied, piece by piece of what the
    product takes at once, though weights may be loaded ahead?"""

    positions: int
    product: LaneProduct
    late = False

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, config: GemvConfig, split: SplitSum | None) -> None:
        self.kernel, self.plan, self.config, self.split = kernel, plan, config, split
        self.rows, self.columns, self.depth, self.batch = plan.groups(kernel)
        self.code = ProductCode(plan.view.product)
        thread = kernel.thread()
        warp, self.lane = thread // WARP, thread % WARP
        self.warp, self.first_row = warp % config.warps, warp // config.warps * config.rows_each

    @abstractmethod
    def weights(self, batch: Point) -> Weights:
        """Where a batch's are, once for the block: all threads call it."""

    def emit(self) -> Grid:
        c, kernel = self.config, self.kernel
        grid = TileGrid(kernel, 1)
        kernel.bound(self.depth.size)
        cluster = ClusterSum(kernel, self.code, c.cluster_k)
        tile = grid.place(cluster.tile)
        batch = self.batch.point(tile.batch)
        weights = self.weights(batch)
        run = weights.run
        sums = self._sums(weights, self.factor(self.plan.row_side, batch, 1), tile, cluster.rank)
        box = kernel.shared(self.code.product.accumulator, [c.warps, c.rows, c.bn + 1])
        for row, across, number, value in self.product.places(sums, self.lane):
            place = number // run * (run * ALONG_N) + across * run + number % run
            box.store(value, [self.warp, self.first_row + row, place])
        kernel.barrier()
        result = Result(kernel, self.plan, batch, self.rows, self.columns)

        def place_of(number: Index) -> list[Index]:
            return [Index(0), number // c.bn, number % c.bn]

        def use(at: Sequence[Index], total: ir.Value) -> None:
            row, column = tile.row + at[1], tile.column + at[2]
            if self.split is not None:
                self.split.keep(tile.batch, row, column, total)
            else:
                result.store(row, column, total)

        def joined(number: Index) -> None:
            at = place_of(number)
            total = box.load(at)
            for other in range(1, c.warps):
                total = self.code.add(total, box.load([Index(other), *at[1:]]))
            if c.cluster_k > 1:
                box.store(total, at)
            else:
                use(at, total)

        loop(kernel.thread(), c.rows * c.bn, kernel.threads, joined, index=kernel.index)
        if c.cluster_k > 1:
            cluster.over(box, c.rows * c.bn, place_of, use)
        return cluster.grid(grid.blocks(c.split_k))

    def factor(self, side: int, batch: Point, extent: int) -> Factor:
        """A factor that is read from memory as it is multiplied."""
        outer = self.rows if side == self.plan.row_side else self.columns
        placed = Side(self.plan.view, side, outer, self.depth, extent, batch)
        return Factor(OperandReader(self.kernel, placed, self.config.vec, self.positions), self.positions)

    def _sums(self, weights: Weights, rows: Factor, tile: GridTile, rank: Index | None) -> list[ir.Value]:
        """Of this thread, over its part of k."""
        c, kernel, lane = self.config, self.kernel, self.lane
        piece = ALONG_K * self.positions
        around = piece * c.warps
        deep = around * c.unroll
        part, end = part_of(kernel, self.depth, around, c.parts, rank)
        mine = part.origin + self.warp * piece + lane % ALONG_K * self.positions
        columns = [tile.column + (lane // ALONG_K + ALONG_N * j) * weights.run for j in range(c.columns // weights.run)]
        at = [tile.row + self.first_row + row for row in self.product.rows_of(lane // ALONG_K)]

        def multiply(k: Index, end: Index | None, sums: Sequence[ir.Value]) -> list[ir.Value]:
            found, pieces = list(sums), [k + u * around for u in range(c.unroll)]
            for place, loaded in [(p, weights.load(columns, p, end)) for p in pieces]:
                found = self.product.add(loaded, _RowsAt(rows, at, place, end), found)
            return found

        whole = (end - part.origin).max(0) // deep
        size = self.depth.size.constant
        even = size is not None and size > 0 and size % (deep * c.parts) == 0
        sums = self.product.zeros()
        if c.ahead:
            def steps() -> list[ir.Value]:
                return self._ahead(weights, rows, columns, at, whole, lambda step: mine + step * deep)

            sums = steps() if even else when_values(Index(0).lt(whole), sums, steps)
        else:
            sums = loop(0, whole, 1, lambda step, *s: multiply(mine + step * deep, None, s), sums, kernel.index)
        if even:
            return sums
        rest = whole * deep
        return when_values((part.origin + rest).lt(end), sums, lambda: multiply(mine + rest, end, sums))

    def _ahead(self, weights: Weights, rows: Factor, columns: Sequence[Index], at: Sequence[Index], steps: Index,
               place: Callable[[Index], Index]) -> list[ir.Value]:
        """Sums over one step or more, of whole pieces: what a step multiplies was loaded while the one before multiplied.

        place: of a step's first position.
        """
        c = self.config
        around = ALONG_K * self.positions * c.warps
        wide = c.columns * weights.each  # values of weights in a piece
        each = wide + (0 if self.late else len(at))

        def pieces(step: Index) -> list[Index]:
            return [place(step) + u * around for u in range(c.unroll)]

        def load(step: Index) -> list[ir.Value]:
            return [value for p in pieces(step)
                    for value in (*weights.load(columns, p, None), *([] if self.late else rows.load(at, p, None)))]

        def multiply(step: Index, loaded: Sequence[ir.Value], sums: Sequence[ir.Value]) -> list[ir.Value]:
            found = list(sums)
            for u, p in enumerate(pieces(step) if self.late else [step] * c.unroll):
                here = loaded[u * each : (u + 1) * each]
                given = _RowsAt(rows, at, p, None, () if self.late else here[wide:])
                found = self.product.add(here[:wide], given, found)
            return found

        zeros = self.product.zeros()

        def body(step: Index, *carried: ir.Value) -> list[ir.Value]:
            following = load(step)
            return [*multiply(step - 1, carried[len(zeros) :], carried[: len(zeros)]), *following]

        last = loop(1, steps, 1, body, [*zeros, *load(Index(0))], self.kernel.index)
        return multiply(steps - 1, last[len(zeros) :], last[: len(zeros)])


def joined_values(parts: Sequence[ir.Value]) -> ir.Value:
    """Scalars and vectors as one vector."""
    if len(parts) == 1:
        return parts[0]
    elements = [_lane(part, i) for part in parts for i in range(lanes_of(part))]
    return vector.from_elements(vector_type(elements[0].type, len(elements)), elements)


def _lane(value: ir.Value, number: int) -> ir.Value:
    return vector.extract(value, [], [number]) if lanes_of(value) > 1 else value
