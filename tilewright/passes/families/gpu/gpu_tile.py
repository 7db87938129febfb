"""TileLoader: copies tiles of a contraction's operand to the stages of a ring in shared memory.

An operand that is a view of memory goes by asynchronous copies that fill with zero what is outside; any other is computed by the
evaluator into registers and stored later, so that the arithmetic between the two hides the loads.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.analysis.contraction import Contraction
from tilewright.passes.codegen.emit import all_of, byte_width, constant, integer_type, lanes_of, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_memory import WIDEST, GpuMemory
from tilewright.passes.codegen.gpu_space import CollapsedLoops, Point
from tilewright.passes.codegen.index import Index, select, splat_to
from tilewright.passes.codegen.memory_source import MemorySource
from tilewright.passes.codegen.product_code import coords_of
from tilewright.passes.families.gpu.simt_plan import loops_at
from tilewright.passes.families.gpu.stage_ring import Store
from tilewright.passes.mlir import arith, ir, nvvm

_LEAST_COPY = 4  # bytes of an asynchronous copy


@dataclass(frozen=True)
class Side:
    """One factor of a contraction as a block reads it. operand: LHS or RHS. outer: its loops that the result has too, of which a
    tile has `extent` positions; inner: those of k. batch: where the block is along the loops that both factors share."""

    view: Contraction
    operand: int
    outer: CollapsedLoops
    inner: CollapsedLoops
    extent: int
    batch: Point


@dataclass(frozen=True)
class Stages:
    """depth: positions of k in a stage; count: stages; vec: elements of one copy, as far as layouts allow; transpose_on_copy:
    tiles are never stored along k, what is contiguous along k is copied element by element."""

    depth: int
    count: int
    vec: int
    transpose_on_copy: bool = False


class TileLoader:
    """Tiles of one side in all stages.

    along_k: memory is contiguous along k. deep: the tile is [stage][outer][k], as memory along k is; else it is
    [stage][k][outer].
    """

    def __init__(self, kernel: GpuKernel, side: Side, stages: Stages) -> None:
        self.kernel, self.side = kernel, side
        self.value = side.view.operand(side.operand)
        self.element = ir.RankedTensorType(self.value.type).element_type
        self.outer, self.inner = side.outer, side.inner
        extent, depth = side.extent, stages.depth
        self.along_k, self.vec = self._orientation(stages.vec, depth)
        self.deep = self.along_k and not stages.transpose_on_copy
        if self.along_k and stages.transpose_on_copy:
            self.vec = 1
        fast = self.inner if self.along_k else self.outer
        fast.guard(self.vec)
        if self.along_k:
            self.inner = self.inner.assume_multiple(self.vec)
        else:
            self.outer = self.outer.assume_multiple(self.vec)
        size = byte_width(self.element)
        pad = max(1, WIDEST // size) if self.along_k else 0
        self.rows, self.columns = (extent, depth) if self.along_k else (depth, extent)
        shape = [extent, depth + pad] if self.deep else [depth, extent + pad]
        self.tile = kernel.shared(self.element, [stages.count, *shape])
        wide = self.vec * size >= _LEAST_COPY and str(self.element) != "i1"
        self.is_async = wide and self._source(Index(0), Index(0)) is not None

    # -- layout

    def _orientation(self, vec: int, depth: int) -> tuple[bool, int]:
        """Along which of k and the outer loops memory is contiguous, and how many elements one access can take."""
        for deep, space, most in ((True, self.inner, depth), (False, self.outer, self.side.extent)):
            n = min(vec, most, max(1, WIDEST // byte_width(self.element)))
            while n > 1:
                if self._is_run(deep, space, n):
                    return deep, n
                n //= 2
        return self._is_run(True, self.inner, 1), 1

    def _is_run(self, deep: bool, space: CollapsedLoops, n: int) -> bool:
        """Are n positions one aligned access, wholly inside or outside? With n = 1: are neighbours contiguous?"""
        if not space.loops or not space.may_be_multiple(n):
            return False
        here = self.kernel.thread()
        run = space.assume_multiple(n).point(Index.ramp(here.known_multiple(n), max(n, 2)))
        other = (self.outer if deep else self.inner).point(here)
        view, operand = self.side.view, self.side.operand
        coords = coords_of(view, operand, loops_at(view, self.side.batch, other, run))
        source = MemorySource.of(self.kernel.evaluator, self.value, coords)
        if source is None:
            return view.linear_axis(operand, space.loops[-1]) == len(coords) - 1
        assert isinstance(source.memory, GpuMemory)
        offset = source.memory.offset(source.coords)
        if n == 1:
            return offset.step is not None and offset.step.const == 1
        return source.memory.run_of(offset) == n and all(isinstance(c, bool) or lanes_of(c) == 1 for c in source.inside)

    def _coords(self, outer: Index, k: Index) -> list[Index]:
        """In the operand."""
        view = self.side.view
        loops = loops_at(view, self.side.batch, self.outer.point(outer), self.inner.point(k))
        return coords_of(view, self.side.operand, loops)

    def _source(self, outer: Index, k: Index) -> MemorySource | None:
        return MemorySource.of(self.kernel.evaluator, self.value, self._coords(outer, k))

    # -- copies

    def begin(self, stage: Index, outer: Index, k: Index, end: Index, thread: Index) -> list[Store]:
        """Starts the copy of the tile at (outer, k); positions of k from `end` on are zero. Returns what is left to store."""
        pending = []
        per_row = self.columns // self.vec
        total = self.rows * per_row
        for i in range(-(-total // self.kernel.threads)):
            has = True if (i + 1) * self.kernel.threads <= total else (thread + i * self.kernel.threads).lt(total)
            row, column = self._chunk(thread, i, per_row)
            o, c = (outer + row, k + column) if self.along_k else (outer + column, k + row)
            inside = all_of([o.lt(self.outer.extent), c.lt(end)])
            at = (stage, column, row) if self.along_k and not self.deep else (stage, row, Index.ramp(column, self.vec))
            if self.is_async:
                when(has, lambda o=o, c=c, at=at, inside=inside: self._copy(o, c, at, inside))  # type: ignore[misc]
            else:
                pending.append(self._store(self._compute(o, c, all_of([inside, has])), at, has))
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
        source = self._source(*self._run(o, c))
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

    def _run(self, o: Index, c: Index) -> tuple[Index, Index]:
        return (o, Index.ramp(c, self.vec)) if self.along_k else (Index.ramp(o, self.vec), c)

    def _compute(self, o: Index, c: Index, inside: ir.Value | bool) -> ir.Value:
        """Elements outside are read at the first position and dropped: there is one, as the step is not empty."""
        n = self.vec
        t = self.kernel.index
        o, c = (select(inside, x, Index(0), type_=t) for x in (o, c))
        o, c = (c_.known_multiple(n) if fast else c_ for c_, fast in ((o, not self.along_k), (c, self.along_k)))
        value = splat_to(self.kernel.evaluator.element(self.value, self._coords(*self._run(o, c))), n)
        if isinstance(inside, bool):
            return value if inside else constant(self.element, 0, n)
        return arith.select(inside, value, constant(self.element, 0, n))

