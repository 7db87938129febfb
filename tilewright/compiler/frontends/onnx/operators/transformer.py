"""Fused operators of transformers."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.ops import scalar_functions
from tilewright.compiler.ops.body import Scalar


@operator("com.microsoft.BiasGelu")
def bias_gelu(context: Context, x: ops.Tensor, bias: ops.Tensor) -> ops.Tensor:
    return ops.gelu(context.binary("BiasGelu", Scalar.__add__, x, bias))


@operator("com.microsoft.FastGelu")
def fast_gelu(context: Context, x: ops.Tensor, bias: ops.Tensor | None = None) -> ops.Tensor:
    total = x if bias is None else context.binary("FastGelu", Scalar.__add__, x, bias)
    return context.graph.pointwise("FastGelu", scalar_functions.gelu_tanh, total)


@operator("com.microsoft.QuickGelu")
def quick_gelu(context: Context, x: ops.Tensor) -> ops.Tensor:
    alpha = context.attribute("alpha", 1.702)
    return context.graph.pointwise("QuickGelu", lambda v: v / ((v * -alpha).math("exp") + 1), x)
