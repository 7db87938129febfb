"""expand-math and promote-bf16, measured: kernels over random bit patterns of all magnitudes against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from math_kernels import DTYPES, Array, Kernels, assert_same, binary, cast, samples, ulps, unary
from scipy import special

from tilewright.compiler.builder.codegen import host_target
from tilewright.passes.lowering import expansions
from tilewright.passes.lowering.expand_math import ExpandMath
from tilewright.passes.lowering.promote_bf16 import PromoteBf16
from tilewright.runtime.target import Target

REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "erf": special.erf, "erfc": special.erfc, "tanh": np.tanh,
    "log": np.log, "log1p": np.log1p, "log2": np.log2, "rsqrt": lambda x: 1 / np.sqrt(x), "log10": np.log10,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "cbrt": np.cbrt,
}
BOUNDS = {"exp": 1.0, "exp2": 1.0, "expm1": 1.5, "erf": 6.0, "erfc": 7.0, "tanh": 6.0, "log": 2.0, "log1p": 2.0,
          "log2": 2.0, "rsqrt": 1.5, "log10": 1.0, "sin": 1.8, "cos": 1.8, "tan": 3.1, "asin": 2.3, "acos": 1.2, "atan": 1.3,
          "sinh": 2.1, "cosh": 1.5, "asinh": 1.7, "acosh": 2.0, "atanh": 2.0, "cbrt": 0.6}
F64_BOUNDS = {"exp": 0.9, "exp2": 0.9, "expm1": 1.9, "log": 0.9, "log1p": 1.0, "log2": 1.0, "log10": 1.0, "sin": 2.0, "cos": 2.0,
              "tanh": 2.6, "sinh": 2.4, "cosh": 1.5, "asinh": 1.7, "acosh": 2.0, "atanh": 2.0}
FLUSHED = {"exp", "exp2", "erfc"}  # results below the smallest normal number are 0 or less exact


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module")
def f32() -> Kernels:
    specs = {op: unary(op) for op in REFERENCES}
    specs["exp_afn"] = unary("exp", flags="fastmath<afn>")
    return Kernels(specs, [ExpandMath()])


@pytest.mark.parametrize("op", REFERENCES)
def test_f32_error(f32: Kernels, op: str) -> None:
    x = samples()
    got, exact = f32.run(op, x), REFERENCES[op](x.astype(np.float64))
    assert_same(np.isnan(got), np.isnan(exact))
    rounded = exact.astype(np.float32)
    usual = np.isfinite(rounded) & np.isfinite(exact)
    assert_same(got[np.isinf(rounded)], rounded[np.isinf(rounded)])
    if op in FLUSHED:
        small = usual & (np.abs(exact) < 2.0**-126)
        assert np.all((got[small] >= 0) & (got[small] <= 2.0**-126))
        usual &= ~small
    error = ulps(got[usual], exact[usual])
    worst = error.argmax()
    at = f"{op}({x[usual][worst]!r}) = {got[usual][worst]!r}"
    assert error[worst] <= BOUNDS[op], f"{at} is {error[worst]:.2f} ulp off"


def test_no_library_call_in_f32(f32: Kernels) -> None:
    assert "math.exp" not in f32.expanded
    assert "call" not in f32.assembly


@pytest.mark.parametrize("op", ["tanh", "erf", "expm1", "log1p", "sin", "tan", "asin", "atan", "sinh", "asinh", "atanh", "cbrt"])
def test_odd_near_zero(f32: Kernels, op: str) -> None:
    x = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-30, -1e-30], np.float32)
    assert_same(np.signbit(f32.run(op, x)), np.signbit(x))


def test_sines_stay_within_one(f32: Kernels) -> None:
    x = np.concatenate([samples(), (np.arange(0, 80_000) * np.pi + np.pi / 2).astype(np.float32)])
    for op in ("sin", "cos"):
        y = f32.run(op, x)
        assert np.all(np.abs(y[np.isfinite(x)]) <= 1) and np.nanmax(y) == 1 and np.nanmin(y) == -1


BINARY: dict[str, tuple[str, Callable[[Array, Array], Array], float]] = {
    "atan2": ("math.atan2", np.arctan2, 1.5), "power": ("math.powf", np.power, 0.6), "rest": ("arith.remf", np.fmod, 0.0),
}


@pytest.mark.parametrize("op", BINARY)
def test_error_of_two_arguments(op: str) -> None:
    """All pairs of special numbers, and random ones: of all magnitudes, and where powers are finite."""
    kernels = Kernels({op: binary(BINARY[op][0], "f32")}, [ExpandMath()])
    assert "call" not in kernels.assembly
    rng = np.random.default_rng(6)
    marks = np.array([0, 0.5, 1, 1.5, 2, 3, 7, np.inf, np.nan, 1e-45, 2.0**-126, 3.4e38, 16777217, 16777215, 1e9], np.float32)
    marks = np.concatenate([marks, -marks])
    near_one = [(1 + rng.uniform(-0.01, 0.01, 50_000)), rng.normal(0, 3000, 50_000)]
    whole = [np.round(rng.normal(0, 9, 50_000)), np.round(rng.normal(0, 9, 50_000))]
    moderate = [np.exp(rng.uniform(-6, 6, 100_000)), rng.normal(0, 8, 100_000)]
    pairs = [*(np.stack(p).astype(np.float32) for p in (near_one, whole, moderate)),
             rng.integers(0, 2**32, (2, 100_000), dtype=np.uint32).view(np.float32),
             np.stack([v.ravel() for v in np.meshgrid(marks, marks)])]
    x, y = np.concatenate(pairs, 1)
    got, exact = kernels.run(op, x, y), BINARY[op][1](x.astype(np.longdouble), y.astype(np.longdouble))
    assert_same(np.isnan(got), np.isnan(exact))
    rounded, number = exact.astype(np.float32), ~np.isnan(exact)
    assert_same(np.signbit(got[number]), np.signbit(exact[number]))
    usual = np.isfinite(rounded)
    assert_same(got[~usual], rounded[~usual])
    error = ulps(got[usual], exact[usual].astype(np.float64))
    worst = error.argmax()
    at = f"{op}({x[usual][worst]!r}, {y[usual][worst]!r}) = {got[usual][worst]!r}"
    assert error[worst] <= BINARY[op][2], f"{at} is {error[worst]:.2f} ulp off"


def test_f64_error() -> None:
    kernels = Kernels({op: unary(op, "f64") for op in F64_BOUNDS}, [ExpandMath()], lanes=8)
    rng = np.random.default_rng(8)
    marks = np.array([0, 5e-324, 2.0**-1022, 708.39, 709.78, 709.79, 710.47, 710.5, 746, 1023.9, 1024, 1e18, 1.7e308, np.inf,
                      np.nan])
    x = np.concatenate([rng.integers(0, 2**64, 40_000, dtype=np.uint64).view(np.float64), rng.uniform(-3, 3, 40_000),
                        np.exp(rng.uniform(-20, 12, 40_000)) * rng.choice([-1, 1], 40_000), rng.uniform(-710, 711, 20_000),
                        np.arange(1, 20_000) * (np.pi / 2), marks, -marks])
    for op, bound in F64_BOUNDS.items():
        got, exact = kernels.run(op, x), REFERENCES[op](x.astype(np.longdouble))
        assert_same(np.isnan(got), np.isnan(exact), op)
        rounded = exact.astype(np.float64)
        assert_same(got[np.isinf(rounded)], rounded[np.isinf(rounded)], op)
        usual = np.isfinite(rounded)
        if op in FLUSHED:
            small = usual & (np.abs(exact) < 2.0**-1022)
            assert not got[small].any()
            usual &= ~small
        wanted = exact[usual]
        places = np.ldexp(np.longdouble(1), np.maximum(np.frexp(wanted)[1] - 1, -1022) - 52)
        error = (np.abs(got[usual] - wanted) / places).astype(np.float64)
        assert error.max() <= bound, f"{op}({x[usual][error.argmax()]!r}) is {error.max():.2f} ulp off"


def test_saturation(f32: Kernels) -> None:
    x = np.linspace(9.02, 60, 10_000).astype(np.float32)
    assert np.all(f32.run("tanh", x) == 1) and np.all(f32.run("tanh", -x) == -1)
    assert np.all(f32.run("erf", x) == 1) and np.all(f32.run("erf", -x) == -1)
    assert np.all(np.abs(f32.run("tanh", samples()[:-2])[np.isfinite(samples()[:-2])]) <= 1)


def test_exp_is_monotone_where_it_ends(f32: Kernels) -> None:
    first, last = (int(np.float32(v).view(np.uint32)) for v in (-87.5, -87.0))
    y = f32.run("exp", np.arange(first, last, -1).astype(np.uint32).view(np.float32))
    assert y[0] == 0 and y[-1] > 0 and np.all(np.diff(y) >= 0)


def test_exact_powers_of_two(f32: Kernels) -> None:
    n = np.arange(-126, 128).astype(np.float32)
    powers = np.ldexp(np.float32(1), np.arange(-126, 128))
    assert_same(f32.run("exp2", n), powers)
    assert_same(f32.run("log2", powers), n)


def test_approximate_exp(f32: Kernels) -> None:
    x = np.linspace(-87.3, 88.7, 200_000).astype(np.float32)
    error = ulps(f32.run("exp_afn", x), np.exp(x.astype(np.float64)))
    assert error[np.abs(x) <= 20].max() <= 8 and error.max() <= 25 and error.max() > 1
    ends = np.array([-np.inf, -88, 89, np.inf, np.nan], np.float32)
    assert_same(f32.run("exp_afn", ends), np.array([0, 0, np.inf, np.inf, np.nan]))
    everywhere = Kernels({"exp": unary("exp")}, [ExpandMath(approximate=True)])
    assert_same(everywhere.run("exp", x), f32.run("exp_afn", x))


def test_scalars_and_vectors_give_the_same_bits(f32: Kernels) -> None:
    scalar = Kernels({op: unary(op) for op in REFERENCES}, [ExpandMath()], lanes=1)
    x = samples()[::37]
    for op in REFERENCES:
        assert_same(scalar.run(op, x), f32.run(op, x))


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_scaling_by_instruction_gives_the_same_bits(f32: Kernels, lanes: int) -> None:
    if not {"avx512f", "avx512vl"} <= host_target(Target.parse("host")).required():
        pytest.skip("no AVX-512")
    nonpositive = "%y = math.exp %x0 {{tw.nonpositive}} : {f32}"
    short = "%y = math.exp2 %x0 fastmath<afn> {{tw.nonpositive}} : {f32}"
    specs = {"exp": unary("exp"), "exp2": unary("exp2"), "exp_afn": unary("exp", flags="fastmath<afn>"),
             "nonpositive": (nonpositive, ("f32",), "f32"), "exp2_short": (short, ("f32",), "f32")}
    kernels = Kernels(specs, [ExpandMath(scale=True)], lanes)
    assert kernels.assembly.count("vscalefps") >= 4
    x = samples()
    for op in ("exp", "exp2"):
        assert_same(kernels.run(op, x), f32.run(op, x), op)
    inside = np.resize(x[~(abs(x - 88.7) < 0.1)], len(x) // lanes * lanes)  # the last ones may round to inf
    assert_same(kernels.run("exp_afn", inside), f32.run("exp_afn", inside))
    below = np.resize(x[~(x > 0)], len(x) // lanes * lanes)
    assert_same(kernels.run("nonpositive", below), f32.run("exp", below))
    got, exact = kernels.run("exp2_short", below), np.exp2(below.astype(np.float64))
    assert_same(np.isnan(got), np.isnan(exact))
    normal = exact >= 2.0**-126
    assert ulps(got[normal], exact[normal]).max() <= 2.0
    assert not got[exact < 2.0**-126].any()


def test_exponentials_of_arguments_that_are_never_positive(f32: Kernels) -> None:
    specs = {"exp": ("%y = math.exp %x0 {{tw.nonpositive}} : {f32}", ("f32",), "f32"),
             "exp2": ("%y = math.exp2 %x0 {{tw.nonpositive}} : {f32}", ("f32",), "f32")}
    kernels = Kernels(specs, [ExpandMath()], lanes=8)
    below = samples()[~(samples() > 0)]
    nan = np.array([0x7FC00001, 0x7FC001FF, 0x7FFFFFFF, 0xFFC00001, 0xFFFFFFFF], np.uint32).view(np.float32)
    ends = np.array([-np.inf, -1e30, -87.5, -87.3365, -126, -126.5, -0.5, -1.5, -0.0, 0], np.float32)
    x = np.resize(np.concatenate([below, nan, ends, ends, nan]), (len(below) // 8 + 4) * 8)
    assert_same(kernels.run("exp", x), f32.run("exp", x))
    got, exact = kernels.run("exp2", x), np.exp2(x.astype(np.float64))
    assert_same(np.isnan(got), np.isnan(exact))
    normal = exact >= 2.0**-126
    assert ulps(got[normal], exact[normal]).max() <= 0.95 and not got[exact < 2.0**-126].any()


@pytest.mark.parametrize(("lookup", "ulp"), [(False, 0.93), (True, 1.1)])
def test_exponentials_of_products(lookup: bool, ulp: float) -> None:
    """e^(d a) as 2^(2 d r): off by what rounding d a costs, |d a| / 2^24, and 0.93 ulp, 1.1 by lookup."""
    if lookup and "avx2" not in host_target(Target.parse("host")).required():
        pytest.skip("no AVX2")
    body = ("%p = arith.mulf %x0, %x1 : {f32}\n    %y = math.exp2 %p {{tw.half_product}} : {f32}")
    kernels = Kernels({"exp": (body, ("f32", "f32"), "f32")}, [ExpandMath(lookup=lookup)], lanes=8)
    assert "call" not in kernels.assembly and ("vpermps" in kernels.assembly) == lookup
    rng = np.random.default_rng(7)
    d = np.concatenate([np.exp(rng.uniform(-90, 88, 100_000)), np.exp(rng.uniform(-3, 3, 200_000))]).astype(np.float32)
    a = -np.concatenate([np.exp(rng.uniform(-87, 88.7, 100_000)), np.exp(rng.uniform(-8, 3, 200_000))]).astype(np.float32)
    log2e = np.log2(np.e)
    r = (a.astype(np.float64) * (log2e / 2)).astype(np.float32)
    x = d.astype(np.float64) * a
    got, exact = kernels.run("exp", d, r), np.exp(x)
    normal = exact >= 2.0**-125
    error = np.abs(got[normal] - exact[normal]) / exact[normal]
    assert (error <= -x[normal] * 2.0**-24 * 1.01 + ulp * 2.0**-23).all() and normal.sum() > 200_000
    last = (exact >= 2.0**-125.9) & ~normal
    assert (np.abs(got[last] / exact[last] - 1) <= 128 * 2.0**-24 + 1.5 * 2.0**-23).all() and last.any()
    assert (got[~normal] <= 2.0**-124.9).all() and not got[exact < 2.0**-127].any() and (got >= 0).all()
    ends = np.array([0, 0, 1e-38, 3.4e38, np.inf, np.inf, np.nan, 1], np.float32)
    rates = np.array([-3.4e38, -np.inf, -3.4e38, -3.4e38, -1, -0.0, -1, np.nan], np.float32)
    assert_same(kernels.run("exp", ends, rates), np.exp2(2 * ends.astype(np.float64) * rates).astype(np.float32))


def test_shares_of_a_whole() -> None:
    specs = {"share": ("%y = arith.divf %x0, %x1 {{tw.share}} : {f32}", ("f32", "f32"), "f32"),
             "quotient": ("%y = arith.divf %x0, %x1 : {f32}", ("f32", "f32"), "f32"),
             "wide": ("%y = arith.divf %x0, %x1 {{tw.share}} : {f64}", ("f64", "f64"), "f64")}
    kernels = Kernels(specs, [ExpandMath()], lanes=8)
    rng = np.random.default_rng(5)
    part = np.concatenate([rng.random(8000), np.exp(-87 * rng.random(8000)), [0, 1, 1, 1, 0, 1, 0.5, 1]]).astype(np.float32)
    whole = np.concatenate([1 + 4096 * rng.random(8000), 1 + rng.random(8000), [1, 1, 3, 1e9, 7, np.nan, np.nan, 1.5]])
    whole = whole.astype(np.float32)
    exact = part.astype(np.float64) / whole
    got, normal = kernels.run("share", part, whole), exact >= 2.0**-126
    assert_same(np.isnan(got), np.isnan(exact))
    assert 0.51 < ulps(got[normal], exact[normal]).max() <= 1.5
    assert not got[exact == 0].any()
    assert_same(kernels.run("quotient", part, whole), part / whole)
    assert_same(kernels.run("wide", *(v.astype(np.float64) for v in (part, whole))), exact)


@pytest.mark.parametrize(("element", "bits", "least"), [("f16", 11, -14), ("bf16", 8, -126)])
def test_small_floats_are_rounded_once(element: str, bits: int, least: int) -> None:
    ops = ["exp", "tanh", "erf", "log", "sqrt", "rsqrt", "ceil", "sin"]
    kernels = Kernels({op: unary(op, element) for op in ops}, [ExpandMath(), PromoteBf16()])
    x = np.arange(2**16, dtype=np.uint16).view(DTYPES[element])
    references = {**REFERENCES, "sqrt": np.sqrt, "ceil": np.ceil, "sin": np.sin}
    for op in ops:
        got, exact = kernels.run(op, x).astype(np.float64), references[op](x.astype(np.float64))
        assert_same(np.isnan(got), np.isnan(exact), op)
        fine = np.isfinite(exact) & np.isfinite(got)
        assert_same(np.isinf(got), np.isinf(exact.astype(DTYPES[element]).astype(np.float64)), op)
        fine &= (np.abs(exact) >= 2.0**-126) | (op not in FLUSHED)
        assert ulps(got[fine], exact[fine], bits, least).max() <= 0.51, op


def test_f64_stays_accurate_near_zero() -> None:
    kernels = Kernels({op: unary(op, "f64") for op in ("expm1", "log1p", "rsqrt")}, [ExpandMath()])
    rng = np.random.default_rng(2)
    x = np.exp(rng.uniform(-80, 6, 5_000)) * rng.choice([-1, 1], 5_000)
    for op in ("expm1", "log1p", "rsqrt"):
        np.testing.assert_allclose(kernels.run(op, x), REFERENCES[op](x), rtol=1e-15, atol=0, err_msg=op)


@pytest.mark.parametrize("element", ["f32", "f64", "f16", "bf16"])
def test_maximum_keeps_nan(element: str) -> None:
    constant = "%c = arith.constant {c} : {t}\n    %y = arith.maximumf %x0, %c : {t}"
    lanes = 16
    splat = constant.format(c="dense<0.0>", t="{" + element + "}")
    specs = {"maximumf": binary("arith.maximumf", element), "minimumf": binary("arith.minimumf", element),
             "relu": (splat, (element,), element)}
    kernels = Kernels(specs, [ExpandMath(), PromoteBf16()], lanes)
    values = np.array([-np.inf, -2, -1, 0, 1, 2, np.inf, np.nan])
    a, b = (v.ravel().astype(DTYPES[element]) for v in np.meshgrid(values, values))
    assert_same(kernels.run("maximumf", a, b), np.maximum(a, b))
    assert_same(kernels.run("minimumf", a, b), np.minimum(a, b))
    assert_same(kernels.run("relu", a), np.maximum(a, DTYPES[element](0)))


def test_relu_is_one_instruction() -> None:
    body = "%c = arith.constant dense<0.0> : {f32}\n    %y = arith.maximumf %x0, %c : {f32}"
    assembly = Kernels({"relu": (body, ("f32",), "f32")}, [ExpandMath()], lanes=4).assembly  # one register everywhere
    assert "max" in assembly and "unord" not in assembly


def test_powers() -> None:
    def power(n: float) -> tuple[str, tuple[str, ...], str]:
        return f"%c = arith.constant dense<{n}> : {{f32}}\n    %y = math.powf %x0, %c : {{f32}}", ("f32",), "f32"

    specs = {
        "square": power(2.0), "cube": power(3.0), "inverse": power(-1.0), "root": power(0.5),
        "fpowi": ("%y = math.fpowi %x0, %x1 : {f32}, {i32}", ("f32", "i32"), "f32"),
        "ipowi": binary("math.ipowi", "i32"),
        "ipowi5": ("%c = arith.constant dense<5> : {i32}\n    %y = math.ipowi %x0, %c : {i32}", ("i32",), "i32"),
    }
    kernels = Kernels(specs, [ExpandMath()])
    x = np.random.default_rng(3).normal(0, 3, 5000).astype(np.float32)
    for name, n in {"square": 2, "cube": 3, "inverse": -1, "root": 0.5}.items():
        np.testing.assert_allclose(kernels.run(name, x), np.power(x.astype(np.float64), n), rtol=2e-7)
    n = np.random.default_rng(4).integers(-20, 20, 5000).astype(np.int32)
    np.testing.assert_allclose(kernels.run("fpowi", x, n), np.power(x.astype(np.float64), n), rtol=1.2e-7, atol=1e-44)
    base = np.tile(np.arange(-8, 9), 40).astype(np.int32)
    exponent = np.repeat(np.arange(40), 17).astype(np.int32)
    assert_same(kernels.run("ipowi", base, exponent), base**exponent)
    assert_same(kernels.run("ipowi5", base), base**5)
    base, exponent = np.array([[1, -1, -1, 7, 0, 2], [-3, -3, -2, -1, -1, -2**31]], np.int32)
    assert_same(kernels.run("ipowi", base, exponent), np.array([1, -1, 1, 0, 0, 0]))


@pytest.mark.parametrize("element", ["f16", "bf16", "f32", "f64"])
def test_classes(element: str) -> None:
    references = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}
    ops = [*references, "isnormal"]
    specs = {op: (f"%y = math.{op} %x0 : {{{element}}}", (element,), "i1") for op in ops}
    kernels = Kernels(specs, [ExpandMath(), PromoteBf16()])
    info = ml_dtypes.finfo(DTYPES[element])
    x = np.array([0, 1, -2, info.smallest_subnormal, info.smallest_normal, info.max, np.inf, -np.inf, np.nan],
                 DTYPES[element])
    for op, reference in references.items():
        assert_same(kernels.run(op, x), reference(x), op)
    assert_same(kernels.run("isnormal", x), np.array([0, 1, 1, 0, 1, 1, 0, 0, 0]))


ARITHMETIC = {"addf": np.add, "subf": np.subtract, "mulf": np.multiply, "divf": np.divide}


@pytest.mark.parametrize("target", ["host", "host:x86-64-v3"])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_small_arithmetic_is_correctly_rounded(element: str, target: str) -> None:
    specs = {op: binary(f"arith.{op}", element) for op in ARITHMETIC}
    specs |= {f"from_{t}": cast("truncf", t, element) for t in ("f32", "f64")}
    specs |= {f"from_{t}": cast("sitofp", t, element) for t in ("i32", "i64")}
    specs |= {"to_f64": cast("extf", element, "f64"), "to_i32": cast("fptosi", element, "i32")}
    specs["less"] = (f"%y = arith.cmpf olt, %x0, %x1 : {{{element}}}", (element, element), "i1")
    kernels = Kernels(specs, [ExpandMath(), PromoteBf16()], target=target)
    for symbol in ("__trunc", "__extend", "__gnu_h2f", "__gnu_f2h", "__float"):
        assert symbol not in kernels.assembly
    kind = DTYPES[element]
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 2**16, 20_000, dtype=np.uint16).view(kind) for _ in range(2))
    for op, reference in ARITHMETIC.items():
        exact = reference(a.astype(np.float32), b.astype(np.float32))
        assert_same(kernels.run(op, a, b), exact.astype(kind), op)
    wide = rng.integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    spread = (rng.normal(size=50_000) * np.exp(rng.uniform(-30, 15, 50_000))).astype(np.float32)
    halves = np.arange(0, 2**32, 2**15, dtype=np.int64).astype(np.uint32).view(np.float32)  # ties of bf16
    for x in (wide, spread, halves):
        assert_same(kernels.run("from_f32", x), x.astype(kind))
        assert_same(kernels.run("from_f64", x.astype(np.float64)), x.astype(kind))
    ties = halves[(np.abs(halves) > 2.0**-13) & (np.abs(halves) < 60000)]
    above = ties.astype(np.float64) * (1 + 2.0**-40)  # f32 would round these onto the ties
    assert_same(kernels.run("from_f64", above), np.nextafter(ties, ties * 2).astype(kind))
    whole = rng.integers(-2**31, 2**31, 20_000)
    assert_same(kernels.run("from_i32", whole.astype(np.int32)), exact_small(whole, kind))
    assert_same(kernels.run("from_i64", whole << 8), exact_small(whole << 8, kind))
    assert_same(kernels.run("to_f64", a), a.astype(np.float64))
    assert_same(kernels.run("less", a, b), a < b)
    tame = a[np.abs(a.astype(np.float32)) < 2e9]
    assert_same(kernels.run("to_i32", tame), tame.astype(np.float32).astype(np.int32))


def exact_small(whole: Array, kind: Any) -> Array:
    """Integers rounded to nearest even in one step: the low bits become one sticky bit first."""
    size = np.abs(whole)
    shift = np.maximum(np.frexp(size.astype(np.float64))[1] - 20, 0)
    kept = size >> shift
    sticky = kept | ((kept << shift) != size)
    return (np.sign(whole) * np.ldexp(sticky.astype(np.float64), shift)).astype(np.float32).astype(kind)


def test_nan_payloads_stay_nan_in_bf16() -> None:
    kernels = Kernels({"cast": cast("truncf", "f32", "bf16")}, [PromoteBf16()])
    bits = np.concatenate([np.arange(0x7F800001, 0x80000000, 4099), np.arange(0xFF800001, 0x100000000, 4099)])
    got = kernels.run("cast", bits.astype(np.uint32).view(np.float32))
    assert np.all(np.isnan(got.astype(np.float32)))


def test_divisions_by_constants_are_products() -> None:
    """Rounded as if once, but within 2^-22 of an ulp of the middle between two numbers; zeros and infinities keep their sign."""
    divisors = (3.0, -7.0, float(np.float32(np.sqrt(2 * np.pi))), 1e-12, 768.0, 0.1)
    texts = {f"by{n}": (f"%c = arith.constant dense<{d:.17e}> : {{f32}}\n    %y = arith.divf %x0, %c : {{f32}}", ("f32",), "f32")
             for n, d in enumerate(divisors)}
    kernels = Kernels(texts, [ExpandMath(reciprocals=True)], 8)
    assert not kernels.assembly.count("divps")
    x = samples()
    for n, divisor in enumerate(divisors):
        got, by = kernels.run(f"by{n}", x), np.float32(divisor)
        with np.errstate(all="ignore"):
            rounded = x / by
        ends = ~np.isfinite(rounded) | (rounded == 0)
        assert_same(got[ends], rounded[ends])
        assert np.array_equal(np.signbit(got[ends & ~np.isnan(got)]), np.signbit(rounded[ends & ~np.isnan(got)]))
        usual = ~ends & (np.abs(rounded) >= 2.0**-100)
        assert ulps(got[usual], x[usual].astype(np.float64) / np.float64(by)).max() <= 0.5 + 2.0**-22
        assert (got[usual] != rounded[usual]).mean() < 1e-5


def test_divisions_by_powers_of_two_and_extreme_divisors_stay() -> None:
    assert [expansions.reciprocal(d) for d in (None, 4.0, 0.0, 3.0e38, 1e-30, float("nan"))] == [None] * 6
