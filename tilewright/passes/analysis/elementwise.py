"""Functions of elementwise operations: which arguments their results need element by element."""

from __future__ import annotations

from tilewright.passes.linalg.clone import captured, captured_inside
from tilewright.passes.linalg.structured import iterator_kinds
from tilewright.passes.mlir import ir, maps_of, operations, position

_PLAIN = ("arith.constant", "tensor.empty", "linalg.fill")


def only_element_by_element(fn: ir.Operation, argument: ir.Value) -> bool:
    """Is each operation of a function elementwise, reading what follows from `argument` at its own place alone, and nothing
    transposed or at computed places?"""
    needs = {argument}
    for op in operations(fn.regions[0].blocks[0])[:-1]:
        if op.name in _PLAIN or not any(isinstance(v.type, ir.RankedTensorType) for v in (*op.operands, *op.results)):
            if not needs.isdisjoint(captured(op)):
                return False
            continue
        if op.name != "linalg.generic" or set(iterator_kinds(op)) - {"parallel"} or not needs.isdisjoint(captured_inside(op)):
            return False
        maps = maps_of(op)
        own = [position(e) for e in maps[-1].results]
        for value, m in zip(op.operands, maps, strict=True):
            at = [position(e) for e in m.results]
            places = [d for d in at if d is not None]
            if len(places) < len(at) or places != sorted(places) or (value in needs and at != own):
                return False
        if own != list(range(maps[-1].n_dims)) or any(m != maps[-1] for m in maps[len(maps) - len(op.results):]):
            return False
        if not needs.isdisjoint(op.operands):
            needs.update(op.results)
    return True
