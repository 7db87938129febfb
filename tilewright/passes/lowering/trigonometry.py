"""Trigonometric functions of f32 and their inverses as arith and fma ops, arguments of any size; sin and cos of f64 too.

`float_formats.py` says how coefficients were fitted, `expansions.py` what the errors are. An angle loses its multiples of pi (or
pi/2) by three subtractions with fma (Cody and Waite, 1980), of which the first is exact up to a bound. Where a lane is beyond
that, f32 is reduced by the product of its significand with 96 bits of 1/pi (Payne and Hanek, 1983), under a branch, and f64 goes
to the library.
"""

from __future__ import annotations

from math import inf, nan, pi

from tilewright.passes.codegen.emit import when_values
from tilewright.passes.lowering.arithmetic import Bits, Real, any_lane, element_of, fma, horner
from tilewright.passes.lowering.float_formats import F32, format_of
from tilewright.passes.mlir import ir

_PI = F32.pi
_PLACES = (0, 0x517CC1B7, 0x27220A94, 0xFE13ABE8, 0xFA9A6EE0, 0x6DB14ACC, 0x9E21C820, 0xFF28B1D5)  # 2^-32 / pi in 32-bit words

# tan(r) = r + r^3 P(r^2) for |r| <= pi/4: 0.01 ulp
_TAN = (0.33333349227905273, 0.13332673907279968, 0.054059166461229324, 0.021284645423293114, 0.010831930674612522,
        9.215487807523459e-05, 0.004375857766717672)
# atan(t) = t + t^3 P(t^2) for |t| <= 1: 0.02 ulp
_ATAN = (-0.33333298563957214, 0.1999853104352951, -0.14264051616191864, 0.10951174795627594, -0.08400475233793259,
         0.05790654569864273, -0.031127002090215683, 0.010887361131608486, -0.0017875476041808724)
# asin(t) = t + t^3 P(t^2) for |t| <= 1/2: 0.04 ulp
_ASIN = (0.16666752099990845, 0.07495307177305222, 0.04546964168548584, 0.02418149821460247, 0.0421651192009449)


def sin(x: Real, far: bool = True) -> Real:
    """1.8 ulp at any argument, NaN at the infinities. far: may an argument be above 2^17? f64: 2 ulp up to 2^25."""
    form = format_of(x)
    shifted = fma(x, 1 / pi, form.round)
    r, odd = _reduced(x, shifted - form.round, 1.0), shifted.bits()
    if far and form is F32:
        r, odd = _beyond(x, r, odd, 1, 0)
    found = _sine(r, odd).where(x.compare("oeq", 0.0), x)  # the sign of 0
    return found if form is F32 else _or_library("math.sin", x, found)


def cos(x: Real, far: bool = True) -> Real:
    """1.8 ulp, 2 of f64, NaN at the infinities; arguments as for sin. It is the sine a quarter of a turn on."""
    form = format_of(x)
    shifted = fma(x, 1 / pi, -0.5) + form.round
    r, odd = _reduced(x, shifted - form.round + 0.5, 1.0), shifted.bits() + 1
    if far and form is F32:
        r, odd = _beyond(x, r, odd, 1, 1 << 62)
    return _sine(r, odd) if form is F32 else _or_library("math.cos", x, _sine(r, odd))


def tan(x: Real, far: bool = True) -> Real:
    """3.1 ulp at any argument, NaN at the infinities; far as for sin."""
    shifted = fma(x, 2 / pi, F32.round)
    r, odd = _reduced(x, shifted - F32.round, 0.5), shifted.bits()
    if far:
        r, odd = _beyond(x, r, odd, 2, 0)
    t = _odd(r, _TAN).where(x.compare("oeq", 0.0), x)
    return t.where((odd & 1).compare("ne", 0), -1.0 / t)


def asin(x: Real) -> Real:
    """2.3 ulp; NaN beyond 1."""
    angle, wide = _asin_of_size(x)
    return angle.where(wide, fma(angle, -2.0, _PI[1] / 2) + _PI[0] / 2).copysign(x)


def acos(x: Real) -> Real:
    """1.2 ulp; NaN beyond 1."""
    angle, wide = _asin_of_size(x)
    double = angle + angle
    folded = double.where(x.compare("olt", 0.0), _PI[0] - (double - _PI[1]))
    return (_PI[0] / 2 - (angle.copysign(x) - _PI[1] / 2)).where(wide, folded)


def atan(x: Real) -> Real:
    """1.3 ulp."""
    size = abs(x)
    steep = size.compare("ogt", 1.0)
    angle = _odd(size.where(steep, -1.0 / size), _ATAN)
    return angle.where(steep, angle + _PI[1] / 2 + _PI[0] / 2).copysign(x)


