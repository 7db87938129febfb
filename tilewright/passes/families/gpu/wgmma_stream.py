"""StreamedSums: tiles of `wgmma` of which several blocks have a part, and the launch that adds the parts up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.passes.codegen.emit import byte_width, loop
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.gpu.simt_store import Result, in_runs
from tilewright.passes.families.gpu.stream_of_steps import Piece, StreamOfSteps, begun, continued
from tilewright.passes.families.gpu.tile_grid import TileGrid
from tilewright.passes.mlir import arith, ir
from tilewright.passes.spaces.gpu.wgmma import PAIRS, ROWS, SUMMING, WgmmaConfig
from tilewright.runtime.limits import WARP
from tilewright.runtime.shape import Expr

_AT_ONCE = 4  # parts whose sums are loaded before the first of them is added


class StreamedSums:
    """Before the first launch. The workspace holds two tiles of sums for each block of every worker, which is a cluster: of the
    tile that it goes on with and of the one that it does not end."""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, config: WgmmaConfig) -> None:
        self.kernel, self.plan, self.config = kernel, plan, config
        self.workers = config.blocks // config.cluster
        self.element = plan.view.product.accumulator
        self._sizes = (2 * config.blocks, config.bm, config.bn)
        kernel.use_workspace(Expr.of(2 * config.blocks * config.bm * config.bn * byte_width(self.element)))

    def steps(self, grid: TileGrid, each: Index) -> StreamOfSteps:
        """Inside a launch. each: steps of a tile."""
        return StreamOfSteps(self.kernel.evaluator.emit(grid.tiles), each, self.workers)

    def keep(self, piece: Piece, rank: Index, at: tuple[Index, Index], sums: Sequence[Callable[[int, int], ir.Value]]) -> None:
        """Leaves the sums of a warpgroup in the piece's slot. rank: of the block in its cluster. at: the warpgroup and the thread
        in it. sums: as those of SharedParts.store."""
        assert piece.slot is not None
        c, (group, member), memory = self.config, at, self._memory()
        lane, slot = member % WARP, piece.slot * c.cluster + rank
        first = group * c.rows + member // WARP * 16 + lane // 4
        for q, pair in enumerate(sums):
            for half in range(2):
                row = memory.window([slot, first + (q * ROWS + 8 * half), (lane % 4 * 2).known_multiple(2)])
                for column in range(0, c.bn, PAIRS):
                    row.store(pair(column, half), [Index(0), Index(0), Index.ramp(column, 2)])

    def finish(self, depth: int) -> Grid:
        """The second launch: a block for so many results of a tile, of which it has a multiple, at each border between workers.
        depth: of a step."""
        c, kernel = self.config, self.kernel
        grid = TileGrid(kernel, c.group_m)
        rows, columns, k, batch = self.plan.groups(kernel)
        stream = self.steps(grid, k.extent.ceildiv(depth))
        width, columns = in_runs(columns, min(c.vec, 4))
        block = kernel.block_id()
        worker, rank = block // c.cluster + 1, block % c.cluster
        at = (kernel.block_id("y") * SUMMING + kernel.thread()) * width
        row, column = at // c.bn, (at % c.bn).known_multiple(width)

        def add(number: Index, last: Index) -> None:
            tile = grid.place(number)
            total = self._total((worker, last, rank), [row, Index.ramp(column, width)])
            result = Result(kernel, self.plan, batch.point(tile.batch), rows, columns)
            below, beside = rank // c.cluster_n * c.bm, rank % c.cluster_n * c.bn
            result.store(tile.row + below + row, tile.column + beside + column, total)

        stream.cut(worker, add)
        borders = (grid.tiles % self.workers).minimum(1) * ((self.workers - 1) * c.cluster)
        return borders, Expr.of(c.bm * c.bn // (SUMMING * width)), Expr.of(1)

    def _total(self, of: tuple[Index, Index, Index], place: Sequence[Index]) -> ir.Value:
        """The sums of all parts at a place of their tile, in the order of k. of: the worker that goes on with it, the last one,
        and the rank of their blocks."""
        (worker, last, rank), c, index, memory = of, self.config, self.kernel.index, self._memory()
        code = ProductCode(self.plan.view.product)

        def part(slot: Index) -> ir.Value:
            return memory.load([slot * c.cluster + rank, *place])

        def some(first: Index, total: ir.Value) -> list[ir.Value]:
            parts = [part(continued((first + i).min(last))) for i in range(_AT_ONCE)]
            for i, more in enumerate(parts):
                there = (first + i).le(last)
                total = arith.select(there, code.add(total, more), total)
            return [total]

        return loop(worker, last + 1, _AT_ONCE, some, [part(begun(worker - 1))], index)[0]

    def _memory(self) -> GpuMemory:
        return self.kernel.workspace_tensor(self.element, [Index(n) for n in self._sizes])
