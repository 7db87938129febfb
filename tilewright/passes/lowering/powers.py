"""f32 powers, cube roots and remainders, by f64 inside: its 53 bits take the place of pairs of f32.

Coefficients are fitted as those of `expansions.py`. Results are rounded once, to subnormal numbers too.
"""

from __future__ import annotations

from math import inf, nan

from tilewright.passes.codegen.emit import when_values
from tilewright.passes.lowering.arithmetic import Real, any_lane, element_of, fma, horner
from tilewright.passes.lowering.expansions import split
from tilewright.passes.mlir import arith, ir

_ROUND = 1.5 * 2.0**52  # t = x + _ROUND holds round(x) in its low bits for |x| < 2^51
_EVEN_FROM = 2.0**24  # f32 numbers from here on are even
_MORE_STEPS = 5  # of a remainder: a quotient of f32 numbers has at most 278 bits, a step takes 51 of them

# log2(1 + f) = f P(f) for sqrt(1/2) <= 1 + f <= sqrt(2): 2^-36
_LOG2 = (1.4426950408687063, -0.7213475208688058, 0.4808983613950315, -0.3606736748180178, 0.28853729350800045,
         -0.24045316617615858, 0.20617535855397998, -0.18030058676591154, 0.15876980503857294, -0.14315662410357102,
         0.1447485607157917, -0.14283864437883298, 0.07736945300355422)
# 2^r = P(r) for |r| <= 1/2: 2^-29
_EXP2 = (1.000000000554187, 0.6931472057371978, 0.24022646890480231, 0.055503287770778495, 0.009618488973816857,
         0.0013399931182505958, 0.00015345807485350207)


def power(x: Real, y: Real) -> Real:
    """x^y as C's powf, 0.6 ulp."""
    size, reach = abs(x), abs(y)
    found = _raised(size, y.resized(ir.F64Type.get()))
    is_whole, half = y.floor().compare("oeq", y), y * 0.5
    is_odd = arith.andi(arith.andi(is_whole, half.floor().compare("une", half)), reach.compare("olt", _EVEN_FROM))
    found = found.where(is_odd, found.copysign(x))
    is_real = arith.ori(is_whole, arith.ori(x.compare("uge", 0.0), size.compare("oeq", inf)))
    found = found.constant(nan).where(is_real, found).where(x.compare("uno", y), nan)
    level = arith.andi(size.compare("oeq", 1.0), reach.compare("oeq", inf))
    return found.where(arith.ori(level, arith.ori(x.compare("oeq", 1.0), y.compare("oeq", 0.0))), 1.0)


def cbrt(x: Real) -> Real:
    """The cube root with the sign of x, 0.6 ulp."""
    third = x.resized(ir.F64Type.get()).constant(1 / 3)
    return _raised(abs(x), third).copysign(x).where(x.is_nan(), nan)


def _raised(size: Real, exponent: Real) -> Real:
    """size^exponent in f32 for a size >= 0 and an exponent in f64; any number where either is NaN, or 1 meets an infinity."""
    f64, element = ir.F64Type.get(), element_of(size.value.type)
    whole, f = (part.resized(f64) for part in split(size))
    logarithm = fma(f, horner(_LOG2, f), whole)
    logarithm = size.resized(f64).where(size.compare("olt", inf), logarithm).where(size.compare("oeq", 0.0), -inf)
    x = (exponent * logarithm).at_least(-200.0).at_most(200.0)
    shifted = x + _ROUND
    mantissa = horner(_EXP2, x - (shifted - _ROUND))
    return (mantissa.bits() + (shifted.bits() << 52)).as_real(f64).resized(element)


def remainder(x: Real, y: Real) -> Real:
    """x - trunc(x / y) y with the sign of x, as C's fmodf: exact."""
    f64 = ir.F64Type.get()
    dividend, divisor = abs(x).resized(f64), abs(y).resized(f64)

    def step(left: Real) -> Real:
        return fma((left / divisor).trunc(), -divisor, left)

    def others() -> list[ir.Value]:
        left = once
        for _ in range(_MORE_STEPS):
            left = step(left)
        return [left.value]

    once = step(dividend)
    left = Real(when_values(any_lane(abs(once).compare("oge", divisor)), [once.value], others)[0])
    left = left.where(left.compare("olt", 0.0), left + divisor)
    return left.resized(element_of(x.value.type)).where(abs(y).compare("oeq", inf), x + (x - x)).copysign(x)
