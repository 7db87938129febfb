"""Results that take the place of what their own call reads: elementwise work on donated arguments, and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.compiler.host.moments import callee_of
from tilewright.passes.analysis.elementwise import only_element_by_element, rows_element_by_element
from tilewright.passes.linalg.strides import Views, dense_strides
from tilewright.passes.linalg.symbolic import IN_PLACE
from tilewright.passes.mlir import functions, ir, owner
from tilewright.passes.spaces.host.generic import has_column_table
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Overwriting:
    """Whether results of calls can lie where what their own call reads does. functions, workloads: of the calls, by name. over:
    may any of them? Calls of a batch of sequences on a GPU may not."""

    functions: Mapping[str, ir.Operation]
    workloads: Mapping[str, Workload]
    views: Views
    over: bool

    def while_read(self, made: ir.Operation, reader: ir.Operation) -> str:
        """Why what `made` gives does not lie where `reader` still reads."""
        return f"{self._name(reader)} reads it when {self._name(made)} makes the result, or later"

    def why_not(self, result: ir.Value, given: ir.Value) -> str | None:
        """Why `result` cannot lie where the buffer `given` does, which nobody but its own call reads from then on; None where it
        can. Each of its elements is then read before it is written, and by the unit of work that writes it."""
        made = owner(result)
        if made is None or made.name != "func.call":
            return "no kernel alone makes the result"
        if not self.over:
            return "calls of a batch of sequences write over nothing that they read"
        return self._elements(made, result, given)

    def _elements(self, call: ir.Operation, result: ir.Value, given: ir.Value) -> str | None:
        name = callee_of(call)
        callee, workload, views = self.functions[name], self.workloads[name], self.views
        rows = workload.kind is Kind.ROWS
        if not rows and (workload.kind is not Kind.POINTWISE or has_column_table(workload)):
            return f"{workload.name}, a kernel of kind {workload.kind.value}, makes elements in one order and reads it in another"
        number = list(call.results).index(result)
        tensors = [v for v in call.operands if isinstance(v.type, ir.RankedTensorType)]
        arguments = [a for a in callee.regions[0].blocks[0].arguments if isinstance(a.type, ir.RankedTensorType)]
        for value, argument in zip(tensors, arguments, strict=True):
            view = views.view(value)
            if view is None or view.buffer != given:
                continue
            dims = views.shapes.dims(value)
            if view.offset != Expr.of(0) or view.strides != dense_strides(dims) or dims != views.shapes.dims(result):
                return f"{workload.name} reads a part of it, or reads it in another shape"
            if not (rows_element_by_element(callee, argument, number) if rows else only_element_by_element(callee, argument)):
                return f"{workload.name} makes an element of the result of others than the one that lies there"
        return None

    def _name(self, op: ir.Operation) -> str:
        return self.workloads[callee_of(op)].name if op.name == "func.call" else op.name


def written_over(workload: Workload) -> Workload:
    """The same workload with kernels whose results may lie where their arguments do. In the current context."""
    module = ir.Module.parse(workload.ir)
    next(functions(module)).attributes[IN_PLACE] = ir.UnitAttr.get()
    return replace(workload, ir=str(module))


def with_in_place(workloads: Mapping[str, Workload], keys: set[str]) -> dict[str, Workload]:
    """The workloads, of which those of these keys write over what they read. In the current context."""
    return {name: written_over(w) if w.key in keys else w for name, w in workloads.items()}
