"""Family `gpu_rows`: row reductions and the elementwise work around them, a group of threads on each row.

Threads take vectors of columns in turn. A sweep ends with the threads of a row joining what they have in a fixed order. Rows that
fit are read once and stay in registers. Threads of rows beyond the last compute the last row again and store nothing. Where
several blocks share a row, every sweep is a launch: it joins what the blocks of the sweeps before it found, in a fixed order.
Reductions in parts down the rows are those of a block (gpu_part_rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.codegen.emit import Memory, all_of
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.gpu.gpu_part_rows import PartRows
from tilewright.passes.families.gpu.gpu_row_parts import RowParts
from tilewright.passes.families.gpu.gpu_rows_of_threads import RowsOfThreads
from tilewright.passes.families.part_units import tile_parts
from tilewright.passes.families.row_exponents import mark_exponents, mark_rounded, mark_shares
from tilewright.passes.linalg.symbolic import IN_PLACE
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.gpu.gpu_rows import GpuRowsConfig
from tilewright.runtime.shape import Expr


def emit(kernel: GpuKernel, config: GpuRowsConfig) -> None:
    """The whole kernel; ValueError when the region is no program over rows and columns."""
    mark_exponents(kernel.ops())
    mark_shares(kernel.ops())
    mark_rounded(kernel.ops(), kernel.results)
    program = RowProgram(kernel.ops(), kernel.results, kernel.shapes, IN_PLACE in kernel.fn.attributes)
    if config.blocks == 1:
        rows = PartRows if program.parts else RowsOfThreads
        kernel.launch(config.threads, lambda: rows(kernel, program, config).emit())
        return
    parts = RowParts(kernel, program, config.blocks)
    kernel.use_workspace(parts.bytes())
    last = program.sweeps[-1]
    count = len(program.sweeps) + bool(last.reductions or last.scalars or last.row_results)
    for number in range(count):
        emitted = partial(_emit_sweep, kernel, program, config, parts, number)
        kernel.launch(config.threads, emitted, f"_{number}" if number else "")


def tile(frame: KernelFrame, config: GpuRowsConfig, tiler: Tiler) -> None:
    """Units of the rows that a block of threads takes at once; several blocks may share a unit, a part of the columns each."""
    program = RowProgram(frame.ops(), frame.results, frame.shapes, IN_PLACE in frame.fn.attributes)
    if program.parts:
        tile_parts(program, tiler)
        return
    rows, step = Expr.of(1), config.threads // config.per_row
    for axis in program.rows:
        rows = rows * program.frame[axis]
    tiler.loop([rows.ceildiv(step)], lambda place: {"rows": tiler.span(place[0], step, rows)},
               program.cut({"rows": program.rows}))


def _emit_sweep(kernel: GpuKernel, program: RowProgram, config: GpuRowsConfig, parts: RowParts, number: int) -> Grid:
    return _SharedRows(kernel, program, config, parts, number).emit()


class _SharedRows(RowsOfThreads):
    """One launch over rows that several blocks share: the ends of the sweeps before `number`, then that sweep over a part of the
    columns. A launch behind the last sweep ends it."""

    def __init__(self, kernel: GpuKernel, program: RowProgram, config: GpuRowsConfig, parts: RowParts, number: int) -> None:
        super().__init__(kernel, program, config)
        self.parts, self.number = parts, number
        self.stores = False

    def emit(self) -> Grid:
        at, sweeps = self._start(), self.program.sweeps
        walks = self.number < len(sweeps) and sweeps[self.number].walks
        block = self.gpu.block_id("y") if walks else Index(0)
        lead = all_of([self.live, self.first])
        self.first = all_of([self.first, block.eq(0)])
        with self.ev.kept():
            for before in range(self.number):
                self.stores = before == self.number - 1
                self.finish(before, at, self.parts.totals(before, self.row))
            if walks:
                totals = self._looped(self.number, at, *self._range(block))
                self.parts.keep(self.number, self.row, block, totals, lead)
        self.forget()
        return self._blocks(), Expr.of(self.config.blocks if walks else 1), Expr.of(1)

    def _range(self, block: Index) -> tuple[Index, Index]:
        """The columns of a block: whole rounds of its threads."""
        c, extent = self.config, self.columns.extent
        step = c.per_row * self.lanes * c.blocks
        self.gpu.bound(self.columns.size + step)
        part = (extent.ceildiv(step) * (c.per_row * self.lanes)).known_multiple(self.lanes)
        begin = (block * part).min(extent)
        return begin, (begin + part).min(extent)

    def store_once(self, memory: Memory, element: ir.Value, coords: Sequence[Index], mask: ir.Value | None) -> None:
        """The first thread of a row in its first block, in the launch behind the sweep."""
        if self.stores:
            super().store_once(memory, element, coords, mask)
