"""Results that take the place of what their own call reads: elementwise work on donated arguments, and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.passes.analysis.elementwise import only_element_by_element, rows_element_by_element
from tilewright.passes.linalg.strides import Views, dense_strides
from tilewright.passes.linalg.symbolic import IN_PLACE
from tilewright.passes.mlir import functions, ir
from tilewright.passes.spaces.host.generic import has_column_table
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.shape import Expr


def may_write_over(call: ir.Operation, callee: ir.Operation, workload: Workload, result: ir.Value, given: ir.Value,
                   views: Views) -> bool:
    """May `result` of a call lie where the buffer `given` does, which nobody else reads from then on? Each of its elements is
    then read before it is written, and by the unit of work that writes it."""
    rows = workload.kind is Kind.ROWS
    if not rows and (workload.kind is not Kind.POINTWISE or has_column_table(workload)):
        return False
    number = list(call.results).index(result)
    tensors = [v for v in call.operands if isinstance(v.type, ir.RankedTensorType)]
    arguments = [a for a in callee.regions[0].blocks[0].arguments if isinstance(a.type, ir.RankedTensorType)]
    for value, argument in zip(tensors, arguments, strict=True):
        view = views.view(value)
        if view is None or view.buffer != given:
            continue
        dims = views.shapes.dims(value)
        if view.offset != Expr.of(0) or view.strides != dense_strides(dims) or dims != views.shapes.dims(result):
            return False
        if not (rows_element_by_element(callee, argument, number) if rows else only_element_by_element(callee, argument)):
            return False
    return True


def written_over(workload: Workload) -> Workload:
    """The same workload with kernels whose results may lie where their arguments do. In the current context."""
    module = ir.Module.parse(workload.ir)
    next(functions(module)).attributes[IN_PLACE] = ir.UnitAttr.get()
    return replace(workload, ir=str(module))


def with_in_place(workloads: Mapping[str, Workload], keys: set[str]) -> dict[str, Workload]:
    """The workloads, of which those of these keys write over what they read. In the current context."""
    return {name: written_over(w) if w.key in keys else w for name, w in workloads.items()}
