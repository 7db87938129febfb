"""Transposed convolutions by phases: what lies a stride apart in the result is one convolution without zeros in between.

With o = stride * a + r, result o sums x[a - j] * w[stride * j + r] over j: phases r with as many taps j are one contraction over
the same places of x, whose results are laid beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.graph import Tensor
from tilewright.compiler.ops.joining import concat
from tilewright.compiler.ops.padding import pad
from tilewright.compiler.ops.reshaping import reshape, swap_axes
from tilewright.compiler.ops.slicing import flip, slice_axis, window
from tilewright.compiler.ops.sliding_windows import SlidingWindow
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

# 5x5 by steps of 2, 64 to 32 channels at 16 x 16: 2.8 times as fast as four contractions over pixels (AVX2: 1.8 to 2.1); 3x3
# would take 16/9 of the products, and stay four with channels last
_MOST_WIDER = 1.5


@dataclass(frozen=True)
class _Phases:
    """Phases [first, first + count) of an axis, which have `taps` taps each; none where the stride is wider than the kernel."""

    first: int
    count: int
    taps: int

    @staticmethod
    def of(stride: int, kernel: int) -> list[_Phases]:
        longer = kernel % stride
        found = [_Phases(0, longer, kernel // stride + 1), _Phases(longer, stride - longer, kernel // stride)]
        return [phases for phases in found if phases.count]


def phased(x: Tensor, w: Tensor, plain: SlidingWindow, more: Sequence[Expr], dtype: DType) -> Tensor:
    """The transposed convolution of x [N, C, ...] by w [C, F, K...], added in `dtype`.

    plain: the window of the convolution that it transposes, not dilated; more: elements that are added at the end of each axis.
    A weight that a few zeros complete to whole steps gets them: then all phases have as many taps, and are one contraction. What
    infinities and NaN make of these zeros is not computed apart.
    """
    rank = len(plain.extents)
    missing = [-k % s for k, s in zip(plain.extents, plain.strides, strict=True)]
    wider = tuple(k + m for k, m in zip(plain.extents, missing, strict=True))
    if rank == 2 and any(missing) and prod(wider) <= _MOST_WIDER * prod(plain.extents):
        w = pad(w, [0, 0, 0, 0], [0, 0, *missing])
        padding = tuple((low, Expr.of(high) + m) for (low, high), m in zip(plain.padding, missing, strict=True))
        plain = replace(plain, extents=wider, padding=padding)
    spatial = x.dims[2:]
    begins = [Expr.of(low) for low, _ in plain.padding]
    ends = [(d - 1) * s + k - Expr.of(high) + m for d, s, k, (_, high), m in zip(
        spatial, plain.strides, plain.extents, plain.padding, more, strict=True)]
    counts = [e.ceildiv(s) for e, s in zip(ends, plain.strides, strict=True)]
    axes = [_Phases.of(s, k) for s, k in zip(plain.strides, plain.extents, strict=True)]
    most = [max(phases.taps for phases in axis) for axis in axes]
    image = pad(x, [0, 0, *(taps - 1 for taps in most)], [0, 0, *(c - d for c, d in zip(counts, spatial, strict=True))])
    parts = {chosen: _part(image, w, plain, counts, [axes[n][i] for n, i in enumerate(chosen)], dtype)
             for chosen in product(*(range(len(phases)) for phases in axes))}
    for n in reversed(range(rank)):
        parts = {chosen: concat([parts[*chosen, i] for i in range(len(axes[n]))], 3 + 2 * n)
                 for chosen in product(*(range(len(phases)) for phases in axes[:n]))}
    whole = reshape(parts[()], [x.dims[0], w.dims[1], *(c * s for c, s in zip(counts, plain.strides, strict=True))])
    zero = Expr.of(0)
    return window(whole, [zero, zero, *begins], [*whole.dims[:2], *ends], [1] * (2 + rank))


def _part(x: Tensor, w: Tensor, plain: SlidingWindow, counts: Sequence[Expr], phases: Sequence[_Phases], dtype: DType) -> Tensor:
    """[N, F, count, phase, ...] of some phases of each axis. x: padded for those of the most taps."""
    rank = len(phases)
    dims = [x.dims[0], w.dims[1]]
    for count, phase in zip(counts, phases, strict=True):
        dims += [count, Expr.of(phase.count)]
    into = x.graph.filled(0, dtype, dims)
    if any(phase.taps == 0 for phase in phases):
        return into
    image, factors = x, _taps(w, plain, phases)
    for n, phase in enumerate(phases):
        extent = counts[n] + (phase.taps - 1)
        image = slice_axis(image, 2 + n, x.dims[2 + n] - extent)
    spatial = [f"d{2 + 2 * n}" for n in range(rank)]
    beside = [f"d{3 + 2 * n}" for n in range(rank)]
    c, taps = f"d{2 + 2 * rank}", [f"d{3 + 2 * rank + n}" for n in range(rank)]
    read = ["d0", c, *(f"{o} + {t}" for o, t in zip(spatial, taps, strict=True))]
    by = ["d1", c, *(d for pair in zip(taps, beside, strict=True) for d in pair)]
    written = ["d0", "d1", *(d for pair in zip(spatial, beside, strict=True) for d in pair)]

    def body(_: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        return out + scalars[0].cast(out.kind) * scalars[1].cast(out.kind)

    iterators = ["parallel"] * (2 + 2 * rank) + ["reduction"] * (1 + rank)
    return x.graph.generic([(image, read), (factors, by)], (into, written), iterators, body)


def _taps(w: Tensor, plain: SlidingWindow, phases: Sequence[_Phases]) -> Tensor:
    """[C, F, K...] as [F, C, taps, phases, ...], the taps in the order in which a window passes over x."""
    for n, phase in enumerate(phases):
        axis, stride = 2 + 2 * n, plain.strides[n]
        whole = phase.taps * stride
        missing = max(0, whole - plain.extents[n])
        if missing:
            w = pad(w, [0] * w.rank, [missing if a == axis else 0 for a in range(w.rank)])
        w = slice_axis(w, axis, 0, whole)
        w = reshape(w, [*w.dims[:axis], phase.taps, stride, *w.dims[axis + 1 :]])
        w = flip(slice_axis(w, axis + 1, phase.first, phase.first + phase.count), [axis])
    return swap_axes(w, 0, 1)
