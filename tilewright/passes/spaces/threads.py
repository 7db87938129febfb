"""Which shapes stay on one thread: those too small for the start of a parallel loop to pay. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.threads_heuristics import Thresholds
from tilewright.passes.spaces.threshold import calibrated
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import Limits
from tilewright.runtime.program.dispatch import Leaf, Node, Split
from tilewright.runtime.shape import Expr

FAMILY = "threads"  # as calibrated thresholds name these
_VECTOR = 16  # columns that a part of them takes as long as
_USUAL = Thresholds()
SMALL = _USUAL.small


def small_of(limits: Limits) -> int:
    """The work up to which one thread runs a kernel on a machine."""
    return calibrated(_USUAL, FAMILY, limits).small


def one_thread_when_small(root: Node, workload: Workload, small: int = SMALL) -> Node:
    """`root` behind a test of the estimated work: the same kernels on one thread where that is at most `small`."""
    work = effort(workload)
    known = work.constant
    if known is not None:
        return _alone(root) if known <= small else root
    if work.evaluate(dict.fromkeys(workload.dims, 1)) > small or work == Expr.of(0):
        return root
    return Split(str(work), small, _alone(root), root)


def effort(workload: Workload, thresholds: Thresholds = _USUAL) -> Expr:
    """Half-operations: arithmetic or bytes, whichever take longer, and what is slow beside them. A contraction's columns fill
    whole vectors; exponentials count of all but its epilogue."""
    w, at = workload, thresholds
    work = (_products(w) * 2 if w.kind in (Kind.CONTRACTION, Kind.ATTENTION) else w.flops * 2).maximum(w.bytes * at.byte)
    if w.kind in (Kind.CONTRACTION, Kind.ATTENTION):
        work = work + w.size("b") * at.product
    if w.kind in (Kind.ROWS, Kind.POINTWISE, Kind.ATTENTION):
        points = _points(w, ("b", "m", "n") if w.kind is Kind.ATTENTION else ("row", "col", "p"))
        work = work + points * (at.transcendental * w.transcendentals)
        for operand in (*w.inputs, *w.outputs):
            if operand.dtype.is_float and operand.dtype.bytes < 4:
                work = work + _product(operand.dims) * at.narrow
    return work


def _products(workload: Workload) -> Expr:
    """Operations of a contraction whose columns are rounded up to whole vectors; of attention those of both products."""
    if workload.kind is Kind.ATTENTION:
        return _points(workload, ("b", "m", "n")) * (workload.size("k") + workload.size("e")) * 2
    return _points(workload, ("b", "m", "n", "k")) * 2


def _points(workload: Workload, roles: tuple[str, ...]) -> Expr:
    """Product of the extents of the loops with these roles, columns rounded up to whole vectors."""
    total = Expr.of(1)
    for loop in workload.loops:
        if loop.role in roles:
            total = total * (loop.extent.ceildiv(_VECTOR) * _VECTOR if loop.role in ("n", "col") else loop.extent)
    return total


def _product(extents: tuple[Expr, ...]) -> Expr:
    total = Expr.of(1)
    for extent in extents:
        total = total * extent
    return total


def _alone(node: Node) -> Node:
    if isinstance(node, Leaf):
        return Leaf(node.kernel, 1)
    return Split(node.expr, node.bound, _alone(node.below), _alone(node.above))
