"""ClusterSum: sums of what the blocks of a cluster have in their shared memory, in the order of their ranks.

Blocks that share a tile of the result are of one cluster, each with a part of k. Each leaves its sums in shared memory; then
each adds up its share of the tile out of the memory of all of them. There is no workspace and no second launch. A single block is
a cluster of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.passes.codegen.emit import integer_type, loop
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.mlir import ir, nvvm


@dataclass(frozen=True)
class ClusterSum:
    """Of `parts` blocks, every `beside`th of their cluster, which has as many tiles."""

    kernel: GpuKernel
    product: ProductCode
    parts: int
    beside: int = 1

    @property
    def rank(self) -> Index | None:
        """The part of this block; None where it has all of k, or parts are no matter of clusters."""
        return self.kernel.block_id() // self.beside % self.parts if self.parts > 1 else None

    @property
    def tile(self) -> Index:
        """The number of this cluster's tiles among those of all clusters."""
        return self.kernel.block_id() // (self.parts * self.beside)

    def grid(self, tiles: Grid) -> Grid:
        """Of so many blocks for each."""
        x, y, z = tiles
        return x * self.parts, y, z

    def over(self, tile: GpuMemory, chunks: int, place: Callable[[Index], Sequence[Index]],
             use: Callable[[Sequence[Index], ir.Value], None], among: tuple[Index, int] | None = None) -> None:
        """`use(coordinates, sum)` for each of so many chunks of the tile, at the coordinates `place(number)`, by a thread of one
        block. tile: at one place of every block's shared memory, where all threads have stored their sums. All threads take
        part, or those of which `among` tells the number and how many they are; the tile must not be written again."""
        self._meet()
        thread, threads = among or (self.kernel.thread(), self.kernel.threads)
        tiles = [self._of(tile, rank) for rank in range(self.parts)] if self.parts > 1 else [tile]
        first = thread if self.rank is None else self.rank * threads + thread

        def chunk(number: Index) -> None:
            at = place(number)
            total, *others = [there.load(at) for there in tiles]
            for other in others:
                total = self.product.add(total, other)
            use(at, total)

        loop(first, chunks, threads * self.parts, chunk, index=self.kernel.index)
        if self.parts > 1:
            self._meet()  # no block leaves while others read its memory

    def _of(self, tile: GpuMemory, rank: int) -> GpuMemory:
        """The same tile in the block of a rank."""
        block = self.kernel.block_id() % self.beside + rank * self.beside
        there = nvvm.mapa(ir.Type.parse("!llvm.ptr<7>"), tile.pointer, block.value(integer_type(32)))
        return replace(tile, pointer=there)

    def _meet(self) -> None:
        """All threads of the cluster wait for each other; what they wrote is visible."""
        if self.parts == 1:
            self.kernel.barrier()
            return
        nvvm.cluster_arrive()
        nvvm.cluster_wait()
