"""Bit fields, permutes, counts and moves of bits (PTX ISA, sections 9.7.1 and 9.7.8)."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.emulator.alu.alu_function import Elementwise, SpecTable
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.ptx.ptx_syntax import Immediate, Instruction
from tilewright.runtime.emulator.ptx.ptx_types import numpy_type, type_bits


def _ones(count: Array, bits: int) -> Array:
    """uint64 with the lowest `count` bits set, count at most 64."""
    full = np.uint64(0xFFFFFFFFFFFFFFFF)
    amount = (np.uint64(64) - np.minimum(count, np.uint64(bits))).astype(np.uint64)
    return np.where(amount >= np.uint64(64), np.uint64(0), full >> np.minimum(amount, np.uint64(63)))


def _bfe(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    bits, signed, dtype = type_bits(kind), kind[0] == "s", numpy_type(kind)

    def f(a: Array, b: Array, c: Array) -> Array:
        position, length = ((x & np.uint32(255)).astype(np.uint64) for x in (b, c))
        value = a.view(f"u{bits // 8}").astype(np.uint64)
        inside = position < np.uint64(bits)
        field = np.where(inside, value >> np.minimum(position, np.uint64(63)), np.uint64(0)) & _ones(length, bits)
        if signed:
            top = np.minimum(position + length - np.uint64(1), np.uint64(bits - 1))
            sign = (value >> np.minimum(top, np.uint64(63))) & np.uint64(1)
            have = np.where(inside, np.minimum(length, np.uint64(bits) - np.minimum(position, np.uint64(bits))), np.uint64(0))
            negative = (sign == 1) & (length > 0)
            field = np.where(negative, field | ~_ones(have, bits), field)
        return field.astype(f"u{bits // 8}").view(dtype)

    return Elementwise(f, (kind,), (kind, "u32", "u32"))


def _bfi(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    bits = type_bits(kind)

    def f(a: Array, b: Array, c: Array, d: Array) -> Array:
        position, length = ((x & np.uint32(255)).astype(np.uint64) for x in (c, d))
        shift = np.minimum(position, np.uint64(63))
        mask = np.where(position < np.uint64(bits), _ones(length, bits) << shift, np.uint64(0))
        wide = (b.astype(np.uint64) & ~mask) | ((a.astype(np.uint64) << shift) & mask)
        return wide.astype(f"u{bits // 8}")

    return Elementwise(f, (kind,), (kind, kind, "u32", "u32"))


_MODES: dict[str, tuple[tuple[int, ...], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
"""prmt modes: for each value of the selector's low two bits the source byte of result bytes 0 to 3."""


def _prmt(inst: Instruction) -> Elementwise:
    table = _MODES.get(inst.parts[-1])
    codes = None if table is None else np.array([sum(b << (4 * i) for i, b in enumerate(row)) for row in table])

    def f(a: Array, b: Array, c: Array) -> Array:
        pair = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
        chosen = c.astype(np.uint64) if codes is None else codes[c & np.uint32(3)].astype(np.uint64)
        result = np.zeros(np.broadcast_shapes(pair.shape, chosen.shape), dtype=np.uint64)
        for i in range(4):
            selector = chosen >> np.uint64(4 * i)
            byte = (pair >> ((selector & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            result |= np.where(selector & np.uint64(8), sign, byte) << np.uint64(8 * i)
        return result.astype(np.uint32)

    return Elementwise(f, ("b32",), ("b32", "b32", "b32"))


def _shf(inst: Instruction) -> Elementwise:
    left, clamp = inst.parts[1] == "l", inst.parts[2] == "clamp"

    def f(low: Array, high: Array, amount: Array) -> Array:
        n = (np.minimum(amount, np.uint32(32)) if clamp else amount & np.uint32(31)).astype(np.uint64)
        pair = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
        return ((pair << n) >> np.uint64(32) if left else pair >> n).astype(np.uint32)

    return Elementwise(f, ("b32",), ("b32", "b32", "u32"))


def _lop3(inst: Instruction) -> Elementwise:
    last = inst.operands[-1]
    table = last.value if isinstance(last, Immediate) else 0

    def f(a: Array, b: Array, c: Array, _: Array) -> Array:
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), dtype=np.uint32)
        for i in range(8):
            if table >> i & 1:
                result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return result

    return Elementwise(f, ("b32",), ("b32", "b32", "b32", "b32"))


def _popc(inst: Instruction) -> Elementwise:
    return Elementwise(lambda a: np.bitwise_count(a).astype(np.uint32), ("u32",), (inst.parts[-1],))


def highest_bit(a: Array) -> Array:
    """Index of the highest set bit, -1 for zero, as int64."""
    result = np.full(a.shape, -1, dtype=np.int64)
    rest = a.astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        big = rest >= np.uint64(1 << step)
        result += np.where(big, step, 0)
        rest = np.where(big, rest >> np.uint64(step), rest)
    return result + (rest > 0)


def _clz(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    bits = type_bits(kind)
    return Elementwise(lambda a: (bits - 1 - highest_bit(a)).astype(np.uint32), ("u32",), (kind,))


def _bfind(inst: Instruction) -> Elementwise:
    kind, shift = inst.parts[-1], inst.has("shiftamt")
    bits = type_bits(kind)

    def f(a: Array) -> Array:
        value = np.where(a < 0, ~a, a).view(f"u{bits // 8}") if kind[0] == "s" else a
        top = highest_bit(value)
        return np.where(top >= 0, bits - 1 - top if shift else top, -1).astype(np.uint32)

    return Elementwise(f, ("u32",), (kind,))


def _brev(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    bits = type_bits(kind)

    def f(a: Array) -> Array:
        contiguous = np.ascontiguousarray(a)
        reversed_bytes = contiguous.byteswap().view(np.uint8)
        swapped = np.packbits(np.unpackbits(reversed_bytes, bitorder="little"), bitorder="big")
        return swapped.view(f"u{bits // 8}").reshape(contiguous.shape)

    return Elementwise(f, (kind,), (kind,))


def _szext(inst: Instruction) -> Elementwise:
    """szext.{wrap,clamp}.type d, a, b: keep the low b bits of a, sign- or zero-extended."""
    kind = inst.parts[-1]
    clamp, signed = inst.has("clamp"), kind[0] == "s"

    def f(a: Array, b: Array) -> Array:
        n = (np.minimum(b, np.uint32(32)) if clamp else b & np.uint32(31)).astype(np.int64)
        low = a.astype(np.int64) & ((1 << n) - 1)
        if signed:
            low = np.where((n > 0) & ((low >> np.maximum(n - 1, 0)) & 1 == 1), low - (1 << n), low)
        return low.astype(numpy_type(kind))

    return Elementwise(f, (kind,), (kind, "u32"))


def _bmsk(inst: Instruction) -> Elementwise:
    """bmsk.{clamp,wrap}.b32 d, a, b: b ones from bit a."""
    clamp = inst.has("clamp")

    def f(a: Array, b: Array) -> Array:
        position, length = ((np.minimum(x, np.uint32(32)) if clamp else x & np.uint32(31)).astype(np.uint64) for x in (a, b))
        return ((_ones(length, 32) << position) & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return Elementwise(f, ("b32",), ("u32", "u32"))


BITS: SpecTable = {
    "bfe": _bfe,
    "bfi": _bfi,
    "prmt": _prmt,
    "shf": _shf,
    "lop3": _lop3,
    "popc": _popc,
    "clz": _clz,
    "bfind": _bfind,
    "brev": _brev,
    "szext": _szext,
    "bmsk": _bmsk,
}
