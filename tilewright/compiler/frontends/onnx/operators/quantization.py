"""Quantised values: codes with scales and zero points, as expressions that decode them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.float8 import saturated_float
from tilewright.compiler.frontends.onnx.operators.contractions import Zero, centred, product, zero_point
from tilewright.compiler.frontends.onnx.operators.convolutions import convolution
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_ONE = Expr.of(1)
_FEW = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}


def spread(context: Context, parameter: ops.Tensor, x: ops.Tensor, axis: int, block: int) -> ops.Tensor:
    """A scale or zero point against x: one for all, one for each element of an axis, or one for each block along it."""
    if parameter.rank == 0 or parameter.dims == (_ONE,):
        return ops.reshape(parameter, ())
    at = context.axis(x.rank, axis)
    if parameter.rank == 1:
        parameter = context.restated(parameter, [x.dims[at]])
        return ops.reshape(parameter, [x.dims[at] if a == at else _ONE for a in range(x.rank)])
    context.require(parameter.rank == x.rank, f"a scale of rank {parameter.rank} for a tensor of rank {x.rank}")
    if parameter.dims[at] == x.dims[at]:
        return parameter
    context.require(block > 0, "a scale for blocks without block_size")
    split = [e for a, d in enumerate(parameter.dims) for e in ((d, _ONE) if a == at else (d,))]
    wide = [e for a, d in enumerate(parameter.dims) for e in ((d, Expr.of(block)) if a == at else (d,))]
    whole = ops.reshape(
        ops.broadcast_to(ops.reshape(parameter, split), wide), [d * block if a == at else d for a, d in enumerate(parameter.dims)]
    )
    if whole.dims[at] == x.dims[at]:
        return whole
    return ops.slice(whole, [0] * x.rank, [d if a == at else None for a, d in enumerate(x.dims)])


@operator("DequantizeLinear", "com.microsoft.DequantizeLinear", either=[0, 1, 2])
def dequantize(context: Context, x: Known | ops.Tensor, scale: Known | ops.Tensor, zero: Zero | None = None) -> ops.Tensor:
    axis, block = context.attribute("axis", 1), context.attribute("block_size", 0)
    wanted = context.attribute("output_dtype", 0)
    if isinstance(x, Known) and isinstance(scale, Known) and not isinstance(zero, ops.Tensor):
        found = _few_bits(context, x, scale, zero)
        if found is not None:
            return found
    x, scale = context.tensor(x), context.tensor(scale)
    kind = context.element(wanted) if wanted else scale.dtype
    factor = spread(context, scale, x, axis, block)
    wide = DType.F32 if kind.bytes < 4 else kind
    codes = x if x.dtype.is_float else ops.cast(x, DType.I32)
    point = zero_point(context, zero)
    if point is not None:
        shift = spread(context, ops.cast(point, codes.dtype), x, axis, block)
        codes = context.binary("DequantizeLinear", Scalar.__sub__, codes, shift)
    found = context.binary("DequantizeLinear", Scalar.__mul__, ops.cast(codes, wide), ops.cast(factor, wide))
    return ops.cast(found, kind)


def _few_bits(context: Context, x: Known, scale: Known, zero: Known | None) -> ops.Tensor | None:
    """A constant matrix of 2 or 4-bit integers as it is stored, decoded where it is read; None for anything else."""
    bits = _FEW.get(x.dtype.name)
    if bits is None or x.elements.ndim != 2 or scale.dtype != np.float32 or not x.elements.size:
        return None
    axis, block = context.attribute("axis", 1) % 2, context.attribute("block_size", 0)
    blocked = scale.elements.ndim == 2 and block > 0
    down = axis == 0 if blocked else scale.elements.size == 1 or axis == 1  # are scales shared down the columns?
    n, k = x.elements.shape[::-1] if down else x.elements.shape
    codes, *factors = (np.asarray(v.elements, np.int64 if v is not scale else np.float32)
                       for v in (x, scale, *([] if zero is None else [zero])))
    if blocked:
        factors = [f.T if down else f for f in factors]
    elif all(f.size in (1, n) for f in factors):
        factors = [np.broadcast_to(f.reshape(-1, 1), (n, 1)) for f in factors]
    if any(f.ndim != 2 or f.shape[0] != n or not f.shape[1] or k != f.shape[1] * (block if blocked else k) for f in factors):
        return None
    made = ops.PackedWeight.plain(codes.T if down else codes, factors[0], factors[1] if zero is not None else None, bits=bits,
                                  signed=not x.dtype.name.startswith("u")).tensor(context.graph)
    return ops.transpose(made, [1, 0]) if down else made


@operator("QuantizeLinear", "com.microsoft.QuantizeLinear", either=[2])
def quantize(context: Context, x: ops.Tensor, scale: ops.Tensor, zero: Known | ops.Tensor | None = None) -> ops.Tensor:
    axis, block = context.attribute("axis", 1), context.attribute("block_size", 0)
    wanted = context.attribute("output_dtype", 0)
    shift = context.tensor(zero) if isinstance(zero, Known) else zero
    if isinstance(zero, Known):
        context.element(helper.np_dtype_to_tensor_dtype(zero.dtype))  # refused below 8 bits
    kind = shift.dtype if shift is not None else context.element(wanted) if wanted else DType.U8
    wide = DType.F32 if x.dtype.bytes < 4 else x.dtype
    factor = spread(context, ops.cast(scale, wide), x, axis, block)
    ratio = context.binary(
        "QuantizeLinear", Scalar.__truediv__, ops.cast(x if x.dtype.is_float else ops.cast(x, wide), wide), factor
    )
    if kind.is_float:
        return saturated_float(context, ratio, kind)
    low, high = kind.limits
    whole = context.graph.pointwise("QuantizeLinear", lambda v: v.math("roundeven"), ratio)
    if shift is not None:
        whole = context.binary("QuantizeLinear", Scalar.__add__, whole, ops.cast(spread(context, shift, x, axis, block), wide))
    return ops.cast(context.graph.pointwise("QuantizeLinear", lambda v: v.maximum(float(low)).minimum(float(high)), whole), kind)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(context: Context, x: ops.Tensor) -> list[ops.Tensor]:
    """Codes of u8, their scale and zero point, from the range of the data with 0 in it."""
    high, low = (
        context.graph.pointwise("DynamicQuantizeLinear", f, r)
        for f, r in ((lambda v: v.maximum(0), ops.max(x)), (lambda v: v.minimum(0), ops.min(x)))
    )
    scale = context.graph.pointwise("DynamicQuantizeLinear", lambda h, lo: (h - lo) / 255, high, low)
    zero = context.graph.pointwise(
        "DynamicQuantizeLinear", lambda lo, s: (-(lo / s)).maximum(0).minimum(255).math("roundeven"), low, scale
    )
    codes = context.graph.pointwise(
        "DynamicQuantizeLinear", lambda v, s, z: ((v / s).math("roundeven") + z).maximum(0).minimum(255), x, scale, zero
    )
    return [ops.cast(codes, DType.U8), scale, ops.cast(zero, DType.U8)]


@operator("QLinearMatMul", either=[2, 5])
def qlinear_matmul(
    context: Context,
    a: ops.Tensor,
    scale_a: ops.Tensor,
    zero_a: Zero,
    b: ops.Tensor,
    scale_b: ops.Tensor,
    zero_b: Zero,
    *result: ops.Tensor,
) -> ops.Tensor:
    """a and b as codes, scale and zero point each, then scale and zero point of the result."""
    scale, zero = result
    total = product(context, centred(context, a, zero_a, -2), centred(context, b, zero_b, -1))
    rows, columns = ops.cast(scale_a, DType.F32), ops.cast(scale_b, DType.F32)
    if rows.rank == 1:
        rows = ops.reshape(rows, () if rows.dims == (_ONE,) else [rows.dims[0], _ONE])
    factor = context.binary("QLinearMatMul", Scalar.__mul__, rows, columns)
    if factor.rank == 1 and factor.dims == (_ONE,):
        factor = ops.reshape(factor, ())
    return requantised(context, ops.multiply(ops.cast(total, DType.F32), factor), scale, zero, -1)


def requantised(context: Context, x: ops.Tensor, scale: ops.Tensor, zero: ops.Tensor, axis: int) -> ops.Tensor:
    """Floats as codes of the zero point's type, with one scale or one for each element of an axis."""
    low, high = zero.dtype.limits
    factor = spread(context, ops.cast(scale, DType.F32), x, axis, 0)
    shift = spread(context, ops.cast(zero, DType.F32), x, axis, 0)
    found = context.graph.pointwise(
        context.node.op_type,
        lambda v, s, z: ((v / s).math("roundeven") + z).maximum(float(low)).minimum(float(high)),
        x,
        factor,
        shift,
    )
    return ops.cast(found, zero.dtype)


