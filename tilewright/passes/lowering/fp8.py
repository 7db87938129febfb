"""Conversions between f32 and 8-bit floats by integer arithmetic, as ml_dtypes rounds: ties to even, NaN for what f8E4M3FN cannot
hold, infinity for what f8E5M2 cannot."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.lowering.arithmetic import Bits, Real, element_of, with_element
from tilewright.passes.mlir import arith, ir


@dataclass(frozen=True)
class _Format:
    """fraction: bits of it; bias: of the exponent; largest: the bits of the largest finite number; over: of what is beyond it."""

    fraction: int
    bias: int
    largest: int
    over: int


_FORMATS = {"f8E4M3FN": _Format(3, 7, 0x7E, 0x7F), "f8E5M2": _Format(2, 15, 0x7B, 0x7C)}
_NAN = 0x7F
_F32_BIAS, _F32_FRACTION = 127, 23


def is_fp8(t: ir.Type) -> bool:
    """A type, or vector of a type, that these conversions know."""
    return str(element_of(t)) in _FORMATS


def from_fp8(value: ir.Value) -> Real:
    """The same number in f32: the bits as those of a tiny f32, scaled by a power of two."""
    f = _FORMATS[str(element_of(value.type))]
    narrow = arith.bitcast(with_element(value.type, ir.IntegerType.get_signless(8)), value)
    bits = Bits(arith.extui(with_element(value.type, ir.IntegerType.get_signless(32)), narrow))
    magnitude = bits & 0x7F
    scaled = (magnitude << (_F32_FRACTION - f.fraction)).as_real(ir.F32Type.get()) * 2.0 ** (_F32_BIAS - f.bias)
    beyond = magnitude.compare("sgt", f.largest)
    special = scaled.bits() | 0x7FC00000 if f.over == _NAN else (magnitude << 21) | 0x7F800000
    return (scaled.bits().where(beyond, special) | ((bits & 0x80) << 24)).as_real(ir.F32Type.get())


def to_fp8(x: Real, target: ir.Type) -> ir.Value:
    """An f32 value rounded to the element type of `target`."""
    f = _FORMATS[str(element_of(target))]
    bits = x.bits()
    magnitude = bits & 0x7FFFFFFF
    shift = _F32_FRACTION - f.fraction
    odd = magnitude.unsigned_shift(shift) & 1
    rounded = (magnitude + odd + ((1 << (shift - 1)) - 1)).unsigned_shift(shift) - ((_F32_BIAS - f.bias) << f.fraction)
    exponent = shift - f.bias + 1  # the last bit of f32 numbers from 2^exponent on is that of the smallest ones here
    small = (abs(x) + 2.0**exponent).bits() - ((exponent + _F32_BIAS) << _F32_FRACTION)
    made = rounded.where(abs(x).compare("olt", 2.0 ** (1 - f.bias)), small)
    made = made.where(made.compare("sgt", f.largest), f.over)
    made = made.where(x.is_nan(), _NAN if f.over == _NAN else 0x7E)
    signed = (made | (bits.unsigned_shift(24) & 0x80)).narrow(8)
    return arith.bitcast(target, signed.value)
