"""Softmax, and norms by mean and variance: over axes, groups of channels, or with statistics that are given."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.compiler.ops.body import Scalar, computed_in
from tilewright.compiler.ops.graph import (
    Axes,
    Operand,
    Size,
    Tensor,
    axes_of,
    axis_of,
    same_dtype,
    shown,
    size,
    want_equal,
    want_float,
    want_rank,
)
from tilewright.compiler.ops.pointwise import cast, compare, log, rsqrt, where
from tilewright.compiler.ops.reductions import SUM, accumulate, divided, max, number, sum  # noqa: A004
from tilewright.compiler.ops.reshaping import product_of, reshape
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.shape import Expr


def softmax(x: Tensor, axis: int = -1, safe: bool = False) -> Tensor:
    """exp(x - max) / sum over one axis; a row of -inf gives NaN, with `safe` zeros. 16-bit floats compute in f32."""
    want_float("softmax", x)
    at = axis_of("softmax", x, axis)
    if safe:
        return where(compare(max(x, at, keepdims=True), -math.inf, "ne"), softmax(x, at), 0)
    wide = cast(x, computed_in(x.dtype))
    into = x.graph.empty(wide.dtype, wide.dims)
    text = f"linalg.softmax dimension({at}) ins({wide.ssa} : {wide.type}) outs({into.ssa} : {into.type}) -> "
    return cast(x.graph.result(text, wide.dtype, wide.dims), x.dtype)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """x - max - log(sum(exp(x - max))) over one axis. 16-bit floats compute in f32."""
    want_float("log_softmax", x)
    at = axis_of("log_softmax", x, axis)
    wide = cast(x, computed_in(x.dtype))
    away = wide - max(wide, at, keepdims=True)
    total = sum(x.graph.pointwise("log_softmax", lambda v: v.math("exp"), away), at, keepdims=True)
    return cast(away - log(total), x.dtype)


def layernorm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5, axes: Axes = -1
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gamma + beta, with mean and variance over `axes`, the last one unless said otherwise.

    gamma, beta: the extents of those axes in their order; None is 1 and 0. 16-bit floats compute in f32.

    Raises:
        DTypeError: element types that differ or are no floats. ShapeError: a parameter of another shape.
    """
    flat, own, parameters = _rows("layernorm", x, axes, (gamma, beta))
    rows = [a for a in range(flat.rank) if a not in own]
    extents = [flat.dims[a] for a in own]
    wide = computed_in(x.dtype)
    mean = divided("layernorm", accumulate("layernorm", [flat], own, SUM), extents, wide)
    squares = accumulate("layernorm", [flat, mean.on(*rows)], own, SUM, element=_squared_distance)
    count = product_of(extents)

    def scaled(v: Scalar, m: Scalar, s: Scalar, *more: Scalar) -> Scalar:
        return _affine((v - m) * (s / number(v.body, squares, count) + eps).math("rsqrt"), more, parameters)

    operands: list[Operand] = [flat, mean.on(*rows), squares.on(*rows), *(p.on(*own) for p in parameters if p is not None)]
    return reshape(x.graph.map_elements("layernorm", scaled, operands, x.dtype, wide), x.dims)


