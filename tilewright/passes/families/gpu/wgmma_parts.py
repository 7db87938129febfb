"""SharedParts: sums of warpgroups that have a part of k each, added up over the blocks of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.families.gpu.cluster_sum import ClusterSum
from tilewright.passes.families.gpu.simt_store import Result
from tilewright.passes.families.gpu.tile_grid import GridTile
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.gpu.wgmma import GROUP, PAD, PAIRS, ROWS, WgmmaConfig
from tilewright.runtime.limits import WARP


class SharedParts:
    """Of one launch, in which it takes its shared memory: a tile of sums beside the ring, which the copies may still fill.

    The warpgroup that copies takes no part: who multiplies meets the same of the other blocks, and who has left counts as met.
    """

    def __init__(self, kernel: GpuKernel, code: ProductCode, config: WgmmaConfig) -> None:
        self.cluster, self.config, self.kernel = ClusterSum(kernel, code, config.cluster_k, config.cluster), config, kernel
        self.tile = kernel.shared(code.product.accumulator, [config.bm, config.bn + PAD])

    def store(self, result: Result, tile: GridTile, at: tuple[Index, Index],
              sums: Sequence[Callable[[int, int], ir.Value]]) -> None:
        """at: the warpgroup and the thread in it. sums(column, half): two neighbouring sums of the thread from that one of every
        8 columns on, of its upper or lower row, for each 64 rows of the warpgroup."""
        c, (group, member) = self.config, at
        lane, first = member % WARP, group * c.rows + member // WARP * 16
        for q, pair in enumerate(sums):
            for column in range(0, c.bn, PAIRS):
                for half in range(2):
                    place = (lane % 4 * 2 + column).known_multiple(2)
                    self.tile.store(pair(column, half), [first + (lane // 4 + q * ROWS + 8 * half), Index.ramp(place, 2)])
        width = result.width(c.vec)
        per_row = c.bn // width
        self.cluster.over(self.tile, c.bm * per_row, lambda n: [n // per_row, Index.ramp((n % per_row) * width, width)],
                          lambda place, total: result.store(tile.row + place[0], tile.column + place[1].base, total),
                          (group * GROUP + member, c.consumers * GROUP))
