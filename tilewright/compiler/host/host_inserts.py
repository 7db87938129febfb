"""Emits the copy of a part into a tensor: as few runs of elements side by side as both layouts allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.compiler.host.plan_steps import Insert
from tilewright.passes.codegen.emit import gep, integer_type
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import ir, llvm, scf
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class _Axis:
    """A loop of the copy: how often, and how far apart in the part and in the tensor, in elements."""

    extent: Expr
    source: Expr
    target: Expr


def insert_part(step: Insert, source: ir.Value, target: ir.Value, dims: Mapping[str, Index]) -> None:
    """Emit a step at the insertion point. source, target: addresses of the first elements."""
    axes = _merged(step)
    size = Expr.of(step.part.dtype.bytes)
    one = Expr.of(1)
    if axes and axes[-1].source == one and axes[-1].target == one:
        size = size * axes.pop().extent
    _copy(axes, size, step.part.dtype.bytes, (source, target), dims)


def _merged(step: Insert) -> list[_Axis]:
    """The axes longer than 1, outermost first; two that both sides walk as one are one."""
    found: list[_Axis] = []
    for extent, source, target in zip(step.extents, step.part.strides, step.into.strides, strict=True):
        if extent == Expr.of(1):
            continue
        if found and found[-1].source == source * extent and found[-1].target == target * extent:
            found[-1] = _Axis(found[-1].extent * extent, source, target)
        else:
            found.append(_Axis(extent, source, target))
    return found


def _copy(axes: Sequence[_Axis], size: Expr, width: int, pointers: tuple[ir.Value, ir.Value], dims: Mapping[str, Index]) -> None:
    """Copy runs of `size` bytes over these loops. width: bytes of an element."""
    i64 = integer_type(64)
    if not axes:
        source, target = pointers
        llvm.MemcpyOp(target, source, emit_expr(size, dims).value(i64), False)
        return
    axis, *inner = axes
    lo, hi, step = (emit_expr(Expr.of(e), dims).value(i64) for e in (0, axis.extent, 1))
    loop = scf.ForOp(lo, hi, step)
    with ir.InsertionPoint(loop.body):
        at = Index(loop.induction_variable)
        moved = [gep(p, (at * emit_expr(s * width, dims)).value(i64), integer_type(8))
                 for p, s in zip(pointers, (axis.source, axis.target), strict=True)]
        _copy(inner, size, width, (moved[0], moved[1]), dims)
        scf.YieldOp([])
