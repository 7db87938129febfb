"""Discrete Fourier transforms."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.compiler.ops import fourier
from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.elements import remapped
from tilewright.runtime.shape import Expr


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
    real, imaginary = fourier.transform(_part(moved, 0), _part(moved, 1) if parts == 2 else None, size, bins, inverse)
    if inverse:
        real, imaginary = _over(real, size), _over(imaginary, size)
    joined = ops.concat([ops.reshape(p, [*p.dims, 1]) for p in (real, imaginary)], -1)
    order = list(range(x.rank - 2))
    return ops.transpose(joined, [*order[:at], x.rank - 2, *order[at:], x.rank - 1])


@operator("STFT", known=[1, 3])
def stft(
    context: Context, x: ops.Tensor, step: Known, window: ops.Tensor | None = None, length: Known | None = None
) -> ops.Tensor:
    """[B, frames, bins, 2] of a signal [B, L], [B, L, 1] (real) or [B, L, 2] (complex): transforms of frames, `step` apart."""
    context.require(x.rank in (2, 3), f"a signal of rank {x.rank}", "Use [B, L], [B, L, 1] or [B, L, 2]")
    parts = 1 if x.rank == 2 else x.dims[2].constant
    context.require(parts in (1, 2), f"a signal whose last axis has {x.dims[-1]} parts", "Use 1 (real) or 2 (complex)")
    context.require(window is not None or length is not None, "neither a window nor a frame_length")
    hop = context.numbers(step, "frame_step")[0]
    context.require(hop > 0, f"a frame_step of {hop}")
    size = length.exprs()[0] if length is not None else window.dims[0] if window is not None else Expr.of(0)
    onesided = bool(context.attribute("onesided", 1))
    context.require(parts == 1 or not onesided, "half the spectrum of a complex signal", "Set onesided=0")
    batch, signal = x.dims[0], x.dims[1]
    frames = (signal - size) // hop + 1
    planes = [x] if x.rank == 2 else [ops.select(x, 2, k) for k in range(parts or 1)]

    def place(_: Body, loops: list[Scalar]) -> list[Scalar]:
        return [loops[0], loops[1] * hop + loops[2]]

    framed = [remapped(p, [batch, frames, size], place) for p in planes]
    if window is not None:
        weights = context.restated(window, [size])
        framed = [ops.multiply(p, ops.reshape(weights, [1, 1, size])) for p in framed]
    bins = size // 2 + 1 if onesided else size
    found = fourier.transform(framed[0], framed[1] if len(framed) > 1 else None, size, bins, False)
    return ops.concat([ops.reshape(p, [batch, frames, bins, 1]) for p in found], -1)


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
    found = _over(fourier.real_inverse(_part(moved, 0), _part(moved, 1), size), size)
    order = list(range(x.rank - 2))
    return ops.transpose(ops.reshape(found, [*moved.dims[:-2], size, 1]), [*order[:axis], x.rank - 2, *order[axis:], x.rank - 1])


def _part(x: ops.Tensor, number: int) -> ops.Tensor:
    """Real (0) or imaginary (1) part [..., n] of x [..., parts, n]."""
    return ops.select(x, -2, number)


def _over(x: ops.Tensor, size: Expr) -> ops.Tensor:
    return x.graph.pointwise("DFT", lambda v, n: v / n, x, size)