def rmsnorm(x: Tensor, gamma: Tensor | None = None, eps: float = 1e-6, axes: Axes = -1) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gamma, with the mean over `axes`, the last one unless said otherwise. gamma: as for layernorm.

    Raises:
        DTypeError, ShapeError: as layernorm does.
    """
    flat, own, parameters = _rows("rmsnorm", x, axes, (gamma, None))
    rows = [a for a in range(flat.rank) if a not in own]
    squares = accumulate("rmsnorm", [flat], own, SUM, element=lambda v: v * v)
    count = product_of([flat.dims[a] for a in own])

    def scaled(v: Scalar, s: Scalar, *more: Scalar) -> Scalar:
        return _affine(v * (s / number(v.body, squares, count) + eps).math("rsqrt"), more, parameters)

    operands: list[Operand] = [flat, squares.on(*rows), *(p.on(*own) for p in parameters if p is not None)]
    return reshape(x.graph.map_elements("rmsnorm", scaled, operands, x.dtype, computed_in(x.dtype)), x.dims)


def groupnorm(x: Tensor, groups: Size, gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """x [N, C, ...] normalised over each of `groups` groups of channels with all axes after them; gamma, beta [C].

    Raises:
        ShapeError: the channels do not divide into the groups, or a parameter has another extent.
    """
    want_float("groupnorm", x)
    count = size("groupnorm", groups)
    if x.rank < 2 or count == Expr.of(0) or (x.dims[1] % count).constant != 0:
        raise ShapeError(f"groupnorm: {shown(x.dims)} in {groups} groups; wanted [N, C, ...] with channels that divide into them")
    each, rest = x.dims[1] // count, product_of(x.dims[2:])
    for p in (gamma, beta):
        if p is not None:
            want_rank("groupnorm", "a parameter", p, 1)
            want_equal("groupnorm", "the channels and a parameter", x.dims[1], p.dims[0])
    apart = reshape(x, [x.dims[0], count, each, rest])
    wide = computed_in(x.dtype)
    mean = divided("groupnorm", accumulate("groupnorm", [apart], (2, 3), SUM), [each, rest], wide)
    squares = accumulate("groupnorm", [apart, mean.on(0, 1)], (2, 3), SUM, element=_squared_distance)
    parameters = [None if p is None else reshape(p, [count, each]) for p in (gamma, beta)]

    def scaled(v: Scalar, m: Scalar, s: Scalar, *more: Scalar) -> Scalar:
        return _affine((v - m) * (s / number(v.body, squares, each * rest) + eps).math("rsqrt"), more, parameters)

    operands: list[Operand] = [apart, mean.on(0, 1), squares.on(0, 1), *(p.on(1, 2) for p in parameters if p is not None)]
    return reshape(x.graph.map_elements("groupnorm", scaled, operands, x.dtype, wide), x.dims)


def instancenorm(x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """x [N, C, ...] normalised over all axes after the channels, each channel by itself; gamma, beta [C]."""
    if x.rank < 2:
        raise ShapeError(f"instancenorm: {shown(x.dims)}; wanted [N, C, ...]")
    return groupnorm(x, x.dims[1], gamma, beta, eps)


def batchnorm(
    x: Tensor, statistics: tuple[Tensor, Tensor], gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5,
    axis: int = 1,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gamma + beta per channel, with (mean, variance) given: inference's form.

    axis: the channels. mean, variance, gamma, beta: [C], of x's or a wider float type.
    """
    want_float("batchnorm", x, *statistics)
    at = axis_of("batchnorm", x, axis)
    given = [*statistics, *(p for p in (gamma, beta) if p is not None)]
    for p in given:
        want_rank("batchnorm", "a parameter", p, 1)
        want_equal("batchnorm", "the channels and a parameter", x.dims[at], p.dims[0])
    wide = computed_in(x.dtype)
    mean, variance = (cast(p, wide) for p in statistics)
    scale = rsqrt(variance + eps) if gamma is None else rsqrt(variance + eps) * cast(gamma, wide)
    shift = -mean * scale if beta is None else cast(beta, wide) - mean * scale  # of a channel, not of every element
    return x.graph.map_elements("batchnorm", lambda v, s, t: v * s + t, [x, scale.on(at), shift.on(at)], x.dtype, wide)


def _squared_distance(v: Scalar, m: Scalar) -> Scalar:
    away = v - m
    return away * away


def _affine(value: Scalar, given: Sequence[Scalar], parameters: Sequence[Tensor | None]) -> Scalar:
    """value * gamma + beta, of which `given` holds those that there are."""
    left = iter(given)
    if parameters[0] is not None:
        value = value * next(left)
    return value if parameters[1] is None else value + next(left)


def _rows(
    name: str, x: Tensor, axes: Axes, parameters: Sequence[Tensor | None]
) -> tuple[Tensor, tuple[int, ...], list[Tensor | None]]:
    """x, the axes to reduce and the parameters, checked; several last axes become one, as kernels of rows have it."""
    want_float(name, x)
    if not x.rank:
        raise ShapeError(f"{name}: wanted at least one axis, came a tensor of rank 0")
    own = axes_of(name, x, axes)
    same_dtype(name, [x, *(p for p in parameters if p is not None)])
    for p in parameters:
        if p is not None:
            want_rank(name, "a parameter", p, len(own))
            for a, d in zip(own, p.dims, strict=True):
                want_equal(name, f"axis {a} and a parameter", x.dims[a], d)
    if len(own) < 2 or own != tuple(range(x.rank - len(own), x.rank)):
        return x, own, list(parameters)
    extent = product_of([x.dims[a] for a in own])
    flat = reshape(x, [*x.dims[: own[0]], extent])
    return flat, (own[0],), [None if p is None else reshape(p, [extent]) for p in parameters]
