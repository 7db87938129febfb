"""Integer arithmetic and logic (PTX ISA, sections 9.7.1, 9.7.2, 9.7.8): results wrap, shifts clamp, division truncates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.runtime.emulator.alu.alu_function import Elementwise, SpecTable
from tilewright.runtime.emulator.machine.findings import EmulatorError
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction
from tilewright.runtime.emulator.ptx.ptx_types import numpy_type, type_bits

Binary = Callable[[Array, Array], Array]
_HALVES = ("u16x2", "s16x2")


def wide_type(kind: str) -> str:
    return f"{kind[0]}{2 * type_bits(kind)}"


def _same(function: Callable[..., Array], kind: str, count: int = 2) -> Elementwise:
    return Elementwise(function, (kind,), (kind,) * count)


def _of_halves(function: Binary, kind: str) -> Elementwise:
    """u16x2 and s16x2: each half of a word by itself."""
    half = np.dtype(f"{'i' if kind[0] == 's' else 'u'}2")
    return _same(lambda a, b: function(np.ascontiguousarray(a).view(half), np.ascontiguousarray(b).view(half)).view(np.uint32),
                 "b32")


def integer_add(kind: str, sign: int, saturate: bool) -> Elementwise:
    if kind in _HALVES:
        return _of_halves(np.add if sign > 0 else np.subtract, kind)
    if not saturate:
        return _same(np.add if sign > 0 else np.subtract, kind)
    info = np.iinfo(numpy_type(kind))

    def clamped(a: Array, b: Array) -> Array:
        total = a.astype(np.int64) + sign * b.astype(np.int64)
        return np.asarray(np.clip(total, info.min, info.max).astype(a.dtype))

    return _same(clamped, kind)


def multiply_high(a: Array, b: Array) -> Array:
    """Upper half of the product of integers of one type."""
    a, b = np.asarray(a), np.asarray(b)
    bits, dtype = 8 * a.dtype.itemsize, a.dtype
    if bits < 64:
        wide = np.dtype(f"{dtype.kind}{dtype.itemsize * 2}")
        return np.asarray(((a.astype(wide) * b.astype(wide)) >> bits).astype(dtype))
    ua, ub, low32 = a.view(np.uint64), b.view(np.uint64), np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    al, ah, bl, bh = ua & low32, ua >> half, ub & low32, ub >> half
    middle = ah * bl + ((al * bl) >> half)
    other = al * bh + (middle & low32)
    high = ah * bh + (middle >> half) + (other >> half)
    if dtype.kind == "i":
        high = high - np.where(a < 0, ub, np.uint64(0)) - np.where(b < 0, ua, np.uint64(0))
    return np.asarray(high.view(dtype))


def multiply(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    if inst.has("wide"):
        wide = wide_type(kind)
        dtype = numpy_type(wide)
        return Elementwise(lambda a, b: a.astype(dtype) * b.astype(dtype), (wide,), (kind, kind))
    return _same(multiply_high if inst.has("hi") else np.multiply, kind)


def multiply_add(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    product = multiply(inst)
    f: Binary = product.function  # type: ignore[assignment]
    if inst.has("sat"):
        info = np.iinfo(numpy_type(kind))

        def clamped(a: Array, b: Array, c: Array) -> Array:
            return np.clip(f(a, b).astype(np.int64) + c, info.min, info.max).astype(a.dtype)

        return _same(clamped, kind, 3)
    return Elementwise(lambda a, b, c: f(a, b) + c, product.results, (kind, kind, product.results[0]))


def _multiply24(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    signed, high, add = kind[0] == "s", inst.has("hi"), inst.parts[0] == "mad24"

    def f(a: Array, b: Array, *c: Array) -> Array:
        x, y = (v.astype(np.int64) & 0xFFFFFF for v in (a, b))
        if signed:
            x, y = (np.where(v & 0x800000, v - 0x1000000, v) for v in (x, y))
        product = ((x * y) >> 16 if high else x * y).astype(a.dtype)
        return np.asarray(product + c[0] if add else product)

    return _same(f, kind, 3 if add else 2)


def divide(a: Array, b: Array) -> Array:
    """Quotient truncated toward zero; division by zero gives all ones, as the hardware's sequence does."""
    zero = b == 0
    safe = np.where(zero, np.ones_like(b), b)
    quotient = a // safe
    if np.asarray(a).dtype.kind == "i":
        inexact = (quotient * safe != a) & ((a < 0) != (safe < 0))
        quotient = quotient + inexact.astype(quotient.dtype)
        lowest = (a == np.iinfo(a.dtype).min) & (b == -1)
        quotient = np.where(lowest, a, quotient)
    return np.where(zero, ~np.zeros_like(quotient), quotient)


