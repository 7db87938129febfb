"""Discrete Fourier transforms along the last axis, as the sums of their definition (passes/analysis/fourier.py) or as products
with matrices of cosines and sines.

One matrix, in f64. Where one side is real and the size is known and has the factors for it, products with constants alone
(fourier_factors.py). Where it is a known product of two factors near its root, two steps (Cooley and Tukey, 1965) in the type of
the elements: with n = b + B a and k = c + A d for a, c < A and b, d < B,

    X[c + A d] = sum over b of e^(-2 pi i b d / B) e^(-2 pi i b c / (A B)) sum over a of x[b + B a] e^(-2 pi i a c / A)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.contractions import matmul
from tilewright.compiler.ops.creation import iota
from tilewright.compiler.ops.fourier_factors import Factors
from tilewright.compiler.ops.graph import Graph, Tensor
from tilewright.compiler.ops.joining import concat
from tilewright.compiler.ops.padding import pad
from tilewright.compiler.ops.pointwise import cast, multiply
from tilewright.compiler.ops.reshaping import reshape, squeeze, unsqueeze
from tilewright.compiler.ops.slicing import narrow, select
from tilewright.passes.spaces.host.fourier_steps import radices
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_AS_DEFINED: ContextVar[bool] = ContextVar("as_defined", default=False)
_LEAST_FACTOR = 4  # of the size: with a smaller one two steps save no products over one
_LEAST_SIZE = 32
_LANES = 16  # of a vector of f32; narrower ones have a divisor of them


@contextmanager
def transforms_as_defined(wanted: bool) -> Iterator[None]:
    """Within this block, where it is wanted, transforms of known sizes with small factors are said as the sums of their
    definition: for targets that compute these by a fast algorithm."""
    before = _AS_DEFINED.set(wanted)
    try:
        yield
    finally:
        _AS_DEFINED.reset(before)


def transform(real: Tensor, imaginary: Tensor | None, size: Expr, bins: Expr, inverse: bool) -> tuple[Tensor, Tensor]:
    """Sums over n of x[..., n] e^(-2 pi i k n / size) for k below bins, or e^(+...) where inverse; nothing is divided.

    Args:
        real, imaginary: parts [..., size] of one float type; None: all of them are 0.
    Returns:
        Real and imaginary part [..., bins] of that type.
    """
    g, sign = real.graph, 1.0 if inverse else -1.0
    if _is_said(size) and bins.constant is not None:
        first, second = _said(real, imaginary, size.constant or 0, bins.constant, int(sign), 2)
        return first, second
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
    said = _is_said(size) and bins.constant is not None
    factors = Factors.of(size.constant or 0, 1.0)
    if factors is not None and bins.constant is not None and not said:
        twice = np.where(np.isin(np.arange(bins.constant) * 2 % factors.size, 0), 1.0, 2.0)
        return cast(factors.run([real, imaginary], factors.size, 1, [twice, np.where(twice == 1, 0.0, 2.0)])[0], real.dtype)

    def mirrored(k: Scalar, s: Scalar) -> Scalar:
        return k.body.select(k.compare("eq", 0) | (k * 2).compare("eq", s), k.body.value(1, "i64"), 2)

    kind = DType.F64 if steps is None and not said else computed_in(real.dtype)
    weight = cast(g.pointwise("fourier", mirrored, iota(g, [bins], 0, DType.I64), size), kind)
    if said:
        first, second = (multiply(cast(p, kind), weight) for p in (real, imaginary))
        return cast(_said(first, second, size.constant or 0, size.constant or 0, 1, 1)[0], real.dtype)
    if steps is not None:
        first, second = (multiply(cast(p, kind), weight) for p in (real, imaginary))
        return steps.run(first, second, steps.size, False, real.dtype)[0]
    cosine, sine = (_matrix(g, bins, size, size, name) for name in ("cos", "sin"))
    total = matmul(multiply(_rows(real), weight), cosine) - matmul(multiply(_rows(imaginary), weight), sine)
    return reshape(cast(total, real.dtype), [*real.dims[:-1], size])


def _is_said(size: Expr) -> bool:
    """Is a transform of that size said as the sum of its definition, which a fast algorithm computes?"""
    return _AS_DEFINED.get() and radices(size.constant or 0) is not None


def _said(real: Tensor, imaginary: Tensor | None, size: int, bins: int, sign: int, parts: int) -> list[Tensor]:
    """The first `bins` results, real and imaginary part or the real one alone, as the definition has them; elements that are
    not given are 0."""
    if real.rank == 1:
        row = None if imaginary is None else unsqueeze(imaginary, 0)
        return [squeeze(x, 0) for x in _said(unsqueeze(real, 0), row, size, bins, sign, parts)]
    g, lead, kind = real.graph, real.dims[:-1], computed_in(real.dtype)
    rank = len(lead)
    rows = [f"d{a}" for a in range(rank)]
    read, loops = [*rows, f"d{rank + 2}"], [*rows, f"d{rank}", f"d{rank + 1}"]

    def term(region: Body, part: Scalar, ahead: int) -> Scalar:
        """The cosine of the turn less `part + ahead` quarters."""
        turns = region.index(rank + 2) * region.index(rank + 1) * 4 + part * (size if sign < 0 else 3 * size) + ahead * size
        return (turns.remainder(4 * size).cast("i64").cast(kind.value) * (math.pi / 2 / size)).math("cos")

    def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        part = region.index(rank)
        total = out + scalars[0] * term(region, part, 0)
        return total if imaginary is None else total + scalars[1] * term(region, part, 3 if sign < 0 else 1)

    given = [(real, read), *([] if imaginary is None else [(imaginary, read)])]
    dims = [*lead, Expr.of(parts), Expr.of(bins)]
    total = g.generic(given, (g.filled(0, kind, dims), loops), ["parallel"] * (rank + 2) + ["reduction"], body)
    return [cast(select(total, rank, p), real.dtype) for p in range(parts)]


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
