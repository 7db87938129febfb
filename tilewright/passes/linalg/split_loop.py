"""One parallel loop of a linalg op becomes several, with its operands seen through expand_shape: the inverse of merging."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.linalg.loop_groups import mentions, renumber_indices
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import inits, inputs, iterator_kinds, rebuild, replace, uses_index
from tilewright.passes.mlir import ir, maps_of, position
from tilewright.runtime.shape import Expr


def can_split(op: ir.Operation, loop: int) -> bool:
    """A parallel loop whose number the body does not read and that runs along whole axes."""
    alone = all(position(e) == loop or not mentions(e, loop) for m in maps_of(op) for e in m.results)
    return alone and iterator_kinds(op)[loop] == "parallel" and not uses_index(op, [loop])


def split_loop(op: ir.Operation, loop: int, extents: Sequence[Expr], views: Reshaper) -> ir.Operation:
    """A generic before `op` with the loop split into loops of `extents`, outermost first; results are collapsed back in
    place of op's; call only if can_split."""
    more = len(extents) - 1
    kinds = iterator_kinds(op)
    new_kinds = [*kinds[:loop], *["parallel"] * len(extents), *kinds[loop + 1 :]]
    maps, values = [], []
    with ir.InsertionPoint(op), op.location:
        for value, access in zip(op.operands, maps_of(op), strict=True):
            dims: list[Expr] = []
            results: list[ir.AffineExpr] = []
            renamed = ir.AffineMap.get(len(new_kinds), 0, [_dim(d, loop, more) for d in range(len(kinds))])
            for extent, expr in zip(views.shapes.dims(value), access.results, strict=True):
                if position(expr) == loop:
                    dims += extents
                    results += [ir.AffineExpr.get_dim(loop + k) for k in range(len(extents))]
                else:
                    dims.append(extent)
                    results.append(expr.compose(renamed))
            maps.append(ir.AffineMap.get(len(new_kinds), 0, results))
            values.append(views.reshape(value, dims))
        count = len(inputs(op))
        numbers = {d: d + (more if d > loop else 0) for d in range(len(kinds))}
        new = rebuild(op, values[:count], values[count:], maps, new_kinds, lambda b: renumber_indices(b, numbers))
        replace(op, [views.as_type(views.reshape(made, views.shapes.dims(start)), old.type)
                     for old, made, start in zip(op.results, new.results, inits(op), strict=True)])
    return new


def _dim(d: int, loop: int, more: int) -> ir.AffineExpr:
    return ir.AffineExpr.get_dim(d + (more if d > loop else 0))