def remainder(a: Array, b: Array) -> Array:
    """a - divide(a, b) * b; a where b is zero."""
    return np.where(b == 0, a, a - divide(a, b) * b)


def _shift(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    bits, left = type_bits(kind), inst.parts[0] == "shl"
    dtype = numpy_type(kind)

    def f(a: Array, b: Array) -> Array:
        amount = np.minimum(b, np.uint32(bits - 1)).astype(dtype)
        shifted = a << amount if left else a >> amount
        if dtype.kind == "i" and not left:
            return np.asarray(shifted)
        over = b >= bits
        return np.where(over, np.zeros(1, dtype), shifted) if over.any() else shifted

    return Elementwise(f, (kind,), (kind, "u32"))


def _logic(function: Binary) -> Callable[[Instruction], Elementwise]:
    return lambda inst: _same(function, inst.parts[-1])


def _not(inst: Instruction) -> Elementwise:
    return _same(np.bitwise_not, inst.parts[-1], 1)


def _cnot(inst: Instruction) -> Elementwise:
    return _same(lambda a: (a == 0).astype(a.dtype), inst.parts[-1], 1)


def _sad(inst: Instruction) -> Elementwise:
    return _same(lambda a, b, c: np.where(a > b, a - b, b - a) + c, inst.parts[-1], 3)


def minmax(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    f = np.minimum if inst.parts[0] == "min" else np.maximum
    if kind in _HALVES:
        return _of_halves(f, kind)
    if inst.has("relu"):
        return _same(lambda a, b: np.maximum(f(a, b), np.zeros(1, a.dtype)), kind)
    return _same(f, kind)


def negate(kind: str) -> Elementwise:
    return _same(np.negative, kind, 1)


def absolute(kind: str) -> Elementwise:
    return _same(np.abs, kind, 1)


def _dot4(inst: Instruction) -> Elementwise:
    """dp4a.atype.btype d, a, b, c: four 8-bit products added to c."""
    if inst.parts[0] != "dp4a":
        raise EmulatorError(f"{inst.text}: only dp4a is modelled")
    first, second = inst.parts[-2:]
    result = "s32" if "s32" in (first, second) else "u32"

    def lanes(x: Array, kind: str) -> list[Array]:
        dtype = np.int8 if kind == "s32" else np.uint8
        return [((x >> np.uint32(8 * i)) & np.uint32(255)).astype(np.uint8).view(dtype).astype(np.int64) for i in range(4)]

    def f(a: Array, b: Array, c: Array) -> Array:
        products = [x * y for x, y in zip(lanes(a, first), lanes(b, second), strict=True)]
        total: Array = sum(products, c.astype(np.int64))
        return total.astype(np.uint32).view(numpy_type(result))

    return Elementwise(f, (result,), ("b32", "b32", result))


INTEGER: SpecTable = {
    "mul24": _multiply24,
    "mad24": _multiply24,
    "rem": lambda inst: _same(remainder, inst.parts[-1]),
    "shl": _shift,
    "shr": _shift,
    "and": _logic(np.bitwise_and),
    "or": _logic(np.bitwise_or),
    "xor": _logic(np.bitwise_xor),
    "not": _not,
    "cnot": _cnot,
    "sad": _sad,
    "dp4a": _dot4,
}
