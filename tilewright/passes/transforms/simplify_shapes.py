"""simplify-shapes: an exporter's shape arithmetic (divsi, maxui, select chains) becomes dims of the arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.shape_values import ShapeValues
from tilewright.passes.linalg.structured import erase_unused, main_of, use_count
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, replace_all_uses, walk
from tilewright.runtime.shape import Expr

_PLAIN = ("arith.addi", "arith.subi", "arith.muli")


@dataclass(frozen=True)
class SimplifyShapes(Pass):
    """A value whose Expr is a constant or a dim is read from there; any other known one that is not plain + - * is
    computed anew from its Expr. Conditions that are the same for every shape become constants.
    """

    name: ClassVar[str] = "simplify-shapes"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            shapes, values = SymbolicShapes(fn), ShapeValues(fn)
            for op in walk(fn):
                if len(op.results) == 1 and op.name != "arith.constant" and use_count(op.results[0]):
                    self._simplify(op, shapes, values)
            erase_unused(fn)

    def _simplify(self, op: ir.Operation, shapes: SymbolicShapes, values: ShapeValues) -> None:
        value = op.results[0]
        kind = str(value.type)
        if kind == "i1":
            known = shapes.truth(value)
            if known is not None:
                _use_constant(op, int(known))
            return
        if kind not in ("index", "i64", "i32"):
            return
        expr = shapes.expr(value)
        if expr is None or (op.name in _PLAIN and not _short(expr)):
            return
        if expr.constant is not None:
            _use_constant(op, expr.constant)
        elif kind == "index":
            replace_all_uses(value, values.value(expr))
        elif not (op.name == "arith.index_cast" and _short(expr)):
            with ir.InsertionPoint(op):
                cast = ir.Operation.create(
                    "arith.index_cast", [value.type], [values.value(expr)], ip=ir.InsertionPoint(op)
                )
            replace_all_uses(value, cast.results[0])


def _short(expr: Expr) -> bool:
    return expr.constant is not None or expr.symbol is not None


def _use_constant(op: ir.Operation, number: int) -> None:
    value = op.results[0]
    attribute = ir.IntegerAttr.get(value.type, number)
    constant = ir.Operation.create("arith.constant", [value.type], [], {"value": attribute}, ip=ir.InsertionPoint(op))
    replace_all_uses(value, constant.results[0])
