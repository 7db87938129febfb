"""Pooling over two spatial axes."""

from __future__ import annotations

import numpy as np

from tilewright.compiler.ops.graph import Tensor, want_float, want_rank
from tilewright.compiler.ops.reductions import accumulator_of
from tilewright.compiler.ops.sliding_windows import Padding, SlidingWindow, Spatial, layout_of, per_axis
from tilewright.runtime.shape import Expr


def max_pool2d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, dilation: Spatial = 1,
    layout: str = "nchw",
) -> Tensor:
    """Largest element of every window; NaN wins, padding never does. stride: default the kernel."""
    form = layout_of("max_pool2d", layout, 2)
    want_float("max_pool2d", x)
    want_rank("max_pool2d", "the input", x, 4)
    window = _window("max_pool2d", kernel, stride, padding, dilation)
    padded = window.pad(x, form, -np.inf)
    dims = window.result_dims(padded, form, x.dims[form.channel])
    shape = x.graph.empty(x.dtype, [Expr.of(k) for k in window.extents])
    op = f"linalg.pooling_{layout}_max {window.attributes}"
    return x.graph.named(op, [padded, shape], x.graph.filled(-np.inf, x.dtype, dims))


def avg_pool2d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, count_include_pad: bool = True,
    layout: str = "nchw",
) -> Tensor:
    """Mean of every window. stride: default the kernel. count_include_pad: padding counts as elements of value 0."""
    form = layout_of("avg_pool2d", layout, 2)
    want_float("avg_pool2d", x)
    want_rank("avg_pool2d", "the input", x, 4)
    window = _window("avg_pool2d", kernel, stride, padding, 1)
    total = _sums(x, window, layout)
    unpadded = all(p == (0, 0) for p in window.padding)
    if count_include_pad or unpadded:
        area = window.extents[0] * window.extents[1]
        return x.graph.pointwise("avg_pool2d", lambda v: v / area, total, dtype=x.dtype)
    ones = x.graph.filled(1, total.dtype, [d if a in form.spatial else Expr.of(1) for a, d in enumerate(x.dims)])
    return x.graph.pointwise("avg_pool2d", lambda v, n: v / n, total, _sums(ones, window, layout), dtype=x.dtype)


def _sums(x: Tensor, window: SlidingWindow, layout: str) -> Tensor:
    form = layout_of(window.name, layout, 2)
    padded = window.pad(x, form, 0)
    dims = window.result_dims(padded, form, x.dims[form.channel])
    dtype = accumulator_of(window.name, x.dtype)
    shape = x.graph.empty(dtype, [Expr.of(k) for k in window.extents])
    op = f"linalg.pooling_{layout}_sum {window.attributes}"
    return x.graph.named(op, [padded, shape], x.graph.filled(0, dtype, dims))


def _window(name: str, kernel: Spatial, stride: Spatial | None, padding: Padding, dilation: Spatial) -> SlidingWindow:
    extents = per_axis(name, "kernel", kernel, 2)
    return SlidingWindow.of(name, extents, extents if stride is None else stride, padding, dilation)
