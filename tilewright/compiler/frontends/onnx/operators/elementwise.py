"""Operators that work per element."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
from onnx import helper

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.float8 import FLOAT8_LIMITS, saturated_float
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.compiler.ops import pointwise, scalar_functions
from tilewright.compiler.ops.body import Scalar, is_float
from tilewright.runtime.tensor import DType

_Unary = Callable[[Scalar], Scalar]
_Binary = Callable[[Scalar, Scalar], Scalar]


def _math(name: str) -> _Unary:
    return lambda v: v.math(name)


def _sign(v: Scalar) -> Scalar:
    """NaN for NaN, unlike PyTorch's."""
    signs = scalar_functions.sign(v)
    return scalar_functions.select(scalar_functions.is_nan(v), v, signs) if is_float(v.kind) else signs


def _unary(name: str, function: _Unary) -> None:
    @operator(name)
    def build(context: Context, x: ops.Tensor) -> ops.Tensor:
        return context.graph.pointwise(name, function, x)


def _binary(name: str, function: _Binary, dtype: DType | None = None) -> None:
    @operator(name)
    def build(context: Context, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
        return context.binary(name, function, a, b, dtype)


for _name in (
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "Log",
    "Sin",
    "Sinh",
    "Sqrt",
    "Tan",
    "Tanh",
):
    _unary(_name, _math(_name.lower()))
_unary("BitwiseNot", lambda v: ~v)
_unary("Identity", lambda v: v)
_unary("Neg", lambda v: -v)
_unary("Not", lambda v: ~v)
_unary("Reciprocal", lambda v: 1 / v)
_unary("Relu", pointwise.scalar_relu)
_unary("Round", _math("roundeven"))
_unary("Sigmoid", pointwise.scalar_sigmoid)
_unary("Sign", _sign)
_unary("Abs", scalar_functions.absolute)
_unary("Softplus", lambda v: v.maximum(0) + (-scalar_functions.absolute(v)).math("exp").math("log1p"))
_unary("Softsign", lambda v: v / (scalar_functions.absolute(v) + 1))
_unary("HardSwish", lambda v: v * (v * (1 / 6) + 0.5).maximum(0).minimum(1))
_unary("Mish", lambda v: v * (v.maximum(0) + (-scalar_functions.absolute(v)).math("exp").math("log1p")).math("tanh"))

_binary("Add", Scalar.__add__)
_binary("Sub", Scalar.__sub__)
_binary("Mul", Scalar.__mul__)
_binary("Div", lambda a, b: a / b if is_float(a.kind) else scalar_functions.truncated_quotient(a, b))
_binary("And", Scalar.__and__)
_binary("Or", Scalar.__or__)
_binary("Xor", Scalar.__xor__)
_binary("BitwiseAnd", Scalar.__and__)
_binary("BitwiseOr", Scalar.__or__)
_binary("BitwiseXor", Scalar.__xor__)
_binary("PRelu", lambda v, slope: v.body.select(v.compare("lt", 0), v * slope, v))
for _name, _predicate in (("Equal", "eq"), ("Less", "lt"), ("LessOrEqual", "le"), ("Greater", "gt"), ("GreaterOrEqual", "ge")):
    _binary(_name, lambda a, b, p=_predicate: a.compare(p, b), DType.I1)  # type: ignore[misc]


@operator("Max", "Min", "Sum", "Mean")
def variadic(context: Context, *inputs: ops.Tensor) -> ops.Tensor:
    name = context.node.op_type
    functions: dict[str, _Binary] = {"Max": Scalar.maximum, "Min": Scalar.minimum}
    total = reduce(lambda a, b: context.binary(name, functions.get(name, Scalar.__add__), a, b), inputs)
    return total / float(len(inputs)) if name == "Mean" else total


@operator("Mod")
def mod(context: Context, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    """With the sign of the divisor, or with fmod=1 of the dividend."""
    return context.binary("Mod", scalar_functions.fmod if context.attribute("fmod", 0) else scalar_functions.remainder, a, b)


@operator("Pow")
def power(context: Context, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    """The result has the type of the base; a float exponent of an integer base computes in its type."""
    wide = b.dtype if b.dtype.is_float and not a.dtype.is_float else a.dtype
    found = context.binary("Pow", scalar_functions.power, ops.cast(a, wide), ops.cast(b, wide))
    return ops.cast(found, a.dtype)


@operator("BitShift")
def bit_shift(context: Context, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    left = context.attribute("direction") == "LEFT"
    return context.binary("BitShift", scalar_functions.shift_left if left else scalar_functions.shift_right, a, b)


@operator("IsNaN")
def is_nan(context: Context, x: ops.Tensor) -> ops.Tensor:
    return context.graph.pointwise("IsNaN", scalar_functions.is_nan, x, dtype=DType.I1)


@operator("IsInf")
def is_inf(context: Context, x: ops.Tensor) -> ops.Tensor:
    signs = [s for s, k in ((np.inf, "detect_positive"), (-np.inf, "detect_negative")) if context.attribute(k, 1)]

    def test(v: Scalar) -> Scalar:
        return reduce(Scalar.__or__, [v.compare("eq", s) for s in signs], v.body.value(0, "i1"))

    return context.graph.pointwise("IsInf", test, x, dtype=DType.I1)


@operator("Where")
def where(context: Context, condition: ops.Tensor, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    return ops.where(*context.fit(condition, a, b))


@operator("Clip")
def clip(context: Context, x: ops.Tensor, low: ops.Tensor | None = None, high: ops.Tensor | None = None) -> ops.Tensor:
    for bound, name, function in ((low, "min", Scalar.maximum), (high, "max", Scalar.minimum)):
        if bound is not None:
            x = context.binary("Clip", function, x, ops.reshape(bound, ()))
        elif context.has(name):
            number = context.attribute(name)
            x = context.graph.pointwise("Clip", lambda v, f=function, n=number: f(v, n), x)
    return x


@operator("Elu")
def elu(context: Context, x: ops.Tensor) -> ops.Tensor:
    return _exponential(context, x, context.attribute("alpha", 1.0), 1.0)


@operator("Selu")
def selu(context: Context, x: ops.Tensor) -> ops.Tensor:
    gamma = context.attribute("gamma", 1.05070102214813232421875)
    return _exponential(context, x, gamma * context.attribute("alpha", 1.67326319217681884765625), gamma)


def _exponential(context: Context, x: ops.Tensor, below: float, above: float) -> ops.Tensor:
    def scalar(v: Scalar) -> Scalar:
        return v.body.select(v.compare("gt", 0), v * above, v.minimum(0).math("expm1") * below)

    return context.graph.pointwise(context.node.op_type, scalar, x)


@operator("Celu")
def celu(context: Context, x: ops.Tensor) -> ops.Tensor:
    alpha = context.attribute("alpha", 1.0)
    return context.graph.pointwise("Celu", lambda v: v.maximum(0) + (v.minimum(0) / alpha).math("expm1") * alpha, x)


@operator("LeakyRelu")
def leaky_relu(context: Context, x: ops.Tensor) -> ops.Tensor:
    slope = context.attribute("alpha", 0.01)
    return context.graph.pointwise("LeakyRelu", lambda v: v.body.select(v.compare("lt", 0), v * slope, v), x)


@operator("ThresholdedRelu")
def thresholded_relu(context: Context, x: ops.Tensor) -> ops.Tensor:
    least = context.attribute("alpha", 1.0)
    return context.graph.pointwise("ThresholdedRelu", lambda v: v.body.select(v.compare("gt", least), v, 0.0), x)


@operator("HardSigmoid")
def hard_sigmoid(context: Context, x: ops.Tensor) -> ops.Tensor:
    alpha, beta = context.attribute("alpha", 0.2), context.attribute("beta", 0.5)
    return context.graph.pointwise("HardSigmoid", lambda v: (v * alpha + beta).maximum(0).minimum(1), x)


@operator("Shrink")
def shrink(context: Context, x: ops.Tensor) -> ops.Tensor:
    edge, bias = context.attribute("lambd", 0.5), context.attribute("bias", 0.0)

    def scalar(v: Scalar) -> Scalar:
        inner = v.body.select(v.compare("gt", edge), v - bias, 0.0)
        return v.body.select(v.compare("lt", -edge), v + bias, inner)

    wide = x if x.dtype.is_float else ops.cast(x, DType.F32)
    return ops.cast(context.graph.pointwise("Shrink", scalar, wide), x.dtype)


@operator("Swish")
def swish(context: Context, x: ops.Tensor) -> ops.Tensor:
    alpha = context.attribute("alpha", 1.0)
    return context.graph.pointwise("Swish", lambda v: v / ((v * -alpha).math("exp") + 1), x)


@operator("Gelu", "com.microsoft.Gelu")
def gelu(context: Context, x: ops.Tensor) -> ops.Tensor:
    form = context.attribute("approximate", "none")
    context.require(form in ("none", "tanh"), f"approximate={form!r}", 'Use "none" or "tanh"')
    return ops.gelu(x) if form == "none" else context.graph.pointwise("Gelu", scalar_functions.gelu_tanh, x)


@operator("Cast")
def cast(context: Context, x: ops.Tensor) -> ops.Tensor:
    return _converted(context, x, context.element(context.attribute("to")))


@operator("CastLike", either=[1])
def cast_like(context: Context, x: ops.Tensor, like: Known | ops.Tensor) -> ops.Tensor:
    if isinstance(like, Known):  # of 4 bits, say, which a tensor has no type for
        return _converted(context, x, context.element(helper.np_dtype_to_tensor_dtype(like.dtype)))
    return _converted(context, x, like.dtype)


def _converted(context: Context, x: ops.Tensor, kind: DType) -> ops.Tensor:
    return saturated_float(context, x, kind) if kind in FLOAT8_LIMITS and x.dtype.is_float else ops.cast(x, kind)


@operator("BitCast")
def bit_cast(context: Context, x: ops.Tensor) -> ops.Tensor:
    """The same bits as another type of the same width."""
    kind = context.element(context.attribute("to"))
    context.require(
        kind.bytes == x.dtype.bytes and DType.I1 not in (kind, x.dtype),
        f"from {x.dtype.value} to {kind.value}",
        "Use types of one width, other than bool",
    )

    def scalar(v: Scalar) -> Scalar:
        own = v.cast(x.dtype.value)
        if not x.dtype.is_float and not kind.is_float:
            return own.cast(kind.value)
        return own.body.emit(f"arith.bitcast {own.ssa} : {own.type} to {kind.signless.value}", kind.value)

    return context.graph.pointwise("BitCast", scalar, x, dtype=kind)


@operator("Dropout", known=[2])
def dropout(context: Context, x: ops.Tensor, ratio: ops.Tensor | None = None, training: Known | None = None) -> list[ops.Tensor]:
    """Of a model in use: nothing is dropped."""
    context.require(
        training is None or not training.elements.any(),
        "random numbers are not compiled, and this dropout trains",
        "Export the model for inference",
    )
    return [x, ops.full(context.graph, x.dims, True, DType.I1)]
