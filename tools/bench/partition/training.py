"""Workloads over rows and columns: what lies between the products of a training step, each one function of arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tools.bench.partition.maths import Array, Maths

Function = Callable[..., Any]


@dataclass(frozen=True)
class Given:
    """An argument: its extents, "T" for rows; labels: the classes that its integers name, 0 for numbers within [0, 1)."""

    size: tuple[int | str, ...]
    labels: int = 0


@dataclass(frozen=True)
class Workload:
    """build(maths) gives the function; native(torch): the same by an operator that torch has for it."""

    name: str
    build: Callable[[Maths], Function]
    given: tuple[Given, ...]
    native: Callable[[Any], Function] | None = None


def softmax(m: Maths, x: Array) -> Array:
    raised = m.exp(x - m.largest(x, -1))
    return raised / m.sum(raised, -1, keep=True)


def normed(m: Maths, x: Array, epsilon: float = 1e-5) -> Array:
    centred = x - m.mean(x, -1, keep=True)
    return centred / m.sqrt(m.mean(centred * centred, -1, keep=True) + epsilon)


def norm_gradient(m: Maths, weighted: Array, unit: Array, scale: Array) -> Array:
    """Gradient of the operand of a layernorm: weighted, that of its result times the weight; unit, what it normalised."""
    return (weighted - m.mean(weighted, -1, keep=True) - unit * m.mean(weighted * unit, -1, keep=True)) * scale


def gelu_gradient(m: Maths, z: Array, dy: Array) -> Array:
    return dy * (0.5 * (1 + m.erf(z * math.sqrt(0.5))) + z * m.exp(-0.5 * z * z) / math.sqrt(2 * math.pi))


def softmax_dropout(m: Maths) -> Function:
    return lambda x, keep: softmax(m, x) * keep


def softmax_dropout_backward(m: Maths) -> Function:
    def run(y: Array, dy: Array, keep: Array) -> Array:
        inner = dy * keep * y
        return inner - y * m.sum(inner, 1, keep=True)

    return run


def layernorm_backward(m: Maths) -> Function:
    def run(x: Array, dy: Array, weight: Array, mean: Array, scale: Array) -> Any:
        unit = (x - mean) * scale
        return norm_gradient(m, dy * weight, unit, scale), m.sum(dy * unit, 0), m.sum(dy, 0)

    return run


def native_layernorm_backward(torch: Any) -> Function:
    def run(x: Array, dy: Array, weight: Array, mean: Array, scale: Array) -> Any:
        return torch.ops.aten.native_layer_norm_backward(dy, x, [x.shape[1]], mean, scale, weight, weight, [True] * 3)

    return run


def rmsnorm_backward(m: Maths) -> Function:
    def run(x: Array, dy: Array, weight: Array, scale: Array) -> Any:
        unit, weighted = x * scale, dy * weight
        return (weighted - unit * m.mean(weighted * unit, 1, keep=True)) * scale, m.sum(dy * unit, 0)

    return run


def gelu_bias_backward(m: Maths) -> Function:
    def run(x: Array, bias: Array, dy: Array) -> Any:
        gradient = gelu_gradient(m, x + bias, dy)
        return gradient, m.sum(gradient, 0)

    return run


def residual_layernorm(m: Maths) -> Function:
    return lambda x, keep, residual, weight, bias: normed(m, x * keep + residual) * weight + bias


def cross_entropy(m: Maths) -> Function:
    def run(x: Array, labels: Array) -> Any:
        largest = m.largest(x, 1)
        logs = m.log(m.sum(m.exp(x - largest), 1, keep=True)) + largest
        return m.mean(logs - m.picked(x, labels)), logs

    return run


def native_cross_entropy(torch: Any) -> Function:
    return lambda x, labels: torch.nn.functional.cross_entropy(x, labels[:, 0])


def cross_entropy_backward(m: Maths) -> Function:
    def run(x: Array, labels: Array, logs: Array, upstream: Array) -> Array:
        share = m.exp(x - logs)
        return m.where(m.counted(x.shape[1], labels) == labels, share - 1.0, share) * upstream

    return run


def rope_norm(m: Maths) -> Function:
    def run(x: Array, weight: Array, cosine: Array, sine: Array) -> Array:
        unit = x / m.sqrt(m.mean(x * x, -1, keep=True) + 1e-6) * weight
        half = x.shape[-1] // 2
        turned = m.concatenated([-unit[..., half:], unit[..., :half]], -1)
        return unit * cosine + turned * sine

    return run


def group_norm_silu(m: Maths) -> Function:
    def run(x: Array, weight: Array, bias: Array) -> Array:
        unit = normed(m, x.reshape(x.shape[0], 32, -1)).reshape(x.shape) * weight + bias
        return unit * m.sigmoid(unit)

    return run


def native_group_norm_silu(torch: Any) -> Function:
    functional = torch.nn.functional
    return lambda x, weight, bias: functional.silu(functional.group_norm(x, 32, weight[0, :, 0], bias[0, :, 0], 1e-5))


def column_sum(m: Maths) -> Function:
    return lambda x: m.sum(x, 0)


def weight_and_bias_gradients(m: Maths) -> Function:
    return lambda unit, dy: (m.sum(dy * unit, 0), m.sum(dy, 0))


def clip_by_norm(m: Maths) -> Function:
    def run(a: Array, b: Array) -> Any:
        factor = 1 / (m.sqrt(m.sum(a * a) + m.sum(b * b)) + 1e-6)
        return a * factor, b * factor

    return run


def bert_layer_backward(m: Maths) -> Function:
    """All that is no product in the backward pass of an encoder layer, dropout included; gradients of products are arguments."""
    def run(*given: Array) -> Any:
        (dy, unit2, scale2, weight2, keep2, before, bias, from_dense2, from_dense1, unit1, scale1, weight1, keep1, share, keep0,
         from_values, dq, dk, dv) = given
        into_add2 = norm_gradient(m, dy * weight2, unit2, scale2)
        into_dense2 = into_add2 * keep2
        into_dense1 = gelu_gradient(m, before + bias, from_dense2)
        into_norm1 = into_add2 + from_dense1
        into_add1 = norm_gradient(m, into_norm1 * weight1, unit1, scale1)
        into_output = into_add1 * keep1
        inner = from_values * keep0 * share
        into_scores = (inner - share * m.sum(inner, -1, keep=True)) * 0.125
        return (into_dense2, into_dense1, into_add1, into_output, into_scores, m.sum(dy * unit2, 0), m.sum(dy, 0),
                m.sum(into_dense2, 0), m.sum(into_dense1, 0), m.sum(into_norm1 * unit1, 0), m.sum(into_norm1, 0),
                m.sum(into_output, 0), m.sum(dq, 0), m.sum(dk, 0), m.sum(dv, 0))

    return run


def _given(*sizes: Sequence[int | str]) -> tuple[Given, ...]:
    return tuple(Given(tuple(size)) for size in sizes)


_ROW, _WIDE, _ONE, _CELL = ("T", 768), ("T", 3072), (768,), ("T", 1)
WORKLOADS = (
    Workload("softmax_dropout", softmax_dropout, _given(("T", 512), ("T", 512))),
    Workload("softmax_dropout_backward", softmax_dropout_backward, _given(*[("T", 512)] * 3)),
    Workload("layernorm_backward", layernorm_backward, _given(_ROW, _ROW, _ONE, _CELL, _CELL), native_layernorm_backward),
    Workload("rmsnorm_backward", rmsnorm_backward, _given(_ROW, _ROW, _ONE, _CELL)),
    Workload("gelu_bias_backward", gelu_bias_backward, _given(_WIDE, (3072,), _WIDE)),
    Workload("residual_dropout_layernorm", residual_layernorm, _given(_ROW, _ROW, _ROW, _ONE, _ONE)),
    Workload("cross_entropy", cross_entropy, (Given(("T", 30522)), Given(_CELL, 30522)), native_cross_entropy),
    Workload("cross_entropy_backward", cross_entropy_backward,
             (Given(("T", 30522)), Given(_CELL, 30522), Given(_CELL), Given(_CELL))),
    Workload("rope_norm", rope_norm, _given(("T", 12, 64), (64,), ("T", 1, 64), ("T", 1, 64))),
    Workload("group_norm_silu", group_norm_silu, _given((4, 256, "T"), (1, 256, 1), (1, 256, 1)), native_group_norm_silu),
    Workload("column_sum", column_sum, _given(_ROW)),
    Workload("clip_by_norm", clip_by_norm, _given(_ROW, (768, 768))),
    Workload("bert_layer_backward", bert_layer_backward,
             _given(_ROW, _ROW, _CELL, _ONE, _ROW, _WIDE, (3072,), _WIDE, _ROW, _ROW, _CELL, _ONE, _ROW,
                    ("T", 12, 128), ("T", 12, 128), ("T", 12, 128), _ROW, _ROW, _ROW)),
)
COLUMNS = (
    Workload("column_sum", column_sum, _given(_ROW)),
    Workload("wide_column_sum", column_sum, _given(_WIDE)),
    Workload("weight_and_bias_gradients", weight_and_bias_gradients, _given(_ROW, _ROW)),
)
