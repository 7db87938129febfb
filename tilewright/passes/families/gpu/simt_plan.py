"""Plan of a GPU contraction: which loops are rows, columns, batch and depth, where results land, how points are addressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import LHS, OUT, RHS, Contraction
from tilewright.passes.analysis.fused_contraction import FusedContraction
from tilewright.passes.analysis.placement import Place
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_space import CollapsedLoops, Point
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.product_code import coords_of
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class SimtPlan:
    """row_side, column_side: the operands that vary along rows and columns. The last column loop runs along the unit-stride axis
    of the first result where it can. heavy: the arithmetic after the contraction is too much to unroll."""

    view: Contraction
    row_side: int
    column_side: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    places: tuple[Place, ...]
    heavy: bool

    @staticmethod
    def of(kernel: KernelFrame) -> SimtPlan:
        """ValueError when the region is no contraction with elementwise ops around it, or has no columns."""
        fused = FusedContraction.of(kernel.ops(), kernel.results, kernel.shapes)
        view = fused.view
        unit = kernel.result_slot(0).unit
        fast = fused.fast_loop(lambda axis: axis == unit)
        swapped = fast in view.m or (fast not in view.n and not view.n)
        rows, columns = (view.n, view.m) if swapped else (view.m, view.n)
        if not columns:
            raise ValueError(f"{view.op.name} at {view.op.location}: no loop is in one operand only, so nothing is reused")
        if fast in columns:
            columns = (*(d for d in columns if d != fast), fast)
        sides = (RHS, LHS) if swapped else (LHS, RHS)
        return SimtPlan(view, *sides, rows, columns, fused.places, fused.heavy)

    def groups(self, kernel: GpuKernel) -> tuple[CollapsedLoops, CollapsedLoops, CollapsedLoops, CollapsedLoops]:
        """The loops of rows, columns, depth and batch."""
        view = self.view
        rows, columns, depth, batch = (
            CollapsedLoops(kernel, loops, view.extents) for loops in (self.rows, self.columns, view.k, view.batch))
        return rows, columns, depth, batch

    def size(self, loops: Sequence[int]) -> Expr:
        return self.view.size(loops)


def loops_at(view: Contraction, *points: Point) -> list[Index | None]:
    """All loops at the union of some points."""
    found: list[Index | None] = [None] * len(view.extents)
    for point in points:
        for d, c in point.items():
            found[d] = c
    return found


def root_at(view: Contraction, *points: Point) -> list[Index]:
    """Coordinates in the contraction's result."""
    return coords_of(view, OUT, loops_at(view, *points))
