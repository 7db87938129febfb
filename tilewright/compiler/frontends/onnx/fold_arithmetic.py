"""Arithmetic on values that are known at import: numbers by NumPy, sizes by Expr, comparisons decided by the dims' ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.compiler.frontends.onnx.context import Context
from tilewright.compiler.frontends.onnx.values import Array, Known
from tilewright.runtime.shape import Expr


class Undecided(Exception):  # noqa: N818 - no error: the node is built instead
    """The dims leave a result open."""


def _lifted(value: Known) -> Array:
    """The elements as Exprs."""
    flat = np.empty(value.elements.size, object)
    for i, v in enumerate(value.elements.reshape(-1)):
        if not isinstance(v, Expr) and int(v) != v:
            raise Undecided
        flat[i] = Expr.of(v if isinstance(v, Expr) else int(v))
    return flat.reshape(value.elements.shape)


def _binary(
    numbers: Callable[[Any, Any], Any], sizes: Callable[[Context, Expr, Expr], Any], boolean: bool = False
) -> Callable[..., Known]:
    """An operator of two inputs; `sizes` for a pair of sizes."""

    def fold(context: Context, a: Known, b: Known) -> Known:
        dtype: np.dtype[Any] = np.dtype(np.bool_) if boolean else a.dtype
        if not a.symbolic and not b.symbolic:
            if np.prod(np.broadcast_shapes(a.elements.shape, b.elements.shape)) > 1 << 16:
                raise Undecided
            return Known(np.asarray(numbers(a.elements, b.elements)).astype(dtype), dtype)
        cells = np.frompyfunc(lambda x, y: sizes(context, x, y), 2, 1)(_lifted(a), _lifted(b))
        found = np.asarray(cells, object)
        return Known(found.astype(np.bool_), dtype) if boolean else Known.sizes(found.reshape(-1), dtype, found.shape)

    return fold


def _quotient(a: Any, b: Any) -> Any:
    if a.dtype.kind not in "iu":
        return a / b
    if (b == 0).any():
        raise Undecided
    return (np.sign(a) * np.sign(b) * (abs(a) // abs(b))) if a.dtype.kind == "i" else a // b


def _size_quotient(context: Context, a: Expr, b: Expr) -> Expr:
    if context.graph.bounds(a)[0] < 0 or context.graph.bounds(b)[0] <= 0:
        raise Undecided
    return a // b


def _divided(context: Context, a: Known, b: Known) -> Known:
    """Floats only where nothing is left over."""
    found = _whole_quotient(context, a, b)
    if found.symbolic and a.dtype.kind == "f" and not (_lifted(found) * _lifted(b) == _lifted(a)).all():
        raise Undecided
    return found


_whole_quotient = _binary(_quotient, _size_quotient)


def _size_modulo(context: Context, a: Expr, b: Expr) -> Expr:
    if context.graph.bounds(b)[0] <= 0:
        raise Undecided
    return a % b


def _modulo(a: Any, b: Any) -> Any:
    if a.dtype.kind in "iu" and (b == 0).any():
        raise Undecided
    return a % b


_modulo_of = _binary(_modulo, _size_modulo)


def _floored(context: Context, a: Known, b: Known) -> Known:
    if context.attribute("fmod", 0):
        raise Undecided
    return _modulo_of(context, a, b)


def _power(context: Context, a: Expr, b: Expr) -> Expr:
    exponent = b.constant
    if exponent is None or not 0 <= exponent <= 8:
        raise Undecided
    total = Expr.of(1)
    for _ in range(exponent):
        total = total * a
    return total


def _decided(context: Context, a: Expr, b: Expr, strict: bool) -> bool:
    """a < b (strict) or a <= b, by the ranges of the dims."""
    low, high = context.graph.bounds(a - b)
    if high < 0 or (high == 0 and not strict):
        return True
    if low > 0 or (low == 0 and strict):
        return False
    raise Undecided


def _equal(context: Context, a: Expr, b: Expr) -> bool:
    if a == b:
        return True
    low, high = context.graph.bounds(a - b)
    if low > 0 or high < 0:
        return False
    raise Undecided


def _variadic(fold: Callable[..., Known]) -> Callable[..., Known]:
    def folded(context: Context, first: Known, *others: Known) -> Known:
        for other in others:
            first = fold(context, first, other)
        return first

    return folded


def _unary(numbers: Callable[[Array], Any], sizes: Callable[[Context, Expr], Expr], only: str = "iuf") -> Callable[..., Known]:
    def fold(context: Context, x: Known) -> Known:
        if x.symbolic:
            cells = np.asarray(np.frompyfunc(lambda v: sizes(context, v), 1, 1)(_lifted(x)), object)
            return Known.sizes(cells.reshape(-1), x.dtype, cells.shape)
        if x.dtype.kind not in only:
            raise Undecided
        return Known(np.asarray(numbers(x.elements)).astype(x.dtype), x.dtype)

    return fold


def _positive(context: Context, v: Expr) -> Expr:
    if context.graph.bounds(v)[0] < 0:
        raise Undecided
    return v


def _undecided(*_: Any) -> Any:
    raise Undecided


def _where(context: Context, condition: Known, a: Known, b: Known) -> Known:
    if condition.symbolic:
        raise Undecided
    if not a.symbolic and not b.symbolic:
        return Known(np.where(condition.elements, a.elements, b.elements), a.dtype)
    found = np.where(condition.elements, _lifted(a), _lifted(b))
    return Known.sizes(found.reshape(-1), a.dtype, found.shape)


def _not(context: Context, x: Known) -> Known:
    return Known(np.logical_not(x.elements), x.dtype)


ARITHMETIC: Mapping[str, Callable[..., Known]] = {
    "Abs": _unary(np.abs, _positive),
    "Add": _binary(np.add, lambda _, a, b: a + b),
    "And": _binary(np.logical_and, _undecided, True),
    "Ceil": _unary(np.ceil, lambda _, v: v, "f"),
    "Div": _divided,
    "Equal": _binary(np.equal, _equal, True),
    "Floor": _unary(np.floor, lambda _, v: v, "f"),
    "Greater": _binary(np.greater, lambda c, a, b: _decided(c, b, a, True), True),
    "GreaterOrEqual": _binary(np.greater_equal, lambda c, a, b: _decided(c, b, a, False), True),
    "Less": _binary(np.less, lambda c, a, b: _decided(c, a, b, True), True),
    "LessOrEqual": _binary(np.less_equal, lambda c, a, b: _decided(c, a, b, False), True),
    "Max": _variadic(_binary(np.maximum, lambda _, a, b: a.maximum(b))),
    "Min": _variadic(_binary(np.minimum, lambda _, a, b: a.minimum(b))),
    "Mod": _floored,
    "Mul": _binary(np.multiply, lambda _, a, b: a * b),
    "Neg": _unary(np.negative, lambda _, v: -v, "if"),
    "Not": _not,
    "Or": _binary(np.logical_or, _undecided, True),
    "Pow": _binary(np.power, _power),
    "Reciprocal": _unary(np.reciprocal, _undecided, "f"),
    "Sqrt": _unary(np.sqrt, _undecided, "f"),
    "Sub": _binary(np.subtract, lambda _, a, b: a - b),
    "Where": _where,
}
