"""Which reductions wait for memory alone: nothing but cheap arithmetic is computed beside them on the tensors that they read."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tilewright.passes.analysis.contraction import is_contraction
from tilewright.passes.analysis.op_kinds import expensive
from tilewright.passes.linalg.clone import users
from tilewright.passes.linalg.structured import CHEAP_OPS, inputs, iterator_kinds, uncast
from tilewright.passes.mlir import ir, owner


def reads_alone(reductions: Collection[ir.Operation]) -> set[ir.Operation]:
    """Of reductions down the rows those whose tensors are arguments or come from products, and whose rows nobody reduces along
    them, divides or raises beside them."""
    left, found = dict.fromkeys(reductions), set[ir.Operation]()
    while left:
        beside, pending, alone = set[ir.Operation](), [next(iter(left))], True
        while pending:
            op = pending.pop()
            if op in beside:
                continue
            beside.add(op)
            alone = alone and _works(op) and not expensive(op) and ("reduction" not in iterator_kinds(op) or op in reductions)
            pending += _neighbours(op) if alone or _works(op) else ()
        for op in beside & left.keys():
            del left[op]
            if alone:
                found.add(op)
    return found


def _works(op: ir.Operation) -> bool:
    """Does it compute on rows, other than by a product?"""
    return op.name == "linalg.generic" and not is_contraction(op)


def _neighbours(op: ir.Operation) -> Iterator[ir.Operation]:
    """What makes the tensors that an operation reads, and what else reads those that it reads or makes."""
    for value in map(uncast, (*inputs(op), *op.results)):
        if not isinstance(value.type, ir.RankedTensorType) or ir.RankedTensorType(value.type).rank < 2:
            continue
        source = owner(value)
        if source is not None and source.name not in CHEAP_OPS and not is_contraction(source):
            yield source
        yield from filter(_works, users(value))
