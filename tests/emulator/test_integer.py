"""Integer instructions against NumPy on random and extreme operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulator.harness import apply

Array = np.ndarray[Any, Any]
TYPES = {"u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}


def operands(kind: str, count: int, seed: int = 0) -> list[Array]:
    info = np.iinfo(TYPES[kind])
    rng = np.random.default_rng(seed)
    extremes = np.array([0, 1, info.min, info.max, info.max - 1, info.min + 1, 2, 7], dtype=TYPES[kind])
    found = []
    for i in range(count):
        values = rng.integers(info.min, info.max, 200, dtype=TYPES[kind], endpoint=True)
        found.append(np.concatenate([np.repeat(extremes, 8) if i == 0 else np.tile(extremes, 8), values]))
    return found


def exact(kind: str, function: Callable[..., int], sources: list[Array], shift: int = 0) -> Array:
    """Python integers, wrapped to the type."""
    bits = 8 * np.dtype(TYPES[kind]).itemsize
    rows = [function(*(int(x) for x in row)) >> shift & ((1 << bits) - 1) for row in zip(*sources, strict=True)]
    return np.array(rows, dtype=f"u{bits // 8}").view(TYPES[kind])


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("opcode", "function"),
    [
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: a - b),
        ("mul.lo", lambda a, b: a * b),
        ("min", min),
        ("max", max),
        ("div", lambda a, b: -1 if b == 0 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)),
        ("rem", lambda a, b: a if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)),
    ],
)
def test_two_operands(kind: str, opcode: str, function: Callable[..., int]) -> None:
    a, b = operands(kind, 2)
    got = apply(f"{opcode}.{kind} {{d}}, {{0}}, {{1}};", TYPES[kind], a, b)
    np.testing.assert_array_equal(got, exact(kind, function, [a, b]))


@pytest.mark.parametrize("kind", ["u16", "s16"])
@pytest.mark.parametrize(("opcode", "function"), [("add", lambda a, b: a + b), ("min", min), ("max", max)])
def test_halves_of_words(kind: str, opcode: str, function: Callable[..., int]) -> None:
    a, b = operands(kind, 2)
    got = apply(f"{opcode}.{kind}x2 {{d}}, {{0}}, {{1}};", np.uint32, a.view(np.uint32), b.view(np.uint32))
    np.testing.assert_array_equal(got.view(TYPES[kind]), exact(kind, function, [a, b]))


@pytest.mark.parametrize("kind", TYPES)
def test_high_and_wide_products(kind: str) -> None:
    a, b = operands(kind, 2)
    bits = 8 * a.dtype.itemsize
    high = apply(f"mul.hi.{kind} {{d}}, {{0}}, {{1}};", TYPES[kind], a, b)
    np.testing.assert_array_equal(high, exact(kind, lambda x, y: x * y, [a, b], bits))
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        np.testing.assert_array_equal(
            apply(f"mul.wide.{kind} {{d}}, {{0}}, {{1}};", wide, a, b), a.astype(wide) * b.astype(wide)
        )


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_multiply_add(kind: str) -> None:
    a, b, c = operands(kind, 3)
    got = apply(f"mad.lo.{kind} {{d}}, {{0}}, {{1}}, {{2}};", TYPES[kind], a, b, c)
    np.testing.assert_array_equal(got, exact(kind, lambda x, y, z: x * y + z, [a, b, c]))


def test_saturated_add() -> None:
    a, b = operands("s32", 2)
    wanted = np.clip(a.astype(np.int64) + b, -(2**31), 2**31 - 1).astype(np.int32)
    np.testing.assert_array_equal(apply("add.sat.s32 {d}, {0}, {1};", np.int32, a, b), wanted)


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "s32", "s64", "u32"])
@pytest.mark.parametrize("opcode", ["shl", "shr"])
def test_shifts_clamp(kind: str, opcode: str) -> None:
    if opcode == "shl" and kind[0] != "b":
        return
    bits = int(kind[1:])
    source = f"{'s' if kind[0] == 's' else 'u'}{bits}"
    a = operands(source, 1)[0]
    n = np.resize(np.array([0, 1, 5, bits - 1, bits, bits + 3, 255], dtype=np.uint32), len(a))

    def shifted(x: int, s: int) -> int:
        return x << min(s, 64) if opcode == "shl" else x >> min(s, 64)

    got = apply(f"{opcode}.{kind} {{d}}, {{0}}, {{1}};", TYPES[source], a, n)
    np.testing.assert_array_equal(got, exact(source, shifted, [a, n]))


def test_logic_and_counts() -> None:
    a, b = operands("u32", 2)
    np.testing.assert_array_equal(apply("and.b32 {d}, {0}, {1};", np.uint32, a, b), a & b)
    np.testing.assert_array_equal(apply("or.b32 {d}, {0}, {1};", np.uint32, a, b), a | b)
    np.testing.assert_array_equal(apply("xor.b32 {d}, {0}, {1};", np.uint32, a, b), a ^ b)
    np.testing.assert_array_equal(apply("not.b32 {d}, {0};", np.uint32, a), ~a)
    np.testing.assert_array_equal(apply("popc.b32 {d}, {0};", np.uint32, a), [bin(x).count("1") for x in a])
    np.testing.assert_array_equal(apply("clz.b32 {d}, {0};", np.uint32, a), [32 - int(x).bit_length() for x in a])
    np.testing.assert_array_equal(apply("brev.b32 {d}, {0};", np.uint32, a), [int(f"{x:032b}"[::-1], 2) for x in a])
    np.testing.assert_array_equal(
        apply("bfind.u32 {d}, {0};", np.uint32, a), [(int(x).bit_length() - 1) & 0xFFFFFFFF for x in a]
    )
    w = operands("u64", 1)[0]
    np.testing.assert_array_equal(apply("clz.b64 {d}, {0};", np.uint32, w), [64 - int(x).bit_length() for x in w])
    np.testing.assert_array_equal(apply("popc.b64 {d}, {0};", np.uint32, w), [bin(x).count("1") for x in w])


def test_three_input_logic() -> None:
    a, b, c = operands("u32", 3)
    np.testing.assert_array_equal(apply("lop3.b32 {d}, {0}, {1}, {2}, 0xE8;", np.uint32, a, b, c), (a & b) | (a & c) | (b & c))
    np.testing.assert_array_equal(apply("lop3.b32 {d}, {0}, {1}, {2}, 0x96;", np.uint32, a, b, c), a ^ b ^ c)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(kind: str) -> None:
    a = operands(kind, 1)[0]
    rng = np.random.default_rng(1)
    bits = 8 * a.dtype.itemsize
    position, length = (rng.integers(0, bits + 4, len(a)).astype(np.uint32) for _ in range(2))

    def field(x: int, p: int, n: int) -> int:
        unsigned = x & ((1 << bits) - 1)
        value = unsigned >> p & ((1 << min(n, bits)) - 1)
        sign = 0 if n == 0 or kind[0] == "u" else unsigned >> min(p + n - 1, bits - 1) & 1
        have = min(n, max(bits - p, 0))
        return value | (~((1 << have) - 1) if sign else 0)

    got = apply(f"bfe.{kind} {{d}}, {{0}}, {{1}}, {{2}};", TYPES[kind], a, position, length)
    np.testing.assert_array_equal(got, exact(kind, field, [a, position, length]))


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_field_insert(bits: int) -> None:
    a, b = operands(f"u{bits}", 2)
    rng = np.random.default_rng(1)
    position, length = (rng.integers(0, bits + 4, len(a)).astype(np.uint32) for _ in range(2))

    def insert(x: int, y: int, p: int, n: int) -> int:
        mask = ((1 << min(n, bits)) - 1) << p
        return (y & ~mask) | (x << p & mask)

    got = apply(f"bfi.b{bits} {{d}}, {{0}}, {{1}}, {{2}}, {{3}};", TYPES[f"u{bits}"], a, b, position, length)
    np.testing.assert_array_equal(got, exact(f"u{bits}", insert, [a, b, position, length]))


def test_permute_and_funnel_shift() -> None:
    a, b, c = operands("u32", 3)

    def permute(x: int, y: int, s: int) -> int:
        source = (x | y << 32).to_bytes(8, "little")
        out = []
        for i in range(4):
            nibble = s >> (4 * i) & 15
            byte = source[nibble & 7]
            out.append((255 if byte & 128 else 0) if nibble & 8 else byte)
        return int.from_bytes(bytes(out), "little")

    np.testing.assert_array_equal(apply("prmt.b32 {d}, {0}, {1}, {2};", np.uint32, a, b, c), exact("u32", permute, [a, b, c]))
    np.testing.assert_array_equal(
        apply("shf.l.wrap.b32 {d}, {0}, {1}, {2};", np.uint32, a, b, c),
        exact("u32", lambda x, y, s: (x | y << 32) << (s & 31) >> 32, [a, b, c]),
    )
    np.testing.assert_array_equal(
        apply("shf.r.clamp.b32 {d}, {0}, {1}, {2};", np.uint32, a, b, c),
        exact("u32", lambda x, y, s: (x | y << 32) >> min(s, 32), [a, b, c]),
    )


def test_carry_chain_adds_128_bits() -> None:
    a, b = operands("u64", 2)
    setup = "mov.b64 {%r10, %r11}, %a0; mov.b64 {%r12, %r13}, %a1;"
    text = "add.cc.u32 %r10, %r10, %r12; addc.u32 %r11, %r11, %r13; mov.b64 {d}, {{%r10, %r11}};"
    np.testing.assert_array_equal(apply(text, np.uint64, a, b, setup=setup), a + b)
    text = "sub.cc.u32 %r10, %r10, %r12; subc.u32 %r11, %r11, %r13; mov.b64 {d}, {{%r10, %r11}};"
    np.testing.assert_array_equal(apply(text, np.uint64, a, b, setup=setup), a - b)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_products_are_added_with_a_carry(kind: str) -> None:
    """Twice the words of the operands: the low half of a product and a third number, then the high half, another one and the
    carry."""
    a, b, low = operands(kind, 3)
    high = operands(kind, 1, seed=1)[0]
    bits = 8 * a.dtype.itemsize
    total = [int(x) * int(y) + (int(c) & ((1 << bits) - 1)) + (int(d) << bits)
             for x, y, c, d in zip(a, b, low, high, strict=True)]
    setup = f"mad.lo.cc.{kind} {{d}}, {{0}}, {{1}}, {{2}};"
    np.testing.assert_array_equal(apply(setup, TYPES[kind], a, b, low, high), exact(kind, lambda t: t, [np.array(total, object)]))
    text = f"{setup} madc.hi.{kind} {{d}}, {{0}}, {{1}}, {{3}};"
    np.testing.assert_array_equal(apply(text, TYPES[kind], a, b, low, high),
                                  exact(kind, lambda t: t >> bits, [np.array(total, object)]))
    text = f"mad.hi.cc.{kind} {{d}}, {{0}}, {{1}}, {{2}}; madc.lo.{kind} {{d}}, {{0}}, 0, {{3}};"
    upper = [((int(x) * int(y) >> bits) & ((1 << bits) - 1)) + (int(c) & ((1 << bits) - 1)) >> bits
             for x, y, c in zip(a, b, low, strict=True)]
    np.testing.assert_array_equal(apply(text, TYPES[kind], a, b, low, high),
                                  exact(kind, lambda d, carry: d + carry, [high, np.array(upper, object)]))


def test_dot_product_of_bytes() -> None:
    a, b = operands("u32", 2)
    c = operands("s32", 1)[0]
    products = (a.view(np.int8).reshape(-1, 4).astype(int) * b.view(np.int8).reshape(-1, 4)).sum(axis=1)
    got = apply("dp4a.s32.s32 {d}, {0}, {1}, {2};", np.int32, a, b, c)
    np.testing.assert_array_equal(got, (products + c).astype(np.int32))


@pytest.mark.parametrize("kind", ["u32", "s32", "s64"])
@pytest.mark.parametrize(
    ("operator", "ufunc"), [("eq", np.equal), ("ne", np.not_equal), ("lt", np.less), ("ge", np.greater_equal)]
)
def test_comparison_and_selection(kind: str, operator: str, ufunc: Any) -> None:
    a, b = operands(kind, 2)
    b[::3] = a[::3]
    got = apply(f"setp.{operator}.{kind} {{t}}, {{0}}, {{1}}; selp.b32 {{d}}, 7, 9, {{t}};", np.uint32, a, b)
    np.testing.assert_array_equal(got, np.where(ufunc(a, b), 7, 9))


def test_comparison_combines_predicates() -> None:
    a, b = operands("s32", 2)
    setup = "setp.gt.s32 %p2, %a0, 5;"
    text = "setp.lt.and.s32 %p1|%p3, {0}, {1}, !%p2; selp.b32 %r20, 1, 0, %p1; selp.b32 %r21, 2, 0, %p3;"
    text += "add.u32 {d}, %r20, %r21;"
    wanted = ((a < b) & ~(a > 5)) * 1 + (~(a < b) & ~(a > 5)) * 2
    np.testing.assert_array_equal(apply(text, np.uint32, a, b, setup=setup), wanted)
    np.testing.assert_array_equal(apply("set.lt.u32.s32 {d}, {0}, {1};", np.uint32, a, b), np.where(a < b, 0xFFFFFFFF, 0))
    np.testing.assert_array_equal(apply("slct.s32.s32 {d}, {0}, {1}, {0};", np.int32, a, b), np.where(a >= 0, a, b))
