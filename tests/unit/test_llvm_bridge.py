"""From LLVM 24's text to LLVM 22's: one test per incompatibility, and constants that survive the whole way."""

from __future__ import annotations

import ctypes
import struct
from fractions import Fraction

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest

from tilewright.compiler.builder.codegen import compile_object
from tilewright.compiler.builder.llvm_bridge import bits_literal, decimal_literal, special_literal, to_llvm22
from tilewright.compiler.builder.lowering import to_llvm_text
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import BuildError
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.target import Target

KINDS = {
    "half": ("f16", np.float16),
    "bfloat": ("bf16", ml_dtypes.bfloat16),
    "float": ("f32", np.float32),
    "double": ("f64", np.float64),
}


@pytest.mark.parametrize(
    ("kind", "digits", "wanted"),
    [
        ("float", "3EAAAAAB", "0x3FD5555560000000"),
        ("float", "00000001", "0x36A0000000000000"),
        ("float", "80000000", "0x8000000000000000"),
        ("float", "FF800001", "0xFFF0000020000000"),
        ("double", "3FB999999999999B", "0x3FB999999999999B"),
        ("half", "3001", "0xH3001"),
        ("bfloat", "3DCD", "0xR3DCD"),
    ],
)
def test_bits_in_their_own_type(kind: str, digits: str, wanted: str) -> None:
    assert bits_literal(kind, digits) == wanted
    assert to_llvm22(f"  ret {kind} f0x{digits}") == f"  ret {kind} {wanted}"


@pytest.mark.parametrize(
    ("kind", "token", "wanted"),
    [
        ("float", "+inf", "0x7FF0000000000000"),
        ("float", "-inf", "0xFFF0000000000000"),
        ("float", "+qnan", "0x7FF8000000000000"),
        ("float", "-nan(0x123)", "0xFFF8002460000000"),
        ("float", "+snan(0x200001)", "0x7FF4000020000000"),
        ("double", "-qnan", "0xFFF8000000000000"),
        ("double", "+snan(0x4000000000001)", "0x7FF4000000000001"),
        ("half", "+inf", "0xH7C00"),
        ("half", "-snan(0x101)", "0xHFD01"),
        ("bfloat", "-inf", "0xRFF80"),
        ("bfloat", "+nan(0x1)", "0xR7FC1"),
    ],
)
def test_infinities_and_nans(kind: str, token: str, wanted: str) -> None:
    assert special_literal(kind, token) == wanted
    assert to_llvm22(f"  ret {kind} {token}") == f"  ret {kind} {wanted}"


@pytest.mark.parametrize("kind", ["half", "bfloat", "float"])
def test_inexact_decimals_become_the_nearest_number(kind: str) -> None:
    """Nearest in the type itself, not by way of double."""
    dtype = KINDS[kind][1]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 31 if kind == "float" else 1 << 15, 500)
    values = bits.astype(np.uint32 if kind == "float" else np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(values.astype(np.float64))
    for value in values[finite]:
        text = f"{float(value):.6e}"
        literal = decimal_literal(kind, text)
        found = _value(kind, literal)
        below, above = np.nextafter(value, dtype(-np.inf)), np.nextafter(value, dtype(np.inf))
        error = abs(Fraction(text) - Fraction(found))
        assert all(error <= abs(Fraction(text) - Fraction(float(v))) for v in (value, below, above) if np.isfinite(v))


def test_decimals_round_once() -> None:
    """Just above halfway between two halves, by less than a double can tell: 1 + 2^-11 + 10^-30."""
    text = "1.000488281250000000000000000001"
    assert decimal_literal("half", text) == "0xH3C01"
    assert decimal_literal("half", "1.00048828125") == "0xH3C00"  # a tie goes to even
    assert decimal_literal("half", "65520.0") == "0xH7C00"
    assert decimal_literal("float", "-0.000000e+00") == "0x8000000000000000"


def test_doubles_stay_decimal() -> None:
    assert to_llvm22("  ret double 1.000000e-01") == "  ret double 1.000000e-01"


def test_each_constant_has_the_type_before_it() -> None:
    line = "  %3 = select i1 %c, { half, double } { half 1.0, double 1.0 }, <2 x float> <float 0.1, float +inf>"
    assert to_llvm22(line) == (
        "  %3 = select i1 %c, { half, double } { half 0xH3C00, double 1.0 }, "
        "<2 x float> <float 0x3FB99999A0000000, float 0x7FF0000000000000>"
    )


def test_names_strings_and_comments_are_left_alone() -> None:
    text = '@s = constant [9 x i8] c"float 1.5"\ndefine void @"float 1.5"() { ; float 2.5\n %float = fneg float %f0x1'
    assert to_llvm22(text) == text


def test_llvm22_text_is_unchanged() -> None:
    text = "  ret float 0x3FB99999A0000000\n  ret half 0xH3C00\n  ret bfloat 0xR3DCD\n  ret double 1.5"
    assert to_llvm22(text) == text


def test_other_types_are_refused() -> None:
    with pytest.raises(BuildError, match="fp128"):
        to_llvm22("  ret fp128 f0x00000000000000000000000000000001")


def test_constants_survive() -> None:
    """Every kind of constant, from MLIR through both LLVMs to memory."""
    wanted, parts = {}, []
    for mlir, dtype in KINDS.values():
        size = np.dtype(dtype).itemsize
        form = {2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
        rng = np.random.default_rng(size)
        bits = rng.integers(0, np.iinfo(form).max, 200, dtype=form, endpoint=True)
        special = np.array([0.1, 1.0, -0.0, np.inf, -np.inf, np.nan, 1e-7, 3.0], dtype).view(form)
        bits = np.concatenate([bits, special])
        wanted[mlir] = bits
        listed = ", ".join(f"0x{int(b):0{2 * size}X}" for b in bits)
        parts.append(
            f"llvm.mlir.global external constant @{mlir}(dense<[{listed}]> : tensor<{len(bits)}x{mlir}>)"
            f" : !llvm.array<{len(bits)} x {mlir}>"
        )
    with ir.Context(), ir.Location.unknown():
        text = to_llvm_text(ir.Module.parse("\n".join(parts)))
    code = HostDevice().load([compile_object(text, Target.parse("host"))])
    for name, bits in wanted.items():
        raw = ctypes.string_at(code.address(name), bits.nbytes)
        assert (np.frombuffer(raw, bits.dtype) == bits).all(), name


def test_the_bridge_is_needed() -> None:
    """When llvmlite's LLVM reads these, the bridge can go."""
    for literal in ("f0x3EAAAAAB", "+inf", "1.000000e-01"):
        with pytest.raises(RuntimeError):
            llvm.parse_assembly(f"define float @f() {{\n  ret float {literal}\n}}")


def _value(kind: str, literal: str) -> float:
    if kind == "half":
        return float(np.uint16(int(literal[3:], 16)).view(np.float16))
    if kind == "bfloat":
        return float(np.uint16(int(literal[3:], 16)).view(ml_dtypes.bfloat16))
    (value,) = struct.unpack(">d", bytes.fromhex(literal[2:]))
    return float(value)
