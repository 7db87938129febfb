"""Which shapes stay on one thread: those too small for the start of a parallel loop to pay. MLIR-free."""

from __future__ import annotations

from passes.workload import Workload
from runtime.dispatch import Leaf, Node, Split
from runtime.shape import Expr

_SMALL = 2_000_000  # half-operations: about 4 us at 250 operations and 100 bytes a nanosecond


def one_thread_when_small(root: Node, workload: Workload) -> Node:
    """`root` behind a test of the work, estimated from operations and bytes: the same kernels on one thread where little."""
    work = workload.flops * 2 + workload.bytes * 5
    known = work.constant
    if known is not None:
        return _alone(root) if known <= _SMALL else root
    if work.evaluate(dict.fromkeys(workload.dims, 1)) > _SMALL or work == Expr.of(0):
        return root
    return Split(str(work), _SMALL, _alone(root), root)


def _alone(node: Node) -> Node:
    if isinstance(node, Leaf):
        return Leaf(node.kernel, 1)
    return Split(node.expr, node.bound, _alone(node.below), _alone(node.above))
