"""Plan of a host matmul: which loop runs along the vectors, which are rows, which are work units; where results land."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.passes.analysis.contraction import Contraction
from tilewright.passes.analysis.fused_contraction import FusedContraction
from tilewright.passes.analysis.loop_axes import unit_axis
from tilewright.passes.analysis.placement import Place
from tilewright.passes.analysis.triangle import Triangle
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, position
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Plan:
    """column: the loop along the vectors; wide: the operand that varies with it and is reused by all rows.

    rows: parallel loops that `wide` does not depend on, as one linear space; shared: the other parallel loops, one work unit
    each. tile: columns per panel of an operand that is prepacked [column / tile][k][column mod tile], else 0. side: more than 1
    where it is prepacked [column / tile][k / side][column mod tile][k mod side]. in_place: `wide` is contiguous along the
    columns; transposed: contiguous along the last k loop instead. runs_along: the other operand is contiguous along it.
    runs_across: it is contiguous along the rows, which are one loop, as k is.
    triangle: where a factor is 0 by construction, by row and k or by column and k.
    """

    view: Contraction
    column: int
    wide: int
    rows: tuple[int, ...]
    shared: tuple[int, ...]
    tile: int
    side: int
    in_place: bool
    transposed: bool
    runs_along: bool
    places: tuple[Place, ...]
    heavy: bool
    triangle: Triangle | None = None
    runs_across: bool = False

    @staticmethod
    def of(kernel: KernelFrame, turned: bool = False) -> Plan:
        """ValueError when the region is no contraction with elementwise ops around it. turned: with the loop of rows, which
        has to be one, along the vectors."""
        fused = FusedContraction.of(kernel.ops(), kernel.results, kernel.shapes)
        unit = kernel.result_slot(0).unit
        column = fused.fast_loop(lambda axis: axis == unit)
        if column is None:
            raise ValueError(f"{fused.view.op.name} at {fused.view.op.location}: no loop runs along an axis of the result")
        plan = Plan.along(kernel, fused.view, column, fused.places, fused.heavy)
        if not turned:
            return plan
        if len(plan.rows) != 1:
            raise ValueError(f"{fused.view.op.name} at {fused.view.op.location}: rows are no one loop to lie along the vectors")
        return Plan.along(kernel, fused.view, plan.rows[0], fused.places, fused.heavy)

    @staticmethod
    def along(kernel: KernelFrame, view: Contraction, column: int, places: tuple[Place, ...] = (), heavy: bool = False) -> Plan:
        """The plan with a given loop along the vectors."""
        wide = _wide(view, column)
        used = view.loops_of(wide)
        rows = tuple(d for d in view.parallel if d not in used and d != column)
        shared = tuple(d for d in view.parallel if d in used and d != column)
        side = _side(view, wide)
        tile = _tile(list(view.maps[wide].results)[: -1 if side > 1 else None], column)
        units = kernel.input_units()
        unit = unit_axis(view.operand(wide), units)
        along = view.linear_axis(wide, column) if not tile else None
        in_place = bool(tile) or (unit is not None and along == unit)
        last = view.linear_axis(wide, view.k[-1]) if view.k else None
        transposed = not in_place and unit is not None and last == unit
        other = view.linear_axis(1 - wide, view.k[-1]) if view.k else None
        runs_along = other is not None and other == unit_axis(view.operand(1 - wide), units)
        across = len(rows) == 1 == len(view.k) and _runs_across(view, 1 - wide, rows[0], units)
        plan = Plan(view, column, wide, rows, shared, tile, side if tile else 1, in_place, transposed, runs_along, places, heavy,
                    runs_across=across)
        return replace(plan, triangle=_triangle(plan, kernel.shapes))

    @property
    def narrow(self) -> int:
        return 1 - self.wide

    @property
    def row_count(self) -> Expr:
        return self.view.size(self.rows)

    @property
    def depth(self) -> Expr:
        return self.view.size(self.view.k)


def _runs_across(view: Contraction, which: int, row: int, units: Mapping[ir.Value, int | None]) -> bool:
    """Do the elements of an operand lie side by side along a row loop? Of one that is computed its last axis counts."""
    unit = unit_axis(view.operand(which), units)
    last = len(view.maps[which].results) - 1
    return view.linear_axis(which, row) == (last if unit is None else unit)


def _triangle(plan: Plan, shapes: SymbolicShapes) -> Triangle | None:
    """Of the factor that rows differ in, where they are one loop and columns are not; else of the columns, not prepacked."""
    if plan.column not in plan.view.loops_of(plan.narrow):
        found = Triangle.of(plan.view, plan.narrow, shapes)
        if found is not None and (found.row,) == plan.rows:
            return found
    found = None if plan.tile else Triangle.of(plan.view, plan.wide, shapes)
    return found if found is not None and found.row == plan.column else None


def _wide(view: Contraction, column: int) -> int:
    """The operand that varies along the columns; of two, the one with fewer other parallel loops."""
    varying = [which for which in (0, 1) if column in view.loops_of(which)]
    return min(varying, key=lambda which: len(view.loops_of(which) & set(view.parallel)))


def _side(view: Contraction, wide: int) -> int:
    """n where the last result of the operand's map is `k mod n` of the last k loop, for words of two or four; else 1."""
    last = next(reversed(list(view.maps[wide].results)), None)
    if not view.k or not isinstance(last, ir.AffineModExpr):
        return 1
    word = ir.AffineModExpr(last)
    if position(word.lhs) != view.k[-1] or not isinstance(word.rhs, ir.AffineConstantExpr):
        return 1
    size = int(ir.AffineConstantExpr(word.rhs).value)
    return size if size in (2, 4) else 1


def _tile(results: list[ir.AffineExpr], column: int) -> int:
    """t when the results of an operand's map hold `column floordiv t` and, last, `column mod t`, and no other use of it."""
    if not results or not isinstance(results[-1], ir.AffineModExpr):
        return 0
    sizes = set()
    for kind in (ir.AffineModExpr, ir.AffineFloorDivExpr):
        matching = [kind(e) for e in results if isinstance(e, kind) and position(kind(e).lhs) == column]
        if len(matching) != 1 or not isinstance(matching[0].rhs, ir.AffineConstantExpr):
            return 0
        sizes.add(int(ir.AffineConstantExpr(matching[0].rhs).value))
    uses = sum(f"d{column}" in str(e).replace("(", " ").split() for e in results)
    return sizes.pop() if len(sizes) == 1 and uses == 2 else 0
