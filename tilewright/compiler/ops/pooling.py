"""Pooling over one, two and three spatial axes: windows of fixed extents, and as many windows as are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict, Unpack

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.graph import Size, Tensor, shown, size, want_keywords, want_rank
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.reductions import SUM, Reduction, accumulate, accumulator_of, divided, limits_of, narrowed
from tilewright.compiler.ops.scalar_functions import is_nan
from tilewright.compiler.ops.sliding_windows import Layout, Padding, SlidingWindow, Spatial, layout_of, per_axis
from tilewright.compiler.ops.windows import WindowAxis, adaptive, reduce_windows, strided
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_LAST = (1 << 63) - 1


class AverageOptions(TypedDict, total=False):
    """Further keywords of avg_pool: a last window that reaches beyond the input, steps between the elements of a window."""

    ceil_mode: bool
    dilation: Spatial


def max_pool1d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, dilation: Spatial = 1,
    layout: str = "ncw", ceil_mode: bool = False,
) -> Tensor:
    """Largest element of every window of x [N, C, W], as max_pool2d."""
    return _max_pool(_Pool.of("max_pool1d", 1, x, kernel, (stride, padding, dilation), layout, ceil_mode))


def max_pool2d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, dilation: Spatial = 1,
    layout: str = "nchw", ceil_mode: bool = False,
) -> Tensor:
    """Largest element of every window of x [N, C, H, W]; NaN wins, padding never does.

    stride: default the kernel. padding: widths, or "same", as for conv2d. ceil_mode: a last window that reaches beyond the input
    counts where it starts inside it.

    Raises:
        ShapeError: a window that does not fit, or another rank. OptionError: an unknown layout, or options that are not positive.
    """
    return _max_pool(_Pool.of("max_pool2d", 2, x, kernel, (stride, padding, dilation), layout, ceil_mode))


def max_pool3d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, dilation: Spatial = 1,
    layout: str = "ncdhw", ceil_mode: bool = False,
) -> Tensor:
    """Largest element of every window of x [N, C, D, H, W], as max_pool2d."""
    return _max_pool(_Pool.of("max_pool3d", 3, x, kernel, (stride, padding, dilation), layout, ceil_mode))


def avg_pool1d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, count_include_pad: bool = True,
    layout: str = "ncw", **options: Unpack[AverageOptions],
) -> Tensor:
    """Mean of every window of x [N, C, W], as avg_pool2d."""
    return _avg_pool(_averaged("avg_pool1d", 1, x, kernel, (stride, padding), layout, options), count_include_pad)


def avg_pool2d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, count_include_pad: bool = True,
    layout: str = "nchw", **options: Unpack[AverageOptions],
) -> Tensor:
    """Mean of every window of x [N, C, H, W]; quotients of integers are truncated. stride: default the kernel.

    count_include_pad: padding counts as elements of value 0. ceil_mode=False: as for max_pool2d; what lies beyond the padding
    never counts. dilation=1: steps between the elements of a window.
    """
    return _avg_pool(_averaged("avg_pool2d", 2, x, kernel, (stride, padding), layout, options), count_include_pad)


def avg_pool3d(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, count_include_pad: bool = True,
    layout: str = "ncdhw", **options: Unpack[AverageOptions],
) -> Tensor:
    """Mean of every window of x [N, C, D, H, W], as avg_pool2d."""
    return _avg_pool(_averaged("avg_pool3d", 3, x, kernel, (stride, padding), layout, options), count_include_pad)


def max_pool_with_indices(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, dilation: Spatial = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Largest element of every window of x [N, C, ...], and its number (i64) among the elements of its channel; of equal ones the
    first.
    """
    pool = _Pool.of("max_pool_with_indices", x.rank - 2, x, kernel, (stride, padding, dilation), None, ceil_mode)
    best, window = _max_pool(pool), pool.window
    steps = zip(window.strides, window.padding, window.extents, window.dilations, strict=True)
    axes = {2 + n: strided(x, s, low, k, d) for n, (s, (low, _), k, d) in enumerate(steps)}
    return best, _numbers(x, axes, best)


