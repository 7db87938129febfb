"""Convolutions over one to three axes, and transposed ones."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.window_arguments import batched, each


@register("torch", *(f"aten.conv{n}d.{form}" for n in (1, 2, 3) for form in ("default", "padding")))
def conv(
    context: Context, x: ops.Tensor, weight: ops.Tensor, bias: ops.Tensor | None = None, stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,), dilation: Sequence[int] = (1,), groups: int = 1,
) -> ops.Tensor:  # fmt: skip
    rank = weight.rank - 2
    steps, spread = each(stride, rank), each(dilation, rank)
    sides = padding if isinstance(padding, str) else each(padding, rank)
    build = (ops.conv1d, ops.conv2d, ops.conv3d)[rank - 1]
    return batched(x, rank, lambda t: build(t, weight, bias, groups=groups, stride=steps, padding=sides, dilation=spread))


@register("torch", "aten.convolution.default")
def convolution(
    context: Context, x: ops.Tensor, weight: ops.Tensor, bias: ops.Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> ops.Tensor:  # fmt: skip
    if transposed:
        return conv_transpose(context, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(context, x, weight, bias, stride, padding, dilation, groups)


@register("torch", "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    context: Context, x: ops.Tensor, weight: ops.Tensor, bias: ops.Tensor | None = None, stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,), output_padding: Sequence[int] = (0,), groups: int = 1, dilation: Sequence[int] = (1,),
) -> ops.Tensor:  # fmt: skip
    rank = weight.rank - 2
    steps, sides, more, spread = (each(v, rank) for v in (stride, padding, output_padding, dilation))
    return batched(x, rank, lambda t: ops.conv_transpose(
        t, weight, bias, groups=groups, output_padding=more, stride=steps, padding=sides, dilation=spread))  # fmt: skip
