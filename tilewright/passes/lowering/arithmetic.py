"""Real and Bits: float and integer SSA values with operators, for writing formulas that emit arith and math ops.

Both hold a scalar or a vector of any static shape; a Python number beside one becomes a splat constant. No op carries a
fast-math flag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.passes.mlir import arith, ir, math, vector


def with_element(like: ir.Type, element: ir.Type) -> ir.Type:
    """The type of the shape of `like` with another element type."""
    if isinstance(like, ir.VectorType):
        return ir.VectorType.get(like.shape, element, scalable=like.scalable_dims if like.scalable else None)
    return ir.RankedTensorType.get(like.shape, element) if isinstance(like, ir.RankedTensorType) else element


def element_of(t: ir.Type) -> ir.Type:
    return t.element_type if isinstance(t, ir.ShapedType) else t


def splat(t: ir.Type, number: float) -> ir.Value:
    """A constant of float or integer type `t`, the same in every lane."""
    element = element_of(t)
    is_float = isinstance(element, ir.FloatType)
    one = ir.FloatAttr.get(element, float(number)) if is_float else ir.IntegerAttr.get(element, int(number))
    return arith.constant(t, ir.DenseElementsAttr.get_splat(t, one) if isinstance(t, ir.ShapedType) else one)


@dataclass(frozen=True, eq=False)
class Real:
    """A float value."""

    value: ir.Value

    def of(self, other: Real | float) -> ir.Value:
        return other.value if isinstance(other, Real) else splat(self.value.type, other)

    def __add__(self, other: Real | float) -> Real:
        return Real(arith.addf(self.value, self.of(other)))

    def __sub__(self, other: Real | float) -> Real:
        return Real(arith.subf(self.value, self.of(other)))

    def __rsub__(self, other: float) -> Real:
        return Real(arith.subf(self.of(other), self.value))

    def __mul__(self, other: Real | float) -> Real:
        return Real(arith.mulf(self.value, self.of(other)))

    def __truediv__(self, other: Real | float) -> Real:
        return Real(arith.divf(self.value, self.of(other)))

    def __rtruediv__(self, other: float) -> Real:
        return Real(arith.divf(self.of(other), self.value))

    def __neg__(self) -> Real:
        return Real(arith.negf(self.value))

    def __abs__(self) -> Real:
        return Real(math.absf(self.value))

    def compare(self, predicate: str, other: Real | float) -> ir.Value:
        """arith.cmpf; predicate as in MLIR: olt, ole, oeq, uno, ..."""
        return arith.cmpf(getattr(arith.CmpFPredicate, predicate.upper()), self.value, self.of(other))

    def is_nan(self) -> ir.Value:
        return self.compare("uno", self)

    def at_most(self, bound: float) -> Real:
        """min(self, bound); NaN stays. One minps on x86."""
        return self.where(self.compare("ogt", bound), bound)

    def at_least(self, bound: float) -> Real:
        """max(self, bound); NaN stays. One maxps on x86."""
        return self.where(self.compare("olt", bound), bound)

    def where(self, condition: ir.Value, other: Real | float) -> Real:
        """`other` where the condition holds, self elsewhere."""
        return Real(arith.select(condition, self.of(other), self.value))

    def constant(self, number: float) -> Real:
        return Real(splat(self.value.type, number))

    def copysign(self, sign: Real) -> Real:
        return Real(math.copysign(self.value, sign.value))

    def sqrt(self) -> Real:
        return Real(math.sqrt(self.value))

    def floor(self) -> Real:
        return Real(math.floor(self.value))

    def trunc(self) -> Real:
        return Real(math.trunc(self.value))

    def resized(self, element: ir.Type) -> Real:
        """Widened exactly, or rounded once, to another float type."""
        t, have = with_element(self.value.type, element), element_of(self.value.type)
        if have == element:
            return self
        return Real(arith.extf(t, self.value) if have.width < element.width else arith.truncf(t, self.value))

    def bits(self) -> Bits:
        width = element_of(self.value.type).width
        return Bits(arith.bitcast(with_element(self.value.type, ir.IntegerType.get_signless(width)), self.value))


@dataclass(frozen=True, eq=False)
class Bits:
    """An integer value, two's complement; `>>` is arithmetic."""

    value: ir.Value

    def of(self, other: Bits | int) -> ir.Value:
        return other.value if isinstance(other, Bits) else splat(self.value.type, other)

    def __add__(self, other: Bits | int) -> Bits:
        return Bits(arith.addi(self.value, self.of(other)))

    def __sub__(self, other: Bits | int) -> Bits:
        return Bits(arith.subi(self.value, self.of(other)))

    def __mul__(self, other: Bits | int) -> Bits:
        return Bits(arith.muli(self.value, self.of(other)))

    def __and__(self, other: Bits | int) -> Bits:
        return Bits(arith.andi(self.value, self.of(other)))

    def __or__(self, other: Bits | int) -> Bits:
        return Bits(arith.ori(self.value, self.of(other)))

    def __xor__(self, other: Bits | int) -> Bits:
        return Bits(arith.xori(self.value, self.of(other)))

    def __lshift__(self, count: Bits | int) -> Bits:
        return Bits(arith.shli(self.value, self.of(count)))

    def __rshift__(self, count: Bits | int) -> Bits:
        return Bits(arith.shrsi(self.value, self.of(count)))

    def constant(self, number: int) -> Bits:
        return Bits(splat(self.value.type, number))

    def unsigned_shift(self, count: Bits | int) -> Bits:
        return Bits(arith.shrui(self.value, self.of(count)))

    def compare(self, predicate: str, other: Bits | int) -> ir.Value:
        """arith.cmpi; predicate as in MLIR: eq, ne, slt, ult, ..."""
        return arith.cmpi(getattr(arith.CmpIPredicate, predicate), self.value, self.of(other))

    def where(self, condition: ir.Value, other: Bits | int) -> Bits:
        """`other` where the condition holds, self elsewhere."""
        return Bits(arith.select(condition, self.of(other), self.value))

    def narrow(self, width: int) -> Bits:
        return Bits(arith.trunci(with_element(self.value.type, ir.IntegerType.get_signless(width)), self.value))

    def widen(self, width: int) -> Bits:
        """Of an unsigned value."""
        return Bits(arith.extui(with_element(self.value.type, ir.IntegerType.get_signless(width)), self.value))

    def to_real(self, element: ir.Type) -> Real:
        """The nearest float of the signed value."""
        return Real(arith.sitofp(with_element(self.value.type, element), self.value))

    def as_real(self, element: ir.Type) -> Real:
        """The float with these bits."""
        return Real(arith.bitcast(with_element(self.value.type, element), self.value))


def any_lane(condition: ir.Value) -> ir.Value:
    """Does it hold in any lane?"""
    if not isinstance(condition.type, ir.VectorType):
        return condition
    return vector.reduction(element_of(condition.type), vector.CombiningKind.OR, condition)


def fma(a: Real, b: Real | float, c: Real | float) -> Real:
    """a * b + c, rounded once."""
    return Real(math.fma(a.value, a.of(b), a.of(c)))


def horner(coefficients: tuple[float, ...], x: Real) -> Real:
    """c[0] + c[1] x + c[2] x^2 + ..., one fma per degree."""
    sum_ = fma(x, coefficients[-1], coefficients[-2])
    for c in reversed(coefficients[:-2]):
        sum_ = fma(sum_, x, c)
    return sum_


def power(x: Any, exponent: int) -> Any:
    """x ** exponent for exponent >= 1 by repeated squaring; x is a Real or Bits."""
    result = None
    while True:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        if not exponent:
            return result
        x = x * x
