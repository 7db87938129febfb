"""Merging adjacent loops of a linalg op into one, with its operands seen through collapse_shape."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.linalg.reshape import Reshaper, collapses_free, product
from tilewright.passes.linalg.structured import inits, inputs, iterator_kinds, rebuild, uses_index
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, operations, position, replace_all_uses


def axis_groups(access: ir.AffineMap, loops: Sequence[int]) -> list[list[int]] | None:
    """Axes of an operand, with the adjacent axes that run over `loops` in order as one group.

    None when they are not adjacent or not all there. An operand that none of the loops index keeps its axes.
    """
    at = [position(e) for e in access.results]
    if any(d in loops for e in access.results if position(e) is None for d in range(access.n_dims) if mentions(e, d)):
        return None
    present = [d for d in at if d in loops]
    if not present:
        return [[a] for a in range(len(at))]
    if present != list(loops):
        return None
    first = at.index(loops[0])
    if at[first : first + len(loops)] != list(loops):
        return None
    return (
        [[a] for a in range(first)]
        + [list(range(first, first + len(loops)))]
        + [[a] for a in range(first + len(loops), len(at))]
    )


def can_merge(op: ir.Operation, loops: Sequence[int], views: Reshaper) -> bool:
    """Do these loops become one with no copy of an operand?"""
    kinds = iterator_kinds(op)
    if len(loops) < 2 or len({kinds[d] for d in loops}) != 1 or uses_index(op, loops):
        return False
    for value, access in zip(op.operands, maps_of(op), strict=True):
        groups = axis_groups(access, loops)
        if groups is None or not all(collapses_free(value, g, views.shapes) for g in groups):
            return False
    return True


def merge(op: ir.Operation, loops: Sequence[int], views: Reshaper) -> ir.Operation:
    """A generic before `op` with the loops merged, results expanded back in place of op's; call only if can_merge."""
    renumber = _renumber(len(iterator_kinds(op)), loops)
    kinds = [k for d, k in enumerate(iterator_kinds(op)) if d not in loops[1:]]
    maps, values = [], []
    with ir.InsertionPoint(op), op.location:
        for value, access in zip(op.operands, maps_of(op), strict=True):
            groups = axis_groups(access, loops) or []
            maps.append(_merged_map(access, groups, renumber, len(kinds)))
            dims = [product([views.shapes.dims(value)[a] for a in g]) for g in groups]
            if len(groups) == len(access.results):
                values.append(value)
            else:
                values.append(views.reshape(value, dims))
        count = len(inputs(op))
        new = rebuild(op, values[:count], values[count:], maps, kinds, lambda b: renumber_indices(b, renumber))
        for old, result, start in zip(op.results, new.results, inits(op), strict=True):
            view = views.reshape(result, views.shapes.dims(start))
            replace_all_uses(old, views.as_type(view, old.type))
    return new


def renumber_indices(block: ir.Block, renumber: dict[int, int]) -> None:
    """linalg.index ops of a body follow their loops."""
    i64 = ir.IntegerType.get_signless(64)
    for op in operations(block):
        if op.name == "linalg.index":
            op.attributes["dim"] = ir.IntegerAttr.get(i64, renumber[integer(op.attributes["dim"])])


def _renumber(count: int, loops: Sequence[int]) -> dict[int, int]:
    """Old loop -> new loop; all merged loops become the first of them."""
    kept = [d for d in range(count) if d not in loops[1:]]
    return {d: kept.index(loops[0] if d in loops else d) for d in range(count)}


def _merged_map(
    access: ir.AffineMap, groups: Sequence[Sequence[int]], renumber: dict[int, int], count: int
) -> ir.AffineMap:
    dims = [ir.AffineExpr.get_dim(renumber[d]) for d in range(access.n_dims)]
    step = ir.AffineMap.get(count, 0, dims)
    return ir.AffineMap.get(count, 0, [access.results[g[0]].compose(step) for g in groups])


def mentions(expr: ir.AffineExpr, dim: int) -> bool:
    """Does the access expression depend on this loop?"""
    if position(expr) is not None:
        return position(expr) == dim
    if isinstance(expr, (ir.AffineConstantExpr, ir.AffineSymbolExpr)):
        return False
    binary = ir.AffineBinaryExpr(expr)
    return mentions(binary.lhs, dim) or mentions(binary.rhs, dim)
