"""Emits the copy of a part into a tensor: as few runs of elements side by side as both layouts allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.compiler.host.plan_steps import Insert
from tilewright.passes.codegen.emit import gep, integer_type
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.linalg.strides import CopyLoop, copy_loops
from tilewright.passes.mlir import ir, scf
from tilewright.runtime.shape import Expr

Move = Callable[[ir.Value, ir.Value, ir.Value], None]  # target, source, bytes


def insert_part(step: Insert, pointers: tuple[ir.Value, ir.Value], dims: Mapping[str, Index], move: Move) -> None:
    """Emit a step at the insertion point. pointers: addresses of the first elements of the part and of where it belongs."""
    loops, run = copy_loops(step.extents, step.part.strides, step.into.strides)
    width = step.part.dtype.bytes
    _copy(loops, run * width, width, pointers, dims, move)


def _copy(loops: Sequence[CopyLoop], size: Expr, width: int, pointers: tuple[ir.Value, ir.Value], dims: Mapping[str, Index],
          move: Move) -> None:
    """Copy runs of `size` bytes over these loops. width: bytes of an element."""
    i64 = integer_type(64)
    if not loops:
        source, target = pointers
        move(target, source, emit_expr(size, dims).value(i64))
        return
    axis, *inner = loops
    lo, hi, step = (emit_expr(Expr.of(e), dims).value(i64) for e in (0, axis.extent, 1))
    loop = scf.ForOp(lo, hi, step)
    with ir.InsertionPoint(loop.body):
        at = Index(loop.induction_variable)
        moved = [gep(p, (at * emit_expr(s * width, dims)).value(i64), integer_type(8))
                 for p, s in zip(pointers, (axis.source, axis.target), strict=True)]
        _copy(inner, size, width, (moved[0], moved[1]), dims, move)
        scf.YieldOp([])
