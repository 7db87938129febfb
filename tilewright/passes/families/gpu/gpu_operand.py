"""OperandReader: elements of a contraction's operand, in accesses as wide as its layout allows."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.analysis.contraction import Contraction
from tilewright.passes.codegen.emit import byte_width, constant, lanes_of
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_memory import WIDEST, GpuMemory
from tilewright.passes.codegen.gpu_space import CollapsedLoops, Point
from tilewright.passes.codegen.index import Index, select, splat_to
from tilewright.passes.codegen.memory_source import MemorySource
from tilewright.passes.codegen.product_code import coords_of
from tilewright.passes.families.gpu.simt_plan import loops_at
from tilewright.passes.mlir import arith, ir


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


class OperandReader:
    """Of one side. vec: elements of one access, at most as many as asked for. along_k: memory is contiguous along k, of which an
    access takes up to `depth` positions; else along the outer loops. Who reads vectors calls `rely_on` first."""

    def __init__(self, kernel: GpuKernel, side: Side, vec: int, depth: int) -> None:
        self.kernel, self.side = kernel, side
        self.value = side.view.operand(side.operand)
        self.element = ir.RankedTensorType(self.value.type).element_type
        self.outer, self.inner = side.outer, side.inner
        self.along_k, self.vec = self._orientation(vec, depth)

    def rely_on(self, vec: int) -> None:
        """Accesses of `vec` elements, by a guard where the extent is not known to be a multiple."""
        self.vec = vec
        fast = self.inner if self.along_k else self.outer
        fast.guard(vec)
        if self.along_k:
            self.inner = self.inner.assume_multiple(vec)
        else:
            self.outer = self.outer.assume_multiple(vec)

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

    def run(self, o: Index, c: Index) -> tuple[Index, Index]:
        """The `vec` places that one access reads, of which (o, c) is the first."""
        return (o, Index.ramp(c, self.vec)) if self.along_k else (Index.ramp(o, self.vec), c)

    def read(self, o: Index, c: Index, inside: ir.Value | bool = True) -> ir.Value:
        """`vec` elements from (o, c) on. Those outside are read at the first position and are zero: there is one, as the step is
        not empty."""
        n = self.vec
        t = self.kernel.index
        o, c = (select(inside, x, Index(0), type_=t) for x in (o, c))
        o, c = (c_.known_multiple(n) if fast else c_ for c_, fast in ((o, not self.along_k), (c, self.along_k)))
        value = splat_to(self.kernel.evaluator.element(self.value, self._coords(*self.run(o, c))), n)
        if isinstance(inside, bool):
            return value if inside else constant(self.element, 0, n)
        return arith.select(inside, value, constant(self.element, 0, n))
