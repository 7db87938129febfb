"""Element by element: functions, activations, selection, casts."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from tilewright.compiler.ops.body import Scalar, computed_in
from tilewright.compiler.ops.graph import Aligned, Operand, Tensor, element_type, want_float
from tilewright.runtime.errors import DTypeError, OptionError
from tilewright.runtime.tensor import DType


def _unary(name: str, function: Callable[[Scalar], Scalar], x: Tensor) -> Tensor:
    want_float(name, x)
    return x.graph.pointwise(name, function, x)


def exp(x: Tensor) -> Tensor:
    """e to the power of x."""
    return _unary("exp", lambda v: v.math("exp"), x)


def log(x: Tensor) -> Tensor:
    """Natural logarithm; NaN below 0."""
    return _unary("log", lambda v: v.math("log"), x)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return _unary("tanh", lambda v: v.math("tanh"), x)


def erf(x: Tensor) -> Tensor:
    """Error function."""
    return _unary("erf", lambda v: v.math("erf"), x)


def sqrt(x: Tensor) -> Tensor:
    """Square root; NaN below 0."""
    return _unary("sqrt", lambda v: v.math("sqrt"), x)


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return _unary("rsqrt", lambda v: v.math("rsqrt"), x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return _unary("sigmoid", scalar_sigmoid, x)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return _unary("silu", scalar_silu, x)


def gelu(x: Tensor) -> Tensor:
    """x * (1 + erf(x / sqrt 2)) / 2."""
    return _unary("gelu", scalar_gelu, x)


def absolute(x: Tensor) -> Tensor:
    """|x|; floats and integers."""
    if x.dtype.is_float:
        return _unary("absolute", lambda v: v.math("absf"), x)
    return x.graph.pointwise("absolute", lambda v: v.maximum(0 - v), x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0); NaN stays NaN."""
    return x.graph.pointwise("relu", scalar_relu, x)


def scalar_relu(v: Scalar) -> Scalar:
    return v.maximum(0)


def scalar_sigmoid(v: Scalar) -> Scalar:
    return 1 / ((-v).math("exp") + 1)


def scalar_silu(v: Scalar) -> Scalar:
    return v / ((-v).math("exp") + 1)


def scalar_gelu(v: Scalar) -> Scalar:
    return v * ((v * math.sqrt(0.5)).math("erf") + 1) * 0.5


def activation_of(name: str, activation: str | None) -> Callable[[Scalar], Scalar]:
    """The scalar function of an activation's name; None is the identity."""
    known: dict[str | None, Callable[[Scalar], Scalar]] = {
        None: lambda v: v,
        "relu": scalar_relu,
        "gelu": scalar_gelu,
        "silu": scalar_silu,
        "tanh": lambda v: v.math("tanh"),
    }
    if activation not in known:
        wanted = ", ".join(k for k in known if k)
        raise OptionError(f"{name}: unknown activation {activation!r}; use one of {wanted}, or None")
    return known[activation]


def add(a: Operand, b: Operand) -> Tensor:
    """a + b, broadcast, in the type in which both meet."""
    return _binary("add", operator.add, a, b)


def subtract(a: Operand, b: Operand) -> Tensor:
    """a - b, broadcast, in the type in which both meet."""
    return _binary("subtract", operator.sub, a, b)


def multiply(a: Operand, b: Operand) -> Tensor:
    """a * b, broadcast, in the type in which both meet."""
    return _binary("multiply", operator.mul, a, b)


def divide(a: Operand, b: Operand) -> Tensor:
    """a / b; integers truncate towards zero."""
    return _binary("divide", operator.truediv, a, b)


def maximum(a: Operand, b: Operand) -> Tensor:
    """The larger element; NaN wins."""
    return _binary("maximum", lambda x, y: x.maximum(y), a, b)


def minimum(a: Operand, b: Operand) -> Tensor:
    """The smaller element; NaN wins."""
    return _binary("minimum", lambda x, y: x.minimum(y), a, b)


def compare(a: Operand, b: Operand, predicate: str) -> Tensor:
    """An i1 tensor. `predicate`: eq, ne, lt, le, gt, ge; with NaN only `ne` holds."""
    if predicate not in ("eq", "ne", "lt", "le", "gt", "ge"):
        raise OptionError(f"compare: unknown predicate {predicate!r}; use one of eq, ne, lt, le, gt, ge")
    return _binary("compare", lambda x, y: x.compare(predicate, y), a, b, DType.I1)


def _binary(
    name: str, function: Callable[[Scalar, Scalar], Scalar], a: Operand, b: Operand, dtype: DType | None = None
) -> Tensor:
    tensor = _first(name, a, b)

    def both(x: Scalar, y: Scalar) -> Scalar:
        return function(x, y)

    return tensor.graph.pointwise(name, both, a, b, dtype=dtype)


def where(condition: Tensor, a: Operand, b: Operand) -> Tensor:
    """`a` where the i1 tensor `condition` holds, else `b`."""
    if condition.dtype is not DType.I1:
        raise DTypeError(f"where: wanted an i1 condition, came {condition.dtype.value}; compare() gives one")
    dtype = condition.graph.common_type("where", a, b)
    kind = computed_in(dtype)
    return condition.graph.map_elements(
        "where", lambda c, x, y: c.body.select(c, x.cast(kind.value), y.cast(kind.value)), (condition, a, b), dtype, kind)


def cast(x: Tensor, dtype: str | DType) -> Tensor:
    """Converted element by element; the shape stays.

    Anything to i1 is `!= 0` (NaN is true); i1 is 0 or 1. Integers keep their low bits in a narrower type. Floats are truncated
    towards zero; those that do not fit give what C gives on x86: the least value of i32 or i64, and of a narrower or unsigned
    type the low bits of the wider signed one.
    """
    target = element_type("cast", dtype)
    return x if target is x.dtype else x.graph.pointwise("cast", lambda v: v.cast(target.value), x, dtype=target)


def _first(name: str, *operands: Operand) -> Tensor:
    for o in operands:
        if isinstance(o, (Tensor, Aligned)):
            return o.tensor if isinstance(o, Aligned) else o
    raise OptionError(f"{name}: wanted at least one tensor")
