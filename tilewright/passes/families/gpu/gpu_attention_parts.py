"""Parts: what blocks that take parts of the keys leave in the workspace, and the launch that joins it in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from math import e, inf, log2

from tilewright.passes.analysis.contraction import OUT
from tilewright.passes.codegen.affine_index import invert
from tilewright.passes.codegen.emit import all_of, constant, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.gpu_space import CollapsedLoops
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.families.gpu.gpu_attention_plan import AttentionPlan
from tilewright.passes.families.gpu.gpu_pointwise import elementwise
from tilewright.passes.families.gpu.simt_store import with_start
from tilewright.passes.lowering.arithmetic import Real
from tilewright.passes.lowering.expansions import exp2_by_instruction
from tilewright.passes.mlir import arith, ir
from tilewright.runtime.shape import Expr

_BYTES = 4
_EXTRA = 2  # maximum and sum behind the values of a row


class Parts:
    """[part][batch][row][column] in f32; behind the columns the row's maximum and the sum of its exponentials."""

    def __init__(self, kernel: GpuKernel, plan: AttentionPlan, parts: int) -> None:
        self.kernel, self.plan, self.parts = kernel, plan, parts
        self.f32 = ir.F32Type.get()

    def _sizes(self) -> list[Expr]:
        view = self.plan.view
        return [Expr.of(self.parts), view.scores.size(view.shared), view.row_count, Expr.of(view.columns + _EXTRA)]

    def bytes(self) -> Expr:
        total = Expr.of(_BYTES)
        for size in self._sizes():
            total = total * size
        self.kernel.bound(total)
        return total

    def _memory(self) -> GpuMemory:
        return self.kernel.workspace_tensor(self.f32, [self.kernel.evaluator.emit(size) for size in self._sizes()])

    def keep(self, batch: Index, row: Index, column: Index, value: ir.Value, columns: int | None = None) -> None:
        """Stores one value of part number block_id("y"), where there is such a row and column."""
        view = self.plan.view
        rows = self.kernel.evaluator.emit(view.row_count)
        inside = all_of([row.lt(rows), column.lt(view.columns if columns is None else columns)])
        part, memory = self.kernel.block_id("y"), self._memory()
        when(inside, lambda: memory.store(value, [part, batch, row, column]))

    def keep_row(self, batch: Index, row: Index, greatest: ir.Value, total: ir.Value) -> None:
        """Maximum and sum of a row of the part."""
        columns = self.plan.view.columns
        for i, value in enumerate((greatest, total)):
            self.keep(batch, row, Index(columns + i), value, columns + _EXTRA)

    def finish(self, vec: int) -> Grid:
        """The second launch: results from the values, maxima and sums of the parts."""
        kernel, view, mixed = self.kernel, self.plan.view, self.plan.view.mixed
        memory = self._memory()
        batches = CollapsedLoops(kernel, view.shared, view.scores.extents)
        rows = CollapsedLoops(kernel, view.rows, view.scores.extents)

        def known(root: Sequence[Index]) -> ir.Value:
            return with_start(kernel, self.plan.mixing, root, self._joined(memory, root, batches, rows))

        source = mixed.op.results[0]
        kernel.evaluator.known[source] = known
        grid = elementwise(kernel, kernel.loops[1:], vec)
        del kernel.evaluator.known[source]
        return grid

    def _joined(self, memory: GpuMemory, root: Sequence[Index], batches: CollapsedLoops, rows: CollapsedLoops) -> ir.Value:
        view = self.plan.view
        loops = invert(view.mixed.maps[OUT], root)
        at = {s: c for s, c in zip(view.loops, loops, strict=True) if s is not None and c is not None}
        column = loops[view.column]
        assert column is not None
        batch, row = (self._linear(space, at) for space in (batches, rows))
        lanes = max(c.lanes for c in root)
        places = [(Index(p), batch, row) for p in range(self.parts)]

        def load(part: int, at: Index) -> ir.Value:
            return splat_to(memory.load([*places[part], at]), lanes)

        def number(x: float) -> ir.Value:
            return constant(self.f32, x, lanes)

        tops = [load(part, Index(view.columns)) for part in range(self.parts)]
        greatest = tops[0]
        for top in tops[1:]:
            greatest = arith.maxnumf(greatest, top)
        none = arith.cmpf(arith.CmpFPredicate.OEQ, greatest, number(-inf))
        greatest = arith.select(none, number(0), greatest)
        power = number(log2(e) * (self.plan.hidden.scale or 1.0))
        total = value = number(0)
        for part, top in enumerate(tops):
            factor = exp2_by_instruction(Real(arith.mulf(arith.subf(top, greatest), power))).value
            total = arith.addf(total, arith.mulf(factor, load(part, Index(view.columns + 1))))
            value = arith.addf(value, arith.mulf(factor, load(part, column)))
        empty = self.kernel.evaluator.emit(view.keys).eq(0)
        share = arith.divf(number(1), total)
        if not isinstance(empty, bool):
            share = arith.select(empty, number(1), share)
        return value if empty is True else arith.mulf(value, share)

    def _linear(self, space: CollapsedLoops, at: dict[int, Index]) -> Index:
        total = Index(0)
        for d, extent in zip(space.loops, space.exprs, strict=True):
            total = total * self.kernel.evaluator.emit(extent) + at[d]
        return total
