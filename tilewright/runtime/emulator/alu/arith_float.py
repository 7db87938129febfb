"""Floating-point arithmetic of f16, bf16, their pairs, f32 and f64, and the approximate functions.

Approximate functions (ex2, lg2, sin, cos, tanh, rsqrt, rcp.approx) give the correctly rounded value: a kernel may differ from
the device by the error that PTX ISA states for each (tanh.approx.f32: 2^-11 relative).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.runtime.emulator.alu import arith_int, formats
from tilewright.runtime.emulator.alu.alu_function import Elementwise, SpecTable
from tilewright.runtime.emulator.machine.findings import EmulatorError
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction

FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
FloatFunction = Callable[..., Array]
_FLT_MIN = np.float32(2.0**-126)


def is_float(kind: str) -> bool:
    return kind in FLOATS


def decode(kind: str, bits: Array, lanes: int) -> Array:
    """Register bits -> float32 (float64 for f64); a pair becomes two neighbours on the last axis."""
    if kind in ("f32", "f64"):
        return bits
    if kind == "f16":
        return bits.astype(np.float32)
    if kind == "bf16":
        return formats.bf16_decode(bits)
    if bits.shape[-1] == 1:
        bits = np.repeat(bits, lanes, axis=-1)
    halves = np.ascontiguousarray(bits).view(np.uint16)
    return halves.view(np.float16).astype(np.float32) if kind == "f16x2" else formats.bf16_decode(halves)


def encode(kind: str, value: Array, mode: str = "rn") -> Array:
    """Inverse of `decode`, with one rounding."""
    if kind == "f64":
        return value
    if kind == "f32":
        return value if value.dtype == np.float32 else value.astype(np.float32)
    if kind in ("f16", "f16x2"):
        half = formats.f16_encode(value, mode)
    else:
        single = value if value.dtype == np.float32 else formats.f64_to_odd_f32(value)
        half = formats.bf16_encode(single, mode)
    return np.ascontiguousarray(half).view(np.uint32) if kind.endswith("x2") else half


def flush(value: Array) -> Array:
    """Subnormal float32 become zeros of the same sign (.ftz)."""
    if value.dtype != np.float32:
        return value
    return np.where(np.abs(value) < _FLT_MIN, np.copysign(np.float32(0), value), value)


def saturate(value: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes 0 (.sat)."""
    return np.asarray(np.fmin(np.fmax(value, value.dtype.type(0)), value.dtype.type(1)))


def lifted(inst: Instruction, kind: str, count: int, function: FloatFunction) -> Elementwise:
    """`function` works on float32 (float64 for f64) and may return float64 rounded to odd; modifiers are applied around it."""
    ftz, sat, relu = inst.has("ftz"), inst.has("sat"), inst.has("relu")
    plain = kind in ("f32", "f64") and not (ftz or sat or relu)

    def f(*sources: Array) -> Array:
        lanes = max(x.shape[-1] for x in sources)
        values = [decode(kind, x, lanes) for x in sources]
        if ftz:
            values = [flush(v) for v in values]
        result = function(*values)
        if relu:
            result = np.where(np.isnan(result), result, np.maximum(result, result.dtype.type(0)))
        if sat:
            result = saturate(result)
        return encode(kind, flush(result) if ftz else result)

    return Elementwise(function if plain else f, (kind,), (kind,) * count)


def rounding(inst: Instruction) -> str:
    return next((p for p in inst.parts if p in ("rn", "rz", "rm", "rp")), "rn")


def _directed(inst: Instruction, kind: str, exact: Callable[[Array, Array], tuple[Array, Array]]) -> FloatFunction:
    mode = rounding(inst)
    if kind != "f32":
        raise EmulatorError(f"{inst.text}: rounding .{mode} is modelled for f32 only")
    return lambda a, b: formats.directed_f32(*exact(a.astype(np.float64), b.astype(np.float64)), mode)


def _add(inst: Instruction) -> Elementwise:
    kind, minus = inst.parts[-1], inst.parts[0] == "sub"
    if not is_float(kind):
        return arith_int.integer_add(kind, -1 if minus else 1, inst.has("sat"))
    if rounding(inst) != "rn":
        return lifted(inst, kind, 2, _directed(inst, kind, lambda a, b: formats.two_sum(a, -b if minus else b)))
    return lifted(inst, kind, 2, np.subtract if minus else np.add)


