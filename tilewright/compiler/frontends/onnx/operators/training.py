"""Steps of optimisers, as exported training graphs hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.ops.body import Scalar

_Step = Callable[..., list[ops.Tensor]]
_DOMAIN = "ai.onnx.preview.training"


def _per_tensor(context: Context, inputs: Sequence[ops.Tensor], states: int, step: _Step) -> list[ops.Tensor]:
    """`step` of every parameter, its gradient and its states; results grouped as the inputs are."""
    count = len(inputs) // (2 + states)
    context.require(count * (2 + states) == len(inputs), f"{len(inputs)} tensors for parameters, gradients and states")
    rows = [step(*inputs[i::count]) for i in range(count)]
    return [row[k] for k in range(1 + states) for row in rows]


@operator(f"{_DOMAIN}.Momentum")
def momentum(context: Context, rate: ops.Tensor, time: ops.Tensor, *inputs: ops.Tensor) -> list[ops.Tensor]:
    alpha, beta = context.attribute("alpha"), context.attribute("beta")
    decay, nesterov = context.attribute("norm_coefficient", 0.0), context.attribute("mode") == "nesterov"

    def step(x: ops.Tensor, gradient: ops.Tensor, velocity: ops.Tensor) -> list[ops.Tensor]:
        slope = gradient + x * decay
        first = ops.where(ops.compare(time, 0, "gt"), context.graph.scalar(beta, x.dtype), context.graph.scalar(1.0, x.dtype))
        moved = velocity * alpha + slope * first
        return [x - (slope + moved * alpha if nesterov else moved) * ops.reshape(rate, ()), moved]

    return _per_tensor(context, inputs, 1, step)


@operator(f"{_DOMAIN}.Adagrad")
def adagrad(context: Context, rate: ops.Tensor, time: ops.Tensor, *inputs: ops.Tensor) -> list[ops.Tensor]:
    decay, eps = context.attribute("norm_coefficient", 0.0), context.attribute("epsilon", 1e-6)
    factor = context.attribute("decay_factor", 0.0)
    slowed = ops.reshape(rate, ()) / (ops.cast(ops.reshape(time, ()), rate.dtype) * factor + 1.0)

    def step(x: ops.Tensor, gradient: ops.Tensor, squares: ops.Tensor) -> list[ops.Tensor]:
        slope = gradient + x * decay
        total = squares + slope * slope
        return [x - slope * slowed / (ops.sqrt(total) + eps), total]

    return _per_tensor(context, inputs, 1, step)


@operator(f"{_DOMAIN}.Adam")
def adam(context: Context, rate: ops.Tensor, time: ops.Tensor, *inputs: ops.Tensor) -> list[ops.Tensor]:
    alpha, beta = context.attribute("alpha", 0.9), context.attribute("beta", 0.999)
    eps, decay = context.attribute("epsilon", 1e-6), context.attribute("norm_coefficient", 0.0)
    after = context.attribute("norm_coefficient_post", 0.0)
    count = ops.cast(ops.reshape(time, ()), rate.dtype)

    def corrected(r: Scalar, t: Scalar) -> Scalar:
        bias = (1 - _power(beta, t)).math("sqrt") / (1 - _power(alpha, t))
        return t.body.select(t.compare("gt", 0), r * bias, r)

    speed = context.graph.pointwise("Adam", corrected, ops.reshape(rate, ()), count)

    def step(x: ops.Tensor, gradient: ops.Tensor, mean: ops.Tensor, squares: ops.Tensor) -> list[ops.Tensor]:
        slope = gradient + x * decay
        first = mean * alpha + slope * (1 - alpha)
        second = squares * beta + slope * slope * (1 - beta)
        return [(x - first * speed / (ops.sqrt(second) + eps)) * (1 - after), first, second]

    return _per_tensor(context, inputs, 2, step)


def _power(base: float, exponent: Scalar) -> Scalar:
    """base^exponent of a number in (0, 1)."""
    return (exponent * math.log(base)).math("exp") if base > 0 else exponent * 0
