"""Softmax, layer norm and RMS norm over the last axis or a chosen one."""

from __future__ import annotations

from tilewright.compiler.ops.body import Scalar, computed_in
from tilewright.compiler.ops.graph import Tensor, axis_of, same_dtype, want_equal, want_float, want_rank
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.reductions import SUM, accumulate, divided, number
from tilewright.runtime.errors import ShapeError


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x - max) / sum over one axis; a row of -inf gives NaN. 16-bit floats compute in f32."""
    want_float("softmax", x)
    at = axis_of("softmax", x, axis)
    wide = cast(x, computed_in(x.dtype))
    into = x.graph.empty(wide.dtype, wide.dims)
    text = f"linalg.softmax dimension({at}) ins({wide.ssa} : {wide.type}) outs({into.ssa} : {into.type}) -> "
    return cast(x.graph.result(text, wide.dtype, wide.dims), x.dtype)


def layernorm(x: Tensor, gamma: Tensor, beta: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gamma + beta over the last axis. gamma, beta: [extent of that axis]."""
    _check("layernorm", x, gamma, *(() if beta is None else (beta,)))
    last, rows = x.rank - 1, tuple(range(x.rank - 1))
    wide = computed_in(x.dtype)
    total = accumulate("layernorm", [x], [last], SUM)
    mean = divided("layernorm", total, [x.dims[last]], wide)
    squares = accumulate("layernorm", [x, mean.on(*rows)], [last], SUM, element=_squared_distance)

    def scaled(v: Scalar, m: Scalar, s: Scalar, g: Scalar, *shift: Scalar) -> Scalar:
        result = (v - m) * (s / number(v.body, squares, x.dims[last]) + eps).math("rsqrt") * g
        return result + shift[0] if shift else result

    operands = [x, mean.on(*rows), squares.on(*rows), gamma, *(() if beta is None else (beta,))]
    return x.graph.map_elements("layernorm", scaled, operands, x.dtype, wide)


def rmsnorm(x: Tensor, gamma: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gamma over the last axis. gamma: [extent of that axis]."""
    _check("rmsnorm", x, gamma)
    last, rows = x.rank - 1, tuple(range(x.rank - 1))
    squares = accumulate("rmsnorm", [x], [last], SUM, element=lambda v: v * v)

    def scaled(v: Scalar, s: Scalar, g: Scalar) -> Scalar:
        return v * (s / number(v.body, squares, x.dims[last]) + eps).math("rsqrt") * g

    return x.graph.map_elements("rmsnorm", scaled, [x, squares.on(*rows), gamma], x.dtype, computed_in(x.dtype))


def _squared_distance(v: Scalar, m: Scalar) -> Scalar:
    away = v - m
    return away * away


def _check(name: str, x: Tensor, *parameters: Tensor) -> None:
    want_float(name, x)
    same_dtype(name, [x, *parameters])
    if not x.rank:
        raise ShapeError(f"{name}: wanted at least one axis, came a tensor of rank 0")
    for p in parameters:
        want_rank(name, "a parameter", p, 1)
        want_equal(name, "the last axis and a parameter", x.dims[-1], p.dims[0])
