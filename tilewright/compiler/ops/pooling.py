"""Pooling over one, two and three spatial axes: windows of fixed extents, and as many windows as are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.graph import Size, Tensor, shown, size, want_float, want_rank
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.reductions import accumulator_of, limits_of
from tilewright.compiler.ops.sliding_windows import Layout, Padding, SlidingWindow, Spatial, layout_of, per_axis
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr


def max_pool1d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, dilation: Spatial = 1,
    layout: str = "ncw", ceil_mode: bool = False,
) -> Tensor:
    """Largest element of every window of x [N, C, W], as max_pool2d."""
    return _max_pool("max_pool1d", 1, x, kernel, stride, (padding, dilation, ceil_mode), layout)


def max_pool2d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, dilation: Spatial = 1,
    layout: str = "nchw", ceil_mode: bool = False,
) -> Tensor:
    """Largest element of every window of x [N, C, H, W]; NaN wins, padding never does.

    stride: default the kernel. ceil_mode: a last window that reaches beyond the input counts where it starts inside it.

    Raises:
        ShapeError: a window that does not fit, or another rank. OptionError: an unknown layout, or options that are not positive.
    """
    return _max_pool("max_pool2d", 2, x, kernel, stride, (padding, dilation, ceil_mode), layout)


def max_pool3d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, dilation: Spatial = 1,
    layout: str = "ncdhw", ceil_mode: bool = False,
) -> Tensor:
    """Largest element of every window of x [N, C, D, H, W], as max_pool2d."""
    return _max_pool("max_pool3d", 3, x, kernel, stride, (padding, dilation, ceil_mode), layout)


def avg_pool1d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, count_include_pad: bool = True,
    layout: str = "ncw", ceil_mode: bool = False,
) -> Tensor:
    """Mean of every window of x [N, C, W], as avg_pool2d."""
    return _avg_pool("avg_pool1d", 1, x, kernel, stride, (padding, count_include_pad, ceil_mode), layout)


def avg_pool2d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, count_include_pad: bool = True,
    layout: str = "nchw", ceil_mode: bool = False,
) -> Tensor:
    """Mean of every window of x [N, C, H, W]. stride: default the kernel.

    count_include_pad: padding counts as elements of value 0. ceil_mode: as for max_pool2d; what lies beyond the padding never
    counts.
    """
    return _avg_pool("avg_pool2d", 2, x, kernel, stride, (padding, count_include_pad, ceil_mode), layout)


def avg_pool3d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, count_include_pad: bool = True,
    layout: str = "ncdhw", ceil_mode: bool = False,
) -> Tensor:
    """Mean of every window of x [N, C, D, H, W], as avg_pool2d."""
    return _avg_pool("avg_pool3d", 3, x, kernel, stride, (padding, count_include_pad, ceil_mode), layout)


def _max_pool(
    name: str, rank: int, x: Tensor, kernel: Spatial, stride: Spatial | None, options: tuple[Padding, Spatial, bool], layout: str
) -> Tensor:
    padding, dilation, ceil_mode = options
    form = layout_of(name, layout, rank)
    want_rank(name, "the input", x, rank + 2)
    window = _window(name, rank, kernel, stride, padding, dilation)
    window = window.clipped(x, form) if ceil_mode else window
    lowest = limits_of(x.dtype)[0]
    padded, dims = window.placed(x, form, lowest, ceil_mode)
    return _reduced(padded, window, form, x.graph.filled(lowest, x.dtype, dims), "max")


def _avg_pool(
    name: str, rank: int, x: Tensor, kernel: Spatial, stride: Spatial | None, options: tuple[Padding, bool, bool], layout: str
) -> Tensor:
    padding, include, ceil_mode = options
    form = layout_of(name, layout, rank)
    want_float(name, x)
    want_rank(name, "the input", x, rank + 2)
    window, g = _window(name, rank, kernel, stride, padding, 1), x.graph
    window = window.clipped(x, form) if ceil_mode else window
    padded, dims = window.placed(x, form, 0, ceil_mode)
    total = _reduced(padded, window, form, g.filled(0, accumulator_of(name, x.dtype), dims), "sum")
    unpadded = all(p == (0, 0) for p in window.padding)
    if not ceil_mode and (include or unpadded):
        area = 1
        for k in window.extents:
            area *= k
        return g.pointwise(name, lambda v: v / area, total, dtype=x.dtype)
    loops = [f"d{a}" for a in range(x.rank)]

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        area: Scalar | None = None
        for n, axis in enumerate(form.spatial):
            low, high = (Expr.of(p) for p in window.padding[n])
            first = region.index(axis) * window.strides[n] - g.number(region, low, "index")
            last = (first + window.extents[n]).minimum(g.number(region, x.dims[axis] + (high if include else 0), "index"))
            inside = last - (first if include else first.maximum(0))
            area = inside if area is None else area * inside
        assert area is not None
        return scalars[0] / area.cast(scalars[0].kind)

    return g.generic([(total, loops)], (g.empty(x.dtype, dims), loops), ["parallel"] * x.rank, body)


def _window(
    name: str, rank: int, kernel: Spatial, stride: Spatial | None, padding: Padding, dilation: Spatial
) -> SlidingWindow:
    extents = per_axis(name, "kernel", kernel, rank)
    return SlidingWindow.of(name, extents, extents if stride is None else stride, padding, dilation)


def _reduced(padded: Tensor, window: SlidingWindow, form: Layout, into: Tensor, kind: str) -> Tensor:
    """The maximum or sum of every window. Two axes have named operations, the others the same as a generic one."""
    g, rank = padded.graph, len(window.extents)
    shape = g.empty(into.dtype, [Expr.of(k) for k in window.extents])
    if rank == 2 and padded.dtype.is_float:
        return g.named(f"linalg.pooling_{form.text}_{kind} {window.attributes}", [padded, shape], into)
    loops = [f"d{a}" for a in range(padded.rank)]
    kernel = [f"d{padded.rank + n}" for n in range(rank)]
    places = list(loops)
    for n, axis in enumerate(form.spatial):
        places[axis] = f"{loops[axis]} * {window.strides[n]} + {kernel[n]} * {window.dilations[n]}"

    def body(_: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        value = scalars[0].cast(out.kind)
        return out.maximum(value) if kind == "max" else out + value

    iterators = ["parallel"] * padded.rank + ["reduction"] * rank
    return g.generic([(padded, places), (shape, kernel)], (into, loops), iterators, body)


def adaptive_avg_pool(x: Tensor, sizes: Sequence[Size | None]) -> Tensor:
    """Means of x [N, C, ...] over `sizes` windows of nearly equal extents along the axes after the channels; None keeps an axis.

    Window i of n along an axis of extent L is [floor(i L / n), ceil((i + 1) L / n)). Sizes and extents may be Exprs.
    """
    want_float("adaptive_avg_pool", x)
    return _adaptive("adaptive_avg_pool", x, sizes)


def adaptive_max_pool(x: Tensor, sizes: Sequence[Size | None]) -> Tensor:
    """Largest elements of x [N, C, ...] over windows as those of adaptive_avg_pool; NaN wins."""
    return _adaptive("adaptive_max_pool", x, sizes)


def _adaptive(name: str, x: Tensor, sizes: Sequence[Size | None]) -> Tensor:
    if len(sizes) != x.rank - 2 or not sizes:
        raise ShapeError(f"{name}: {len(sizes)} sizes for the axes after the channels of {shown(x.dims)}")
    found = cast(x, computed_in(x.dtype))
    for axis, wanted in enumerate(sizes, 2):
        if wanted is not None:
            found = _along(name, found, axis, size(name, wanted))
    return cast(found, x.dtype)


def _along(name: str, x: Tensor, axis: int, count: Expr) -> Tensor:
    """Pooled along one axis: windows are products of ranges, so axes can be taken one after the other."""
    g, mean = x.graph, name == "adaptive_avg_pool"
    if count.constant == 0:
        raise OptionError(f"{name}: a size of 0; wanted 1 or more")
    extent = x.dims[axis]
    if count == extent:
        return x
    dims = [count if a == axis else d for a, d in enumerate(x.dims)]
    start = 0.0 if mean else limits_of(x.dtype)[0]
    loops = [f"d{a}" for a in range(x.rank)]
    other = [f"d{x.rank}" if a == axis else d for a, d in enumerate(loops)]

    def ends(region: Body) -> tuple[Scalar, Scalar]:
        i, n, long = region.index(axis), g.number(region, count, "index"), g.number(region, extent, "index")
        return i * long / n, ((i + 1) * long + n - 1) / n

    def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        first, last = ends(region)
        at = region.index(x.rank)
        inside = at.compare("ge", first) & at.compare("lt", last)
        value = region.select(inside, scalars[0], start)
        return out + value if mean else out.maximum(value)

    kinds = ["parallel"] * x.rank + ["reduction"]
    total = g.generic([(x, other)], (g.filled(start, x.dtype, dims), loops), kinds, body)
    if not mean:
        return total

    def divided(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        first, last = ends(region)
        return scalars[0] / (last - first).cast(scalars[0].kind)

    return g.generic([(total, loops)], (g.empty(x.dtype, dims), loops), ["parallel"] * x.rank, divided)
