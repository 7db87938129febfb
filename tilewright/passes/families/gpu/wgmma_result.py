"""CopiedResult: results of a warp on their way out by tensor copies, through a tile of shared memory of the warp's own."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.analysis.contraction import OUT
from tilewright.passes.analysis.placement import axis_name
from tilewright.passes.codegen.emit import integer_type, lanes_of, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.gpu.simt_plan import SimtPlan, root_at
from tilewright.passes.families.gpu.simt_store import Result
from tilewright.passes.mlir import ir, nvvm, position
from tilewright.runtime.shape import Expr

_ROWS = 16


class CopiedResult:
    """Before the launch: the tensor map of the one result, boxes of 16 rows by `columns`. ValueError when it is no matrix along
    one row loop and one column loop."""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, columns: int) -> None:
        self.kernel, self.plan, self.columns = kernel, plan, columns
        slots = [s for s in kernel.operands if s.result]
        if len(slots) != 1 or len(plan.rows) != 1 or len(plan.columns) != 1:
            raise ValueError("tensor copies store one result along one row loop and one column loop")
        self.slot = slots[0]
        at = [self._axis(loops[0]) for loops in (plan.rows, plan.columns)]
        if None in at or at[1] != self.slot.unit or self.slot.rank > 5:
            raise ValueError(f"result {self.slot.number} is not contiguous along the columns")
        self._order = [at[1], *(a for a in reversed(range(self.slot.rank)) if a != at[1])]
        box = [columns if a == at[1] else _ROWS if a == at[0] else 1 for a in self._order]
        self._number = kernel.use_tensor_map(self.slot, [a for a in self._order if a is not None], box, 0)

    def _axis(self, loop: int) -> int | None:
        """The axis of the stored tensor along which the loop runs."""
        root = [a for a, e in enumerate(self.plan.view.maps[OUT].results) if position(e) == loop]
        named = Expr.dim(axis_name(root[0]))
        found = [a for a, e in enumerate(self.plan.places[0]) if e == named]
        return found[0] if len(found) == 1 else None

    def tile(self, warps: int) -> GpuMemory:
        """Room for the results of all warps, a whole multiple of 1024 bytes; boxes begin at multiples of 128."""
        return self.kernel.shared(self.slot.element, [warps, _ROWS, self.columns])

    def reuse(self, leader: ir.Value | bool) -> None:
        """The tile may be written again when the copy that reads it has read it; `leader` started it."""

        def wait() -> None:
            nvvm.cp_async_bulk_wait_group(0, read=True)

        when(leader, wait)

    def write(self, result: Result, tile: GpuMemory, at: Sequence[Index], row: Index, column: Index, value: ir.Value) -> None:
        """Sums, with what is fused behind them, into the tile at `at` (warp, row, first column)."""
        outputs = self.kernel.outputs[:]
        self.kernel.outputs[:] = [_Redirected(tile, at)]  # type: ignore[list-item]
        result.store(row, column, value)
        self.kernel.outputs[:] = outputs

    def copy(self, result: Result, tile: GpuMemory, warp: Index, row: Index, column: Index) -> None:
        """Starts the copy of a warp's tile to (row, column); by one thread, after a fence of all."""
        ev = self.kernel.evaluator
        root = root_at(self.plan.view, result.batch, result.rows.point(row), result.columns.point(column))
        ev.dims.update({axis_name(axis): c for axis, c in enumerate(root)})
        coords = [ev.emit(e) for e in self.plan.places[0]]
        listed = [coords[a].value(integer_type(32)) for a in self._order if a is not None]
        box = tile.address([warp, Index(0), Index(0)])
        nvvm.cp_async_bulk_tensor_global_shared_cta(self.kernel.tensor_map(self._number), box, listed)
        nvvm.cp_async_bulk_commit_group()


class _Redirected:
    """Takes what is stored to a result, at a place of shared memory instead."""

    def __init__(self, tile: GpuMemory, at: Sequence[Index]) -> None:
        self.tile, self.at = tile, at

    def store(self, value: ir.Value, coords: Sequence[Index]) -> None:
        warp, row, column = self.at
        self.tile.store(value, [warp, row, Index.ramp(column.known_multiple(lanes_of(value)), lanes_of(value))])
