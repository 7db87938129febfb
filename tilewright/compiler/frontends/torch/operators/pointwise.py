"""Arithmetic, comparisons, selection and elementary functions, element by element."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from math import nan, pi
from typing import Any

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import (
    DEFAULT,
    TO_FLOAT,
    TO_INTEGER,
    Function,
    elementwise,
    met,
    names,
    register_binary,
    register_ternary,
    register_unary,
)
from tilewright.compiler.ops import scalar_functions as scalar
from tilewright.compiler.ops.body import Scalar, is_float
from tilewright.compiler.ops.scalar_functions import call, select

_BOTH = ("Tensor", "Scalar")


def _math(name: str) -> Function:
    return lambda v: call(f"math.{name}", v)


def _rounding(name: str) -> Function:
    """A rounding, which leaves integers as they are."""
    return lambda v: call(f"math.{name}", v) if is_float(v.kind) else v


def _logical(value: Scalar) -> Scalar:
    return value.cast("i1")


def _add(a: Scalar, b: Scalar) -> Scalar:
    return a | b if a.kind == "i1" else a + b


def _multiply(a: Scalar, b: Scalar) -> Scalar:
    return a & b if a.kind == "i1" else a * b


def _round(v: Scalar, *, decimals: int = 0) -> Scalar:
    return scalar.round_to(v, decimals) if is_float(v.kind) else v


def _angle(v: Scalar) -> Scalar:
    turned = select(v.compare("lt", 0), scalar.constant(v, pi), scalar.constant(v, 0))
    return select(scalar.is_nan(v), v, turned)


_MATH = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "exp", "exp2", "expm1",
         "log", "log2", "log10", "log1p", "erf", "erfc", "sqrt")  # fmt: skip
_FLOAT: Mapping[str, Function] = {
    **{name: _math(name) for name in _MATH},
    "rsqrt": lambda v: 1 / call("math.sqrt", v),
    "reciprocal": lambda v: 1 / v,
    "deg2rad": lambda v: v * (pi / 180),
    "rad2deg": lambda v: v * (180 / pi),
    "sinc": scalar.sinc,
    "angle": _angle,
}
_SAME: Mapping[str, Function] = {
    "abs": scalar.absolute,
    "neg": operator.neg,
    "square": lambda v: _multiply(v, v),
    "sign": scalar.sign,
    "sgn": scalar.sign,
    "ceil": _rounding("ceil"),
    "floor": _rounding("floor"),
    "trunc": _rounding("trunc"),
    "frac": scalar.fraction,
    "bitwise_not": operator.invert,
}
_TESTS: Mapping[str, Function] = {
    "isnan": lambda v: scalar.is_nan(v) if is_float(v.kind) else v.body.value(0, "i1"),
    "isinf": lambda v: scalar.is_inf(v) if is_float(v.kind) else v.body.value(0, "i1"),
    "isfinite": lambda v: scalar.is_finite(v) if is_float(v.kind) else v.body.value(1, "i1"),
    "isposinf": lambda v: v.compare("eq", np.inf) if is_float(v.kind) else v.body.value(0, "i1"),
    "isneginf": lambda v: v.compare("eq", -np.inf) if is_float(v.kind) else v.body.value(0, "i1"),
    "signbit": lambda v: v.body.value(0, "i1") if v.kind == "i1" else scalar.sign_bit(v),
    "logical_not": lambda v: ~_logical(v),
}
_ARITHMETIC: Mapping[str, Function] = {
    "mul": _multiply,
    "fmod": scalar.fmod,
    "remainder": scalar.remainder,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "bitwise_left_shift": scalar.shift_left,
    "bitwise_right_shift": scalar.shift_right,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "__lshift__": scalar.shift_left,
    "__rshift__": scalar.shift_right,
}
_PAIRS: Mapping[str, Function] = {
    "maximum": lambda a, b: a.maximum(b),
    "minimum": lambda a, b: a.minimum(b),
    "fmax": scalar.fmax,
    "fmin": scalar.fmin,
    "hypot": scalar.hypot,
    "nextafter": scalar.next_after,
    "heaviside": scalar.heaviside,
    "floor_divide": scalar.floor_quotient,
}

for _name, _function in _FLOAT.items():
    register_unary(names(_name), _function, TO_FLOAT)
for _name, _function in _SAME.items():
    register_unary(names(_name), _function, DEFAULT)
for _name, _function in _TESTS.items():
    register_unary(names(_name), _function, DEFAULT)
for _name, _function in _ARITHMETIC.items():
    register_binary(names(_name, overloads=(*_BOTH, "Scalar_Tensor") if "bitwise" in _name else _BOTH), _function)
for _name, _function in _PAIRS.items():
    register_binary(names(_name), _function)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    register_binary(names(_name, overloads=_BOTH), lambda a, b, predicate=_name: a.compare(predicate, b))
for _name, _operation in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
    register_binary(names(f"logical_{_name}"),
                    lambda a, b, operation=_operation: operation(_logical(a), _logical(b)))  # fmt: skip

register_unary(["aten.round.default", "aten.round.decimals"], _round, DEFAULT)
register_binary(["aten.floor_divide.Scalar", "aten.fmod.Tensor_Scalar"][:1], scalar.floor_quotient)
register_binary(["aten.remainder.Scalar_Tensor"], scalar.remainder)
register_binary(names("atan2"), lambda a, b: call("math.atan2", a, b), TO_FLOAT)
register_binary(names("copysign", overloads=_BOTH), lambda a, b: call("math.copysign", a, b), TO_FLOAT)
register_binary(names("logaddexp"), scalar.log_add_exp, TO_FLOAT)
register_binary(names("logaddexp2"), lambda a, b: scalar.log_add_exp(a, b, base_two=True), TO_FLOAT)
register_binary(["aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other"], scalar.x_log_y, TO_FLOAT)
register_ternary(names("addcmul"), lambda a, b, c: _add(a, _multiply(b, c)))
register_ternary(names("addcdiv"), lambda a, b, c: a + b / c)
register_ternary(names("lerp", overloads=_BOTH), scalar.lerp)


@register("torch", *names("add", overloads=_BOTH))
def add(context: Context, a: Any, b: Any, alpha: Any = 1) -> ops.Tensor:
    """a + alpha b; of booleans, whether either holds."""
    return elementwise(context, lambda x, y: _add(x, y if alpha == 1 else _multiply(y, y.body.value(alpha, y.kind))),
                       [a, b], met(context, [0, 1]))  # fmt: skip


@register("torch", *names("sub", overloads=_BOTH))
def subtract(context: Context, a: Any, b: Any, alpha: Any = 1) -> ops.Tensor:
    """a - alpha b."""
    return elementwise(context, lambda x, y: x - (y if alpha == 1 else y * alpha), [a, b], met(context, [0, 1]))


@register("torch", *names("rsub", overloads=_BOTH))
def subtract_from(context: Context, a: Any, b: Any, alpha: Any = 1) -> ops.Tensor:
    """b - alpha a."""
    return elementwise(context, lambda x, y: y - (x if alpha == 1 else x * alpha), [a, b], met(context, [0, 1]))


@register("torch", *names("div", overloads=(*_BOTH, "Tensor_mode", "Scalar_mode")))
def divide(context: Context, a: Any, b: Any, rounding_mode: str | None = None) -> ops.Tensor:
    """a / b, rounded towards zero ("trunc") or minus infinity ("floor") on request."""
    if rounding_mode is None:
        return elementwise(context, lambda x, y: x / y, [a, b], met(context, [0, 1], TO_FLOAT))
    function = scalar.floor_quotient if rounding_mode == "floor" else scalar.truncated_quotient
    return elementwise(context, function, [a, b], met(context, [0, 1]))


@register("torch", "aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar")
def power(context: Context, a: Any, b: Any) -> ops.Tensor:
    """a^b; whole numbers as factors where they are few."""
    compute = met(context, [0, 1], TO_INTEGER)
    if isinstance(b, (int, float)):
        return elementwise(context, lambda x: scalar.power(x, b), [a], compute)
    return elementwise(context, scalar.power, [a, b], compute)


@register("torch", *names("clamp", overloads=("default", "Tensor")))
def clamp(context: Context, x: ops.Tensor, low: Any = None, high: Any = None) -> ops.Tensor:
    """min(max(x, low), high); NaN stays."""
    bounds = [(i, b) for i, b in ((1, low), (2, high)) if b is not None]
    positions = [0, *(i for i, _ in bounds)]

    def run(v: Scalar, *given: Scalar) -> Scalar:
        for (i, _), bound in zip(bounds, given, strict=True):
            v = v.maximum(bound) if i == 1 else v.minimum(bound)
        return v

    return elementwise(context, run, [x, *(b for _, b in bounds)], met(context, positions))


register_binary(names("clamp_min", overloads=("default", "Tensor")), lambda v, bound: v.maximum(bound))
register_binary(names("clamp_max", overloads=("default", "Tensor")), lambda v, bound: v.minimum(bound))


@register("torch", *names("where", overloads=("self", "ScalarSelf", "ScalarOther", "Scalar")))
def where(context: Context, condition: ops.Tensor, a: Any, b: Any) -> ops.Tensor:
    """`a` where the condition holds, else `b`."""
    compute = context.dtype()

    def run(c: Scalar, x: Scalar, y: Scalar) -> Scalar:
        return select(c.cast("i1"), x.cast(compute.value), y.cast(compute.value))

    return context.graph.map_elements(context.operator, run, [condition, a, b], compute, compute)


@register("torch", *names("nan_to_num"))
def nan_to_num(
    context: Context,
    x: ops.Tensor,
    for_nan: float | None = None,
    for_inf: float | None = None,
    for_minus_inf: float | None = None,
) -> ops.Tensor:
    """Numbers in place of NaN and the infinities; by default 0 and the largest and smallest numbers."""
    dtype = context.dtype()
    if not dtype.is_float:
        return x
    largest = float(np.finfo(np.float64).max) if dtype.value == "f64" else _largest(dtype.value)

    def run(v: Scalar) -> Scalar:
        return scalar.nan_to_num(v, for_nan or 0.0, largest if for_inf is None else for_inf,
                                 -largest if for_minus_inf is None else for_minus_inf)  # fmt: skip

    return elementwise(context, run, [x], met(context, [0]))


def _largest(kind: str) -> float:
    return {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}.get(kind, nan)
