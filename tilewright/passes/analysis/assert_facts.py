"""What the asserts of a function say about its dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.passes.linalg.symbolic import SymbolicShapes, integer
from tilewright.passes.mlir import ir, owner, walk
from tilewright.runtime.shape import Expr

_COMPARISONS: Mapping[int, str] = {
    0: "eq",
    1: "ne",
    2: "lt",
    3: "le",
    4: "gt",
    5: "ge",
    6: "lt",
    7: "le",
    8: "gt",
    9: "ge",
}
_UNSIGNED = 6  # predicates from here on


@dataclass(frozen=True)
class AssertFact:
    """One cf.assert: `violation` is 0 where it holds and positive elsewhere; None when it depends on data."""

    op: ir.Operation
    message: str
    violation: Expr | None


def assert_facts(fn: ir.Operation, shapes: SymbolicShapes) -> list[AssertFact]:
    """Every cf.assert of the function in program order; one known to hold has violation 0, one known to fail 1."""
    return [
        AssertFact(op, ir.StringAttr(op.attributes["msg"]).value, violation(op.operands[0], shapes))
        for op in walk(fn)
        if op.name == "cf.assert"
    ]


def violation(condition: ir.Value, shapes: SymbolicShapes) -> Expr | None:
    """0 where a boolean value holds, positive elsewhere, over the dims; None when it depends on data."""
    known = shapes.truth(condition)
    if known is not None:
        return Expr.of(int(not known))
    op = owner(condition)
    if op is None:
        return None
    if op.name in ("arith.andi", "arith.ori"):
        a, b = (violation(v, shapes) for v in op.operands)
        if a is None or b is None:
            return None
        return a + b if op.name == "arith.andi" else a * b
    if op.name == "arith.cmpi":
        a, b = (shapes.expr(v) for v in op.operands)
        if a is None or b is None:
            return None
        number = integer(op.attributes["predicate"])
        plain = number < _UNSIGNED or min(shapes.bounds(a)[0], shapes.bounds(b)[0]) >= 0
        return (_comparison if plain else unsigned)(_COMPARISONS[number], a, b)
    return None


def unsigned(predicate: str, a: Expr, b: Expr) -> Expr:
    """0 where a comparison holds that takes a negative number for a large one, positive elsewhere."""
    above, below = (b, a) if predicate[0] == "l" else (a, b)
    one_side = _comparison("ge", below, Expr.of(0)) + _comparison("lt", above, Expr.of(0))
    both = [_comparison(p, a, Expr.of(0)) + _comparison(p, b, Expr.of(0)) for p in ("ge", "lt")]
    return one_side * (_comparison(predicate, a, b) + both[0] * both[1])


def _comparison(predicate: str, a: Expr, b: Expr) -> Expr:
    """0 where `a predicate b` holds, positive elsewhere."""
    apart = (a - b).maximum(b - a)
    return {
        "eq": apart,
        "ne": 1 - apart.minimum(1),
        "lt": (a - b + 1).maximum(0),
        "le": (a - b).maximum(0),
        "gt": (b - a + 1).maximum(0),
        "ge": (b - a).maximum(0),
    }[predicate]
