"""TileLoader: copies tiles of a contraction's operand to the stages of a ring in shared memory.

An operand that is a view of memory goes by asynchronous copies that fill with zero what is outside; any other is computed by the
evaluator into registers and stored later, so that the arithmetic between the two hides the loads.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.codegen.emit import all_of, byte_width, integer_type, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_memory import WIDEST, GpuMemory
from tilewright.passes.codegen.index import Index, select
from tilewright.passes.families.gpu.gpu_operand import OperandReader, Side
from tilewright.passes.families.gpu.stage_ring import Store
from tilewright.passes.mlir import ir, nvvm

_LEAST_COPY = 4  # bytes of an asynchronous copy


@dataclass(frozen=True)
class Stages:
    """depth: positions of k in a stage; count: stages; vec: elements of one copy, as far as layouts allow; transpose_on_copy:
    tiles are never stored along k, what is contiguous along k is copied element by element."""

    depth: int
    count: int
    vec: int
    transpose_on_copy: bool = False


class TileLoader(OperandReader):
    """Tiles of one side in all stages. deep: the tile is [stage][outer][k], as memory along k is; else [stage][k][outer]."""

    def __init__(self, kernel: GpuKernel, side: Side, stages: Stages) -> None:
        super().__init__(kernel, side, stages.vec, stages.depth)
        extent, depth = side.extent, stages.depth
        self.deep = self.along_k and not stages.transpose_on_copy
        self.rely_on(1 if self.along_k and stages.transpose_on_copy else self.vec)
        size = byte_width(self.element)
        pad = max(1, WIDEST // size) if self.along_k else 0
        self.rows, self.columns = (extent, depth) if self.along_k else (depth, extent)
        shape = [extent, depth + pad] if self.deep else [depth, extent + pad]
        self.tile = kernel.shared(self.element, [stages.count, *shape])
        source = self._source(Index(0), Index(0))
        least = 2 * size if source is not None and source.named else 0  # a lookup for each element is no copy
        self.is_async = source is not None and self.vec * size >= max(_LEAST_COPY, least) and str(self.element) != "i1"

    # -- copies

    def begin(self, stage: Index, outer: Index, k: Index, end: Index | None, thread: Index, whole: bool = False) -> list[Store]:
        """Starts the copy of the tile at (outer, k); positions of k from `end` on are zero. Returns what is left to store.

        end: None where none of k is outside. whole: none of the outer positions is.
        """
        pending = []
        per_row = self.columns // self.vec
        total = self.rows * per_row
        for i in range(-(-total // self.kernel.threads)):
            has = True if (i + 1) * self.kernel.threads <= total else (thread + i * self.kernel.threads).lt(total)
            row, column = self._chunk(thread, i, per_row)
            o, c = (outer + row, k + column) if self.along_k else (outer + column, k + row)
            inside = all_of([whole or o.lt(self.outer.extent), end is None or c.lt(end)])
            at = (stage, column, row) if self.along_k and not self.deep else (stage, row, Index.ramp(column, self.vec))
            if self.is_async:
                when(has, lambda o=o, c=c, at=at, inside=inside: self._copy(o, c, at, inside))  # type: ignore[misc]
            else:
                pending.append(self._store(self.read(o, c, all_of([inside, has])), at, has))
        return pending

    def _chunk(self, thread: Index, number: int, per_row: int) -> tuple[Index, Index]:
        """Row and first column of a thread's chunk; those of whole rows are a constant apart."""
        threads = self.kernel.threads
        if threads % per_row == 0:
            return thread // per_row + number * (threads // per_row), (thread % per_row) * self.vec
        chunk = thread + number * threads
        return chunk // per_row, (chunk % per_row) * self.vec

    def _store(self, value: ir.Value, at: tuple[Index, ...], has: ir.Value | bool) -> Store:
        """`has`: does the thread have such a chunk at all?"""
        return lambda: when(has, lambda: self.tile.store(value, at))

    def _copy(self, o: Index, c: Index, at: tuple[Index, ...], inside: ir.Value | bool) -> None:
        source = self._source(*self.run(o, c))
        assert source is not None and isinstance(source.memory, GpuMemory)
        size = self.vec * byte_width(self.element)
        offset = source.memory.offset(source.coords)
        source.memory.alignment(offset)
        whole = all_of([inside, *source.inside])
        count = select(whole, Index(size), Index(0), type_=integer_type(32))
        mode = nvvm.LoadCacheModifierKind.CG if size == WIDEST else nvvm.LoadCacheModifierKind.CA
        target = self.tile.address([*at[:-1], at[-1].base])
        address = source.memory.address([x.base for x in source.coords])
        nvvm.cp_async_shared_global(target, address, size, mode, cp_size=count.value(integer_type(32)))
