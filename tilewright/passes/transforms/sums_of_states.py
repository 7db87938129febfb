"""Products that sum the states of a running reduction, as products of elements and sums: these are done as the states go on."""

from __future__ import annotations

from math import prod

from tilewright.passes.analysis.contraction import is_contraction, product_of
from tilewright.passes.analysis.gates import Running, gated
from tilewright.passes.analysis.state_walk import MOST_COLUMNS
from tilewright.passes.linalg.builders import elementwise, fill_body, generic
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import iterator_kinds, loop_extents, uncast
from tilewright.passes.mlir import arith, ir, maps_of, operations, owner, position, replace_all_uses
from tilewright.runtime.shape import Expr


def split_sums(fn: ir.Operation) -> None:
    """In a function, products of all states of a place with a row of weights, which have no other rows or columns; loops of one
    step go."""
    tensors = Reshaper(fn)
    for op in operations(fn.regions[0].blocks[0]):
        if is_contraction(op) and _sums_states(op, tensors):
            _split(op, tensors)


def _sums_states(op: ir.Operation, tensors: Reshaper) -> bool:
    product = product_of(op)
    if product is None or any(product.casts) or product.element != product.accumulator:
        return False
    if any(position(e) is None for m in maps_of(op) for e in m.results):
        return False
    for value, m in zip(list(op.operands)[:2], maps_of(op), strict=False):
        made = owner(uncast(value))
        running = gated(made)
        if not isinstance(running, Running) or made is None:
            continue
        kept, extents = _kept(op, tensors), loop_extents(op, tensors.shapes)
        at = [position(e) for e in m.results]
        if sorted(d for d in at if d is not None) == kept:
            summed = {d for d, kind in enumerate(iterator_kinds(op)) if kind == "reduction"}
            count = prod(extents[d].constant or MOST_COLUMNS + 1 for d in summed)
            axis = [position(e) for e in maps_of(made)[-1].results].index(running.along)
            return at[axis] not in summed and len(kept) - len(summed) > 1 and count <= MOST_COLUMNS
    return False


def _kept(op: ir.Operation, tensors: Reshaper) -> list[int]:
    """The loops of more than one step, and those that sum."""
    kinds, extents = iterator_kinds(op), loop_extents(op, tensors.shapes)
    return [d for d, e in enumerate(extents) if e != Expr.of(1) or kinds[d] == "reduction"]


def _split(op: ir.Operation, tensors: Reshaper) -> None:
    kept, extents, kinds = _kept(op, tensors), loop_extents(op, tensors.shapes), iterator_kinds(op)
    element = ir.RankedTensorType(op.results[0].type).element_type
    with ir.InsertionPoint(op), op.location:
        values, maps = [], []
        for value, m in zip(op.operands, maps_of(op), strict=True):
            dims, at = tensors.shapes.dims(value), [position(e) for e in m.results]
            values.append(tensors.reshape(value, [d for d, a in zip(dims, at, strict=True) if a in kept]))
            maps.append(ir.AffineMap.get(len(kept), 0, [ir.AffineExpr.get_dim(kept.index(a)) for a in at if a in kept]))
        times, plus = (arith.MulFOp, arith.AddFOp) if isinstance(element, ir.FloatType) else (arith.MulIOp, arith.AddIOp)
        into = tensors.empty([extents[d] for d in kept], element)
        product = elementwise(values[:2], into, lambda v: times(v[0], v[1]).result, maps[:2])
        same = ir.AffineMap.get_identity(len(kept))
        total = generic([product], [values[2]], [same, maps[2]], [kinds[d] for d in kept], [values[2].type])
        fill_body(total, lambda v: plus(v[1], v[0]).result)
        whole = tensors.reshape(total.results[0], tensors.shapes.dims(op.results[0]))
        replace_all_uses(op.results[0], tensors.as_type(whole, op.results[0].type))
    op.erase()
