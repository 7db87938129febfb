"""Activation functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import DEFAULT, TO_FLOAT, Function, names, register_binary, register_unary
from tilewright.compiler.ops import scalar_functions as scalar
from tilewright.compiler.ops.body import Scalar
from tilewright.compiler.ops.pointwise import scalar_gelu, scalar_relu, scalar_sigmoid, scalar_silu
from tilewright.compiler.ops.scalar_functions import call, constant, select

_SELU = 1.6732632423543772, 1.0507009873554805


def _gelu(v: Scalar, *, approximate: str = "none") -> Scalar:
    return scalar_gelu(v) if approximate == "none" else scalar.gelu_tanh(v)


def _elu(v: Scalar, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Scalar:
    return scalar.elu(v, alpha, scale, input_scale)


def _leaky_relu(v: Scalar, slope: float = 0.01) -> Scalar:
    return select(v.compare("gt", 0), v, v * slope)


def _hard_tanh(v: Scalar, low: float = -1.0, high: float = 1.0) -> Scalar:
    return v.maximum(low).minimum(high)


def _threshold(v: Scalar, threshold: float, value: float) -> Scalar:
    return select(v.compare("le", threshold), constant(v, value), v)


def _soft_shrink(v: Scalar, width: float = 0.5) -> Scalar:
    outside = select(v.compare("gt", width), v - width, v + width)
    return select(call("math.absf", v).compare("le", width), constant(v, 0), outside)


def _hard_shrink(v: Scalar, width: float = 0.5) -> Scalar:
    return select(call("math.absf", v).compare("le", width), constant(v, 0), v)


def _logit(v: Scalar, eps: float | None = None) -> Scalar:
    inside = v
    if eps is not None:  # above a half there is no such range; then as PyTorch chooses
        inside = select(v.compare("lt", eps), constant(v, eps), select(v.compare("gt", 1 - eps), constant(v, 1 - eps), v))
    return call("math.log", inside / (1 - inside))


_FUNCTIONS: Mapping[str, Function] = {
    "relu": scalar_relu,
    "silu": scalar_silu,
    "gelu": _gelu,
    "elu": _elu,
    "celu": lambda v, alpha=1.0: _elu(v, alpha, 1.0, 1 / alpha),
    "selu": lambda v: _elu(v, *_SELU),
    "mish": scalar.mish,
    "hardswish": lambda v: v * scalar.hard_sigmoid(v),
    "hardsigmoid": scalar.hard_sigmoid,
    "hardtanh": _hard_tanh,
    "relu6": lambda v: _hard_tanh(v, 0.0, 6.0),
    "leaky_relu": _leaky_relu,
    "threshold": _threshold,
    "softplus": lambda v, beta=1.0, threshold=20.0: scalar.softplus(v, beta, threshold),
    "softshrink": _soft_shrink,
    "hardshrink": _hard_shrink,
    "log_sigmoid": scalar.log_sigmoid,
}
for _name, _function in _FUNCTIONS.items():
    register_unary(names(_name), _function, DEFAULT)
register_unary(names("sigmoid"), scalar_sigmoid, TO_FLOAT)
register_unary(names("logit"), _logit, TO_FLOAT)
register_binary(names("_prelu_kernel"), lambda v, slope: select(v.compare("gt", 0), v, v * slope))


@register("torch", *names("prelu"))
def prelu(context: Context, x: ops.Tensor, weight: ops.Tensor) -> ops.Tensor:
    """x above 0, x times the weight of its channel (axis 1) elsewhere."""
    slope: Any = weight
    if weight.rank == 1:
        slope = weight.on(1) if x.rank > 1 else weight
    return x.graph.pointwise("prelu", lambda v, w: select(v.compare("gt", 0), v, v * w), x, slope)


@register("torch", *names("rrelu"))
def rrelu(
    context: Context, x: ops.Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> ops.Tensor:
    """Outside of training: x above 0, x times the mean of both slopes below."""
    if training:
        context.refuse("it is random in training", "call model.eval() first")
    return x.graph.pointwise("rrelu", lambda v: _leaky_relu(v, (lower + upper) / 2), x)
