"""Convolutions and products as ONNX Runtime fuses them: with the activation and the sum behind them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.operators.contractions import fused_matmul, gemm
from tilewright.compiler.frontends.onnx.operators.convolutions import conv
from tilewright.compiler.ops import scalar_functions
from tilewright.compiler.ops.body import Scalar

_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid")


def _activated(context: Context, x: ops.Tensor, parameters: Sequence[float]) -> ops.Tensor:
    """x through the activation that the node names; parameters: its attributes, in the order of ONNX."""
    name = context.attribute("activation", "")
    if not name:
        return x
    context.require(name in _ACTIVATIONS, f"activation={name!r}", f"Use {', '.join(_ACTIVATIONS)}")
    first, second = (*parameters, 0.0, 0.0)[:2]

    def scalar(v: Scalar) -> Scalar:
        if name == "LeakyRelu":
            return v.maximum(0) + v.minimum(0) * first
        if name == "Clip":
            return v.maximum(first).minimum(second)
        if name == "HardSigmoid":
            return (v * first + second).maximum(0).minimum(1)
        return v.math("tanh") if name == "Tanh" else scalar_functions.constant(v, 1) / ((-v).math("exp") + 1)

    return ops.relu(x) if name == "Relu" else context.graph.pointwise(name, scalar, x)


@operator("com.microsoft.FusedConv")
def fused_conv(
    context: Context, x: ops.Tensor, w: ops.Tensor, bias: ops.Tensor | None = None, added: ops.Tensor | None = None
) -> ops.Tensor:
    """A convolution, then a sum with a tensor of its shape, then an activation."""
    found = conv(context, x, w, bias)
    if added is not None:
        found = context.binary("FusedConv", Scalar.__add__, found, added)
    return _activated(context, found, context.attribute("activation_params", []))


@operator("com.microsoft.FusedGemm")
def fused_gemm(context: Context, a: ops.Tensor, b: ops.Tensor, c: ops.Tensor | None = None) -> ops.Tensor:
    names = ("activation_alpha", "activation_beta")
    return _activated(context, gemm(context, a, b, c), [context.attribute(n, 0.0) for n in names])


@operator("com.microsoft.TransposeMatMul")
def transpose_matmul(context: Context, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    return fused_matmul(context, a, b)
