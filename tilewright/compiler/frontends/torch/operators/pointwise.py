"""Element by element: arithmetic, functions, activations."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.ops.body import Scalar


def binary(name: str, function: Callable[[Scalar, Scalar], Scalar], *operators: str) -> None:
    """Registers an operator that computes in the type of its result."""

    @register("torch", *operators)
    def build(context: Context, a: Any, b: Any) -> ops.Tensor:
        x, y = (ops.cast(v, context.dtype()) if isinstance(v, ops.Tensor) else v for v in (a, b))
        return context.graph.pointwise(name, function, x, y)


binary("multiply", operator.mul, "aten.mul.Tensor", "aten.mul.Scalar")
binary("divide", operator.truediv, "aten.div.Tensor", "aten.div.Scalar")


@register("torch", "aten.add.Tensor", "aten.add.Scalar")
def add(context: Context, a: Any, b: Any, alpha: Any = 1) -> ops.Tensor:
    x, y = (ops.cast(v, context.dtype()) if isinstance(v, ops.Tensor) else v for v in (a, b))
    return x + (y if alpha == 1 else y * alpha)


@register("torch", "aten.sub.Tensor", "aten.sub.Scalar")
def sub(context: Context, a: Any, b: Any, alpha: Any = 1) -> ops.Tensor:
    x, y = (ops.cast(v, context.dtype()) if isinstance(v, ops.Tensor) else v for v in (a, b))
    return x - (y if alpha == 1 else y * alpha)


def unary(function: Callable[[ops.Tensor], ops.Tensor], *operators: str) -> None:
    """Registers a function of a float tensor; integers compute in the type of the result."""

    @register("torch", *operators)
    def build(context: Context, x: ops.Tensor) -> ops.Tensor:
        return function(ops.cast(x, context.dtype()))


unary(ops.relu, "aten.relu.default")
unary(ops.silu, "aten.silu.default")
unary(ops.tanh, "aten.tanh.default")
unary(ops.rsqrt, "aten.rsqrt.default")


@register("torch", "aten.gelu.default")
def gelu(context: Context, x: ops.Tensor, approximate: str = "none") -> ops.Tensor:
    if approximate == "none":
        return ops.gelu(x)
    return context.graph.pointwise("gelu", _gelu_tanh, x)


def _gelu_tanh(v: Scalar) -> Scalar:
    """Hendrycks and Gimpel 2016, the approximation by tanh."""
    inner = (v + v * v * v * 0.044715) * 0.7978845608028654
    return v * (inner.math("tanh") + 1) * 0.5
