"""Discrete Fourier transforms along the last axis as products with a matrix of cosines and sines, in f64."""

from __future__ import annotations

import math

from tilewright.compiler.ops.body import Scalar
from tilewright.compiler.ops.contractions import matmul
from tilewright.compiler.ops.creation import iota
from tilewright.compiler.ops.graph import Graph, Tensor
from tilewright.compiler.ops.pointwise import cast, multiply
from tilewright.compiler.ops.reshaping import reshape
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


def transform(real: Tensor, imaginary: Tensor | None, size: Expr, bins: Expr, inverse: bool) -> tuple[Tensor, Tensor]:
    """Sums over n of x[..., n] e^(-2 pi i k n / size) for k below bins, or e^(+...) where inverse; nothing is divided.

    Args:
        real, imaginary: parts [..., size] of one float type; None: all of them are 0.
    Returns:
        Real and imaginary part [..., bins] of that type.
    """
    g, sign = real.graph, 1.0 if inverse else -1.0
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
    g, bins = real.graph, real.dims[-1]

    def mirrored(k: Scalar, s: Scalar) -> Scalar:
        return k.body.select(k.compare("eq", 0) | (k * 2).compare("eq", s), k.body.value(1, "i64"), 2)

    weight = cast(g.pointwise("fourier", mirrored, iota(g, [bins], 0, DType.I64), size), DType.F64)
    cosine, sine = (_matrix(g, bins, size, size, name) for name in ("cos", "sin"))
    total = matmul(multiply(_rows(real), weight), cosine) - matmul(multiply(_rows(imaginary), weight), sine)
    return reshape(cast(total, real.dtype), [*real.dims[:-1], size])


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
