"""Branches and loops in the one form that ingest gives them: what a loop counts, and whether a condition is of shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.analysis.assert_facts import violation
from tilewright.passes.linalg.symbolic import COUNTERS, SymbolicShapes
from tilewright.passes.mlir import ir, operations
from tilewright.runtime.shape import Expr

LARGEST = "tw.largest"  # of an scf.while, beside tw.counters: the largest value of each counter
STEPS = "tw.steps"  # likewise: what is added to it each time around
CONTROL = ("scf.if", "scf.while")


@dataclass(frozen=True)
class CarriedCounter:
    """A carried integer of a loop that is a dim inside it; exprs over the dims outside."""

    number: int
    name: str
    start: Expr
    step: Expr
    largest: Expr


def carried_counters(loop: ir.Operation, shapes: SymbolicShapes) -> list[CarriedCounter]:
    """The counters of an scf.while."""
    texts = [[ir.StringAttr(a).value for a in ir.ArrayAttr(loop.attributes[name])] for name in (COUNTERS, STEPS, LARGEST)]
    found = []
    for number, (name, step, largest) in enumerate(zip(*texts, strict=True)):
        if name:
            start = shapes.required(loop.operands[number], loop)
            found.append(CarriedCounter(number, name, start, Expr.parse(step), Expr.parse(largest)))
    return found


def trips(loop: ir.Operation, shapes: SymbolicShapes) -> Expr | None:
    """How often a loop goes round at most; None where nothing is known."""
    found: Expr | None = None
    for c in carried_counters(loop, shapes):
        count = ((c.largest - c.start + c.step).maximum(0)) // c.step
        found = count if found is None else found.minimum(count)
    return found


def condition_of(op: ir.Operation) -> ir.Value:
    """The i1 that an scf.if or scf.while goes by."""
    return op.operands[0] if op.name == "scf.if" else operations(op.regions[0].blocks[0])[-1].operands[0]


def where_run(op: ir.Operation, shapes: SymbolicShapes) -> list[Expr]:
    """Expressions of dims and counters, none of which is positive where an operation is run at all: of the loops and of the
    branches on shapes around it."""
    found: list[Expr] = []
    block, outer = op.block, op.parent.operation
    while outer.name != "func.func":
        if outer.name == "scf.while" and block == outer.regions[1].blocks[0]:
            found += [c.start - c.largest for c in carried_counters(outer, shapes)]
        elif outer.name == "scf.if" and (fails := violation(condition_of(outer), shapes)) is not None:
            found.append(fails if block == outer.regions[0].blocks[0] else 1 - fails)
        block, outer = outer.block, outer.parent.operation
    return found


def positive_where(condition: ir.Value, shapes: SymbolicShapes) -> Expr | None:
    """An expression of the dims that is above 0 just where a condition holds; None when it depends on data."""
    fails = violation(condition, shapes)
    return None if fails is None else 1 - fails
