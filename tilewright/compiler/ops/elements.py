"""Results whose elements are read from computed places of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.graph import Tensor
from tilewright.runtime.shape import Expr

Place = Callable[[Body, list[Scalar]], list[Scalar]]


def element(region: Body, x: Tensor, place: Sequence[Scalar]) -> Scalar:
    """x[place]: the element at an index for every axis."""
    inside = ", ".join(p.ssa for p in place)
    return region.emit(f"tensor.extract {x.ssa}[{inside}] : {x.type}", x.dtype.value)


def remapped(x: Tensor, dims: Sequence[Expr], place: Place) -> Tensor:
    """result[c] = x[place(c)] for every place c of a tensor of the extents `dims`; indices are scalars of type index."""
    loops = [f"d{i}" for i in range(len(dims))]

    def body(region: Body, _: Sequence[Scalar], __: Scalar) -> Scalar:
        return element(region, x, place(region, [region.index(i) for i in range(len(dims))]))

    return x.graph.generic([], (x.graph.empty(x.dtype, dims), loops), ["parallel"] * len(dims), body)
