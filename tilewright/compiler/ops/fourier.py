"""Discrete Fourier transforms along the last axis, as products with matrices of cosines and sines.

One matrix, in f64. Where one side is real and the size is known and has the factors for it, products with constants alone
(fourier_factors.py). Where it is a known product of two factors near its root, two steps (Cooley and Tukey, 1965) in the type of
the elements: with n = b + B a and k = c + A d for a, c < A and b, d < B,

    X[c + A d] = sum over b of e^(-2 pi i b d / B) e^(-2 pi i b c / (A B)) sum over a of x[b + B a] e^(-2 pi i a c / A)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler.ops.body import Scalar, computed_in
from tilewright.compiler.ops.contractions import matmul
from tilewright.compiler.ops.creation import iota
from tilewright.compiler.ops.fourier_factors import Factors
from tilewright.compiler.ops.graph import Graph, Tensor
from tilewright.compiler.ops.joining import concat
from tilewright.compiler.ops.padding import pad
from tilewright.compiler.ops.pointwise import cast, multiply
from tilewright.compiler.ops.reshaping import reshape
from tilewright.compiler.ops.slicing import narrow, select
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_LEAST_FACTOR = 4  # of the size: with a smaller one two steps save no products over one
_LEAST_SIZE = 32
_LANES = 16  # of a vector of f32; narrower ones have a divisor of them


def transform(real: Tensor, imaginary: Tensor | None, size: Expr, bins: Expr, inverse: bool) -> tuple[Tensor, Tensor]:
    """Sums over n of x[..., n] e^(-2 pi i k n / size) for k below bins, or e^(+...) where inverse; nothing is divided.

    Args:
        real, imaginary: parts [..., size] of one float type; None: all of them are 0.
    Returns:
        Real and imaginary part [..., bins] of that type.
    """
    g, sign = real.graph, 1.0 if inverse else -1.0
    factors = Factors.of(size.constant or 0, sign) if imaginary is None else None  # complex ones gain nothing by them
    if factors is not None and bins.constant is not None:
        found = factors.run([real], bins.constant)
        return cast(found[0], real.dtype), cast(found[1], real.dtype)
    steps = _Steps.of(size, sign)
    if steps is not None and bins.constant is not None:
        first, second = steps.run(real, imaginary, bins.constant, True)
        return first, second
    cosine, sine = (_matrix(g, size, bins, size, name) for name in ("cos", "sin"))
    first, second = matmul(_rows(real), cosine), matmul(_rows(real), sine) * sign
    if imaginary is not None:
        first = first - matmul(_rows(imaginary), sine) * sign
        second = second + matmul(_rows(imaginary), cosine)
    dims = [*real.dims[:-1], bins]
    return reshape(cast(first, real.dtype), dims), reshape(cast(second, real.dtype), dims)


def real_inverse(real: Tensor, imaginary: Tensor, size: Expr) -> Tensor:
    """`size` times the real signal [..., size] of half a spectrum, [..., size // 2 + 1], whose other half mirrors it.

    The imaginary parts of the first element and, of an even size, of the last count for nothing.
    """
    g, bins, steps = real.graph, real.dims[-1], _Steps.of(size, 1.0)
    factors = Factors.of(size.constant or 0, 1.0)
    if factors is not None and bins.constant is not None:
        twice = np.where(np.isin(np.arange(bins.constant) * 2 % factors.size, 0), 1.0, 2.0)
        return cast(factors.run([real, imaginary], factors.size, 1, [twice, np.where(twice == 1, 0.0, 2.0)])[0], real.dtype)

    def mirrored(k: Scalar, s: Scalar) -> Scalar:
        return k.body.select(k.compare("eq", 0) | (k * 2).compare("eq", s), k.body.value(1, "i64"), 2)

    kind = DType.F64 if steps is None else computed_in(real.dtype)
    weight = cast(g.pointwise("fourier", mirrored, iota(g, [bins], 0, DType.I64), size), kind)
    if steps is not None:
        first, second = (multiply(cast(p, kind), weight) for p in (real, imaginary))
        return steps.run(first, second, steps.size, False, real.dtype)[0]
    cosine, sine = (_matrix(g, bins, size, size, name) for name in ("cos", "sin"))
    total = matmul(multiply(_rows(real), weight), cosine) - matmul(multiply(_rows(imaginary), weight), sine)
    return reshape(cast(total, real.dtype), [*real.dims[:-1], size])


@dataclass(frozen=True)
class _Steps:
    """A transform of first * second elements with e^(sign 2 pi i ...)."""

    first: int
    second: int
    sign: float

    @staticmethod
    def of(size: Expr, sign: float) -> _Steps | None:
        """None where the size is not known, or has no factors large enough."""
        n = size.constant or 0
        if n < _LEAST_SIZE:
            return None
        pairs = [(f, n // f) for f in range(_LEAST_FACTOR, n // _LEAST_FACTOR + 1) if n % f == 0]
        return _Steps(*min(pairs, key=lambda p: _products(*p)), sign) if pairs else None

    @property
    def size(self) -> int:
        return self.first * self.second

    def run(self, real: Tensor, imaginary: Tensor | None, bins: int, both: bool, dtype: DType | None = None) -> list[Tensor]:
        """The first `bins` results, real and imaginary part, or the real one alone. Elements that are not given are 0."""
        g, kind, lead = real.graph, computed_in(real.dtype), real.dims[:-1]
        count, (a, b) = real.dims[-1].constant, (self.first, self.second)
        assert count is not None
        used, wanted = -(-count // b), -(-bins // a)
        rows = math.prod(lead, start=Expr.of(1))

        def apart(x: Tensor) -> Tensor:
            flat = cast(reshape(x, [rows, count]), kind)
            return reshape(pad(flat, [0, 0], [0, used * b - count]), [rows, used, b])

        def constant(value: Any) -> Tensor:
            return g.constant(np.asarray(value, "f8" if kind is DType.F64 else "f4"))

        inner = self._turns(used, a, a)
        parts = [(real, np.concatenate(inner, 1))]
        if imaginary is not None:
            parts.append((imaginary, np.concatenate([-inner[1], inner[0]], 1)))
        sums = [matmul(apart(x), constant(m), transpose_a=True) for x, m in parts]
        total = reshape(sums[0] if len(sums) == 1 else sums[0] + sums[1], [rows, b, 2, a])
        x, y = (select(total, 2, n) for n in range(2))
        cosine, sine = map(constant, self._turns(b, a, self.size))
        turned = concat([x * cosine - y * sine, x * sine + y * cosine], 1)
        c, s = self._turns(wanted, b, b)
        outer = [np.concatenate([c, -s], 1), np.concatenate([s, c], 1)][: 2 if both else 1]
        found = [reshape(matmul(constant(m), turned), [rows, wanted * a]) for m in outer]
        return [reshape(cast(narrow(x, 1, 0, bins), dtype or real.dtype), [*lead, bins]) for x in found]

    def _turns(self, rows: int, columns: int, size: int) -> Sequence[np.ndarray]:
        """Cosine and sine of 2 pi row column / size."""
        turns = np.outer(np.arange(rows), np.arange(columns)) % size
        angles = turns * (2 * np.pi / size)
        return np.cos(angles), self.sign * np.sin(angles)


def _products(first: int, second: int) -> int:
    """Of numbers in two steps, those of vectors that are not full counted as well."""
    a, b = first, second
    return a * b * _whole(2 * a) + 2 * b * (b + 2) * _whole(a)


def _whole(columns: int) -> int:
    return -(-columns // _LANES) * _LANES


def _rows(x: Tensor) -> Tensor:
    """[..., n] as f64 [all others, n]."""
    return cast(reshape(x, [math.prod(x.dims[:-1], start=Expr.of(1)), x.dims[-1]]), DType.F64)


def _matrix(g: Graph, rows: Expr, columns: Expr, size: Expr, name: str) -> Tensor:
    """[rows, columns] in f64: cosine or sine of 2 pi row column / size."""
    first, second = (iota(g, [rows, columns], a, DType.I64) for a in (0, 1))
    turns = g.pointwise("fourier", lambda n, k, s: (n * k).remainder(s), first, second, size)

    def scalar(t: Scalar, s: Scalar) -> Scalar:
        return (t / s * (2 * math.pi)).math(name)

    return g.pointwise("fourier", scalar, cast(turns, DType.F64), size)
