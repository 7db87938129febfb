"""Transposed copies that are kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.linalg.builders import elementwise
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.mlir import ir
from tilewright.runtime.shape import Expr

COPY = "tw.copy"  # of an elementwise op: a kernel of its own, which no producer or reader computes at its loads and stores


def transposed(views: Reshaper, value: ir.Value, order: Sequence[int]) -> ir.Value:
    """A copy, at the current insertion point, with axis order[i] of the value at axis i."""
    dims = views.shapes.dims(value)
    places = [ir.AffineExpr.get_dim(list(order).index(a)) for a in range(len(order))]
    return copied(views, value, [dims[a] for a in order], places)


def copied(views: Reshaper, value: ir.Value, dims: Sequence[Expr], places: Sequence[ir.AffineExpr]) -> ir.Value:
    """A copy of such extents, at the current insertion point; places: of the value, over the axes of the copy."""
    empty, access = views.empty(dims, ir.RankedTensorType(value.type).element_type), ir.AffineMap.get(len(dims), 0, list(places))
    made = elementwise([value], empty, lambda x: x[0], [access])
    made.owner.attributes[COPY] = ir.UnitAttr.get()
    return made
