"""Scalar arithmetic inside a region, written as Python expressions and emitted as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Union

import numpy as np

from tilewright.runtime.tensor import DType

Number = Union["Scalar", int, float]
_FLOAT_BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8E4M3FN": 8, "f8E5M2": 8}
_INTEGER_NAMES = {"add": "addi", "sub": "subi", "mul": "muli", "div": "divsi", "maximum": "maxsi", "minimum": "minsi"}
_PREDICATES = {"eq": ("eq", "oeq"), "ne": ("ne", "une"), "lt": ("slt", "olt"), "le": ("sle", "ole"),
               "gt": ("sgt", "ogt"), "ge": ("sge", "oge")}  # fmt: skip


def computed_in(dtype: DType) -> DType:
    """The type in which an operator computes: 16-bit and 8-bit floats in f32, rounded once at its end."""
    return DType.F32 if dtype.is_float and dtype.bytes < 4 else dtype


def literal(value: float, kind: str) -> str:
    """A constant of an MLIR scalar type as text."""
    if kind == "i1":
        return "true" if value else "false"
    if not is_float(kind):
        return f"{int(value)} : {kind}"
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
        return self.emit(f"arith.select {condition.ssa}, {first.ssa}, {second.ssa} : {kind}", kind)


@dataclass(frozen=True, eq=False)
class Scalar:
    """A value of a region; `kind` is its MLIR type."""

    body: Body
    ssa: str
    kind: str

    def _binary(self, name: str, other: Number, swap: bool = False) -> Scalar:
        value = self.body.value(other, self.kind)
        a, b = (value, self) if swap else (self, value)
        if self.kind == "i1" and name in ("maximum", "minimum"):
            op = "ori" if name == "maximum" else "andi"
        elif is_float(self.kind):
            op = {"maximum": "maximumf", "minimum": "minimumf"}.get(name, name + "f")
        else:
            op = _INTEGER_NAMES[name]
        return self.body.emit(f"arith.{op} {a.ssa}, {b.ssa} : {self.kind}", self.kind)

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
        return self.body.emit(f"arith.negf {self.ssa} : {self.kind}", self.kind) if is_float(self.kind) else 0 - self

    def maximum(self, other: Number) -> Scalar:
        return self._binary("maximum", other)

    def minimum(self, other: Number) -> Scalar:
        return self._binary("minimum", other)

    def math(self, name: str) -> Scalar:
        """A function of the math dialect, such as `exp`."""
        return self.body.emit(f"math.{name} {self.ssa} : {self.kind}", self.kind)

    def compare(self, predicate: str, other: Number) -> Scalar:
        """`predicate`: eq, ne, lt, le, gt, ge. Integers compare as signed; a comparison with NaN is false, ne true."""
        value = self.body.value(other, self.kind)
        integer, floating = _PREDICATES[predicate]
        if self.kind == "i1":
            integer = integer.replace("s", "u", 1) if integer[0] == "s" else integer
        op = f"arith.cmpf {floating}" if is_float(self.kind) else f"arith.cmpi {integer}"
        return self.body.emit(f"{op}, {self.ssa}, {value.ssa} : {self.kind}", "i1")

    def cast(self, kind: str) -> Scalar:
        """Converted to another scalar type; floats truncate towards zero, anything to i1 is `!= 0`, i1 is 0 or 1."""
        if kind == self.kind:
            return self
        if kind == "i1":
            return self.compare("ne", 0)
        if "index" in (kind, self.kind):
            if kind == "index":
                return self._convert("arith.index_cast", kind)
            return self._convert("arith.index_cast", "i64").cast(kind)
        if is_float(kind) and is_float(self.kind):
            here, there = _FLOAT_BITS[self.kind], _FLOAT_BITS[kind]
            if here == there:
                return self.cast("f32").cast(kind)
            return self._convert("arith.extf" if here < there else "arith.truncf", kind)
        if is_float(kind):
            return self._convert("arith.uitofp" if self.kind == "i1" else "arith.sitofp", kind)
        if is_float(self.kind):
            return self._convert("arith.fptosi", kind)
        if self.kind == "i1":
            return self._convert("arith.extui", kind)
        wider = int(kind[1:]) > int(self.kind[1:])
        return self._convert("arith.extsi" if wider else "arith.trunci", kind)

    def _convert(self, op: str, kind: str) -> Scalar:
        return self.body.emit(f"{op} {self.ssa} : {self.kind} to {kind}", kind)
