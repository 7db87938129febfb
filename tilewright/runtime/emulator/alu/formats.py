"""Number formats that NumPy lacks, and exact rounding: bf16, tf32, fp8, directed rounding, fused multiply-add.

Fused operations round once: the exact result is held as a double and the sign of what the double lost, rounded to odd, and
then rounded to the target (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE TC 2008).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tilewright.runtime.emulator.machine.lanes import Array

_LOW = np.uint64((1 << 29) - 1)
_HALF = np.uint64(1 << 28)
_TINY = 2.0**-126


def to_odd(total: Array, rest: Array) -> Array:
    """Doubles `total + rest`, with |rest| below half an ulp of total, rounded to odd."""
    bits = np.array(total, dtype=np.float64).view(np.int64)
    inexact = (rest != 0) & np.isfinite(rest) & np.isfinite(total) & (bits & 1 == 0)
    outward = (rest > 0) == (np.asarray(total) > 0)
    bits = np.where(inexact, np.where(outward, bits + 1, bits - 1), bits)
    return bits.view(np.float64)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as the rounded sum and its exact error (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _has_subnormal(total: Array) -> bool:
    """Whether a non-zero double lies below the normal range of float32."""
    size = np.abs(total)
    smallest = float(size.min(initial=1.0))
    return smallest < _TINY and (smallest > 0 or bool(((size > 0) & (size < _TINY)).any()))


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32 arrays, rounded once to nearest even."""
    product = a.astype(np.float64) * b
    total = product + c
    result: Array = total.astype(np.float32)
    bits = total.view(np.uint64) & _LOW
    doubtful = bits == _HALF
    if doubtful.any() or _has_subnormal(total):
        wide = np.broadcast_to(c, total.shape).astype(np.float64)
        exact, rest = two_sum(product, wide)
        result = to_odd(exact, rest).astype(np.float32)
    return result


def fma_odd(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of arrays whose products are exact in double, rounded to odd in double."""
    product = np.asarray(a, dtype=np.float64) * b
    return to_odd(*two_sum(product, np.broadcast_to(np.asarray(c, dtype=np.float64), product.shape)))


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    split = 134217729.0
    high_a = a * split - (a * split - a)
    high_b = b * split - (b * split - b)
    low_a, low_b = a - high_a, b - high_b
    product = a * b
    return product, ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float64 arrays, rounded once to nearest even."""
    a, b, c = (np.array(x, dtype=np.float64) for x in np.broadcast_arrays(a, b, c))
    high, low = _two_product(a, b)
    th, tl = two_sum(c, low)
    vh, vl = two_sum(high, th)
    result: Array = vh + to_odd(*two_sum(tl, vl))
    plain = a * b + c
    size = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.maximum(np.abs(high), np.abs(c)))
    small = (np.abs(high) < 2.0**-900) & (a != 0) & (b != 0)
    extreme = np.isfinite(plain) & ((size > 2.0**900) | small) | ~np.isfinite(plain)
    result = np.where(extreme, plain, result)
    for i in np.flatnonzero(extreme & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        exact = Fraction(float(a.flat[i])) * Fraction(float(b.flat[i])) + Fraction(float(c.flat[i]))
        if exact:
            try:
                result.flat[i] = float(exact)
            except OverflowError:
                result.flat[i] = np.inf if exact > 0 else -np.inf
    return result


def directed_f32(total: Array, rest: Array, mode: str) -> Array:
    """total + rest (doubles, |rest| below half an ulp) rounded to float32 by `rz`, `rm` or `rp`."""
    result: Array = np.asarray(total.astype(np.float32))
    lost = total - result
    sign = np.where(lost != 0, lost, rest)
    finite = np.isfinite(total)
    down = finite & (sign < 0) & ((result > 0) if mode == "rz" else np.bool_(mode == "rm"))
    up = finite & (sign > 0) & ((result < 0) if mode == "rz" else np.bool_(mode == "rp"))
    result = np.where(down, np.nextafter(result, np.float32(-np.inf)), result)
    return np.where(up, np.nextafter(result, np.float32(np.inf)), result)


def round_f32(total: Array, mode: str) -> Array:
    """Doubles rounded to float32 by rn, rz, rm or rp."""
    return total.astype(np.float32) if mode == "rn" else directed_f32(total, np.zeros_like(total), mode)


def bf16_decode(bits: Array) -> Array:
    """uint16 bits -> float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_encode(value: Array, mode: str = "rn") -> Array:
    """float32 -> uint16 bits, to nearest even or toward zero; NaN is 0x7fff."""
    bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32)
    step = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = bits + step if mode == "rn" else bits
    high = (rounded >> np.uint32(16)).astype(np.uint16)
    return np.where(bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000), np.uint16(0x7FFF), high)


def f64_to_odd_f32(value: Array) -> Array:
    """Doubles rounded to odd in float32, so that a later rounding to a shorter format is exact."""
    result: Array = value.astype(np.float32)
    bits = result.view(np.int32)
    lost = value - result
    inexact = (lost != 0) & np.isfinite(value) & np.isfinite(result) & (bits & 1 == 0)
    outward = (lost > 0) == (value > 0)
    return np.where(inexact, np.where(outward, bits + 1, bits - 1), bits).astype(np.int32).view(np.float32)


def f16_encode(value: Array, mode: str = "rn") -> Array:
    """float32 or float64 -> float16, to nearest even or toward zero."""
    half: Array = value.astype(np.float16)
    if mode == "rz":
        wide = half.astype(np.float64)
        over = np.abs(wide) > np.abs(value.astype(np.float64))
        half = np.where(over & np.isfinite(value), np.nextafter(half, np.float16(0)), half)
    return half


def tf32_round(value: Array, mode: str = "rna") -> Array:
    """float32 with the mantissa rounded to 10 bits: rna to nearest, ties away; rn ties to even; rz truncates."""
    bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32)
    even = np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    add = {"rna": np.uint32(0x1000), "rz": np.uint32(0)}.get(mode, even)
    rounded = (bits + add) & np.uint32(0xFFFFE000)
    finite = bits & np.uint32(0x7F800000) != np.uint32(0x7F800000)
    return np.where(finite, rounded, bits).view(np.float32)


def fp8_values(kind: str) -> Array:
    """The 256 values of `e4m3` (bias 7, no infinity, 0x7f is NaN) or `e5m2` (bias 15) as float32."""
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if kind == "e4m3" else (5, 2, 15)
    code = np.arange(256)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    if kind == "e4m3":
        value = np.where(code & 0x7F == 0x7F, np.nan, value)
    else:
        value = np.where(exponent == 31, np.where(mantissa == 0, np.inf, np.nan), value)
    return np.where(code & 0x80, -value, value).astype(np.float32)


def fp8_encode(value: Array, kind: str) -> Array:
    """float32 -> uint8 codes to nearest even, saturating to the largest finite value (satfinite)."""
    table = fp8_values(kind)[:128].astype(np.float64)
    finite = table[np.isfinite(table)]
    size = np.minimum(np.abs(value.astype(np.float64)), finite[-1])
    above = np.clip(np.searchsorted(finite, size), 1, len(finite) - 1)
    low, high = finite[above - 1], finite[above]
    middle = (low + high) / 2
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    code = np.where(size == low, above - 1, np.where(up, above, above - 1))
    code = np.where(np.isnan(value), 0x7F, code | np.where(np.signbit(value), 0x80, 0))
    return code.astype(np.uint8)
