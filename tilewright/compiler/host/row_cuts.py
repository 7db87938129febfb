"""Which calls compute each row of their results from the same row of what they read, so that they can be done strip by strip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.passes.linalg.symbolic import integer, mixed
from tilewright.passes.mlir import functions, ir, new_context, operations
from tilewright.passes.spaces.workload import Kind, Operand, Workload, told_once
from tilewright.runtime.shape import Expr

_ROLES = {Kind.CONTRACTION: "m", Kind.ROWS: "row", Kind.POINTWISE: "p"}  # of the loop over the rows
_DIALECTS = ("arith", "math", "linalg", "tensor", "func")
_MOVES = ("tensor.extract_slice", "tensor.concat", "tensor.pad")
_ELSEWHERE = ("linalg.index", "tensor.extract", "tensor.insert_slice")


@dataclass(frozen=True)
class RowCut:
    """dim: the local dim that counts a call's rows, of which each row of the strip has `each`. operands: bytes that each takes a
    row of the strip; 0 where all rows share it."""

    dim: str
    each: int
    operands: tuple[int, ...]


def cut_of(workload: Workload, dims: Sequence[Expr], rows: Expr, images: bool = False) -> RowCut | None:
    """How a call of a workload with these dims is cut along so many rows; None where a row is not computed by itself.

    images: may a row be an image, along whose own axes windows pass, and pads, parts and concatenations are?
    """
    role = _ROLES.get(workload.kind)
    if role is None or len(workload.dims) != 1 or workload.part_rows or workload.segments or (workload.windows and not images):
        return None
    each = _multiple(dims[0], rows)
    dim = Expr.dim(workload.dims[0])
    loops = [n for n, loop in enumerate(workload.loops) if loop.extent.symbols]
    if each is None or len(loops) != 1 or workload.loops[loops[0]].role != role or workload.loops[loops[0]].extent != dim:
        return None
    if any(loops[0] in (window.row, window.tap) for window in workload.windows):
        return None
    operands = (*workload.inputs, *workload.outputs)
    sizes = [_row_bytes(o, dim, loops[0]) for o in operands]
    stays = _stays_in_its_image if images else _stays_in_its_row
    if None in sizes or 0 in sizes[len(workload.inputs) :] or not stays(workload):
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
    return _all_of(workload, lambda op: _stays(op) and op.name not in _MOVES)


@told_once
def _stays_in_its_image(workload: Workload) -> bool:
    """The same, where what moves values may do so along all axes but that of the rows, the only one of unknown extent."""
    return _all_of(workload, lambda op: _stays(op) and (op.name not in _MOVES or _keeps_rows(op)))


def _all_of(workload: Workload, holds: Callable[[ir.Operation], bool]) -> bool:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(workload.ir)
        found = [op for function in functions(module) for op in _inside(function)]
        assert found, "a workload has operations"
        return all(holds(op) for op in found)


def _stays(op: ir.Operation) -> bool:
    return op.name.partition(".")[0] in _DIALECTS and op.name not in _ELSEWHERE


def _keeps_rows(op: ir.Operation) -> bool:
    """Does a pad, a part or a concatenation leave the first axis as it is, and know the extents of the others?"""
    kinds = [ir.RankedTensorType(v.type) for v in (*op.operands, *op.results) if isinstance(v.type, ir.RankedTensorType)]
    if any(kind.is_dynamic_dim(axis) for kind in kinds for axis in range(1, kind.rank)):
        return False
    if op.name == "tensor.concat":
        return integer(op.attributes["dim"]) > 0
    if op.name == "tensor.pad":
        return mixed(op, "static_low", 1)[0] == mixed(op, "static_high", 2)[0] == 0
    return mixed(op, "static_offsets", 1)[0] == 0 and mixed(op, "static_strides", 3)[0] == 1


def _inside(op: ir.Operation) -> Iterator[ir.Operation]:
    """All operations in the regions of one."""
    for region in op.regions:
        for block in region.blocks:
            for inner in operations(block):
                yield inner
                yield from _inside(inner)
