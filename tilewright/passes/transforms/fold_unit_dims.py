"""fold-unit-dims: loops of one step and axes of extent 1 leave linalg.generic, transpose, broadcast, softmax, and tensor.concat.

Operands and results become views without those axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.data_movement import MAPPED_MOVEMENTS
from tilewright.passes.linalg.loop_groups import mentions
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.shape_values import tensor_type
from tilewright.passes.linalg.structured import (
    covers_loops,
    erase_unused,
    inits,
    inputs,
    iterator_kinds,
    loop_extents,
    main_of,
    rebuild,
)
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import arith, ir, linalg, maps_of, operations, position, replace_all_uses, tensor, walk
from tilewright.runtime.shape import Expr

_ONE = Expr.of(1)


@dataclass(frozen=True)
class FoldUnitDims(Pass):
    """Extents count as 1 when they are 1 for every shape. A reduction of one step stays."""

    name: ClassVar[str] = "fold-unit-dims"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            views = Reshaper(fn)
            for op in walk(fn):
                if op.name in MAPPED_MOVEMENTS and op.results:
                    fold_unit_loops(op, views)
                elif op.name == "tensor.concat":
                    _fold_concat(op, views)
                elif op.name == "linalg.softmax" and op.results:
                    _fold_softmax(op, views)
            erase_unused(fn)


def fold_unit_loops(op: ir.Operation, views: Reshaper) -> ir.Operation | None:
    """A generic before `op` without its parallel loops of one step, in place of it; None where there is none to leave out. `op`
    stays, unused."""
    kinds, maps = iterator_kinds(op), maps_of(op)
    if any(not isinstance(v.type, ir.RankedTensorType) for v in op.operands):
        return None
    extents = loop_extents(op, views.shapes)
    plain = {position(e) for m in maps for e in m.results}
    unit = [
        d
        for d, k in enumerate(kinds)
        if k == "parallel" and d in plain and extents[d] == _ONE and not _in_sum(maps, d)
    ]
    kept = [
        [a for a, (d, e) in enumerate(zip(views.shapes.dims(v), m.results, strict=True)) if not _droppable(d, e, unit)]
        for v, m in zip(op.operands, maps, strict=True)
    ]
    if not unit and all(len(k) == len(m.results) for k, m in zip(kept, maps, strict=True)):
        return None
    left = [d for d in range(len(kinds)) if d not in unit]
    new_maps = [_without(m, axes, left) for m, axes in zip(maps, kept, strict=True)]
    if left and not covers_loops(new_maps):
        return None
    count = len(inputs(op))
    with ir.InsertionPoint(op), op.location:
        values = []
        for value, axes in zip(op.operands, kept, strict=True):
            dims = [views.shapes.dims(value)[a] for a in axes]
            values.append(value if len(axes) == len(views.shapes.dims(value)) else views.reshape(value, dims))
        new = rebuild(
            op, values[:count], values[count:], new_maps, [kinds[d] for d in left], lambda block: _renumber(block, left)
        )
        for old, result, start in zip(op.results, new.results, inits(op), strict=True):
            replace_all_uses(old, views.as_type(views.reshape(result, views.shapes.dims(start)), old.type))
    return new


def _fold_concat(op: ir.Operation, views: Reshaper) -> None:
    """The axis along which tensors are joined stays, whatever its extent."""

    def joined(parts: Sequence[ir.Value], along: int, kind: ir.RankedTensorType) -> ir.Value:
        return tensor.ConcatOp(kind, along, parts).result

    _fold_beside(op, integer(op.attributes["dim"]), views, joined)


def _fold_softmax(op: ir.Operation, views: Reshaper) -> None:
    """The axis that it runs along stays, whatever its extent."""

    def folded(parts: Sequence[ir.Value], along: int, kind: ir.RankedTensorType) -> ir.Value:
        return linalg.SoftmaxOp([kind], *parts, along).results[0]

    _fold_beside(op, integer(op.attributes["dimension"]), views, folded)


def _fold_beside(op: ir.Operation, along: int, views: Reshaper,
                 make: Callable[[Sequence[ir.Value], int, ir.RankedTensorType], ir.Value]) -> None:
    """An operation without the axes of extent 1 beside the one that it runs along. make: from its operands without them, that
    axis among those left, and its type."""
    result, dims = op.results[0], views.shapes.dims(op.results[0])
    kept = _beside(along, dims)
    if len(kept) == len(dims):
        return
    with ir.InsertionPoint(op), op.location:
        parts = [views.reshape(v, [views.shapes.dims(v)[a] for a in kept]) for v in op.operands]
        kind = tensor_type([dims[a] for a in kept], ir.RankedTensorType(result.type).element_type)
        made = make(parts, kept.index(along), kind)
        replace_all_uses(result, views.as_type(views.reshape(made, dims), result.type))


def _beside(along: int, dims: Sequence[Expr]) -> list[int]:
    """The axes without those of extent 1, but for the one that an operation runs along."""
    return [a for a, extent in enumerate(dims) if a == along or extent != _ONE]


def _droppable(extent: Expr, expr: ir.AffineExpr, unit: Sequence[int]) -> bool:
    return extent == _ONE and (position(expr) in unit or isinstance(expr, ir.AffineConstantExpr))


def _in_sum(maps: Sequence[ir.AffineMap], loop: int) -> bool:
    """Does the loop occur in an access that is more than the loop itself?"""
    return any(mentions(e, loop) for m in maps for e in m.results if position(e) is None)


def _without(access: ir.AffineMap, axes: Sequence[int], left: Sequence[int]) -> ir.AffineMap:
    dims = [
        ir.AffineExpr.get_dim(left.index(d)) if d in left else ir.AffineExpr.get_constant(0)
        for d in range(access.n_dims)
    ]
    step = ir.AffineMap.get(len(left), 0, dims)
    return ir.AffineMap.get(len(left), 0, [access.results[a].compose(step) for a in axes])


def _renumber(block: ir.Block, left: Sequence[int]) -> None:
    i64 = ir.IntegerType.get_signless(64)
    for op in operations(block):
        if op.name != "linalg.index":
            continue
        loop = integer(op.attributes["dim"])
        if loop in left:
            op.attributes["dim"] = ir.IntegerAttr.get(i64, left.index(loop))
        else:
            with ir.InsertionPoint(op), op.location:
                zero = arith.constant(ir.IndexType.get(), 0)
            replace_all_uses(op.results[0], zero)
            op.erase()
