"""Convolutions over one, two and three spatial axes, grouped, depthwise and transposed too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.graph import Size, Tensor, same_dtype, size, want_equal, want_keywords, want_rank
from tilewright.compiler.ops.padding import pad
from tilewright.compiler.ops.phased_convolutions import phased
from tilewright.compiler.ops.reductions import accumulator_of, narrowed
from tilewright.compiler.ops.reshaping import collapse, expand, reshape, swap_axes, unsqueeze
from tilewright.compiler.ops.slicing import flip, slice_axis
from tilewright.compiler.ops.sliding_windows import (
    SAME,
    Layout,
    Padding,
    SlidingWindow,
    Spatial,
    Width,
    WindowOptions,
    halves,
    layout_of,
    per_axis,
    static,
)
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_DENSE = {"ncw": "conv_1d_ncw_fcw", "nwc": "conv_1d_nwc_wcf", "nchw": "conv_2d_nchw_fchw", "nhwc": "conv_2d_nhwc_hwcf"}
_DEPTHWISE = {"ncw": "depthwise_conv_1d_ncw_cw", "nwc": "depthwise_conv_1d_nwc_wc",
              "nchw": "depthwise_conv_2d_nchw_chw", "nhwc": "depthwise_conv_2d_nhwc_hwc"}  # fmt: skip


def conv1d(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    groups: int = 1,
    layout: str = "ncw",
    **window: Unpack[WindowOptions],
) -> Tensor:
    """Cross-correlation. `ncw`: x [N, C, W], w [F, C/groups, KW]; `nwc`: x [N, W, C], w [KW, C/groups, F]; bias [F].

    stride=1, dilation=1, padding=0: as for conv2d.
    """
    return _convolution(layout_of("conv1d", layout, 1), x, w, bias, groups, window)


def conv2d(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    groups: int = 1,
    layout: str = "nchw",
    **window: Unpack[WindowOptions],
) -> Tensor:
    """Cross-correlation.

    `nchw`: x [N, C, H, W], w [F, C/groups, KH, KW]; `nhwc`: x [N, H, W, C], w [KH, KW, C/groups, F]; bias [F].
    stride=1, dilation=1: for both axes, or one each. padding=0: a width for all sides, or per axis a width or a (low, high) pair,
    or "same" (ceil(extent / stride) windows, the odd zero at the end), "same_lower" (at the beginning), "valid" (none).
    16-bit floats accumulate in f32. Elements of the weight that stand on padding alone wherever the window stands are left out:
    what infinities and NaN among them would make of the zeros is not computed.
    """
    return _convolution(layout_of("conv2d", layout, 2), x, w, bias, groups, window)


def conv3d(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    groups: int = 1,
    layout: str = "ncdhw",
    **window: Unpack[WindowOptions],
) -> Tensor:
    """Cross-correlation, as conv2d with one more spatial axis.

    `ncdhw`: x [N, C, D, H, W], w [F, C/groups, KD, KH, KW]; `ndhwc`: x [N, D, H, W, C], w [KD, KH, KW, C/groups, F]; bias [F].
    """
    return _convolution(layout_of("conv3d", layout, 3), x, w, bias, groups, window)


def conv_transpose(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    groups: int = 1,
    output_padding: Spatial = 0,
    sizes: Sequence[Size] | None = None,
    **window: Unpack[WindowOptions],
) -> Tensor:
    """The transpose of a convolution over one, two or three axes: x [N, C, ...], w [C, F/groups, K...], bias [F].

    stride, padding and dilation are those of the convolution that it transposes; output_padding elements are added at the end of
    each axis, whose extent is (L - 1) * stride - padding + dilation * (K - 1) + output_padding + 1. Results a stride apart are a
    convolution of x by every stride-th element of the weight; dilated or in groups it is one of x with stride - 1 zeros between
    its elements, by the weight turned around.

    sizes: extents of the result, from which the padding follows; with padding="same" (as without sizes, where they are
    L * stride) what is odd of it lies at the end, with "same_lower" at the beginning.

    Raises:
        ShapeError: channels do not fit the groups, a kernel extent is not an integer, or another rank. OptionError: sizes beside
            padding in numbers.
    """
    name, rank = "conv_transpose", w.rank - 2
    want_keywords(name, window, WindowOptions)
    if not 1 <= rank <= 3:
        raise ShapeError(f"{name}: the weight has rank {w.rank}; wanted rank 3, 4 or 5")
    want_rank(name, "the input", x, w.rank)
    inputs = static(name, "the number of input channels", w.dims[0])
    if groups < 1 or inputs % groups or w.dims[0] != x.dims[1]:
        raise ShapeError(f"{name}: {x.dims[1]} input channels in {groups} groups do not fit a weight of {w.dims[0]}")
    form = layout_of(name, "nc" + "dhw"[3 - rank:], rank)
    kernel = [static(name, "a kernel extent", k) for k in w.dims[2:]]
    given = window.get("padding", 0)
    fitted = sizes is not None or (isinstance(given, str) and given in SAME)
    numbers: WindowOptions = {**window, "padding": 0 if fitted else given}
    plain = SlidingWindow.of(name, x, form, kernel, **numbers)
    more = list[Width](per_axis(name, "output_padding", output_padding, rank, least=0))
    if fitted:
        plain, more = _fitted(plain, x, given, sizes, more)
    if max(plain.strides) > 1 and groups == 1 and set(plain.dilations) == {1}:
        dtype = accumulator_of(name, same_dtype(name, [x, w] if bias is None else [x, w, bias]))
        return _biased(name, phased(x, w, plain, [Expr.of(m) for m in more], dtype), bias, 1, x.dtype)
    spread = x
    for n, step in enumerate(plain.strides):
        spread = _spread(spread, 2 + n, step)
    low, high = list[Size]([0, 0]), list[Size]([0, 0])
    for n in range(rank):
        reach = Expr.of(plain.dilations[n] * (plain.extents[n] - 1))
        low.append(reach - plain.padding[n][0])
        high.append(reach - plain.padding[n][1] + more[n])
    return _convolution(form, pad(spread, low, high), _turned(w, groups), bias, groups, {"dilation": plain.dilations})


def _fitted(
    plain: SlidingWindow, x: Tensor, padding: Padding, sizes: Sequence[Size] | None, more: Sequence[Width]
) -> tuple[SlidingWindow, list[Width]]:
    """The window with the padding, and the elements to add, that a transposed convolution's result of these extents has."""
    rank, zero = len(plain.extents), Expr.of(0)
    if not isinstance(padding, str) and padding != 0:
        raise OptionError(f"{plain.name}: padding {padding!r} beside sizes; wanted 'same' or 'same_lower', or none")
    multiples = [d * s for d, s in zip(x.dims[2:], plain.strides, strict=True)]
    wanted = multiples if sizes is None else [size(plain.name, e) for e in sizes]
    if len(wanted) != rank:
        raise ShapeError(f"{plain.name}: {len(wanted)} sizes for {rank} spatial axes")
    pairs, added = [], list[Width]()
    for n, extent in enumerate(wanted):
        reach = plain.dilations[n] * (plain.extents[n] - 1)
        total = (x.dims[2 + n] - 1) * plain.strides[n] + reach + 1 + more[n] - extent
        pairs.append(halves(x.graph.larger(total, zero), SAME.get(str(padding), True)))
        added.append(Expr.of(more[n]) + x.graph.larger(-total, zero))
    return replace(plain, padding=tuple(pairs)), added


