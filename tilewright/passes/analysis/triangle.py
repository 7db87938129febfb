"""Triangle: a factor of a product that is zero by construction beside its diagonal, as `tril`, `triu` and bands are.

Recognised is a select between a value and 0 by comparisons of coordinates, on the way to the product. A family need not multiply
what is zero: whether infinities and NaN that the other factor has there reach the result is left open, as in BLAS's trmm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import Contraction
from tilewright.passes.analysis.index_terms import Terms, compared, read
from tilewright.passes.linalg.structured import FLOAT_CASTS, is_zero, iterator_kinds
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, maps_of, operations, owner, position
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Triangle:
    """The factor is 0 unless k is from row + low on, to row + high; an end that is None has no bound.

    which: the operand; row: its parallel loop. condition: the value that selects, and what it is where k is between both; None
    where it says more than that.
    """

    which: int
    row: int
    low: Expr | None
    high: Expr | None
    condition: tuple[ir.Value, bool] | None

    @staticmethod
    def of(view: Contraction, which: int, shapes: SymbolicShapes) -> Triangle | None:
        """None where the factor is not known to have zeros."""
        op = owner(view.operand(which))
        if len(view.k) != 1 or op is None or op.name != "linalg.generic" or len(op.results) != 1:
            return None
        axes = [position(e) for e in view.maps[which].results]
        places = [position(e) for e in maps_of(op)[-1].results]
        if None in axes or None in places or "reduction" in iterator_kinds(op):
            return None
        loops = {inner: d for inner, d in zip(places, axes, strict=True) if inner is not None and d is not None}
        made = owner(operations(op.regions[0].blocks[0])[-1].operands[0])
        while made is not None and made.name in FLOAT_CASTS:
            made = owner(made.operands[0])
        if made is None or made.name != "arith.select" or not (is_zero(made.operands[1]) or is_zero(made.operands[2])):
            return None
        kept = is_zero(made.operands[2])
        parts = _Parts(shapes).of(made.operands[0], loops)
        if not kept:
            parts = [_negated(p) for p in parts] if len(parts) == 1 else []
        return _bounded(view, which, parts, (made.operands[0], kept))


def _bounded(view: Contraction, which: int, parts: list[Terms | None], condition: tuple[ir.Value, bool]) -> Triangle | None:
    """parts: sums that are all 0 or less where the factor is not 0; None is one that is not understood."""
    k, ends, rows = view.k[0], dict[int, Expr](), set[int]()
    for part in parts:
        slopes = {} if part is None else part[0]
        others = [d for d in slopes if d != k]
        if part is None or len(others) != 1 or abs(slopes.get(k, 0)) != 1 or slopes[others[0]] != -slopes[k]:
            continue
        sign = slopes[k]
        if sign not in ends:
            ends[sign] = part[1] * -sign
            rows.add(others[0])
    if len(rows) != 1:
        return None
    return Triangle(which, rows.pop(), ends.get(-1), ends.get(1), condition if len(ends) == len(parts) else None)


def _negated(part: Terms | None) -> Terms | None:
    return None if part is None else ({d: -s for d, s in part[0].items()}, part[1] * -1 + 1)


class _Parts:
    def __init__(self, shapes: SymbolicShapes) -> None:
        self.shapes = shapes

    def of(self, condition: ir.Value, loops: Mapping[int, int]) -> list[Terms | None]:
        """What all has to hold for a condition."""
        op = owner(condition)
        if op is None:
            before = read(condition, loops)
            return [None] if before is None else self.of(*before)
        if op.name == "arith.andi":
            return [part for v in op.operands for part in self.of(v, loops)]
        return [compared(self.shapes, op, loops) if op.name == "arith.cmpi" else None]
