"""Where the sums of a GPU contraction go: through what is fused behind it to the results, or to the workspace of a split sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from tilewright.passes.analysis.contraction import OUT
from tilewright.passes.analysis.placement import axis_name
from tilewright.passes.codegen.affine_index import invert
from tilewright.passes.codegen.emit import Memory, all_of, byte_width, lanes_of, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.gpu_space import CollapsedLoops, Point
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.families.gpu.gpu_pointwise import elementwise
from tilewright.passes.families.gpu.simt_plan import SimtPlan, root_at
from tilewright.passes.linalg.structured import is_zero_tensor
from tilewright.passes.mlir import ir, vector
from tilewright.runtime.shape import Expr


class Result:
    """Stores sums at points of rows and columns, with what is fused behind the contraction."""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, batch: Point, rows: CollapsedLoops, columns: CollapsedLoops) -> None:
        self.kernel, self.plan, self.batch, self.rows, self.columns = kernel, plan, batch, rows, columns
        self.whole = False  # are all points inside?

    def width(self, most: int) -> int:
        """Columns of one store, as of `in_runs`."""
        width, self.columns = in_runs(self.columns, most)
        return width

    def store(self, row: Index, column: Index, value: ir.Value) -> None:
        """`value`: sums of one row and neighbouring columns, of which `width` are a multiple."""
        inside = self.whole or all_of([row.lt(self.rows.extent), column.lt(self.columns.extent)])
        when(inside, lambda: self._store(row, column.known_multiple(lanes_of(value)), value))

    def value(self, row: Index, column: Index, value: ir.Value) -> ir.Value:
        """What `store` would store of the one result, wherever the place is: outside, that of the last place inside."""
        lanes, found = lanes_of(value), list[ir.Value]()
        row, column = row.min(self.rows.extent - 1), column.min(self.columns.extent - lanes).known_multiple(lanes)
        self._give(row, column, value, lambda _, one, __: found.append(one))
        return found[0]

    def _store(self, row: Index, column: Index, value: ir.Value) -> None:
        self._give(row, column, value, lambda memory, one, coords: memory.store(one, coords))

    def _give(self, row: Index, column: Index, value: ir.Value,
              take: Callable[[Memory, ir.Value, Sequence[Index]], None]) -> None:
        """Of every result its memory, its value and its coordinates there."""
        ev, view = self.kernel.evaluator, self.plan.view
        lanes = lanes_of(value)
        root = root_at(view, self.batch, self.rows.point(row), self.columns.point(Index.ramp(column, lanes)))
        fragment = with_start(self.kernel, self.plan, root, value)
        ev.known[view.op.results[0]] = lambda _: fragment
        ev.dims.update({axis_name(axis): c for axis, c in enumerate(root)})
        with ev.kept():
            for memory, place, result in zip(self.kernel.outputs, self.plan.places, self.kernel.results, strict=True):
                coords = [ev.emit(e) for e in place]
                take(memory, splat_to(ev.element(result, coords), lanes), coords)
        del ev.known[view.op.results[0]]


def in_runs(columns: CollapsedLoops, most: int) -> tuple[int, CollapsedLoops]:
    """Columns of one store: whole runs of the innermost loop, as many as are a multiple for certain or by guard; and the columns,
    known to be such a multiple."""
    inner = columns.exprs[-1]
    width = most if inner.constant is None else gcd(most, inner.constant)
    columns.guard(width)
    return width, columns.assume_multiple(width)


def with_start(kernel: GpuKernel, plan: SimtPlan, root: Sequence[Index], value: ir.Value) -> ir.Value:
    """A sum with the initial value of the contraction's result added, rounded to its type."""
    view = plan.view
    if not is_zero_tensor(view.operand(OUT)):
        start = ProductCode(view.product).widen(kernel.evaluator.element(view.operand(OUT), root))
        value = ProductCode(view.product).add(value, splat_to(start, lanes_of(value)))
    return ProductCode(view.product).round(value)


class SplitSum:
    """Partial sums of `parts` parts of k in the workspace [part][batch][row][column], added up in that order by `finish`."""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, parts: int) -> None:
        self.kernel, self.plan, self.parts = kernel, plan, parts
        self.element = plan.view.product.accumulator

    def elements(self) -> Expr:
        view = self.plan.view
        return view.size(view.batch) * view.size(self.plan.rows) * view.size(self.plan.columns) * self.parts

    def bytes(self) -> Expr:
        self.kernel.bound(self.elements())
        return self.elements() * byte_width(self.element)

    def keep(self, batch: Index, row: Index, column: Index, value: ir.Value) -> None:
        """Stores sums of one row and neighbouring columns, as part number block_id("y")."""
        view = self.plan.view
        rows, columns = (CollapsedLoops(self.kernel, loops, view.extents) for loops in (self.plan.rows, self.plan.columns))
        memory, part = self._memory(), self.kernel.block_id("y")
        for i in range(lanes_of(value)):
            at = column + i
            one = vector.extract(value, [], [i]) if lanes_of(value) > 1 else value
            inside = all_of([row.lt(rows.extent), at.lt(columns.extent)])
            when(inside, lambda at=at, one=one: memory.store(one, [part, batch, row, at]))  # type: ignore[misc]

    def _memory(self) -> GpuMemory:
        ev, view = self.kernel.evaluator, self.plan.view
        sizes = [Expr.of(self.parts), view.size(view.batch), view.size(self.plan.rows), view.size(self.plan.columns)]
        return self.kernel.workspace_tensor(self.element, [ev.emit(e) for e in sizes])

    def finish(self, vec: int) -> Grid:
        """The second launch: results, one element at a time, from the sums of the parts."""
        ev, view = self.kernel.evaluator, self.plan.view
        memory = self._memory()

        def known(root: Sequence[Index]) -> ir.Value:
            loops = invert(view.maps[OUT], root)
            batch, row, column = (self._linear(group, loops) for group in (view.batch, self.plan.rows, self.plan.columns))
            total = memory.load([Index(0), batch, row, column])
            for part in range(1, self.parts):
                total = ProductCode(view.product).add(total, memory.load([Index(part), batch, row, column]))
            return with_start(self.kernel, self.plan, root, total)

        ev.known[view.op.results[0]] = known
        grid = elementwise(self.kernel, self.kernel.loops[1:], vec)
        del ev.known[view.op.results[0]]
        return grid

    def _linear(self, group: Sequence[int], loops: Sequence[Index | None]) -> Index:
        total = Index(0)
        for d in group:
            c = loops[d]
            assert c is not None
            total = total * self.kernel.evaluator.emit(self.plan.view.extents[d]) + c
        return total
