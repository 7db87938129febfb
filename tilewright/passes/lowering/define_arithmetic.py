"""define-arithmetic: integer and float operations that MLIR leaves undefined for some operands get one meaning for all.

A shift by the width or more shifts everything out: zero, or the sign. A quotient or remainder by zero is zero; the least integer
by -1 wraps around. A float that does not fit into i32 or i64, or is NaN, becomes the least value; narrower and unsigned integers
are the low bits of these, as what C gives on x86. Promises that values keep some range are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer
from tilewright.passes.lowering.arithmetic import Bits, Real, element_of, splat
from tilewright.passes.mlir import arith, attributes, ir, owner, walk

_SHIFTS = ("arith.shli", "arith.shrui", "arith.shrsi")
_DIVISIONS = ("arith.divsi", "arith.remsi", "arith.floordivsi", "arith.ceildivsi", "arith.divui", "arith.remui",
              "arith.ceildivui")  # fmt: skip
_CASTS = ("arith.fptosi", "arith.fptoui")
_FLAGS, _OVERFLOW, _FASTMATH = ("isExact", "nonNeg"), "overflowFlags", "fastmath"
_WRAPS = "#arith.overflow<none>"
_HARMLESS = ("reassoc", "nsz", "arcp", "contract", "afn")  # of fast; they move results, and no value is undefined by them
_OGE, _OLT = 3, 4  # predicates of arith.cmpf
_HALF = 2.0**63
_CONCERNED = re.compile(r"arith\.(sh[lr]|div[su]|rem[su]|floordiv|ceildiv|fpto)|ub\.poison| (overflow|fastmath)<| exact | nneg ")


def concerns(text: str) -> bool:
    """May the module of this text hold an operation that the pass defines?"""
    return _CONCERNED.search(text) is not None


@dataclass(frozen=True)
class DefineArithmetic(Pass):
    """Operations whose operands are known to be harmless, by constants or the dims' ranges, stay as they are; so do those that
    compute sizes."""

    name: ClassVar[str] = "define-arithmetic"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            shapes = SymbolicShapes(fn)
            for op in walk(fn):
                if op.name.startswith(("arith.", "math.")):
                    _drop_promises(op)
                if op.name in _RULES or op.name == "ub.poison":
                    _define(op, shapes)


def _define(op: ir.Operation, shapes: SymbolicShapes) -> None:
    result = op.results[0]
    if op.name == "ub.poison" and not isinstance(result.type, ir.ShapedType):
        with ir.InsertionPoint(op), op.location:
            result.replace_all_uses_with(splat(result.type, 0))
        op.erase()
        return
    if op.name not in _RULES or (op.parent.name == "func.func" and shapes.expr(result) is not None):
        return
    with ir.InsertionPoint(op), op.location:
        made = _RULES[op.name](op, shapes)
    if made is not None:
        result.replace_all_uses_with(made)
        op.erase()


def _again(op: ir.Operation, *operands: ir.Value) -> ir.Value:
    """The same operation on other operands."""
    return ir.Operation.create(op.name, [op.results[0].type], list(operands), attributes(op)).results[0]


def _within(value: ir.Value, low: int, high: float, shapes: SymbolicShapes) -> bool:
    """Is an integer known to lie in this range?"""
    expr = shapes.expr(value)
    if expr is None:
        return False
    a, b = shapes.bounds(expr)
    return low <= a and b <= high


def _width(value: ir.Value) -> int:
    kind = element_of(value.type)
    return 64 if isinstance(kind, ir.IndexType) else int(ir.IntegerType(kind).width)


def _shift(op: ir.Operation, shapes: SymbolicShapes) -> ir.Value | None:
    x, count, width = op.operands[0], Bits(op.operands[1]), _width(op.operands[0])
    if _within(count.value, 0, width - 1, shapes):
        return None
    if op.name == "arith.shrsi":
        return _again(op, x, arith.minui(count.value, splat(x.type, width - 1)))
    return Bits(splat(x.type, 0)).where(count.compare("ult", width), Bits(_again(op, x, count.value))).value


def _division(op: ir.Operation, shapes: SymbolicShapes) -> ir.Value | None:
    """By 0 and -1 a quotient is the product, and a remainder is 0 as by 1."""
    x, divisor, is_signed = Bits(op.operands[0]), Bits(op.operands[1]), "ui" not in op.name
    if _within(divisor.value, 1, inf, shapes):
        return None
    special = (divisor + 1).compare("ule", 1) if is_signed else divisor.compare("eq", 0)
    found = Bits(_again(op, x.value, divisor.where(special, 1).value))
    return found.value if "rem" in op.name else found.where(special, x * divisor).value


def _cast(op: ir.Operation, _: SymbolicShapes) -> ir.Value | None:
    x, width, is_signed = Real(op.operands[0]), _width(op.results[0]), op.name == "arith.fptosi"
    if width == 1 or _is_guarded(op):
        return None
    if element_of(x.value.type).width < 32:
        x = Real(arith.extf(ir.F32Type.get(), x.value))
    if not is_signed and width == 64:  # the upper half of the range has no signed counterpart
        large = x.compare("oge", _HALF)
        low = _whole(x.where(large, x - _HALF), 64)
        return low.where(large, Bits(arith.xori(low.value, splat(low.value.type, -(1 << 63))))).value
    wide = 32 if is_signed and width <= 32 else 64
    found = _whole(x, wide)
    return found.value if width == wide else found.narrow(width).value


def _whole(x: Real, width: int) -> Bits:
    """Truncated towards zero; the least value where that does not fit."""
    kind, half = ir.IntegerType.get_signless(width), 2.0 ** (width - 1)
    fits = arith.andi(x.compare("oge", -half), x.compare("olt", half))
    return Bits(splat(kind, -(1 << width - 1))).where(fits, Bits(arith.fptosi(kind, x.value)))


def _is_guarded(op: ir.Operation) -> bool:
    """Is the integer taken only where two comparisons of the float with numbers allow it?"""
    for use in op.results[0].uses:
        fits = owner(use.owner.operands[0]) if use.owner.name == "arith.select" and use.operand_number == 1 else None
        if fits is None or fits.name != "arith.andi":
            return False
        half = 2.0 ** (_width(op.results[0]) - 1)
        low, high = fits.operands
        if not (_compares(low, op.operands[0], _OGE, -half) and _compares(high, op.operands[0], _OLT, half)):
            return False
    return bool(op.name == "arith.fptosi")


def _compares(test: ir.Value, value: ir.Value, predicate: int, number: float) -> bool:
    """Is the test arith.cmpf of the value with this number?"""
    op = owner(test)
    if op is None or op.name != "arith.cmpf" or op.operands[0] != value or integer(op.attributes["predicate"]) != predicate:
        return False
    other = owner(op.operands[1])
    known = other is not None and other.name == "arith.constant" and other.attributes["value"]
    return isinstance(known, ir.FloatAttr) and float(ir.FloatAttr(known).value) == number


def _drop_promises(op: ir.Operation) -> None:
    for name in _FLAGS:
        if name in op.attributes:
            del op.attributes[name]
    if _OVERFLOW in op.attributes and str(op.attributes[_OVERFLOW]) != _WRAPS:
        op.attributes[_OVERFLOW] = ir.Attribute.parse(_WRAPS)
    if _FASTMATH in op.attributes:
        promised = str(op.attributes[_FASTMATH]).partition("<")[2].rstrip(">").split(",")
        if set(promised) & {"fast", "nnan", "ninf"}:
            kept = _HARMLESS if "fast" in promised else [p for p in promised if p not in ("nnan", "ninf")]
            op.attributes[_FASTMATH] = ir.Attribute.parse(f"#arith.fastmath<{','.join(kept) or 'none'}>")


_RULES: dict[str, Callable[[ir.Operation, SymbolicShapes], ir.Value | None]] = {
    **dict.fromkeys(_SHIFTS, _shift), **dict.fromkeys(_DIVISIONS, _division), **dict.fromkeys(_CASTS, _cast),
}  # fmt: skip
