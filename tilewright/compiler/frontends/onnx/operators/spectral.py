"""Discrete Fourier transforms as products with a matrix of cosines and sines."""

from __future__ import annotations

import math

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


@operator("DFT", known=[1, 2])
def dft(context: Context, x: ops.Tensor, length: Known | None = None, axis: Known | None = None) -> ops.Tensor:
    """Over one axis; the last axis of the input has 1 (real) or 2 (complex) parts, that of the result 2."""
    given = (
        context.attribute("axis", 1)
        if axis is None and context.opset < 20
        else -2
        if axis is None
        else context.numbers(axis, "axis")[0]
    )
    at = context.axis(x.rank, given)
    parts = x.dims[-1].constant
    context.require(parts in (1, 2) and at < x.rank - 1, f"a last axis of {x.dims[-1]} parts, transformed along axis {given}")
    size = x.dims[at] if length is None else length.exprs()[0]
    inverse, onesided = bool(context.attribute("inverse", 0)), bool(context.attribute("onesided", 0))
    if inverse and onesided:
        return _real_inverse(context, x, at, length)
    x = _of_length(context, x, at, size)
    moved = ops.transpose(x, [*[a for a in range(x.rank) if a != at], at])
    bins = size // 2 + 1 if onesided else size
    real, imaginary = _transformed(context, moved, size, bins, inverse)
    joined = ops.concat([ops.reshape(p, [*p.dims, 1]) for p in (real, imaginary)], -1)
    order = list(range(x.rank - 2))
    return ops.transpose(joined, [*order[:at], x.rank - 2, *order[at:], x.rank - 1])


def _of_length(context: Context, x: ops.Tensor, axis: int, size: Expr) -> ops.Tensor:
    """Cut off or filled with zeros along an axis."""
    extent = x.dims[axis]
    if extent == size:
        return x
    low, high = context.graph.bounds(size - extent)
    context.require(low >= 0 or high <= 0, f"a transform of length {size} on an axis of {extent}: either may be larger")
    if low >= 0:
        return ops.pad(x, [0] * x.rank, [size - extent if a == axis else 0 for a in range(x.rank)])
    return ops.slice(x, [0] * x.rank, [size if a == axis else d for a, d in enumerate(x.dims)])


def _real_inverse(context: Context, x: ops.Tensor, axis: int, length: Known | None) -> ops.Tensor:
    """The real signal of half a spectrum, whose other half mirrors it."""
    context.require(x.dims[-1].constant == 2, "half a spectrum without imaginary parts")
    bins = x.dims[axis]
    size = (bins - 1) * 2 if length is None else length.exprs()[0]
    x = _of_length(context, x, axis, size // 2 + 1)
    moved = ops.transpose(x, [*[a for a in range(x.rank) if a != axis], axis])
    twice = context.graph.pointwise(
        "DFT",
        lambda k, s: k.body.select(k.compare("eq", 0) | (k * 2).compare("eq", s), k.body.value(1, "i64"), 2),
        ops.iota(context.graph, [x.dims[axis]], 0, DType.I64),
        size,
    )
    weighted = ops.multiply(moved, ops.cast(twice, x.dtype))
    cosine, sine = (_matrix(context, x.dims[axis], size, size, name, DType.F64) for name in ("cos", "sin"))
    total = ops.matmul(_part(weighted, 0), cosine) - ops.matmul(_part(weighted, 1), sine)
    found = ops.reshape(ops.cast(_over(total, size), x.dtype), [*moved.dims[:-2], size, 1])
    order = list(range(x.rank - 2))
    return ops.transpose(found, [*order[:axis], x.rank - 2, *order[axis:], x.rank - 1])


def _part(x: ops.Tensor, number: int) -> ops.Tensor:
    """Real (0) or imaginary (1) part of x [..., parts, n] as f64 [all others, n]."""
    return ops.cast(ops.reshape(ops.narrow(x, -2, number, 1), [math.prod(x.dims[:-2], start=Expr.of(1)), x.dims[-1]]), DType.F64)


def _transformed(context: Context, x: ops.Tensor, size: Expr, bins: Expr, inverse: bool) -> tuple[ops.Tensor, ops.Tensor]:
    """x [..., parts, size] times e^(-+ 2 pi i k n / size), in f64: real and imaginary part [..., bins]."""
    cosine, sine = (_matrix(context, size, bins, size, name, DType.F64) for name in ("cos", "sin"))
    sign = 1.0 if inverse else -1.0
    real = _part(x, 0)
    first, second = ops.matmul(real, cosine), ops.matmul(real, sine) * sign
    if x.dims[-2].constant == 2:
        imaginary = _part(x, 1)
        first = first - ops.matmul(imaginary, sine) * sign
        second = second + ops.matmul(imaginary, cosine)
    if inverse:
        first, second = _over(first, size), _over(second, size)
    dims = [*x.dims[:-2], bins]
    return ops.reshape(ops.cast(first, x.dtype), dims), ops.reshape(ops.cast(second, x.dtype), dims)


def _over(x: ops.Tensor, size: Expr) -> ops.Tensor:
    return x.graph.pointwise("DFT", lambda v, n: v / n, x, size)


def _matrix(context: Context, rows: Expr, columns: Expr, size: Expr, name: str, dtype: DType) -> ops.Tensor:
    """[rows, columns]: cosine or sine of 2 pi row column / size."""
    first, second = (ops.iota(context.graph, [rows, columns], a, DType.I64) for a in (0, 1))
    turns = context.graph.pointwise("DFT", lambda n, k, s: (n * k).remainder(s), first, second, size)

    def scalar(t: Scalar, s: Scalar) -> Scalar:
        return (t / s * (2 * math.pi)).math(name)

    return ops.cast(context.graph.pointwise("DFT", scalar, ops.cast(turns, DType.F64), size), dtype)