def _multiply(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    if not is_float(kind):
        return arith_int.multiply(inst)
    if rounding(inst) != "rn":
        return lifted(inst, kind, 2, _directed(inst, kind, lambda a, b: (a * b, np.zeros_like(a * b))))
    return lifted(inst, kind, 2, np.multiply)


def _fused(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    if not is_float(kind):
        return arith_int.multiply_add(inst)
    mode = rounding(inst)
    if kind == "f64":
        if mode != "rn":
            raise EmulatorError(f"{inst.text}: rounding .{mode} is modelled for f32 only")
        return lifted(inst, kind, 3, formats.fma_f64)
    if kind != "f32":
        return lifted(inst, kind, 3, formats.fma_odd)
    if mode == "rn":
        return lifted(inst, kind, 3, formats.fma_f32)

    def directed(a: Array, b: Array, c: Array) -> Array:
        return formats.directed_f32(*formats.two_sum(a.astype(np.float64) * b, c.astype(np.float64)), mode)

    return lifted(inst, kind, 3, directed)


def _divide(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    if not is_float(kind):
        return Elementwise(arith_int.divide, (kind,), (kind, kind))
    mode = rounding(inst)
    if mode == "rn":
        return lifted(inst, kind, 2, np.divide)

    def exact(a: Array, b: Array) -> tuple[Array, Array]:
        quotient = a / b
        return quotient, np.sign(a - quotient * b) * np.sign(b) * np.abs(quotient) * 2.0**-60

    return lifted(inst, kind, 2, _directed(inst, kind, exact))


def _zero_order(larger: bool, chosen: Array, a: Array, b: Array) -> Array:
    """+0 is above -0: equal operands differ only in the sign of zero."""
    equal = a == b
    if not equal.any():
        return chosen
    bits = f"u{chosen.dtype.itemsize}"
    x, y = (np.broadcast_to(v, chosen.shape).astype(chosen.dtype).view(bits) for v in (a, b))
    return np.where(equal, x & y if larger else x | y, chosen.view(bits)).view(chosen.dtype)


def _minmax(inst: Instruction) -> Elementwise:
    kind, larger = inst.parts[-1], inst.parts[0] == "max"
    if not is_float(kind):
        return arith_int.minmax(inst)
    nan, signs, count = inst.has("NaN"), inst.has("xorsign"), len(inst.operands) - 1
    pick = (np.maximum if larger else np.minimum) if nan else (np.fmax if larger else np.fmin)

    def two(a: Array, b: Array) -> Array:
        if signs:
            size = pick(np.abs(a), np.abs(b))
            return np.asarray(np.copysign(size, np.where(np.signbit(a) != np.signbit(b), -1, 1).astype(size.dtype)))
        return _zero_order(larger, pick(a, b), a, b)

    if count == 3:
        return lifted(inst, kind, 3, lambda a, b, c: two(two(a, b), c))
    return lifted(inst, kind, 2, two)


def _sign(name: str) -> Callable[[Instruction], Elementwise]:
    def spec(inst: Instruction) -> Elementwise:
        kind = inst.parts[-1]
        if not is_float(kind):
            return arith_int.negate(kind) if name == "neg" else arith_int.absolute(kind)
        if kind in ("f32", "f64"):
            return lifted(inst, kind, 1, np.negative if name == "neg" else np.abs)
        bits = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}[kind]
        sign = 0x8000 if bits == "b16" else 0x80008000

        def f(a: Array) -> Array:
            mask = a.dtype.type(sign)
            return np.asarray(a ^ mask if name == "neg" else a & ~mask)

        return Elementwise(f, (bits,), (bits,))

    return spec


def _wide(function: FloatFunction) -> Callable[[Instruction], Elementwise]:
    """A function of one argument computed in double and rounded once."""

    def spec(inst: Instruction) -> Elementwise:
        kind = inst.parts[-1]
        mode = rounding(inst)
        narrow: FloatFunction = function
        if kind == "f32":
            narrow = lambda a: formats.round_f32(function(a.astype(np.float64)), mode)  # noqa: E731
        elif kind != "f64":
            narrow = lambda a: function(a.astype(np.float64))  # noqa: E731
        return lifted(inst, kind, 1, narrow)

    return spec


def _copysign(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    return Elementwise(lambda a, b: np.copysign(b, a), (kind,), (kind, kind))


def _test(inst: Instruction) -> Elementwise:
    kind, what = inst.parts[-1], inst.parts[1]

    def f(a: Array) -> Array:
        tiny = np.abs(a) < np.finfo(a.dtype).tiny
        answers: dict[str, FloatFunction] = {
            "finite": np.isfinite,
            "infinite": np.isinf,
            "number": lambda x: ~np.isnan(x),
            "notanumber": np.isnan,
            "normal": lambda x: np.isfinite(x) & ~tiny,
            "subnormal": lambda x: tiny & (x != 0),
        }
        return answers[what](a)

    return Elementwise(f, ("pred",), (kind,))


FLOAT: SpecTable = {
    "add": _add,
    "sub": _add,
    "mul": _multiply,
    "mad": _fused,
    "fma": _fused,
    "div": _divide,
    "min": _minmax,
    "max": _minmax,
    "neg": _sign("neg"),
    "abs": _sign("abs"),
    "sqrt": _wide(np.sqrt),
    "rsqrt": _wide(lambda x: 1.0 / np.sqrt(x)),
    "rcp": _wide(lambda x: 1.0 / x),
    "ex2": _wide(np.exp2),
    "lg2": _wide(np.log2),
    "sin": _wide(np.sin),
    "cos": _wide(np.cos),
    "tanh": _wide(np.tanh),
    "copysign": _copysign,
    "testp": _test,
}
