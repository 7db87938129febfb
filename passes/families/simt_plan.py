"""Plan of a GPU contraction: which loops are rows, columns, batch and depth, where results land, how points are addressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from passes.contraction import LHS, OUT, RHS, Contraction, product_of
from passes.gpu_kernel import GpuKernel
from passes.gpu_space import Point
from passes.index import Index
from passes.mlir import ir, operations, position
from passes.placement import Place, axis_name, place
from runtime.shape import Expr

_FEW_OPS = 8  # arithmetic of an epilogue that is unrolled over a thread's results


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
    def of(kernel: GpuKernel) -> SimtPlan:
        """ValueError when the region is no contraction with elementwise ops around it, or has no columns."""
        ops = kernel.ops()
        roots = [op for op in ops if product_of(op) is not None]
        if len(roots) != 1:
            named = ", ".join(f"{op.name} at {op.location}" for op in roots) or "none"
            raise ValueError(f"wanted a region with one contraction, got {named}")
        view = Contraction.of(roots[0], kernel.shapes)
        after = ops[ops.index(roots[0]) + 1 :]
        places = place(kernel.shapes, roots[0].results[0], after, kernel.results)
        fast = _fast_loop(kernel, view, places[0])
        swapped = fast in view.m or (fast not in view.n and not view.n)
        rows, columns = (view.n, view.m) if swapped else (view.m, view.n)
        if not columns:
            raise ValueError(f"{view.op.name} at {view.op.location}: no loop is in one operand only, so nothing is reused")
        if fast in columns:
            columns = (*(d for d in columns if d != fast), fast)
        sides = (RHS, LHS) if swapped else (LHS, RHS)
        return SimtPlan(view, *sides, rows, columns, tuple(places), _heavy(after))

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
    return view.coords(OUT, loops_at(view, *points))


def _fast_loop(kernel: GpuKernel, view: Contraction, first: Place) -> int | None:
    """The loop along the unit-stride axis of the first result; axes of one element are passed over."""

    slot = next(s for s in kernel.operands if s.result)
    axes = sorted(range(len(first)), key=lambda a: (a == slot.unit, a), reverse=True)
    names = {axis_name(axis): position(e) for axis, e in enumerate(view.maps[OUT].results)}
    loops = [names[symbol] for a in axes for symbol in sorted(first[a].symbols, reverse=True) if symbol in names]
    found = [d for d in loops if d is not None]
    long = [d for d in found if view.extents[d] != Expr.of(1)]
    return next(iter(long or found), None)


def _heavy(ops: list[ir.Operation]) -> bool:
    names = [o.name for op in ops if len(op.regions) for o in operations(op.regions[0].blocks[0])]
    return any(n.startswith("math.") for n in names) or sum(n.startswith("arith.") for n in names) > _FEW_OPS