def sum_pool(
    x: Tensor, kernel: Spatial, stride: Spatial | None = None, padding: Padding = 0, dilation: Spatial = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Sum of every window of x [N, C, ...]. 16-bit floats add in f32; i8 and i16 give i32."""
    pool = _Pool.of("sum_pool", x.rank - 2, x, kernel, (stride, padding, dilation), None, ceil_mode)
    return narrowed("sum_pool", pool.reduced("sum", 0, accumulator_of("sum_pool", x.dtype)), x.dtype)


@dataclass(frozen=True)
class _Pool:
    """A window that slides over the spatial axes of x."""

    x: Tensor
    form: Layout
    window: SlidingWindow
    ceil_mode: bool

    @staticmethod
    def of(
        name: str, rank: int, x: Tensor, kernel: Spatial, steps: tuple[Spatial | None, Padding, Spatial], layout: str | None,
        ceil_mode: bool,
    ) -> _Pool:  # fmt: skip
        """steps: stride (None: the kernel), padding and dilation. layout: None for channels first."""
        if not 1 <= rank <= 3:
            raise ShapeError(f"{name}: the input has rank {x.rank}, shape {shown(x.dims)}; wanted rank 3, 4 or 5")
        form = layout_of(name, "nc" + "dhw"[3 - rank:] if layout is None else layout, rank)
        want_rank(name, "the input", x, rank + 2)
        extents = per_axis(name, "kernel", kernel, rank)
        stride, padding, dilation = steps
        window = SlidingWindow.of(name, x, form, extents, stride=extents if stride is None else stride, padding=padding,
                                  dilation=dilation)  # fmt: skip
        return _Pool(x, form, window.clipped(x, form) if ceil_mode else window, ceil_mode)

    def reduced(self, kind: str, fill: float, dtype: DType) -> Tensor:
        """The maximum or sum of every window. Two axes have named operations, the others the same as a generic one."""
        padded, dims = self.window.placed(self.x, self.form, fill, self.ceil_mode)
        g, window, rank = self.x.graph, self.window, len(self.window.extents)
        into = g.filled(fill, dtype, dims)
        shape = g.empty(dtype, [Expr.of(k) for k in window.extents])
        if rank == 2 and padded.dtype.is_float:
            return g.named(f"linalg.pooling_{self.form.text}_{kind} {window.attributes}", [padded, shape], into)
        loops = [f"d{a}" for a in range(padded.rank)]
        kernel = [f"d{padded.rank + n}" for n in range(rank)]
        places = list(loops)
        for n, axis in enumerate(self.form.spatial):
            places[axis] = f"{loops[axis]} * {window.strides[n]} + {kernel[n]} * {window.dilations[n]}"

        def body(_: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
            value = scalars[0].cast(out.kind)
            return out.maximum(value) if kind == "max" else out + value

        iterators = ["parallel"] * padded.rank + ["reduction"] * rank
        return g.generic([(padded, places), (shape, kernel)], (into, loops), iterators, body)


def _max_pool(pool: _Pool) -> Tensor:
    return pool.reduced("max", limits_of(pool.x.dtype)[0], pool.x.dtype)


def _averaged(
    name: str, rank: int, x: Tensor, kernel: Spatial, steps: tuple[Spatial | None, Padding], layout: str, options: AverageOptions
) -> _Pool:
    want_keywords(name, options, AverageOptions)
    return _Pool.of(name, rank, x, kernel, (*steps, options.get("dilation", 1)), layout, options.get("ceil_mode", False))


def _avg_pool(pool: _Pool, include: bool) -> Tensor:
    x, window, g = pool.x, pool.window, pool.x.graph
    total = pool.reduced("sum", 0, accumulator_of(window.name, x.dtype))
    unpadded = all(p == (0, 0) for p in window.padding)
    if not pool.ceil_mode and (include or unpadded):
        area = math.prod(window.extents)
        return g.pointwise(window.name, lambda v: v / area, total, dtype=x.dtype)

    def length(region: Body, n: int) -> Scalar:
        """How many elements of a window count along an axis."""
        axis, step = pool.form.spatial[n], window.dilations[n]
        low, high = (Expr.of(p) for p in window.padding[n])
        first = region.index(axis) * window.strides[n] - g.number(region, low, "index")
        end = g.number(region, x.dims[axis] + (high if include else 0), "index")
        if step == 1:
            return (first + window.extents[n]).minimum(end) - (first if include else first.maximum(0))
        count = ((end - first).maximum(0) + step - 1) / step
        return count.minimum(window.extents[n]) - (0 if include else ((0 - first).maximum(0) + step - 1) / step)

    return _divided(total, x.dtype, [partial(length, n=n) for n in range(len(window.extents))])


def _divided(total: Tensor, dtype: DType, lengths: Sequence[Callable[[Body], Scalar]]) -> Tensor:
    """Sums over windows divided by their numbers of elements, which follow from the place."""
    g, loops = total.graph, [f"d{a}" for a in range(total.rank)]

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        area = lengths[0](region)
        for length in lengths[1:]:
            area = area * length(region)
        return scalars[0] / area.cast(scalars[0].kind)

    return g.generic([(total, loops)], (g.empty(dtype, total.dims), loops), ["parallel"] * total.rank, body)


def _numbers(x: Tensor, axes: Mapping[int, WindowAxis], best: Tensor) -> Tensor:
    """For every window the number of its first element, among those of its axes, that is the given one."""

    def number(v: Scalar, places: Sequence[Scalar], found: Sequence[Scalar]) -> Scalar:
        same = v.cast(found[0].kind).compare("eq", found[0])
        same = same | is_nan(v) if x.dtype.is_float else same
        at = places[0]
        for place, axis in zip(places[1:], list(axes)[1:], strict=True):
            at = at * x.graph.number(v.body, x.dims[axis], "index") + place
        return v.body.select(same, at.cast("i64"), _LAST)

    return reduce_windows(x, axes, best.dims, Reduction(Scalar.minimum, _LAST), DType.I64, number, [best])


def adaptive_avg_pool(x: Tensor, sizes: Sequence[Size | None]) -> Tensor:
    """Means of x [N, C, ...] over `sizes` windows of nearly equal extents along the axes after the channels; None keeps an axis.

    Window i of n along an axis of extent L is [floor(i L / n), ceil((i + 1) L / n)). Sizes and extents may be Exprs. Quotients of
    integers are truncated.
    """
    name = "adaptive_avg_pool"
    axes, dims = _adaptive(name, x, sizes)
    wide = accumulator_of(name, x.dtype)
    if not axes:
        return x
    if all(dims[a] == Expr.of(1) for a in axes):
        return divided(name, accumulate(name, [x], axes, SUM, keepdims=True), [x.dims[a] for a in axes], x.dtype)

    def length(region: Body, axis: int) -> Scalar:
        return adaptive(x, axis, dims[axis]).count(region.index(axis))

    return _divided(_along(x, axes, dims, SUM, wide), x.dtype, [partial(length, axis=a) for a in axes])


def adaptive_max_pool(x: Tensor, sizes: Sequence[Size | None]) -> Tensor:
    """Largest elements of x [N, C, ...] over windows as those of adaptive_avg_pool; NaN wins."""
    axes, dims = _adaptive("adaptive_max_pool", x, sizes)
    reduction = Reduction(Scalar.maximum, limits_of(x.dtype)[0])
    return cast(_along(x, axes, dims, reduction, computed_in(x.dtype)), x.dtype)


def adaptive_max_pool_with_indices(x: Tensor, sizes: Sequence[Size | None]) -> tuple[Tensor, Tensor]:
    """adaptive_max_pool, and the number (i64) of each of its elements among those of its channel; of equal ones the first."""
    best = adaptive_max_pool(x, sizes)
    return best, _numbers(x, {a: adaptive(x, a, best.dims[a]) for a in range(2, x.rank)}, best)


def _adaptive(name: str, x: Tensor, sizes: Sequence[Size | None]) -> tuple[list[int], list[Expr]]:
    """The axes whose extent changes, and the extents of the result."""
    if len(sizes) != x.rank - 2 or not sizes:
        raise ShapeError(f"{name}: {len(sizes)} sizes for the axes after the channels of {shown(x.dims)}")
    wanted = [d if s is None else size(name, s) for s, d in zip(sizes, x.dims[2:], strict=True)]
    if any(w.constant == 0 for w in wanted):
        raise OptionError(f"{name}: a size of 0; wanted 1 or more")
    return [a for a, w in enumerate(wanted, 2) if w != x.dims[a]], [*x.dims[:2], *wanted]


def _along(x: Tensor, axes: Sequence[int], dims: Sequence[Expr], reduction: Reduction, dtype: DType) -> Tensor:
    """Windows are products of ranges, so axes are taken one after the other."""
    for axis in axes:
        extents = [dims[a] if a == axis else d for a, d in enumerate(x.dims)]
        x = reduce_windows(x, {axis: adaptive(x, axis, dims[axis])}, extents, reduction, dtype)
    return x
