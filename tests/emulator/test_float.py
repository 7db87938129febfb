"""Floating-point instructions and conversions against NumPy and exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulator.harness import apply

from tilewright.runtime.emulator.alu import formats

Array = np.ndarray[Any, Any]
SPECIAL = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38, 65504.0, 6e-8, 0.1]


def values(kind: Any, seed: int = 0, special: bool = True) -> Array:
    rng = np.random.default_rng(seed)
    spread = rng.standard_normal(300) * 2.0 ** rng.integers(-12, 12, 300)
    with np.errstate(over="ignore"):
        return np.concatenate([rng.permutation(SPECIAL), spread] if special else [spread]).astype(kind)


def same(got: Array, wanted: Array) -> None:
    """Equal bits, with NaN equal to NaN."""
    np.testing.assert_array_equal(got, wanted)
    zero = wanted == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(np.asarray(wanted)[zero]))


@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f64", np.float64), ("f16", np.float16)])
@pytest.mark.parametrize(("opcode", "ufunc"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply)])
def test_rounded_arithmetic(kind: str, dtype: Any, opcode: str, ufunc: Any) -> None:
    a, b = values(dtype), values(dtype, 1)
    with np.errstate(all="ignore"):
        same(apply(f"{opcode}.rn.{kind} {{d}}, {{0}}, {{1}};", dtype, a, b), ufunc(a, b))


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_division_and_roots(kind: str) -> None:
    dtype = np.dtype(kind.replace("f32", "f4").replace("f64", "f8"))
    a, b = values(dtype), values(dtype, 1)
    with np.errstate(all="ignore"):
        same(apply(f"div.rn.{kind} {{d}}, {{0}}, {{1}};", dtype, a, b), a / b)
        same(apply(f"sqrt.rn.{kind} {{d}}, {{0}};", dtype, a), np.sqrt(a))
        same(apply(f"rcp.rn.{kind} {{d}}, {{0}};", dtype, a), dtype.type(1) / a)


def exact_fma(a: Array, b: Array, c: Array) -> Array:
    """Rounded once, by fractions, where all are finite."""
    rows = []
    for x, y, z in zip(a, b, c, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        rows.append(float(x) * float(y) + float(z) if exact == 0 else nearest(exact, a.dtype))
    return np.array(rows, dtype=a.dtype)


def nearest(exact: Fraction, dtype: Any) -> Any:
    guess = dtype.type(float(exact))
    options = [dtype.type(np.nextafter(guess, dtype.type(-np.inf))), guess, dtype.type(np.nextafter(guess, dtype.type(np.inf)))]
    gaps = [abs(Fraction(float(o)) - exact) for o in options]
    best = [o for o, g in zip(options, gaps, strict=True) if g == min(gaps)]
    return best[0] if len(best) == 1 else next(o for o in best if o.view(f"u{dtype.itemsize}") % 2 == 0)


@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f64", np.float64), ("f16", np.float16)])
def test_fused_multiply_add_rounds_once(kind: str, dtype: Any) -> None:
    a, b = (values(dtype, s, special=False) for s in (0, 1))
    a, b = (np.clip(v, -100, 100) for v in (a, b))
    with np.errstate(all="ignore"):
        c = (-a * b).astype(dtype) + values(dtype, 3, special=False) * dtype(1e-3)
    got = apply(f"fma.rn.{kind} {{d}}, {{0}}, {{1}}, {{2}};", dtype, a, b, c)
    with np.errstate(all="ignore"):
        same(got, exact_fma(a, b, c))


def test_fused_multiply_add_where_double_rounding_errs() -> None:
    a = np.array([1 + 2.0**-23, 1.0, 2.0**-70, 1 + 2.0**-12, 2.0**-75], dtype=np.float32)
    b = np.array([1 + 2.0**-23, 1 + 2.0**-23, 2.0**-70, 1 + 2.0**-12, 1.5], dtype=np.float32)
    c = np.array([2.0**-48, 2.0**-24, 2.0**-126 + 2.0**-149, 2.0**-60, 2.0**-140], dtype=np.float32)
    for sign in (1, -1):
        got = apply("fma.rn.f32 {d}, {0}, {1}, {2};", np.float32, sign * a, b, c)
        same(got, exact_fma(sign * a, b, c))
    halfway = np.float32(1 + 2.0**-12)
    product = float(halfway) * float(halfway)
    below = np.array([-(2.0**-70), 2.0**-70], dtype=np.float32)
    got = apply("fma.rn.f32 {d}, {0}, {1}, {2};", np.float32, np.repeat(halfway, 2), np.repeat(halfway, 2), below)
    assert got[0] == np.nextafter(np.float32(product), np.float32(0)) or got[0] != got[1]


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_rounding(mode: str) -> None:
    a, b, c = (values(np.float32, s, special=False) for s in range(3))
    for text, exact in [
        ("add.{m}.f32 {{d}}, {{0}}, {{1}};", lambda x, y, z: x + y),
        ("mul.{m}.f32 {{d}}, {{0}}, {{1}};", lambda x, y, z: x * y),
        ("fma.{m}.f32 {{d}}, {{0}}, {{1}}, {{2}};", lambda x, y, z: x * y + z),
    ]:
        sources = [a, b, c][: text.count("}},") + text.count("}};") - 1]
        got = apply(text.format(m=mode), np.float32, *sources)
        for i in range(len(a)):
            true = exact(*(Fraction(float(v[i])) for v in (a, b, c)))
            gap = Fraction(float(got[i])) - true
            down = mode == "rm" or (mode == "rz" and true > 0)
            step = np.nextafter(got[i], np.float32(np.inf if down else -np.inf))
            assert (gap <= 0 if down else gap >= 0) and abs(gap) < abs(Fraction(float(step)) - Fraction(float(got[i])))


def test_minimum_and_maximum_of_nan_and_zeros() -> None:
    a, b = values(np.float32), values(np.float32, 1)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(apply("max.f32 {d}, {0}, {1};", np.float32, a, b), np.fmax(a, b))
        np.testing.assert_array_equal(apply("min.f32 {d}, {0}, {1};", np.float32, a, b), np.fmin(a, b))
        np.testing.assert_array_equal(apply("max.NaN.f32 {d}, {0}, {1};", np.float32, a, b), np.maximum(a, b))
    zeros = np.array([0.0, -0.0, 0.0, -0.0], dtype=np.float32)
    others = np.array([-0.0, 0.0, 0.0, -0.0], dtype=np.float32)
    assert list(np.signbit(apply("max.f32 {d}, {0}, {1};", np.float32, zeros, others))) == [False, False, False, True]
    assert list(np.signbit(apply("min.f32 {d}, {0}, {1};", np.float32, zeros, others))) == [True, True, False, True]


@pytest.mark.parametrize(
    ("opcode", "function"),
    [
        ("ex2.approx.f32", np.exp2),
        ("lg2.approx.f32", np.log2),
        ("rcp.approx.f32", lambda x: 1 / x),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)),
        ("sqrt.approx.f32", np.sqrt),
        ("tanh.approx.f32", np.tanh),
        ("sin.approx.f32", np.sin),
        ("cos.approx.f32", np.cos),
        ("neg.f32", np.negative),
        ("abs.f32", np.abs),
    ],
)
def test_functions(opcode: str, function: Any) -> None:
    a = values(np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            apply(f"{opcode} {{d}}, {{0}};", np.float32, a), function(a.astype(np.float64)).astype(np.float32), rtol=1e-6
        )


def test_flush_and_saturate() -> None:
    a = np.array([1e-40, -1e-40, 1e-38, 2.0, -1.0, np.nan, 0.25], dtype=np.float32)
    one = np.ones_like(a)
    flushed = np.array([0.0, -0.0, 0.0, 2.0, -1.0, np.nan, 0.25], dtype=np.float32)
    same(apply("mul.ftz.f32 {d}, {0}, {1};", np.float32, a, one), flushed)
    same(apply("mul.sat.f32 {d}, {0}, {1};", np.float32, a[2:], one[2:]), np.array([a[2], 1, 0, 0, 0.25], dtype=np.float32))


def test_comparisons_of_nan() -> None:
    a, b = values(np.float32), values(np.float32, 1)
    nan = np.isnan(a) | np.isnan(b)
    for operator, wanted in [
        ("lt", a < b), ("ne", (a != b) & ~nan), ("neu", (a != b) | nan), ("geu", (a >= b) | nan), ("num", ~nan), ("nan", nan),
        ("eq", a == b), ("equ", (a == b) | nan),
    ]:  # fmt: skip
        got = apply(f"setp.{operator}.f32 {{t}}, {{0}}, {{1}}; selp.b32 {{d}}, 1, 0, {{t}};", np.uint32, a, b)
        np.testing.assert_array_equal(got, wanted, err_msg=operator)


def test_half_pairs() -> None:
    a, b, c = (values(np.float16, s, special=False)[:200] for s in range(3))
    pairs = [v.view(np.uint32) for v in (a, b, c)]
    same(apply("add.rn.f16x2 {d}, {0}, {1};", np.uint32, *pairs[:2]).view(np.float16), a + b)
    with np.errstate(all="ignore"):
        same(apply("fma.rn.f16x2 {d}, {0}, {1}, {2};", np.uint32, *pairs).view(np.float16), exact_fma_half(a, b, c))
    same(apply("neg.f16x2 {d}, {0};", np.uint32, pairs[0]).view(np.float16), -a)


def exact_fma_half(a: Array, b: Array, c: Array) -> Array:
    return (a.astype(np.float64) * b + c.astype(np.float64)).astype(np.longdouble).astype(np.float16)


def test_bfloat_arithmetic() -> None:
    a, b = (values(np.float32, s, special=False).astype(ml_dtypes.bfloat16) for s in (0, 1))
    got = apply("mul.rn.bf16 {d}, {0}, {1};", np.uint16, a.view(np.uint16), b.view(np.uint16)).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got, (a.astype(np.float32) * b.astype(np.float32)).astype(ml_dtypes.bfloat16))
    pairs = a[:200].view(np.uint16).view(np.uint32), b[:200].view(np.uint16).view(np.uint32)
    got = apply("max.bf16x2 {d}, {0}, {1};", np.uint32, *pairs).view(np.uint16).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got, np.maximum(a[:200], b[:200]))


@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_float_to_integer_rounds_and_clamps(kind: str, mode: str) -> None:
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")
    a = np.concatenate([values(np.float32), np.array([1.5, 2.5, -0.5, 1e30, -1e30, 2.0**31, 2.0**63], dtype=np.float32)])
    rounded = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](a.astype(np.float64))
    info = np.iinfo(dtype)
    wanted = [0 if np.isnan(x) else info.max if x >= info.max else info.min if x <= info.min else int(x) for x in rounded]
    stored = dtype if dtype.itemsize > 1 else np.dtype(f"{dtype.kind}2")
    np.testing.assert_array_equal(apply(f"cvt.{mode}.{kind}.f32 {{d}}, {{0}};", stored, a), np.array(wanted, dtype=dtype))


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("target", ["f32", "f64", "f16"])
def test_integer_to_float(kind: str, target: str) -> None:
    dtype, float_type = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}"), np.dtype(f"f{int(target[1:]) // 8}")
    info = np.iinfo(dtype)
    a = np.random.default_rng(0).integers(info.min, info.max, 200, dtype=dtype, endpoint=True)
    a[:4] = [0, info.max, info.min, 1]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(apply(f"cvt.rn.{target}.{kind} {{d}}, {{0}};", float_type, a), a.astype(float_type))
    if target == "f32":
        down = apply(f"cvt.rm.f32.{kind} {{d}}, {{0}};", float_type, a)
        above = np.nextafter(down, np.float32(np.inf))
        assert all(Fraction(float(x)) <= int(y) < Fraction(float(z)) for x, y, z in zip(down, a, above, strict=True))


def test_narrow_integers_extend() -> None:
    a = np.array([0, 127, 128, 255, 256, 0xFFFF8001], dtype=np.uint32)
    np.testing.assert_array_equal(apply("cvt.s32.s8 {d}, {0};", np.int32, a), a.astype(np.int8))
    np.testing.assert_array_equal(apply("cvt.u32.u8 {d}, {0};", np.uint32, a), a.astype(np.uint8))
    np.testing.assert_array_equal(apply("cvt.s64.s32 {d}, {0};", np.int64, a), a.view(np.int32))
    np.testing.assert_array_equal(apply("cvt.sat.s8.s32 {d}, {0};", np.int32, a), np.clip(a.view(np.int32), -128, 127))


def test_float_conversions() -> None:
    with np.errstate(all="ignore"):
        a, w = values(np.float32), values(np.float64)
        same(apply("cvt.rn.f16.f32 {d}, {0};", np.float16, a), a.astype(np.float16))
        same(apply("cvt.f32.f16 {d}, {0};", np.float32, a.astype(np.float16)), a.astype(np.float16).astype(np.float32))
        same(apply("cvt.rn.f32.f64 {d}, {0};", np.float32, w), w.astype(np.float32))
        same(apply("cvt.rni.f32.f32 {d}, {0};", np.float32, a), np.rint(a))
        finite = a[~np.isnan(a)]
        got = apply("cvt.rn.bf16.f32 {d}, {0};", np.uint16, finite).view(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(got, finite.astype(ml_dtypes.bfloat16))
        odd = np.nextafter(np.float64(1 + 2.0**-8), 2)
        assert apply("cvt.rn.bf16.f64 {d}, {0};", np.uint16, np.array([odd]))[0] == 0x3F81
        toward = apply("cvt.rz.f16.f32 {d}, {0};", np.float16, a[np.abs(a) < 60000])
    assert (np.abs(toward.astype(np.float64)) <= np.abs(a[np.abs(a) < 60000])).all()


def test_packed_conversion_puts_the_first_source_above() -> None:
    a, b = values(np.float32, 0, False), values(np.float32, 1, False)
    both = apply("cvt.rn.f16x2.f32 {d}, {0}, {1};", np.uint32, a, b).view(np.float16).reshape(-1, 2)
    same(both[:, 0], b.astype(np.float16))
    same(both[:, 1], a.astype(np.float16))


@pytest.mark.parametrize(("kind", "dtype"), [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)])
def test_eight_bit_floats(kind: str, dtype: Any) -> None:
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(formats.fp8_values(kind), codes.view(dtype).astype(np.float32))
    limit = float(ml_dtypes.finfo(dtype).max)
    a = np.clip(values(np.float32, 0, False), -limit, limit)
    a = np.concatenate([a, np.float32([0, -0.0, limit, -limit, 2.0**-9, 3 * 2.0**-10, 2.0**-17])])
    np.testing.assert_array_equal(formats.fp8_encode(a, kind), a.astype(dtype).view(np.uint8))
    assert formats.fp8_values(kind)[formats.fp8_encode(np.float32([1e9, -1e9]), kind)].tolist() == [limit, -limit]
    got = apply(f"cvt.rn.satfinite.{kind}x2.f32 {{d}}, {{0}}, {{0}};", np.uint16, a)
    np.testing.assert_array_equal(got & 255, a.astype(dtype).view(np.uint8))


def test_tf32_rounds_to_ten_bits() -> None:
    a = np.float32([1 + 2.0**-11, 1 + 2.0**-12, -1 - 2.0**-11, np.inf])
    same(apply("cvt.rna.tf32.f32 {d}, {0};", np.float32, a), np.float32([1 + 2.0**-10, 1, -1 - 2.0**-10, np.inf]))


def test_packing_moves() -> None:
    a = np.random.default_rng(0).integers(0, 1 << 63, 100, dtype=np.uint64)
    swapped = apply("mov.b64 {{%r10, %r11}}, {0}; mov.b64 {d}, {{%r11, %r10}};", np.uint64, a)
    np.testing.assert_array_equal(swapped, (a >> np.uint64(32)) | (a << np.uint64(32)))
    words = a.astype(np.uint32)
    np.testing.assert_array_equal(
        apply("mov.b32 {{_, %rs1}}, {0}; mov.b32 {d}, {{%rs1, %rs1}};", np.uint32, words), (words >> 16) * np.uint32(0x10001)
    )
