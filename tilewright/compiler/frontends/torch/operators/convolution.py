"""Convolutions over one, two and three axes, and transposed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.runtime.shape import Expr

Sides = Sequence[int] | str


@register("torch", *(f"aten.conv{n}d.{form}" for n in (1, 2) for form in ("default", "padding")))
def conv(
    context: Context, x: ops.Tensor, weight: ops.Tensor, bias: ops.Tensor | None = None, stride: Sequence[int] = (1,),
    padding: Sides = (0,), dilation: Sequence[int] = (1,), groups: int = 1,
) -> ops.Tensor:  # fmt: skip
    rank = weight.rank - 2
    steps, dilations = _each(stride, rank), _each(dilation, rank)
    sides = _sides(weight, padding, dilations)
    batched = x if x.rank == weight.rank else ops.reshape(x, [1, *x.dims])
    function = ops.conv1d if rank == 1 else ops.conv2d
    made = function(batched, weight, bias, groups=groups, stride=steps, padding=sides, dilation=dilations)
    return ops.reshape(made, context.shape())


@register("torch", "aten.convolution.default")
def convolution(
    context: Context, x: ops.Tensor, weight: ops.Tensor, bias: ops.Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> ops.Tensor:  # fmt: skip
    if transposed:
        return conv_transpose(context, x, weight, bias, stride, padding, output_padding, groups, dilation)
    if weight.rank > 4:
        context.refuse(f"a convolution over {weight.rank - 2} axes", "use one over two axes")
    return conv(context, x, weight, bias, stride, padding, dilation, groups)


@register("torch", "aten.conv_transpose1d.default", "aten.conv_transpose2d.input")
def conv_transpose(
    context: Context, x: ops.Tensor, weight: ops.Tensor, bias: ops.Tensor | None = None, stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,), output_padding: Sequence[int] = (0,), groups: int = 1, dilation: Sequence[int] = (1,),
) -> ops.Tensor:  # fmt: skip
    """A convolution of the input with zeros between its elements, by the kernel turned around."""
    rank = weight.rank - 2
    steps, dilations = _each(stride, rank), _each(dilation, rank)
    batched = x if x.rank == weight.rank else ops.reshape(x, [1, *x.dims])
    spread = batched
    for axis, step in enumerate(steps):
        spread = _spread(spread, 2 + axis, step)
    reach = [d * (_constant(context, k) - 1) for d, k in zip(dilations, weight.dims[2:], strict=True)]
    sides = zip(reach, _each(padding, rank), _each(output_padding, rank), strict=True)
    cut = [(r - p, r - p + o) for r, p, o in sides]
    low = [max(a, 0) for a, _ in cut]
    high = [max(b, 0) for _, b in cut]
    padded = ops.pad(spread, [0, 0, *low], [0, 0, *high])
    for axis, (a, b) in enumerate(cut):
        if a < 0 or b < 0:
            extent = padded.dims[2 + axis]
            padded = ops.slice_axis(padded, 2 + axis, max(-a, 0), extent - max(-b, 0))
    turned = _turned(context, weight, groups)
    function = ops.conv1d if rank == 1 else ops.conv2d
    made = function(padded, turned, bias, groups=groups, stride=1, padding=0, dilation=dilations)
    return ops.reshape(made, context.shape())


def _spread(x: ops.Tensor, axis: int, step: int) -> ops.Tensor:
    """step - 1 zeros between the elements along an axis."""
    if step == 1:
        return x
    dims, extent = list(x.dims), x.dims[axis]
    split = ops.reshape(x, [*dims[: axis + 1], 1, *dims[axis + 1 :]])
    high = [step - 1 if a == axis + 1 else 0 for a in range(split.rank)]
    wide = ops.reshape(ops.pad(split, [0] * split.rank, high), [*dims[:axis], extent * step, *dims[axis + 1 :]])
    return ops.slice_axis(wide, axis, 0, extent * step - (step - 1))


def _turned(context: Context, weight: ops.Tensor, groups: int) -> ops.Tensor:
    """[C, F / groups, K...] as [F, C / groups, K...], turned around along K."""
    flipped = ops.flip(weight, list(range(2, weight.rank)))
    inputs, outputs = _constant(context, weight.dims[0]), _constant(context, weight.dims[1])
    kernel = list(weight.dims[2:])
    split = ops.reshape(flipped, [groups, inputs // groups, outputs, *kernel])
    order = [0, 2, 1, *range(3, split.rank)]
    return ops.reshape(ops.transpose(split, order), [groups * outputs, inputs // groups, *kernel])


def _sides(weight: ops.Tensor, padding: Sides, dilations: Sequence[int]) -> list[Any]:
    """(low, high) per axis; "same" keeps the extent, with the odd element at the end."""
    rank = weight.rank - 2
    if padding == "valid":
        return [(0, 0)] * rank
    if padding == "same":
        total = [d * ((k.constant or 1) - 1) for d, k in zip(dilations, weight.dims[2:], strict=True)]
        return [(t // 2, t - t // 2) for t in total]
    return [(p, p) for p in _each([int(p) for p in padding], rank)]


def _each(values: Sequence[int], rank: int) -> list[int]:
    """One value for each axis."""
    return [int(v) for v in values] * rank if len(values) == 1 else [int(v) for v in values]


def _constant(context: Context, extent: Expr) -> int:
    if extent.constant is None:
        context.refuse(f"a weight with an extent of {extent}", "give weights fixed extents")
    return extent.constant or 0