@operator("ConvInteger", either=[2, 3])
def conv_integer(
    context: Context, x: ops.Tensor, w: ops.Tensor, zero_x: Zero | None = None, zero_w: Zero | None = None
) -> ops.Tensor:
    return convolution(context, centred(context, x, zero_x, 1), centred(context, w, zero_w, 0), None)


@operator("QLinearConv", either=[2, 5])
def qlinear_conv(
    context: Context,
    x: ops.Tensor,
    scale_x: ops.Tensor,
    zero_x: Zero,
    w: ops.Tensor,
    scale_w: ops.Tensor,
    zero_w: Zero,
    *result: ops.Tensor,
) -> ops.Tensor:
    """x and w as codes, scale and zero point each, scale and zero point of the result, then the bias."""
    scale, zero, *rest = result
    bias = rest[0] if rest else None
    total = convolution(context, centred(context, x, zero_x, 1), centred(context, w, zero_w, 0), bias)
    factor = context.binary("QLinearConv", Scalar.__mul__, ops.reshape(scale_x, ()), scale_w)
    wide = context.binary("QLinearConv", Scalar.__mul__, ops.cast(total, DType.F32), spread(context, factor, total, 1, 0))
    return requantised(context, wide, scale, zero, 1)


@operator("com.microsoft.MatMulNBits", known=[1, 3], either=[2])
def matmul_n_bits(
    context: Context,
    x: ops.Tensor,
    codes: Known,
    scales: Known | ops.Tensor,
    zeros: Known | None = None,
    *rest: ops.Tensor | None,
) -> ops.Tensor:
    """x @ W^T, W [N, K] in codes of 2, 4 or 8 bits [N, blocks, bytes] with a scale, and a zero point, for each block of K."""
    k, n = context.attribute("K"), context.attribute("N")
    bits, block = context.attribute("bits", 4), context.attribute("block_size")
    context.require(bits in (2, 4, 8), f"codes of {bits} bits", "Use 2, 4 or 8")
    context.require(not rest or rest[0] is None, "rows in another order (g_idx)", "Export without reordered groups")
    blocks = -(-k // block)
    context.require(not codes.symbolic and codes.elements.size == n * blocks * (block * bits // 8), "the codes have another size")
    points = None if zeros is None else _zero_points(zeros, bits, (n, blocks))
    if x.dtype is DType.F32 and isinstance(scales, Known) and codes.elements.size > 1:
        weight = _in_codes(context, (codes, scales, points), bits, block)
    else:
        weight = _spread_out(context, (codes, scales, points), x.dtype)
    found = product(context, x, weight, transpose_b=True)
    bias = rest[1] if len(rest) > 1 else None
    return found if bias is None else context.binary("MatMulNBits", Scalar.__add__, found, bias)


Block = tuple[Known, Known | ops.Tensor, "np.ndarray[tuple[int, ...], np.dtype[Any]] | None"]  # codes, scales, zero points


def _in_codes(context: Context, stored: Block, bits: int, block: int) -> ops.Tensor:
    """The weight as it is stored, decoded where it is read."""
    codes, scales, points = stored
    k, n = context.attribute("K"), context.attribute("N")
    packed = np.asarray(codes.elements, np.uint8).reshape(n, -1)
    assert isinstance(scales, Known)
    each = (n, -1) if k > block else (n,)
    scale = context.graph.constant(np.asarray(scales.elements, scales.dtype).reshape(each))
    zero = None if points is None else context.graph.constant(points.reshape(each))
    return ops.decode(context.graph.constant(packed), scale, zero, bits=bits, group=block, depth=k)


def _spread_out(context: Context, stored: Block, dtype: DType) -> ops.Tensor:
    """The weight as arithmetic on one code a byte."""
    codes, scales, points = stored
    k, n = context.attribute("K"), context.attribute("N")
    bits, block = context.attribute("bits", 4), context.attribute("block_size")
    blocks = -(-k // block)
    shift: ops.Tensor | float = float(1 << (bits - 1))
    if points is not None:
        shift = context.graph.constant(points.astype(dtype.numpy).reshape(n, blocks, 1))
    unpacked = ops.cast(context.graph.constant(_unpacked(codes, bits).reshape(n, blocks, block)), dtype)
    factor = ops.cast(ops.reshape(context.tensor(scales), [n, blocks, 1]), dtype)
    weight = ops.reshape((unpacked - shift) * factor, [n, blocks * block])
    return weight if blocks * block == k else ops.slice(weight, [0, 0], [n, k])


def _zero_points(zeros: Known, bits: int, shape: tuple[int, int]) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
    """One for each row and block, of ui8 where they are codes too, else as they are."""
    rows, blocks = shape
    if zeros.dtype.kind == "u":
        return np.ascontiguousarray(_unpacked(zeros, bits).reshape(rows, -1)[:, :blocks])
    return np.asarray(zeros.elements, zeros.dtype).reshape(rows, blocks)


def _unpacked(codes: Known, bits: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """One code a byte; the first lies in the low bits."""
    raw = np.asarray(codes.elements, np.uint8)
    parts = [(raw >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*raw.shape[:-1], -1)
