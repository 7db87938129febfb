"""Family `mma_rows`: a product by mma.sync with the work on the rows of its result, in one launch.

A block has bm whole rows. It computes them bn columns at a time, each panel as a block of family `mma` would, and puts the sums
into shared memory, in the type that memory would have had them in. Then a warp takes a row at a time, as in family `gpu_rows`,
with shared memory in the place of the product's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.passes.analysis.contraction import LHS, RHS
from tilewright.passes.analysis.product_rows import ProductRows
from tilewright.passes.codegen.emit import lanes_of, loop, vector_type
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.gpu.gpu_rows_of_threads import RowsOfThreads
from tilewright.passes.families.gpu.mma import MmaBlock
from tilewright.passes.families.gpu.mma_product import TensorProduct
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.row_exponents import mark_exponents, mark_rounded, mark_shares
from tilewright.passes.mlir import arith, ir
from tilewright.passes.spaces.gpu.mma_rows import MmaRowsConfig
from tilewright.runtime.shape import Expr


def emit(kernel: GpuKernel, config: MmaRowsConfig) -> None:
    """The whole kernel; ValueError when the region is no product with work on its rows."""
    mark_exponents(kernel.ops())
    mark_shares(kernel.ops())
    mark_rounded(kernel.ops(), kernel.results)
    found = ProductRows.of(kernel.ops(), kernel.results, kernel.shapes)
    product = TensorProduct.of(found.view, config.tf32)
    kernel.launch(config.threads, lambda: _emit(kernel, found, product, config), min_blocks_per_sm=config.min_blocks_per_sm)


def tile(frame: KernelFrame, config: MmaRowsConfig, tiler: Tiler) -> None:
    """Units of the rows of a block."""
    program = ProductRows.of(frame.ops(), frame.results, frame.shapes).program
    rows = program.frame[program.rows[0]]
    tiler.loop([rows.ceildiv(config.bm)], lambda place: {"rows": tiler.span(place[0], config.bm, rows)},
               program.cut({"rows": program.rows}))


@dataclass(frozen=True)
class _KeptRows(GpuMemory):
    """Rows of a tensor from `first` on, in shared memory."""

    first: Index = field(kw_only=True)

    def offset(self, coords: Sequence[Index]) -> Index:
        row, column = coords
        return super().offset([row - self.first, column])


def _emit(kernel: GpuKernel, found: ProductRows, product: TensorProduct, config: MmaRowsConfig) -> Grid:
    c, view = config, found.view
    plan = SimtPlan(view, LHS, RHS, view.m, view.n, (), False)
    block = MmaBlock(kernel, plan, product, c.product, None)
    columns = view.size(view.n).constant
    if columns is None:
        raise ValueError(f"{view.op.name} at {view.op.location}: how many columns a row has is known when it runs")
    first = kernel.loops[0].at(kernel.evaluator, (kernel.block_id(),)).first("rows")
    loaders = block.loaders({})
    kept = kernel.shared(found.element, [c.bm, c.kept_columns(columns)])

    def panel(number: Index) -> None:
        column = number * c.bn
        for y, x, value in block.places(loaders, first, column):
            at = (column + x).known_multiple(lanes_of(value))
            kept.store(_as_kept(found, value), [y, Index.ramp(at, lanes_of(value))])
        kernel.barrier()

    loop(0, c.panels(columns), 1, panel, [], kernel.index)
    ev, rows = kernel.evaluator, _RowsOfBlock(kernel, found.program, c.rows)
    ev.memories[found.kept] = _KeptRows(kept.pointer, kept.element, kept.sizes, kept.strides, kept.index, first=first)
    rows.walk(first, c.bm)
    del ev.memories[found.kept]
    kernel.bound(block.depth.size)
    return kernel.units, Expr.of(1), Expr.of(1)


def _as_kept(found: ProductRows, value: ir.Value) -> ir.Value:
    """Sums in the type of the result, and then in that of what is kept of it."""
    rounded = ProductCode(found.view.product).round(value)
    wanted = vector_type(found.element, lanes_of(value))
    return rounded if rounded.type == wanted else arith.truncf(wanted, rounded)


class _RowsOfBlock(RowsOfThreads):
    """Rows of a block, a few at a time."""

    def walk(self, first: Index, count: int) -> None:
        """`count` rows from `first` on."""
        self.gpu.bound(self.rows.size)
        self.gpu.bound(self.columns.size)
        beside = self.config.threads // self.config.per_row

        def some(number: Index) -> None:
            self.sweep(self.begin(first + number * beside + self.thread // self.config.per_row))
            self.forget()

        loop(0, count // beside, 1, some, [], self.index)