def _spread(x: Tensor, axis: int, step: int) -> Tensor:
    """step - 1 zeros between the elements along an axis."""
    if step == 1:
        return x
    extent = x.dims[axis]
    split = unsqueeze(x, axis + 1)
    wide = pad(split, [0] * split.rank, [step - 1 if a == axis + 1 else 0 for a in range(split.rank)])
    flat = reshape(wide, [extent * step if a == axis else d for a, d in enumerate(x.dims)])
    return pad(flat, [0] * x.rank, [1 - step if a == axis else 0 for a in range(x.rank)])


def _turned(w: Tensor, groups: int) -> Tensor:
    """[C, F / groups, K...] as [F, C / groups, K...], turned around along K."""
    inputs, outputs, *kernel = w.dims
    split = reshape(flip(w, range(2, w.rank)), [groups, inputs // groups, outputs, *kernel])
    return reshape(swap_axes(split, 1, 2), [outputs * groups, inputs // groups, *kernel])


def _convolution(form: Layout, x: Tensor, w: Tensor, bias: Tensor | None, groups: int, options: WindowOptions) -> Tensor:
    rank = len(form.spatial)
    name = f"conv{rank}d"
    want_keywords(name, options, WindowOptions)
    dtype = accumulator_of(name, same_dtype(name, [x, w] if bias is None else [x, w, bias]))
    want_rank(name, "the input", x, rank + 2)
    want_rank(name, "the weight", w, rank + 2)
    first = form.channel == 1
    filters, depth, kernel = (w.dims[0], w.dims[1], w.dims[2:]) if first else (w.dims[-1], w.dims[-2], w.dims[:-2])
    channels = x.dims[form.channel]
    if groups < 1 or (filters % groups).constant != 0 or depth * groups != channels:
        raise ShapeError(f"{name}: {channels} input channels in {groups} groups do not fit a weight of {depth} input "
                         f"and {filters} output channels")
    window = SlidingWindow.of(name, x, form, [static(name, "a kernel extent", k) for k in kernel], **options)
    window, left = window.cut(x, form)
    for axis, (begin, end) in enumerate(left, 2 if first else 0):
        w = slice_axis(w, axis, begin, end) if w.dims[axis] != Expr.of(end - begin) else w
    padded = window.pad(x, form, 0)
    dims = window.result_dims(padded, form, filters)
    if groups == 1 and form.text in _DENSE:
        op = f"linalg.{_DENSE[form.text]} {window.attributes}"
        total = x.graph.named(op, [padded, w], x.graph.filled(0, dtype, dims))
    elif depth == Expr.of(1) and filters == channels and form.text in _DEPTHWISE:
        # depthwise: [C, 1, K...] -> [C, K...] or [K..., 1, C] -> [K..., C]
        at = 0 if first else rank
        flat = collapse(w, _joined(w.rank, at))
        op = f"linalg.{_DEPTHWISE[form.text]} {window.attributes}"
        total = x.graph.named(op, [padded, flat], x.graph.filled(0, dtype, dims))
    else:
        total = _grouped(x, w, window, form, groups, x.graph.filled(0, dtype, dims))
    return _biased(name, total, bias, form.channel, x.dtype)


def _biased(name: str, total: Tensor, bias: Tensor | None, channel: int, dtype: DType) -> Tensor:
    """Sums of products with the bias, of floats in the element type of the input."""
    if bias is None:
        return narrowed(name, total, dtype)
    want_rank(name, "the bias", bias, 1)
    want_equal(name, "the output channels and the bias", total.dims[channel], bias.dims[0])
    return total.graph.map_elements(name, lambda v, b: v + b.cast(v.kind), [total, bias.on(channel)],
                                    dtype if dtype.is_float else total.dtype, total.dtype)


def _joined(rank: int, at: int) -> list[list[int]]:
    """Reassociation that merges axes `at` and `at + 1`."""
    return [[a, a + 1] if a == at else [a] for a in range(rank) if a != at + 1]


def _split(x: Tensor, axis: int, groups: int) -> Tensor:
    """Axis `axis` split into (groups, rest)."""
    parts: Sequence[Sequence[Expr]] = [
        [Expr.of(groups), d // groups] if a == axis else [d] for a, d in enumerate(x.dims)]
    return expand(x, parts)


def _grouped(x: Tensor, w: Tensor, window: SlidingWindow, form: Layout, groups: int, into: Tensor) -> Tensor:
    """Channels and filters split into groups where there are several, the padding after it; loops n, g, f, spatial..., c,
    kernel..."""
    first, rank, several = form.channel == 1, len(window.extents), groups > 1
    n, g, f = "d0", ["d1"] if several else [], f"d{1 + several}"
    at = 2 + several
    spatial, c, kernel = [f"d{at + i}" for i in range(rank)], f"d{at + rank}", [f"d{at + rank + 1 + i}" for i in range(rank)]
    steps = zip(spatial, window.strides, kernel, window.dilations, strict=True)
    places = [f"{o} * {s} + {k} * {d}" for o, s, k, d in steps]
    if several:
        x, into = _split(x, form.channel, groups), _split(into, form.channel, groups)
        w = _split(w, 0 if first else rank + 1, groups)
        form = replace(form, spatial=tuple(a + first for a in form.spatial))
    if first:
        maps = [n, *g, c, *places], [*g, f, c, *kernel], [n, *g, f, *spatial]
    else:
        maps = [n, *places, *g, c], [*kernel, c, *g, f], [n, *spatial, *g, f]

    def body(_: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        return out + scalars[0].cast(out.kind) * scalars[1].cast(out.kind)

    iterators = ["parallel"] * (at + rank) + ["reduction"] * (1 + rank)
    found = x.graph.generic([(window.pad(x, form, 0), maps[0]), (w, maps[1])], (into, maps[2]), iterators, body)
    return collapse(found, _joined(found.rank, form.channel)) if several else found
