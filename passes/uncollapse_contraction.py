"""uncollapse-contraction: a batch loop over collapsed axes ([B*12, S, 64]) becomes one loop per axis.

So the operands may be strided views, and no copy has to make them contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from passes.base import Pass
from passes.mlir import ir, maps_of, position, walk
from passes.structured import (
    defined_by,
    erase_unused,
    inits,
    inputs,
    is_contraction,
    iterator_kinds,
    main_of,
    rebuild,
    replace,
)
from passes.symbolic import reassociation
from passes.views import Reshaper, matching_groups
from runtime.shape import Expr


@dataclass(frozen=True)
class UncollapseContraction(Pass):
    """A batch loop is a parallel one that both inputs run over; the result is collapsed back for its users."""

    name: ClassVar[str] = "uncollapse-contraction"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            views = Reshaper(fn)
            for op in walk(fn):
                if is_contraction(op) and len(inputs(op)) == 2:
                    for loop in reversed(range(len(iterator_kinds(op)))):
                        extents = _collapsed(op, loop, views)
                        if extents is not None:
                            op = _split(op, loop, extents, views)
            erase_unused(fn)


def _collapsed(op: ir.Operation, loop: int, views: Reshaper) -> list[Expr] | None:
    """The finest extents that a batch loop was collapsed from, when all inputs can be seen with them."""
    found: list[list[Expr]] = []
    for value, access in zip(inputs(op), maps_of(op), strict=False):
        axes = [a for a, e in enumerate(access.results) if position(e) == loop]
        if len(axes) != 1:
            return None
        collapse = defined_by(value, "tensor.collapse_shape")
        if collapse is not None:
            group = reassociation(collapse)[axes[0]]
            source = views.shapes.dims(collapse.operands[0])
            found.append([source[a] for a in group])
    if iterator_kinds(op)[loop] != "parallel" or not found:
        return None
    finest = max(found, key=len)
    refines = all(len(matching_groups(coarser, finest)) == len(coarser) for coarser in found)
    return finest if len(finest) > 1 and refines else None


def _split(op: ir.Operation, loop: int, extents: list[Expr], views: Reshaper) -> ir.Operation:
    more = len(extents) - 1
    kinds = iterator_kinds(op)
    new_kinds = [*kinds[:loop], *["parallel"] * len(extents), *kinds[loop + 1 :]]
    maps, values = [], []
    with ir.InsertionPoint(op), op.location:
        for i, (value, access) in enumerate(zip(op.operands, maps_of(op), strict=True)):
            dims: list[Expr] = []
            results: list[ir.AffineExpr] = []
            for extent, expr in zip(views.shapes.dims(value), access.results, strict=True):
                at = position(expr)
                if at == loop:
                    dims += extents
                    results += [ir.AffineExpr.get_dim(loop + k) for k in range(len(extents))]
                else:
                    dims.append(extent)
                    results.append(expr if at is None else ir.AffineExpr.get_dim(at + (more if at > loop else 0)))
            maps.append(ir.AffineMap.get(len(new_kinds), 0, results))
            values.append(views.init(value, dims) if i >= len(inputs(op)) else views.reshape(value, dims))
        new = rebuild(op, values[:-1], values[-1:], maps, new_kinds)
        view = views.reshape(new.results[0], views.shapes.dims(inits(op)[0]))
        replace(op, [views.as_type(view, op.results[0].type)])
    return new
