"""Short Fourier transforms of complex vectors in registers, as straight code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import constant, element_type, lanes_of
from tilewright.passes.mlir import arith, ir


@dataclass(frozen=True)
class Value:
    """Real and imaginary part; imag: None for 0."""

    real: ir.Value
    imag: ir.Value | None

    def __add__(self, other: Value) -> Value:
        imag = self.imag if other.imag is None else other.imag if self.imag is None else arith.addf(self.imag, other.imag)
        return Value(arith.addf(self.real, other.real), imag)

    def __sub__(self, other: Value) -> Value:
        imag = self.imag
        if other.imag is not None:
            imag = arith.negf(other.imag) if imag is None else arith.subf(imag, other.imag)
        return Value(arith.subf(self.real, other.real), imag)

    def scaled(self, by: float) -> Value:
        factor = self._constant(by)
        return Value(arith.mulf(self.real, factor), None if self.imag is None else arith.mulf(self.imag, factor))

    def plus_scaled(self, other: Value, by: float) -> Value:
        factor = self._constant(by)
        imag = self.imag
        if other.imag is not None:
            imag = arith.mulf(other.imag, factor) if imag is None else _plus(imag, other.imag, factor)
        return Value(_plus(self.real, other.real, factor), imag)

    def turned(self, cosine: ir.Value, sine: ir.Value) -> Value:
        """Times cosine + i sine, which are vectors."""
        if self.imag is None:
            return Value(arith.mulf(self.real, cosine), arith.mulf(self.real, sine))
        real = _plus(arith.mulf(self.real, cosine), arith.negf(self.imag), sine)
        return Value(real, _plus(arith.mulf(self.real, sine), self.imag, cosine))

    def at_turn(self, part: int, whole: int) -> Value:
        """Times e^(2 pi i part / whole)."""
        eighths, rest = divmod(8 * (part % whole), whole)
        if rest:
            angle = 2 * math.pi * (part % whole) / whole
            return self.turned(self._constant(math.cos(angle)), self._constant(math.sin(angle)))
        if eighths >= 4:
            return self.at_turn(eighths - 4, 8).negative()
        if eighths == 0:
            return self
        quarter = Value(self._zero() if self.imag is None else arith.negf(self.imag), self.real)
        if eighths == 2:
            return quarter
        return (quarter + (self if eighths == 1 else self.negative())).scaled(math.sqrt(0.5))

    def negative(self) -> Value:
        return Value(arith.negf(self.real), None if self.imag is None else arith.negf(self.imag))

    def _constant(self, number: float) -> ir.Value:
        return constant(element_type(self.real.type), number, lanes_of(self.real))

    def _zero(self) -> ir.Value:
        return self._constant(0.0)


def _plus(total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """total + a b, rounded once where the target has an instruction for it."""
    once = ir.Attribute.parse("#arith.fastmath<contract>")
    return arith.addf(total, arith.mulf(a, b, fastmath=once), fastmath=once)


def transform(values: Sequence[Value], sign: int) -> list[Value]:
    """Sums over n of values[n] e^(sign 2 pi i k n / len(values)), for each k."""
    size = len(values)
    if size == 1:
        return list(values)
    radix = next(p for p in range(2, size + 1) if size % p == 0)
    if radix == size:
        return _prime(values, sign)
    parts = [transform(values[n::radix], sign) for n in range(radix)]
    rest = size // radix
    found: dict[int, Value] = {}
    for k in range(rest):
        turned = [parts[n][k].at_turn(sign * n * k, size) for n in range(radix)]
        found |= {k + rest * j: v for j, v in enumerate(_prime(turned, sign))}
    return [found[k] for k in range(size)]


def _prime(values: Sequence[Value], sign: int) -> list[Value]:
    """By sums and differences of elements at opposite places."""
    size = len(values)
    if size == 2:
        return [values[0] + values[1], values[0] - values[1]]
    half = range(1, (size + 1) // 2)
    sums = [values[j] + values[size - j] for j in half]
    differences = [values[j] - values[size - j] for j in half]
    first = values[0]
    for s in sums:
        first = first + s
    found = {0: first}
    for k in half:
        even = values[0]
        for j, s in zip(half, sums, strict=True):
            even = even.plus_scaled(s, math.cos(2 * math.pi * (j * k % size) / size))
        odd = differences[0].scaled(math.sin(2 * math.pi * k / size))
        for j, d in zip(half[1:], differences[1:], strict=True):
            odd = odd.plus_scaled(d, math.sin(2 * math.pi * (j * k % size) / size))
        turned = odd.at_turn(sign, 4)
        found[k], found[size - k] = even + turned, even - turned
    return [found[k] for k in range(size)]