def atan2(y: Real, x: Real) -> Real:
    """1.5 ulp; at zeros and infinities as C's."""
    height, width = abs(y), abs(x)
    steep = height.compare("ogt", width)
    least, most = height.where(steep, width), width.where(steep, height)
    slope = (least / most).where(most.compare("oeq", 0.0), 0.0).where(least.compare("oeq", inf), 1.0)
    angle = _odd(slope, _ATAN)
    left = x.bits().compare("slt", 0)
    high, low = (y.constant(0.0).where(left, part).where(steep, part / 2) for part in _PI[:2])  # 0 or pi, pi/2 where steep
    turned = angle.where(left, -angle)
    turned = turned.where(steep, -turned)
    return (high + (low + turned)).copysign(y).where(y.compare("uno", x), nan)


def _odd(r: Real, coefficients: tuple[float, ...]) -> Real:
    """r + r^3 P(r^2)"""
    square = r * r
    return fma(r * square, horner(coefficients, square), r)


def _sine(r: Real, odd: Bits) -> Real:
    """sin(r), with the other sign where the low bit is set."""
    element = element_of(r.value.type)
    flipped = (r.bits() ^ (odd << (element.width - 1))).as_real(element)
    return _odd(flipped, format_of(r).sin).at_least(-1.0).at_most(1.0)


def _asin_of_size(x: Real) -> tuple[Real, ir.Value]:
    """asin(|x|) up to 1/2, beyond that asin(sqrt((1 - |x|) / 2)); and is it beyond?"""
    size = abs(x)
    wide = size.compare("ogt", 0.5)
    half = fma(size, -0.5, 0.5)
    square = (size * size).where(wide, half)
    root = size.where(wide, half.sqrt())
    return fma(root * square, horner(_ASIN, square), root), wide


def _reduced(x: Real, n: Real, unit: float) -> Real:
    """x - n pi unit"""
    for part in format_of(x).pi:
        x = fma(n, -part * unit, x)
    return x


def _beyond(x: Real, near: Real, odd: Bits, parts: int, shift: int) -> tuple[Real, Bits]:
    """The reduced angle and its number of multiples, as they are where no lane is beyond F32.far."""
    beyond = abs(x).compare("ogt", F32.far)
    r, number = when_values(any_lane(beyond), (near.value, odd.value), lambda: _far(x, near, odd, beyond, parts, shift))
    return Real(r), Bits(number)


def _or_library(name: str, x: Real, near: Real) -> Real:
    """`near`, and what the function of the C library gives where a lane is beyond the bound of the format."""
    beyond = abs(x).compare("ogt", format_of(x).far)

    def called() -> list[ir.Value]:
        made = ir.Operation.create(name, [x.value.type], [x.value]).results[0]
        return [near.where(beyond, Real(made)).value]

    return Real(when_values(any_lane(beyond), [near.value], called)[0])


def _far(x: Real, near: Real, odd: Bits, beyond: ir.Value, parts: int, shift: int) -> list[ir.Value]:
    """Lanes beyond F32.far: x / (pi / parts) modulo 2 in steps of 2^-63, plus `shift`, as a whole number and the rest."""
    f64 = ir.F64Type.get()
    significand, low, high = _window(abs(x))
    turns = significand * high + (significand * low).unsigned_shift(32)
    turns = (turns << (parts - 1)) + shift
    number = (turns + (1 << 62)).unsigned_shift(63)
    rest = (turns - (number << 63)).to_real(f64) * (pi / parts * 2.0**-63)
    angle = rest.resized(element_of(x.value.type)) + (x - x)  # NaN of an infinity
    if not shift:  # odd functions; the cosine is even
        angle = angle.where(x.compare("olt", 0.0), -angle)
    return [near.where(beyond, angle).value, odd.where(beyond, number.narrow(32)).value]


def _window(x: Real) -> tuple[Bits, Bits, Bits]:
    """For x = m 2^e: m, and of 2^(e + 63) / pi the lowest 64 whole bits and the 32 behind the point. As i64; x >= 2^17."""
    bits = x.bits()
    significand = ((bits & 0x7FFFFF) | 0x800000).widen(64)
    place = bits.unsigned_shift(23) - (150 - 31)  # e + 31: bits of _PLACES that are above the window
    first, skipped = place.unsigned_shift(5), (place & 31).widen(64)
    words = []
    for k in range(4):
        word = first.constant(_PLACES[k])
        for j in range(1, 5):
            word = word.where(first.compare("sge", j), word.constant(_PLACES[k + j]))
        words.append(word.widen(64))
    above, below = (words[0] << 32) | words[1], (words[2] << 32) | words[3]
    high = (above << skipped) | below.unsigned_shift(1).unsigned_shift(skipped.constant(63) - skipped)
    return significand, (below << skipped).unsigned_shift(32), high
