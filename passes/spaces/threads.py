"""Which shapes stay on one thread: those too small for the start of a parallel loop to pay. MLIR-free."""

from __future__ import annotations

import re

from passes.workload import Kind, Workload
from runtime.dispatch import Leaf, Node, Split
from runtime.shape import Expr

_SMALL = 1_500_000  # half-operations: about 3 us at 250 operations and 100 bytes a nanosecond
_CURVED = re.compile(r"math\.(?!sqrt|rsqrt|abs|fma|floor|ceil|trunc|round)")
_CURVE = 120  # half-operations of an exponential and its like


def one_thread_when_small(root: Node, workload: Workload) -> Node:
    """`root` behind a test of the work, estimated from operations and bytes: the same kernels on one thread where little.

    Exponentials count of rows and of elementwise work, of which they are a large part.
    """
    work = workload.flops * 2 + workload.bytes * 5
    if workload.kind in (Kind.ROWS, Kind.POINTWISE) and workload.outputs:
        elements = Expr.of(_CURVE * len(_CURVED.findall(workload.ir)))
        for extent in workload.outputs[0].dims:
            elements = elements * extent
        work = work + elements
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
