"""Scalar arithmetic inside a region, written as Python expressions and emitted as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Union

import numpy as np

from tilewright.runtime.tensor import DType

Number = Union["Scalar", int, float]
_FLOAT_BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8E4M3FN": 8, "f8E5M2": 8}
_INTEGER_NAMES = {"add": "addi", "sub": "subi", "mul": "muli", "div": "divsi", "rem": "remsi", "maximum": "maxsi",
                  "minimum": "minsi", "and": "andi", "or": "ori", "xor": "xori", "shl": "shli", "shr": "shrsi"}  # fmt: skip
_UNSIGNED_NAMES = {"div": "divui", "rem": "remui", "maximum": "maxui", "minimum": "minui", "shr": "shrui"}
_PREDICATES = {"eq": ("eq", "oeq"), "ne": ("ne", "une"), "lt": ("lt", "olt"), "le": ("le", "ole"), "gt": ("gt", "ogt"),
               "ge": ("ge", "oge")}  # fmt: skip


def computed_in(dtype: DType) -> DType:
    """The type in which an operator computes: 16-bit and 8-bit floats in f32, rounded once at its end."""
    return DType.F32 if dtype.is_float and dtype.bytes < 4 else dtype


def literal(value: float, kind: str) -> str:
    """A constant of an MLIR scalar type as text."""
    if kind == "i1":
        return "true" if value else "false"
    if not is_float(kind):
        return f"{int(value)} : {kind.removeprefix('u')}"
    if not np.isfinite(value):
        bits = int.from_bytes(np.asarray(value, DType(kind).numpy).tobytes(), "little")
        return f"0x{bits:0{_FLOAT_BITS[kind] // 4}X} : {kind}"
    mantissa, _, exponent = repr(float(value)).partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}{'e' + exponent if exponent else ''} : {kind}"


def is_float(kind: str) -> bool:
    return kind in _FLOAT_BITS


@dataclass
class Body:
    """The operations of one region. `fresh` gives unused value names, `constant` a constant of the function."""

    fresh: Callable[[], str]
    constant: Callable[[float, str], str]
    lines: list[str] = field(default_factory=list)

    def emit(self, text: str, kind: str) -> Scalar:
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return Scalar(self, name, kind)

    def value(self, value: Number, kind: str) -> Scalar:
        """A number as a constant of type `kind`; a scalar as it is."""
        return value if isinstance(value, Scalar) else Scalar(self, self.constant(value, kind), kind)

    def index(self, loop: int) -> Scalar:
        """The index of a loop."""
        return self.emit(f"linalg.index {loop} : index", "index")

    def select(self, condition: Scalar, a: Number, b: Number) -> Scalar:
        kind = a.kind if isinstance(a, Scalar) else b.kind if isinstance(b, Scalar) else "f32"
        first, second = self.value(a, kind), self.value(b, kind)
        return self.emit(f"arith.select {condition.ssa}, {first.ssa}, {second.ssa} : {first.type}", kind)


@dataclass(frozen=True, eq=False)
class Scalar:
    """A value of a region; `kind` names its type as DType does ("ui8" for an unsigned one), or is "index"."""

    body: Body
    ssa: str
    kind: str

    @property
    def type(self) -> str:
        """The MLIR type."""
        return self.kind.removeprefix("u")

    @property
    def is_unsigned(self) -> bool:
        return self.kind.startswith("u")

    def _binary(self, name: str, other: Number, swap: bool = False) -> Scalar:
        value = self.body.value(other, self.kind)
        a, b = (value, self) if swap else (self, value)
        if self.kind == "i1" and name in ("maximum", "minimum"):
            op = "ori" if name == "maximum" else "andi"
        elif is_float(self.kind):
            op = {"maximum": "maximumf", "minimum": "minimumf"}.get(name, name + "f")
        elif self.is_unsigned or self.kind == "i1":
            op = _UNSIGNED_NAMES.get(name, _INTEGER_NAMES[name])
        else:
            op = _INTEGER_NAMES[name]
        return self.body.emit(f"arith.{op} {a.ssa}, {b.ssa} : {self.type}", self.kind)

    def __add__(self, other: Number) -> Scalar:
        return self._binary("add", other)

    def __radd__(self, other: Number) -> Scalar:
        return self._binary("add", other, swap=True)

    def __sub__(self, other: Number) -> Scalar:
        return self._binary("sub", other)

    def __rsub__(self, other: Number) -> Scalar:
        return self._binary("sub", other, swap=True)

    def __mul__(self, other: Number) -> Scalar:
        return self._binary("mul", other)

    def __rmul__(self, other: Number) -> Scalar:
        return self._binary("mul", other, swap=True)

    def __truediv__(self, other: Number) -> Scalar:
        return self._binary("div", other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return self._binary("div", other, swap=True)

    def __neg__(self) -> Scalar:
        return self.body.emit(f"arith.negf {self.ssa} : {self.type}", self.kind) if is_float(self.kind) else 0 - self

    def __and__(self, other: Number) -> Scalar:
        return self._binary("and", other)

    def __or__(self, other: Number) -> Scalar:
        return self._binary("or", other)

    def __xor__(self, other: Number) -> Scalar:
        return self._binary("xor", other)

    def __invert__(self) -> Scalar:
        return self._binary("xor", -1 if self.kind != "i1" else 1)

    def __lshift__(self, other: Number) -> Scalar:
        return self._binary("shl", other)

    def __rshift__(self, other: Number) -> Scalar:
        """Shifted right; the sign is kept where there is one."""
        return self._binary("shr", other)

    def remainder(self, other: Number) -> Scalar:
        """What truncating division leaves, with the sign of self (C's % and fmod)."""
        return self._binary("rem", other)

    def floor_divide(self, other: Number) -> Scalar:
        """Rounded towards minus infinity (integers; the quotient of floats is floored)."""
        if is_float(self.kind):
            return (self / other).math("floor")
        if self.is_unsigned:
            return self / other
        value = self.body.value(other, self.kind)
        quotient, rest = self / value, self.remainder(value)
        away = rest.compare("ne", 0) & (rest ^ value).compare("lt", 0)
        return self.body.select(away, quotient - 1, quotient)

    def modulo(self, other: Number) -> Scalar:
        """What floor_divide leaves, with the sign of other (Python's %)."""
        value, rest = self.body.value(other, self.kind), self.remainder(other)
        if self.is_unsigned:
            return rest
        differs = rest.compare("lt", 0) ^ value.compare("lt", 0)
        return self.body.select(rest.compare("ne", 0) & differs, rest + value, rest)

    def maximum(self, other: Number) -> Scalar:
        return self._binary("maximum", other)

    def minimum(self, other: Number) -> Scalar:
        return self._binary("minimum", other)

    def math(self, name: str) -> Scalar:
        """A function of the math dialect, such as `exp`."""
        return self.body.emit(f"math.{name} {self.ssa} : {self.type}", self.kind)

    def power(self, exponent: Number) -> Scalar:
        """Raised to a power; floats only."""
        value = self.body.value(exponent, self.kind)
        return self.body.emit(f"math.powf {self.ssa}, {value.ssa} : {self.type}", self.kind)

    def compare(self, predicate: str, other: Number) -> Scalar:
        """`predicate`: eq, ne, lt, le, gt, ge. A comparison with NaN is false, ne true."""
        value = self.body.value(other, self.kind)
        integer, floating = _PREDICATES[predicate]
        if integer[0] in "lg":
            integer = ("u" if self.kind == "i1" or self.is_unsigned else "s") + integer
        op = f"arith.cmpf {floating}" if is_float(self.kind) else f"arith.cmpi {integer}"
        return self.body.emit(f"{op}, {self.ssa}, {value.ssa} : {self.type}", "i1")

    def cast(self, kind: str) -> Scalar:
        """Converted to another scalar type.

        Anything to i1 is `!= 0`, and i1 is 0 or 1. An integer keeps its low bits in a narrower type. A float is truncated towards
        zero; where that does not fit, the result is what C gives on x86: the least value of i32 and i64, and for a narrower or an
        unsigned type the low bits of the wider signed one.
        """
        if kind == self.kind:
            return self
        if kind == "i1":
            return self.compare("ne", 0)
        if is_float(self.kind):
            return self._float_to_float(kind) if is_float(kind) else self._float_to_integer(kind)
        if kind == "index":
            return self._convert("arith.index_castui" if self.is_unsigned or self.kind == "i1" else "arith.index_cast", kind)
        if self.kind == "index":
            return self._convert("arith.index_cast", "i64").cast(kind)
        positive = self.is_unsigned or self.kind == "i1"
        if is_float(kind):
            return self._convert("arith.uitofp" if positive else "arith.sitofp", kind)
        here, there = _bits(self.kind), _bits(kind)
        if here == there:
            return Scalar(self.body, self.ssa, kind)
        return self._convert("arith.trunci" if there < here else "arith.extui" if positive else "arith.extsi", kind)

    def _float_to_float(self, kind: str) -> Scalar:
        here, there = _FLOAT_BITS[self.kind], _FLOAT_BITS[kind]
        if here == there:
            return self.cast("f32").cast(kind)
        return self._convert("arith.extf" if here < there else "arith.truncf", kind)

    def _float_to_integer(self, kind: str) -> Scalar:
        if _FLOAT_BITS[self.kind] < 32:
            return self.cast("f32").cast(kind)
        if kind == "ui64":  # the upper half of the range has no signed counterpart
            half = float(1 << 63)
            large = self.compare("ge", half)
            low = self.body.select(large, self - half, self)._whole("i64")
            return Scalar(self.body, self.body.select(large, low ^ -(1 << 63), low).ssa, kind)
        wide = kind in ("i64", "ui16", "ui32", "index") or (kind == "ui8" and self.kind == "f64")
        whole = "i64" if wide else "i32"  # f32 beyond i32 is a multiple of 256, so that a byte of it is 0
        if kind != "index" and _bits(kind) < _bits(whole):  # as are the low bits of the least value
            return self.body.select(self._fits(whole), self, 0.0)._convert("arith.fptosi", whole).cast(kind)
        return self._whole(whole).cast(kind)

    def _whole(self, kind: str) -> Scalar:
        """Truncated to i32 or i64; the least value where that does not fit."""
        return self.body.select(self._fits(kind), self._convert("arith.fptosi", kind), -(1 << _bits(kind) - 1))

    def _fits(self, kind: str) -> Scalar:
        """Does it fit a signed integer, the least one left out?"""
        return self.math("absf").compare("lt", float(1 << _bits(kind) - 1))

    def _convert(self, op: str, kind: str) -> Scalar:
        return self.body.emit(f"{op} {self.ssa} : {self.type} to {kind.removeprefix('u')}", kind)


def _bits(kind: str) -> int:
    return int(kind.removeprefix("u")[1:])
