"""Family `host_matmul`: contractions of any layout on vectors, with what is fused before and after them.

A work unit is one point of the shared loops, a chunk of rows and a panel of columns, panels fastest, so that a chunk of the
streamed operand stays in the second-level cache while panels pass. In it, blocks of mr rows (smaller ones for what is left) by
nv vectors keep their sums in registers over the whole of k; the last panel is masked, and done one vector at a time where its
width is not known. A single row streams instead, or takes dot products along k.
Every element is summed in an order that depends on the shape and the configuration, never on how units are split.

For k beyond a few thousand, k would be cut in pieces outside the rows, each piece's panel copied in turn, and the sums of a chunk
kept in the workspace in between (kc); everything here takes the loops over k as given, so that adds one loop to `_unit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from passes.emit import Memory, byte_width, lane_mask, loop, when
from passes.families.host_matmul_block import Block, Columns, Loops
from passes.families.host_matmul_dot import Dot
from passes.families.host_matmul_panel import PanelCopy
from passes.families.host_matmul_plan import Plan
from passes.families.host_matmul_rows import row_blocks, row_points
from passes.families.host_matmul_store import Results
from passes.families.host_matmul_stream import Stream
from passes.host_kernel import Grid, HostKernel
from passes.index import Index, delinearize
from passes.mlir import ir
from passes.spaces.host_matmul import HostMatmulConfig, Pack
from runtime.shape import Expr

Mask = Callable[["Index | int"], "ir.Value | None"]


def emit(kernel: HostKernel, config: HostMatmulConfig) -> Grid:
    """The whole kernel. ValueError when the region is no contraction that this family computes."""

    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        plan = Plan.of(kernel)
        chosen = _possible(config, plan)
        if plan.tile % chosen.columns:
            raise ValueError(f"panels of {plan.tile} columns cannot be read in blocks of {chosen.columns}")
        return _Emitter(kernel, chosen, plan, workspace).units(begin, end)

    return kernel.build(body)


def _possible(config: HostMatmulConfig, plan: Plan) -> HostMatmulConfig:
    """Without streaming where the columns are computed, prepacked or no unit stride, or meet a factor that varies with them."""
    once = (plan.in_place or plan.transposed) and not plan.tile and plan.column not in plan.view.loops_of(plan.narrow)
    if not config.stream or once:
        return config
    fitting = [nv for nv in (4, 3, 2, 1) if nv <= config.nv and plan.tile % (nv * config.lanes) == 0]
    return replace(config, stream=0, nv=fitting[0] if fitting else config.nv)


@dataclass(frozen=True)
class _Emitter:
    kernel: HostKernel
    config: HostMatmulConfig
    plan: Plan
    workspace: ir.Value

    @property
    def _element(self) -> ir.Type:
        return self.plan.view.product.accumulator

    @property
    def _copies(self) -> bool:
        """Are the columns copied to the workspace?"""
        return not self.plan.tile and not self.config.stream and (self.config.pack is Pack.PANEL or not self.plan.in_place)

    def _panel_elements(self) -> Expr:
        """A transposing copy writes up to `lanes` rows beyond the last."""
        return (self.plan.depth + self.config.lanes) * self.config.columns if self._copies else Expr.of(0)

    def _memory(self, offset: Expr) -> Memory:
        """[row][column of a block] in the workspace, `offset` elements from its start."""
        size = byte_width(self._element)
        at = self.kernel.offset_pointer(self.workspace, self.kernel.evaluator.emit(offset), size)
        strides = (Index(self.config.columns), Index(1))
        return Memory(at, self._element, strides, strides, self.kernel.index)

    def units(self, begin: Index, end: Index) -> Grid:
        ev, plan, config = self.kernel.evaluator, self.plan, self.config
        columns, rows = plan.view.extents[plan.column], plan.row_count
        chunks = rows.ceildiv(config.mc) if config.mc else rows.minimum(1)
        panels = columns.ceildiv(config.columns)
        outer = [*(plan.view.extents[d] for d in plan.shared), chunks, panels]
        total = Expr.of(1)
        for extent in outer:
            total = total * extent
        scratch = config.mr * config.columns if plan.heavy or config.stream else 0
        space = self._panel_elements() + scratch
        sizes, count, height = [ev.emit(e) for e in outer], ev.emit(columns), ev.emit(rows)

        def unit(u: Index) -> None:
            *shared, chunk, panel = delinearize(u, sizes)
            loops: Loops = [None] * len(plan.view.extents)
            for d, x in zip(plan.shared, shared, strict=True):
                loops[d] = x
            low = chunk * config.mc
            high = (low + config.mc).min(height) if config.mc else height
            self._unit(loops, panel * config.columns, count, low, high)

        loop(begin, end, 1, unit, index=self.kernel.index)
        return Grid(units=total, workspace=space * byte_width(self._element))

    def _unit(self, loops: Loops, first: Index, extent: Index, low: Index, high: Index) -> None:
        """Rows [low, high) of the columns from `first` on."""
        config, lanes = self.config, self.config.lanes
        panel = self._memory(Expr.of(0)) if self._copies else None
        left = extent - first
        if self.config.stream:
            self._stream(loops, first, left, low, high)
            return
        if panel is not None:
            PanelCopy(self.kernel.evaluator, self.plan, config, panel).copy(loops, first, left, extent)
        block = Block(self.kernel.evaluator, self.plan, config, panel)

        def whole() -> None:
            self._rows(block, loops, first, Index(0), config.nv, None, low, high)

        def part() -> None:
            known = self.plan.view.extents[self.plan.column].constant
            if known is not None:
                count = known % config.columns
                self._rows(block, loops, first, Index(0), -(-count // lanes), Index(count), low, high)
                return
            loop(0, (left + (lanes - 1)) // lanes, 1,
                 lambda j: self._rows(block, loops, first, j * lanes, 1, left - j * lanes, low, high), index=self.kernel.index)

        full = self._full()
        when(left.ge(config.columns) if full is None else full, whole, part)

    def _stream(self, loops: Loops, first: Index, left: Index, low: Index, high: Index) -> None:
        """One row after the other: dot products where the columns are transposed, else sums in the workspace."""
        block = Block(self.kernel.evaluator, self.plan, self.config, None)
        stream = Dot(block) if self.plan.transposed else Stream(block, self._memory(Expr.of(0)))

        def row(i: Index) -> None:
            point = self._points(loops, i, 1)[0]
            stream.row(point, first, left, lambda column, value, mask: self._store(point, column, value, mask))

        loop(low, high, 1, row, index=self.kernel.index)

    def _full(self) -> bool | None:
        """Are all panels full, or none? None: it depends on the panel."""
        columns = self.plan.view.extents[self.plan.column]
        if columns.divisible_by(self.config.columns):
            return True
        return False if columns.constant is not None and columns.constant < self.config.columns else None

    def _rows(self, block: Block, loops: Loops, first: Index, at: Index, vectors: int, left: Index | None, low: Index,
              high: Index) -> None:
        """Blocks of mr rows, then what is left: one block of its height, or one of each power of two in it.

        The columns are some vectors, `at` columns into the panel; left: how many columns there are, None when all.
        """
        mr, lanes = self.config.mr, self.config.lanes
        places = tuple(at + j * lanes for j in range(vectors))

        def mask(j: Index | int) -> ir.Value | None:
            return None if left is None else lane_mask(left - Index(j) * lanes, lanes, self.kernel.index)

        columns = Columns(tuple(first + x for x in places), tuple(mask(j) for j in range(vectors)), places)

        def run(row: Index, height: int) -> None:
            self._block(block, loops, columns, mask, row, height)

        row_blocks(low, high, mr, self.config.exact_tails, self.kernel.index, run)

    def _block(self, block: Block, loops: Loops, columns: Columns, mask: Mask, row: Index, height: int) -> None:
        """Sums of a block, then what follows them: unrolled when it is light, else in a loop over sums in the workspace."""
        points = self._points(loops, row, height)
        sums = block.accumulate(points, columns)
        if not self.plan.heavy or height * len(columns.first) < 4:
            with self.kernel.evaluator.kept():
                for point, vectors in zip(points, sums, strict=True):
                    for j, value in enumerate(vectors):
                        self._store(point, columns.first[j], value, columns.masks[j])
            return
        scratch = self._memory(self._panel_elements())
        for i, vectors in enumerate(sums):
            for j, value in enumerate(vectors):
                scratch.store(value, [Index(i), Index.ramp(j * self.config.lanes, self.config.lanes)])

        def each(i: Index) -> None:
            point = self._points(loops, row + i, 1)[0]

            def vector(j: Index) -> None:
                at = j * self.config.lanes
                value = scratch.load([i, Index.ramp(at, self.config.lanes)])
                self._store(point, columns.first[0] + at, value, mask(j))

            loop(0, len(columns.first), 1, vector, index=self.kernel.index)

        loop(0, height, 1, each, index=self.kernel.index)

    def _points(self, loops: Loops, row: Index, height: int) -> list[Loops]:
        sizes = [self.kernel.evaluator.emit(self.plan.view.extents[d]) for d in self.plan.rows]
        return row_points(loops, self.plan.rows, sizes, row, height)

    def _store(self, point: Loops, column: Index, value: ir.Value, mask: ir.Value | None) -> None:
        Results(self.kernel, self.plan, self.config.lanes).store(point, column, value, mask)
