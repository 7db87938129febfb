"""Functions of elementwise operations and of reductions of rows: which arguments their results need element by element."""

from __future__ import annotations

from tilewright.passes.analysis.parts import parts_of
from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.linalg.clone import captured, captured_inside
from tilewright.passes.linalg.structured import iterator_kinds
from tilewright.passes.linalg.symbolic import IN_PLACE, SymbolicShapes
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


def rows_element_by_element(fn: ir.Operation, argument: ir.Value, number: int) -> bool:
    """Of a row program: is what follows from `argument` read at one row and column alone, or at one row, each of which has an
    element of it, and is result `number` what follows from it there?"""
    *ops, last = operations(fn.regions[0].blocks[0])
    program = RowProgram(ops, list(last.operands), SymbolicShapes(fn))
    needs, place = {argument}, program.result_places[number]
    for op in ops:
        if needs.isdisjoint(captured(op)):
            continue
        if op not in program.loops or not needs.isdisjoint(captured_inside(op)):
            return False
        axes, maps = program.loops[op], maps_of(op)
        at = [tuple(None if (d := position(e)) is None else axes[d] for e in m.results) for m in maps]
        made = [] if _reduces(op) else list(op.results)
        here = [*(p for v, p in zip(op.operands, at, strict=True) if v in needs), *at[len(at) - len(made):]]
        if any(p != place for p in here):
            return False
        needs.update(made)
    covered = {a for a in place if a is not None}
    return covered in (set(range(len(program.frame))), set(program.rows)) and last.operands[number] in needs


def refuse_rows_over_operands(fn: ir.Operation) -> None:
    """ValueError where results of a function may lie over what reductions of rows read: a family that computes one result after
    the other would read what it wrote."""
    if IN_PLACE in fn.attributes and any(map(_reduces, operations(fn.regions[0].blocks[0]))):
        raise ValueError("results lie over operands that reductions of rows read")


def _reduces(op: ir.Operation) -> bool:
    return op.name == "linalg.generic" and ("reduction" in iterator_kinds(op) or parts_of(op) is not None)
