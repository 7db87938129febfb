"""Quantised tensors: torch.ops.quantized_decomposed, as exports of quantised models have it, and products of bytes."""

from __future__ import annotations

import torch

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_DOMAIN = "quantized_decomposed"
_ONE = Expr.of(1)
Parameter = ops.Tensor | float  # a scale or a zero point


@register("torch", "aten._int_mm.default")
def int_mm(_: Context, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    """i8 [M, K] x i8 [K, N] -> i32."""
    return ops.matmul(a, b)


@register("torch", f"{_DOMAIN}.quantize_per_tensor.default", f"{_DOMAIN}.quantize_per_tensor.tensor")
def quantize(
    context: Context, x: ops.Tensor, scale: Parameter, zero: Parameter, low: int, high: int, *_: torch.dtype
) -> ops.Tensor:
    return _quantised(context, x, _one(scale), _one(zero), low, high)


@register("torch", f"{_DOMAIN}.dequantize_per_tensor.default", f"{_DOMAIN}.dequantize_per_tensor.tensor")
def dequantize(
    context: Context,
    x: ops.Tensor,
    scale: Parameter,
    zero: Parameter,
    *limits: object,
    out_dtype: torch.dtype | None = None,
) -> ops.Tensor:
    return _dequantised(context, x, _one(scale), _one(zero))


@register("torch", f"{_DOMAIN}.quantize_per_channel.default")
def quantize_channels(
    context: Context, x: ops.Tensor, scales: ops.Tensor, zeros: ops.Tensor, axis: int, low: int, high: int, *_: torch.dtype
) -> ops.Tensor:
    return _quantised(context, x, _along(scales, x, axis), _along(zeros, x, axis), low, high)


@register("torch", f"{_DOMAIN}.dequantize_per_channel.default")
def dequantize_channels(
    context: Context,
    x: ops.Tensor,
    scales: ops.Tensor,
    zeros: ops.Tensor | None,
    axis: int,
    *limits: object,
    out_dtype: torch.dtype | None = None,
) -> ops.Tensor:
    known = None if zeros is None else context.graph.constants.get(zeros.ssa.removeprefix("%"))
    symmetric = zeros is None or (known is not None and not known.any())
    return _dequantised(context, x, _along(scales, x, axis), 0 if zeros is None or symmetric else _along(zeros, x, axis))


def _quantised(context: Context, x: ops.Tensor, scale: Parameter, zero: Parameter, low: int, high: int) -> ops.Tensor:
    """round(x * (1 / scale)) + zero within the limits; PyTorch divides in f64 and rounds the quotient."""
    inverse: Parameter = 1.0 / scale
    if isinstance(scale, ops.Tensor):
        inverse = ops.cast(1.0 / ops.cast(scale, DType.F64), DType.F32)
    shift = ops.cast(zero, DType.F32) if isinstance(zero, ops.Tensor) else float(zero)
    codes = context.graph.pointwise(
        context.operator,
        lambda v, s, z: ((v * s).math("roundeven") + z).maximum(float(low)).minimum(float(high)),
        ops.cast(x, DType.F32),
        inverse,
        shift,
    )
    return ops.cast(codes, context.dtype())


def _dequantised(context: Context, x: ops.Tensor, scale: Parameter, zero: Parameter) -> ops.Tensor:
    """(x - zero) * scale; the difference is one of integers, which f32 holds."""
    codes = ops.cast(x, DType.I32)
    if isinstance(zero, ops.Tensor):
        codes = codes - ops.cast(zero, DType.I32)
    elif zero:
        codes = codes - int(zero)
    factor = ops.cast(scale, DType.F32) if isinstance(scale, ops.Tensor) else scale
    return ops.cast(ops.cast(codes, DType.F32) * factor, context.dtype())


def _one(parameter: Parameter) -> Parameter:
    """A parameter for all elements, which may come as a tensor of one."""
    return ops.reshape(parameter, ()) if isinstance(parameter, ops.Tensor) else parameter


def _along(parameter: ops.Tensor, x: ops.Tensor, axis: int) -> ops.Tensor:
    """A parameter for each place of an axis, against x."""
    at = axis % x.rank
    return ops.reshape(parameter, [x.dims[at] if a == at else _ONE for a in range(x.rank)])
