"""The values of a loop's body at all steps at once: what is the same at each step, and tensors with an axis of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.linalg.builders import elementwise
from tilewright.passes.linalg.reshape import Reshaper, product
from tilewright.passes.mlir import ir
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Stacked:
    """A tensor for all steps; axis: along which they lie, None where each step has the same."""

    value: ir.Value
    axis: int | None = None

    def map(self, loops: int, coords: Sequence[ir.AffineExpr], step: int) -> ir.AffineMap:
        """Where the tensor of the step that loop `step` counts is read at coordinates of its own."""
        at = list(coords)
        if self.axis is not None:
            at.insert(self.axis, ir.AffineExpr.get_dim(step))
        return ir.AffineMap.get(loops, 0, at)

    def first(self, tensors: Reshaper) -> Stacked:
        """The same with the steps along the first axis."""
        if self.axis in (None, 0):
            return self
        dims, rank = list(tensors.shapes.dims(self.value)), ir.RankedTensorType(self.value.type).rank
        order = [self.axis, *(a for a in range(rank) if a != self.axis)]
        places = ir.AffineMap.get(rank, 0, [ir.AffineExpr.get_dim(order.index(a)) for a in range(rank)])
        into = tensors.empty([dims[a] for a in order], ir.RankedTensorType(self.value.type).element_type)
        return Stacked(elementwise([self.value], into, lambda v: v[0], [places]), 0)

    def reshaped(self, dims: Sequence[Expr], tensors: Reshaper) -> Stacked:
        """The tensor of each step with other extents."""
        if self.axis is None:
            return Stacked(tensors.reshape(self.value, dims))
        have = tensors.shapes.dims(self.value)
        before, count = product(have[:self.axis]), have[self.axis]
        at = next((n for n in range(len(dims) + 1) if product(dims[:n]) == before), None)
        if at is None:
            return self.first(tensors).reshaped(dims, tensors)
        return Stacked(tensors.reshape(self.value, [*dims[:at], count, *dims[at:]]), at)


def at_step(counters: Mapping[str, Expr], step: str, expr: Expr) -> tuple[Expr, int] | None:
    """An expression of a body as its value at the first step and what it grows by at each; None where that is no constant."""
    moved = expr.substitute(counters)
    grows = (moved.substitute({step: Expr.dim(step) + 1}) - moved).constant
    return None if grows is None else (moved.substitute({step: Expr.of(0)}), grows)
