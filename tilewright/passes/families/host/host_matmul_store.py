"""What follows the sums of a host matmul: the initial value, the elementwise operations after it, the stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import OUT
from tilewright.passes.analysis.placement import Place, axis_name
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.linalg.structured import is_zero_tensor
from tilewright.passes.mlir import ir, llvm


@dataclass(frozen=True)
class PlacedResults:
    """Stores every result of the kernel from the sums of the plan's contraction."""

    kernel: HostKernel
    plan: Plan
    lanes: int

    def store(self, point: Loops, column: Index, value: ir.Value, mask: ir.Value | None) -> None:
        """`value`: the sums of a vector of columns at a point of the other loops."""
        ev, view = self.kernel.evaluator, self.plan.view
        at = list(point)
        at[self.plan.column] = Index.ramp(column, self.lanes)
        root = coords_of(view, OUT, at)
        if not is_zero_tensor(view.operand(OUT)):
            start = ProductCode(view.product).widen(ev.element(view.operand(OUT), root, mask))
            value = ProductCode(view.product).add(value, splat_to(start, self.lanes))
        store_placed(self.kernel, view.op, self.plan.places, (root, ProductCode(view.product).round(value), mask))

    def fetch(self, point: Loops, column: Index) -> None:
        """The line that a vector of results will be stored to comes to the first cache, to be written."""
        ev, view = self.kernel.evaluator, self.plan.view
        at = list(point)
        at[self.plan.column] = column
        ev.dims.update({axis_name(axis): c for axis, c in enumerate(coords_of(view, OUT, at))})
        for memory, place in zip(self.kernel.outputs, self.plan.places, strict=True):
            llvm.intr_prefetch(memory.address([ev.emit(e) for e in place]), 1, 3, 1)


def store_placed(kernel: HostKernel, op: ir.Operation, places: Sequence[Place],
                 fragment: tuple[Sequence[Index], ir.Value, ir.Value | None]) -> None:
    """Stores what follows from a vector of elements of the root `op`: its coordinates, its value and the lanes that it has."""
    ev, (at, value, mask) = kernel.evaluator, fragment
    ev.known[op.results[0]] = lambda _: value
    ev.dims.update({axis_name(axis): c for axis, c in enumerate(at)})
    for memory, place, result in zip(kernel.outputs, places, kernel.results, strict=True):
        coords = [ev.emit(e) for e in place]
        memory.store(ev.element(result, coords, mask), coords, mask)
