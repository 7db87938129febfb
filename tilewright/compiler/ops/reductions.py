"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.graph import Aligned, Axes, Tensor, axes_of, broadcast, want_float
from tilewright.runtime.errors import DTypeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


@dataclass(frozen=True)
class Reduction:
    """How elements are gathered: combine(out, element) from `start` on, in the accumulator's type; None: the usual one."""

    combine: Callable[[Scalar, Scalar], Scalar]
    start: float
    accumulator: DType | None = None


SUM = Reduction(Scalar.__add__, 0)
PRODUCT = Reduction(Scalar.__mul__, 1)


def sum(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Sum over the axes (None: all). 16-bit floats add in f32; i8 and i16 give i32."""
    total = accumulate("sum", [x], axes_of("sum", x, axis), SUM, keepdims)
    return narrowed("sum", total, x.dtype)


def prod(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Product over the axes (None: all). 16-bit floats multiply in f32; i8 and i16 give i32."""
    total = accumulate("prod", [x], axes_of("prod", x, axis), PRODUCT, keepdims)
    return narrowed("prod", total, x.dtype)


def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Mean over the axes (None: all)."""
    want_float("mean", x)
    axes = axes_of("mean", x, axis)
    total = accumulate("mean", [x], axes, SUM, keepdims)
    return divided("mean", total, [x.dims[a] for a in axes], x.dtype)


def max(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Largest element over the axes (None: all); NaN wins. Of no elements: -inf or the smallest integer."""
    return _extreme("max", x, axis, keepdims, Scalar.maximum)


def min(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Smallest element over the axes (None: all); NaN wins. Of no elements: inf or the largest integer."""
    return _extreme("min", x, axis, keepdims, Scalar.minimum)


def _extreme(name: str, x: Tensor, axis: Axes, keepdims: bool, combine: Callable[[Scalar, Scalar], Scalar]) -> Tensor:
    lowest, highest = limits_of(x.dtype)
    start = lowest if name == "max" else highest
    reduction = Reduction(combine, start, computed_in(x.dtype))
    return narrowed(name, accumulate(name, [x], axes_of(name, x, axis), reduction, keepdims), x.dtype)


def limits_of(dtype: DType) -> tuple[float, float]:
    """The least and the largest value of a type; of a float type -inf and inf."""
    if dtype.is_float:
        return -np.inf, np.inf
    return dtype.limits


def accumulator_of(name: str, dtype: DType) -> DType:
    """The type that sums and products of this type are formed in."""
    if dtype is DType.I1:
        raise DTypeError(f"{name}: i1 has no sum; cast() it to an integer type first")
    return DType.I32 if dtype in (DType.I8, DType.I16) else computed_in(dtype)


def _same(v: Scalar) -> Scalar:
    return v


def accumulate(
    name: str,
    operands: Sequence[Tensor | Aligned],
    axes: Sequence[int],
    reduction: Reduction,
    keepdims: bool = False,
    element: Callable[..., Scalar] = _same,
) -> Tensor:
    """The reduction of element(operands...) over `axes`; the result has the accumulator's type."""
    tensors = [o.tensor if isinstance(o, Aligned) else o for o in operands]
    kind = reduction.accumulator or accumulator_of(name, tensors[0].dtype)
    graph = tensors[0].graph
    dims, maps = broadcast(name, graph, operands)
    kept = [d for d in range(len(dims)) if keepdims or d not in axes]
    out = graph.filled(reduction.start, kind, [Expr.of(1) if d in axes else dims[d] for d in kept])

    def body(_: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        return reduction.combine(out, element(*scalars).cast(kind.value))

    iterators = ["reduction" if d in axes else "parallel" for d in range(len(dims))]
    into = (out, ["0" if d in axes else f"d{d}" for d in kept])
    return graph.generic(list(zip(tensors, maps, strict=True)), into, iterators, body)


def narrowed(name: str, total: Tensor, dtype: DType) -> Tensor:
    """A float total in its operand's type; integer totals stay as they are."""
    if total.dtype is dtype or not dtype.is_float:
        return total
    return total.graph.pointwise(name, lambda v: v.cast(dtype.value), total, dtype=dtype)


def divided(name: str, total: Tensor, extents: Sequence[Expr], dtype: DType) -> Tensor:
    """total / product of extents, rounded to `dtype`."""
    count = Expr.of(1)
    for e in extents:
        count = count * e
    return total.graph.pointwise(name, lambda v: v / number(v.body, total, count), total, dtype=dtype)


def number(body: Body, like: Tensor, count: Expr) -> Scalar:
    """A size as a float of the type that `like` computes in."""
    kind = computed_in(like.dtype).value
    if count.constant is not None:
        return body.value(count.constant, kind)
    return Scalar(body, like.graph.emitter.index(count), "index").cast(kind)
