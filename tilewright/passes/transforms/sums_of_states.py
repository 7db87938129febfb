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


def split_sums(fn: ir.Operation) -> None:
    """In a function, products of all states of a place with a row of weights, which have no other rows or columns."""
    tensors = Reshaper(fn)
    for op in operations(fn.regions[0].blocks[0]):
        if is_contraction(op) and _sums_states(op, tensors):
            _split(op, tensors)


def _sums_states(op: ir.Operation, tensors: Reshaper) -> bool:
    product = product_of(op)
    if product is None or any(product.casts) or product.element != product.accumulator:
        return False
    summed = {d for d, kind in enumerate(iterator_kinds(op)) if kind == "reduction"}
    counts = [e.constant or MOST_COLUMNS + 1 for d, e in enumerate(loop_extents(op, tensors.shapes)) if d in summed]
    for value, m in zip(list(op.operands)[:2], maps_of(op), strict=False):
        made = owner(uncast(value))
        running = gated(made)
        at = [position(e) for e in m.results]
        if isinstance(running, Running) and made is not None and m.is_permutation:
            axis = [position(e) for e in maps_of(made)[-1].results].index(running.along)
            return at[axis] not in summed and m.n_dims - len(summed) > 1 and prod(counts) <= MOST_COLUMNS
    return False


def _split(op: ir.Operation, tensors: Reshaper) -> None:
    maps, result = maps_of(op), op.operands[2]
    element = ir.RankedTensorType(result.type).element_type
    with ir.InsertionPoint(op), op.location:
        times, plus = (arith.MulFOp, arith.AddFOp) if isinstance(element, ir.FloatType) else (arith.MulIOp, arith.AddIOp)
        into = tensors.empty(loop_extents(op, tensors.shapes), element)
        product = elementwise(list(op.operands)[:2], into, lambda v: times(*v).result, maps[:2])
        same = ir.AffineMap.get_identity(maps[0].n_dims)
        total = generic([product], [result], [same, maps[2]], iterator_kinds(op), [result.type])
        fill_body(total, lambda v: plus(v[1], v[0]).result)
        replace_all_uses(op.results[0], tensors.as_type(total.results[0], op.results[0].type))
    op.erase()
