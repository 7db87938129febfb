"""Quantised operators as ONNX Runtime fuses them: products whose results are floats, and elementwise ones between codes."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.operators.contractions import Zero, centred, product
from tilewright.compiler.frontends.onnx.operators.pooling import average_pool
from tilewright.compiler.frontends.onnx.operators.quantization import dynamic_quantize, requantised
from tilewright.compiler.frontends.onnx.operators.recurrent import lstm
from tilewright.compiler.ops.body import Scalar
from tilewright.compiler.ops.reshaping import product_of
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_ONE = Expr.of(1)
_Maybe = ops.Tensor | None


def _added(context: Context, x: ops.Tensor, bias: _Maybe) -> ops.Tensor:
    return x if bias is None else context.binary(context.node.op_type, Scalar.__add__, x, bias)


def _factor(a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    """The scale of a product: one of a, one of b or one for each of its columns."""
    one, columns = (ops.reshape(s, ()) if s.rank and s.dims[-1] == _ONE else s for s in (a, b))
    return ops.multiply(one, columns)


@operator("com.microsoft.MatMulIntegerToFloat", either=[4, 5])
def matmul_integer_to_float(
    context: Context,
    a: ops.Tensor,
    b: ops.Tensor,
    scale_a: ops.Tensor,
    scale_b: ops.Tensor,
    zero_a: Zero | None = None,
    zero_b: Zero | None = None,
    bias: _Maybe = None,
) -> ops.Tensor:
    """A product of codes as floats, with a bias."""
    total = product(context, centred(context, a, zero_a, -2), centred(context, b, zero_b, -1))
    return _added(context, ops.multiply(ops.cast(total, scale_a.dtype), _factor(scale_a, scale_b)), bias)


@operator("com.microsoft.DynamicQuantizeMatMul", either=[3])
def dynamic_quantize_matmul(
    context: Context, a: ops.Tensor, b: ops.Tensor, scale_b: ops.Tensor, zero_b: Zero | None = None, bias: _Maybe = None
) -> ops.Tensor:
    """The same of floats a, whose codes are made by their range."""
    codes, scale_a, zero_a = dynamic_quantize(context, a)
    return matmul_integer_to_float(context, codes, b, scale_a, scale_b, zero_a, zero_b, bias)


@operator("com.microsoft.QGemm", either=[2, 5])
def quantised_gemm(
    context: Context,
    a: ops.Tensor,
    scale_a: ops.Tensor,
    zero_a: Zero | None,
    b: ops.Tensor,
    scale_b: ops.Tensor,
    zero_b: Zero | None,
    bias: _Maybe = None,
    scale: _Maybe = None,
    zero: _Maybe = None,
) -> ops.Tensor:
    """A product of codes and a bias in the product's units; as codes again where the result has a scale."""
    transposed = bool(context.attribute("transA", 0)), bool(context.attribute("transB", 0))
    left = centred(context, a, zero_a, -1 if transposed[0] else -2)
    right = centred(context, b, zero_b, -2 if transposed[1] else -1)
    total = _added(context, product(context, left, right, *transposed), bias)
    found = ops.multiply(ops.cast(total, DType.F32), _factor(scale_a, scale_b))
    alpha = context.attribute("alpha", 1.0)
    found = found if alpha == 1 else found * alpha
    return found if scale is None or zero is None else requantised(context, found, scale, zero, -1)


def _decoded(context: Context, x: ops.Tensor, scale: ops.Tensor, zero: _Maybe) -> ops.Tensor:
    """Codes with one scale and one zero point as floats."""
    wide = ops.cast(x, DType.F32)
    shifted = wide if zero is None else ops.subtract(wide, ops.reshape(ops.cast(zero, DType.F32), ()))
    return ops.multiply(shifted, ops.reshape(scale, ()))


def _encoded(context: Context, x: ops.Tensor, scale: ops.Tensor, zero: _Maybe, kind: DType) -> ops.Tensor:
    """Floats as codes."""
    point = ops.zeros(context.graph, [], kind) if zero is None else ops.reshape(zero, ())
    return requantised(context, x, ops.reshape(scale, ()), point, -1)


def _between_codes(name: str, function: Callable[[Scalar, Scalar], Scalar]) -> None:
    @operator(f"com.microsoft.{name}")
    def build(
        context: Context,
        a: ops.Tensor,
        scale_a: ops.Tensor,
        zero_a: _Maybe,
        b: ops.Tensor,
        scale_b: ops.Tensor,
        zero_b: _Maybe,
        scale: ops.Tensor,
        zero: _Maybe = None,
    ) -> ops.Tensor:
        found = context.binary(name, function, _decoded(context, a, scale_a, zero_a), _decoded(context, b, scale_b, zero_b))
        return _encoded(context, found, scale, zero, a.dtype)


