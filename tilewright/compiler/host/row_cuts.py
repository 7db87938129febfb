"""Which calls compute each row of their results from the same row of what they read, so that they can be done strip by strip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.passes.mlir import functions, ir, operations
from tilewright.passes.spaces.workload import Kind, Operand, Workload, told_once
from tilewright.runtime.shape import Expr

_ROLES = {Kind.CONTRACTION: "m", Kind.ROWS: "row", Kind.POINTWISE: "p"}  # of the loop over the rows
_DIALECTS = ("arith", "math", "linalg", "tensor", "func")
_ELSEWHERE = ("linalg.index", "tensor.extract", "tensor.extract_slice", "tensor.insert_slice", "tensor.concat", "tensor.pad")


@dataclass(frozen=True)
class RowCut:
    """dim: the local dim that counts a call's rows, of which each row of the strip has `each`. operands: bytes that each takes a
    row of the strip; 0 where all rows share it."""

    dim: str
    each: int
    operands: tuple[int, ...]


def cut_of(workload: Workload, dims: Sequence[Expr], rows: Expr) -> RowCut | None:
    """How a call of a workload with these dims is cut along so many rows; None where a row is not computed by itself."""
    role = _ROLES.get(workload.kind)
    if role is None or len(workload.dims) != 1 or workload.windows or workload.part_rows or workload.segments:
        return None
    each = _multiple(dims[0], rows)
    dim = Expr.dim(workload.dims[0])
    loops = [n for n, loop in enumerate(workload.loops) if loop.extent.symbols]
    if each is None or len(loops) != 1 or workload.loops[loops[0]].role != role or workload.loops[loops[0]].extent != dim:
        return None
    operands = (*workload.inputs, *workload.outputs)
    sizes = [_row_bytes(o, dim, loops[0]) for o in operands]
    if None in sizes or 0 in sizes[len(workload.inputs) :] or not _stays_in_its_row(workload):
        return None
    return RowCut(workload.dims[0], each, tuple(each * (s or 0) for s in sizes))


def _multiple(dim: Expr, rows: Expr) -> int | None:
    """How many times the rows a dim is."""
    point = dict.fromkeys(dim.symbols | rows.symbols, 1)
    one = rows.evaluate(point)
    each = dim.evaluate(point) // one if one > 0 else 0
    return each if each > 0 and rows * each == dim else None


def _row_bytes(operand: Operand, dim: Expr, loop: int) -> int | None:
    """Bytes of a row, 0 where the operand has none; None where its rows are not the steps of the loop along its first axis."""
    having = [axis for axis, extent in enumerate(operand.dims) if extent.symbols]
    if not having:
        return 0
    if having != [0] or operand.dims[0] != dim or operand.panel or not operand.axes \
            or operand.axes[0].loops != (loop,) or operand.axes[0].steps != (1,) \
            or any(loop in axis.loops for axis in operand.axes[1:]):
        return None
    size = operand.dtype.bytes
    for extent in operand.dims[1:]:
        size *= extent.evaluate({})
    return size


@told_once
def _stays_in_its_row(workload: Workload) -> bool:
    """Does nothing in it ask where it is, or read elsewhere than its maps say?"""
    module = ir.Module.parse(workload.ir)
    names = [op.name for function in functions(module) for op in _inside(function)]
    assert names, "a workload has operations"
    return all(name.partition(".")[0] in _DIALECTS and name not in _ELSEWHERE for name in names)


def _inside(op: ir.Operation) -> Iterator[ir.Operation]:
    """All operations in the regions of one."""
    for region in op.regions:
        for block in region.blocks:
            for inner in operations(block):
                yield inner
                yield from _inside(inner)
