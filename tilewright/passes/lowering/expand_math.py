"""expand-math: math ops as arith and fma, in any function and region; the rest stays for LLVM or the C library.

f16 and bf16 are computed in f32 and rounded once. Of f64 powers, error functions, tangents and arcs stay; on a GPU all but
rsqrt, constant powers and classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import e, inf, log2, nan
from operator import truediv
from typing import ClassVar

from tilewright.passes.analysis.signs import HALF_PRODUCT, NONPOSITIVE, SUMMED
from tilewright.passes.base import Pass
from tilewright.passes.lowering import expansions, powers, trigonometry
from tilewright.passes.lowering.arithmetic import Bits, Real, element_of, power, splat, with_element
from tilewright.passes.mlir import arith, attributes, ir, math, owner, walk
from tilewright.runtime.errors import BuildError

_F32: dict[str, Callable[[Real], Real]] = {
    "math.expm1": expansions.expm1,
    "math.log": expansions.log,
    "math.log1p": expansions.log1p,
    "math.log2": expansions.log2,
    "math.log10": expansions.log10,
    "math.sinh": expansions.sinh,
    "math.cosh": expansions.cosh,
    "math.asinh": expansions.asinh,
    "math.acosh": expansions.acosh,
    "math.atanh": expansions.atanh,
    "math.asin": trigonometry.asin,
    "math.acos": trigonometry.acos,
    "math.atan": trigonometry.atan,
}
_RATIOS = {"math.erf": expansions.erf, "math.erfc": expansions.erfc, "math.tanh": expansions.tanh}
_ANGLES = {"math.sin": trigonometry.sin, "math.cos": trigonometry.cos, "math.tan": trigonometry.tan}
_BY_F64: dict[str, Callable[..., Real]] = {"math.powf": powers.power, "math.cbrt": powers.cbrt, "arith.remf": powers.remainder}
_TWO: dict[str, Callable[[Real, Real], Real]] = {"math.atan2": trigonometry.atan2}
_POWERS = {"math.exp": expansions.exp, "math.exp2": expansions.exp2}
_F64 = frozenset(f"math.{name}" for name in (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tanh", "sinh", "cosh", "asinh", "acosh", "atanh"))
_DIVIDE = "arith.divf"
# unit attribute of an arith.divf of a dividend within [0, 1] by a divisor from 1 on, or NaN, or of any by a square root
SHARE = "tw.share"
# unit attribute of an arith.maximumf or minimumf: where an operand is NaN, all that is made of the result is NaN without it
NAN_ELSEWHERE = "tw.nan_elsewhere"
# where an error in the last place becomes a whole step, and where values leave the sight of `_is_smooth`
_STEPS = frozenset(f"math.{name}" for name in ("floor", "ceil", "trunc", "round", "roundeven")) | frozenset((
    "arith.cmpf", "arith.fptosi", "arith.fptoui", "arith.remf", "arith.bitcast", "scf.yield"))
_LEAST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}
_LONGEST_POWER = 4  # of products; math.powf with a larger constant exponent is rounded once


@dataclass(frozen=True)
class ExpandMath(Pass):
    """approximate: the cheaper exp (6 ulp for |x| <= 20) and exp2 everywhere; else only for ops with fastmath<afn>.
    keep_maximum: leave arith.maximumf and minimumf to a target that has them as one instruction. Their expansion keeps
    NaN, except with `tw.nan_elsewhere`, and does not order -0 below +0. keep_library: leave f64, sines, powers and remainders
    to a target whose library has them for single lanes (CUDA's libdevice). scale: the target has AVX-512's vscalefps. lookup: it
    has AVX2's vpermps, by which an exp2 of 8 lanes with `tw.half_product` is 1.1 ulp from the exact one, not 0.93.
    ptx: the target has PTX's approximations. An exp with fastmath<afn> is computed by ex2.approx, 2 ulp from the exact one and
    half an ulp more for each unit of its argument, an exp2 2 ulp; erf, erfc and tanh of f32 divide by rcp.approx, at
    most 1.5 ulp more.
    divide: divisions of f32, and of narrower types in f32, are div.full of PTX, 2 ulp, where nothing compares or rounds what is
    made of the quotient before it is stored or narrowed. An op with `tw.nonpositive` has no argument above 0, one with
    `tw.half_product` too; one with `tw.summed` is 2^-126, not 0, far below; a division with `tw.share` is by a reciprocal, 1.5
    ulp.
    reciprocals: divisions of f32 by a constant are a product and an fma, half an ulp and 2^-22 of one: CPUs divide 16 lanes in
    the time of six products and more."""

    name: ClassVar[str] = "expand-math"
    approximate: bool = False
    keep_maximum: bool = False
    keep_library: bool = False
    scale: bool = False
    lookup: bool = False
    ptx: bool = False
    divide: bool = False
    reciprocals: bool = False

    def run(self, module: ir.Module) -> None:
        for op in walk(module.operation):
            name = op.name
            known = name.startswith(("math.", "arith.m")) or name == "arith.remf" or (
                name == _DIVIDE and (self.reciprocals or SHARE in op.attributes or (self.divide and _is_smooth(op))))
            if known and all(map(_is_static, (v.type for v in op.results))):
                with ir.InsertionPoint(op), op.location:
                    results = self._expand(op)
                if results is not None:
                    for old, new in zip(op.results, results, strict=True):
                        old.replace_all_uses_with(new)
                    op.erase()

    def _expand(self, op: ir.Operation) -> list[ir.Value] | None:
        """The values of the op's results, or None when the op stays."""
        if op.name == _DIVIDE and not self._divides(op):
            return None
        if op.name in ("arith.maximumf", "arith.minimumf"):
            if self.keep_maximum:
                return None
            a, b = op.operands
            return [_extremum(op.name.removeprefix("arith."), a, b, NAN_ELSEWHERE not in op.attributes)]
        if op.name == "arith.remf" and self.keep_library:
            return None
        if op.name.startswith("arith.m") or not isinstance(element_of(op.operands[0].type), ir.FloatType):
            return [_ipowi(op)] if op.name == "math.ipowi" else None
        if op.name in _CLASSES:
            return [_CLASSES[op.name](Real(op.operands[0]))]
        if op.name in ("math.absf", "math.copysign"):
            return None
        if element_of(op.operands[0].type).width < 32:
            return self._widened(op)
        found = self._float(op)
        return None if found is None else [found]

    def _divides(self, op: ir.Operation) -> bool:
        """Is there another way to this quotient than to divide?"""
        width = element_of(op.operands[0].type).width
        if width <= 32 and (SHARE in op.attributes or self.divide):
            return True
        return width == 32 and self.reciprocals and expansions.reciprocal(_constant_of(op.operands[1])) is not None

    def _widened(self, op: ir.Operation) -> list[ir.Value]:
        """An f16 or bf16 op computed in f32; what stays a math op stays one on f32."""
        f32 = ir.F32Type.get()
        wide = [arith.extf(with_element(v.type, f32), v) if isinstance(element_of(v.type), ir.FloatType) else v
                for v in op.operands]
        types = [with_element(r.type, f32) for r in op.results]
        inner = ir.Operation.create(op.name, results=types, operands=wide, attributes=attributes(op))
        values = list(inner.results)
        with ir.InsertionPoint(inner):
            expanded = self._float(inner, isinstance(element_of(op.operands[0].type), ir.F16Type))
        if expanded is not None:
            inner.erase()
            values = [expanded]
        return [arith.truncf(r.type, v) for r, v in zip(op.results, values, strict=True)]

    def _float(self, op: ir.Operation, narrow: bool = False) -> ir.Value | None:
        """An op on f32 or f64. narrow: are the operands numbers of f16?"""
        x = Real(op.operands[0])
        if op.name == _DIVIDE:
            parts = expansions.reciprocal(_constant_of(op.operands[1])) if self.reciprocals else None
            if parts is not None:
                return expansions.scaled(x, parts).value
            by = expansions.share if SHARE in op.attributes else expansions.quotient_by_instruction
            return by(x, Real(op.operands[1])).value
        if op.name == "math.rsqrt":
            return (1.0 / Real(math.sqrt(x.value))).value
        if op.name == "math.clampf":
            lower = _extremum("maximumf", x.value, op.operands[1])
            return _extremum("minimumf", lower, op.operands[2])
        if op.name == "math.fpowi":
            return _fpowi(x, Bits(op.operands[1]))
        if op.name == "math.powf" and (product := _powf(x, op.operands[1])) is not None:
            return product
        if element_of(x.value.type).width == 64 and (self.keep_library or op.name not in _F64):
            return None
        if op.name in _TWO:
            return _TWO[op.name](x, Real(op.operands[1])).value
        if op.name in (*_ANGLES, *_BY_F64):
            if self.keep_library or isinstance(x.value.type, ir.RankedTensorType):
                return None
            return (_ANGLES[op.name](x, not narrow) if op.name in _ANGLES else _BY_F64[op.name](*map(Real, op.operands))).value
        if HALF_PRODUCT in op.attributes:
            by_lookup = self.lookup and expansions.is_looked_up(x)
            return (expansions.exp2_of_product_by_lookup if by_lookup else expansions.exp2_of_product)(
                *map(Real, product_operands(op))).value
        if op.name in _POWERS:
            approximate = self.approximate or "afn" in _fastmath(op)
            if approximate and self.ptx and element_of(x.value.type).width == 32:
                return expansions.exp2_by_instruction(x * log2(e) if op.name == "math.exp" else x).value
            if SUMMED in op.attributes:
                return expansions.summed_exp(x, approximate, self.scale).value
            return _POWERS[op.name](x, approximate, self.scale, NONPOSITIVE in op.attributes).value
        if op.name in _RATIOS:
            by_instruction = self.ptx and element_of(x.value.type).width == 32
            return _RATIOS[op.name](x, expansions.ratio_by_instruction if by_instruction else truediv).value
        return _F32[op.name](x).value if op.name in _F32 else None


def _is_smooth(division: ir.Operation) -> bool:
    """Does a quotient of f32 reach memory or a narrower type by arithmetic alone?"""
    if element_of(division.results[0].type).width < 32:
        return True
    seen, left = {division}, [division]
    while left:
        for result in left.pop().results:
            for use in result.uses:
                user = use.owner.operation
                if user.name in _STEPS:
                    return False
                if user not in seen and user.name != "arith.truncf":
                    seen.add(user)
                    left.append(user)
    return True


def product_operands(op: ir.Operation) -> list[ir.Value]:
    """The factors of what an operation with `tw.half_product` is of."""
    product = owner(op.operands[0])
    if product is None or product.name != "arith.mulf":
        raise BuildError(f"wanted a product for {op.name} with {HALF_PRODUCT}, got {op}")
    return list(product.operands)


def _is_static(t: ir.Type) -> bool:
    return not isinstance(t, ir.RankedTensorType) or t.has_static_shape


def _fastmath(op: ir.Operation) -> tuple[str, ...]:
    if "fastmath" not in op.attributes:
        return ()
    return tuple(str(op.attributes["fastmath"]).split("<")[-1].rstrip(">").split(","))


def _extremum(name: str, a: ir.Value, b: ir.Value, keep_nan: bool = True) -> ir.Value:
    """The larger (maximumf) or smaller of two values; NaN when either is, where that is kept. One instruction when it is not, or
    `b` is a constant."""
    first, second = Real(b), Real(a)
    best = second.where(first.compare("ogt" if name == "maximumf" else "olt", second), first)
    number = _constant_of(b)
    if not keep_nan or (number is not None and number == number):
        return best.value
    return best.where(first.is_nan(), nan).value


def _constant_of(value: ir.Value) -> float | int | None:
    """The number of a constant, a splat constant, or a widened or broadcast one."""
    op = owner(value)
    while op is not None and op.name in ("arith.extf", "vector.broadcast"):
        op = owner(op.operands[0])
    if op is None or op.name != "arith.constant":
        return None
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return None
        attribute = attribute.get_splat_value()
    number: float | int = attribute.value
    return number


def _powf(x: Real, exponent: ir.Value) -> ir.Value | None:
    """x^n for a small constant whole n; else None."""
    n = _constant_of(exponent)
    if n is None or not 1 <= abs(n) <= _LONGEST_POWER or n != int(n):
        return None
    return _power(x, int(n)).value


def _power(x: Real, n: int) -> Real:
    if n == 0:
        return Real(splat(x.value.type, 1.0))
    product: Real = power(x, abs(n))
    return product if n > 0 else 1.0 / product


def _fpowi(x: Real, exponent: Bits) -> ir.Value:
    """x^n; a run-time or large n goes through math.powf in f64."""
    n = _constant_of(exponent.value)
    if n is not None and abs(n) <= _LONGEST_POWER:
        return _power(x, int(n)).value
    f64 = ir.F64Type.get()
    narrow = element_of(x.value.type).width < 64
    base = arith.extf(with_element(x.value.type, f64), x.value) if narrow else x.value
    result = math.powf(base, exponent.to_real(f64).value)
    return arith.truncf(x.value.type, result) if narrow else result


def _ipowi(op: ir.Operation) -> ir.Value:
    """Wraps around; a negative exponent gives 1, +-1 or 0 as the base is 1, -1 or another, and 0 for base 0."""
    x, exponent = Bits(op.operands[0]), Bits(op.operands[1])
    one = Bits(splat(x.value.type, 1))
    n = _constant_of(exponent.value)
    if n is not None and n >= 0:
        return (power(x, int(n)) if n else one).value
    width = element_of(x.value.type).width
    product, square = one, x
    for bit in range(width - 1):
        used = (exponent & (1 << bit)).compare("ne", 0)
        product = product.where(used, product * square)
        square = square * square
    odd = (exponent & 1).compare("ne", 0)
    minus_one = one.where(odd, x)
    inverse = Bits(splat(x.value.type, 0)).where(x.compare("eq", 1), one).where(x.compare("eq", -1), minus_one)
    return product.where(exponent.compare("slt", 0), inverse).value


def _is_normal(x: Real) -> ir.Value:
    size = abs(x)
    least = _LEAST_NORMAL[str(element_of(x.value.type))]
    return arith.andi(size.compare("oge", least), size.compare("olt", inf))


_CLASSES: dict[str, Callable[[Real], ir.Value]] = {
    "math.isnan": Real.is_nan,
    "math.isinf": lambda x: abs(x).compare("oeq", inf),
    "math.isfinite": lambda x: abs(x).compare("olt", inf),
    "math.isnormal": _is_normal,
}