_between_codes("QLinearAdd", Scalar.__add__)
_between_codes("QLinearMul", Scalar.__mul__)


def _of_codes(name: str, function: Callable[[Context, ops.Tensor], ops.Tensor]) -> None:
    @operator(f"com.microsoft.{name}")
    def build(
        context: Context, x: ops.Tensor, scale_x: ops.Tensor, zero_x: _Maybe, scale: ops.Tensor, zero: _Maybe = None
    ) -> ops.Tensor:
        return _encoded(context, function(context, _decoded(context, x, scale_x, zero_x)), scale, zero, x.dtype)


def _softmax(context: Context, x: ops.Tensor) -> ops.Tensor:
    axis = context.axis(x.rank, context.attribute("axis", -1))
    if context.attribute("opset", 13) >= 13:
        return ops.softmax(x, axis)
    rows = ops.reshape(x, [*x.dims[:axis], product_of(x.dims[axis:])])
    return ops.reshape(ops.softmax(rows, -1), x.dims)


def _leaky(context: Context, x: ops.Tensor) -> ops.Tensor:
    alpha = context.attribute("alpha", 0.01)
    return context.graph.pointwise("QLinearLeakyRelu", lambda v: v.maximum(0) + v.minimum(0) * alpha, x)


def _pooled(context: Context, x: ops.Tensor) -> ops.Tensor:
    return _channels_second(context, x, lambda v: average_pool(context, v))


def _pooled_whole(context: Context, x: ops.Tensor) -> ops.Tensor:
    return _channels_second(context, x, lambda v: ops.mean(v, list(range(2, v.rank)), True))


def _channels_second(context: Context, x: ops.Tensor, function: Callable[[ops.Tensor], ops.Tensor]) -> ops.Tensor:
    if not context.attribute("channels_last", 0):
        return function(x)
    return ops.move_axes(function(ops.move_axes(x, -1, 1)), 1, -1)


_of_codes("QLinearSigmoid", lambda _, x: ops.sigmoid(x))
_of_codes("QLinearLeakyRelu", _leaky)
_of_codes("QLinearSoftmax", _softmax)
_of_codes("QLinearAveragePool", _pooled)
_of_codes("QLinearGlobalAveragePool", _pooled_whole)


@operator("com.microsoft.QLinearConcat")
def quantised_concat(context: Context, scale: ops.Tensor, zero: ops.Tensor, *parts: ops.Tensor) -> ops.Tensor:
    """Codes, scale and zero point of each part; those of the result come first."""
    context.require(len(parts) % 3 == 0 and bool(parts), f"{len(parts)} inputs for parts of three each")
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    joined = ops.concat([_decoded(context, *triple) for triple in triples], context.attribute("axis"))
    return _encoded(context, joined, scale, zero, zero.dtype)


@operator("com.microsoft.DynamicQuantizeLSTM")
def dynamic_quantize_lstm(
    context: Context, x: ops.Tensor, w: ops.Tensor, r: ops.Tensor, *rest: ops.Tensor | None
) -> list[ops.Tensor]:
    """An LSTM of weights in codes [directions, inputs, gates]; activations stay floats, which ONNX Runtime rounds to codes."""
    plain, parameters = rest[:5], rest[5:]
    context.require(len(parameters) == 4, f"it has {3 + len(rest)} inputs; wanted 12")
    scale_w, zero_w, scale_r, zero_r = parameters
    assert scale_w is not None and zero_w is not None and scale_r is not None and zero_r is not None
    floats = [_weights(w, scale_w, zero_w), _weights(r, scale_r, zero_r)]
    return lstm(context, x, *floats, *plain)


def _weights(codes: ops.Tensor, scale: ops.Tensor, zero: ops.Tensor) -> ops.Tensor:
    """[directions, gates, inputs] of codes [directions, inputs, gates], whose scales are of a direction or of its gates."""
    shape = [scale.dims[0], _ONE, scale.dims[1] if scale.rank == 2 else _ONE]
    wide = ops.subtract(ops.cast(codes, DType.F32), ops.reshape(ops.cast(zero, DType.F32), shape))
    return ops.swap_axes(ops.multiply(wide, ops.reshape(scale, shape)), 1, 2)
