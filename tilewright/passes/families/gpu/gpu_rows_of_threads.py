"""RowsOfThreads: rows of a GPU kernel, a group of threads on each; what the kernels of family gpu_rows have alike."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.codegen.emit import Memory, all_of, byte_width, integer_type, lanes_of, loop
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_space import CollapsedLoops, Point
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.gpu.gpu_join import join_threads
from tilewright.passes.families.row_emitter import At, RowEmitter
from tilewright.passes.families.row_reduction import Combiner
from tilewright.passes.mlir import arith, ir, llvm, vector
from tilewright.passes.spaces.gpu.gpu_rows import GpuRowsConfig
from tilewright.runtime.limits import WARP
from tilewright.runtime.shape import Expr

Chunks = Sequence[tuple[Index, ir.Value | None]]  # columns of a vector, and the condition under which it is in the row
_LATE_BYTES = 192  # of a thread's registers, for what later sweeps read: a thread has 32 elements of a row in others


class RowsOfThreads(RowEmitter):
    """Groups of threads on rows: which columns a thread has, and what the threads of a row join."""

    def __init__(self, kernel: GpuKernel, program: RowProgram, config: GpuRowsConfig) -> None:
        super().__init__(kernel, program, config.vec)
        self.gpu, self.config = kernel, config
        rows, columns = (CollapsedLoops(kernel, axes, program.frame) for axes in (program.rows, program.columns))
        self.lanes = self._lanes(columns)
        columns.guard(self.lanes)
        self.rows, self.columns = rows, columns.assume_multiple(self.lanes)
        self.thread = kernel.thread()
        self.live: ir.Value | bool = True
        self.first: ir.Value | bool = True

    def _lanes(self, columns: CollapsedLoops) -> int:
        lanes = self.config.vec
        while lanes > 1 and not columns.may_be_multiple(lanes):
            lanes //= 2
        return lanes

    def emit(self) -> Grid:
        self.sweep(self._start(), ahead=True)
        return self._blocks(), Expr.of(1), Expr.of(1)

    def sweep(self, at: At, ahead: bool = False) -> None:
        """All sweeps over the row at these coordinates. ahead: what later sweeps read beside the first is loaded with what that
        reads, where it fits the registers: it is under way while the threads of the row join their sums."""
        unrolled = self.config.vectors_in_registers > 0
        chunks = self._kept_chunks() if unrolled else []
        with self.ev.kept():
            if ahead:
                self._load_late(at, chunks)
            for number in range(len(self.program.sweeps)):
                everything = (Index(0), self.columns.extent)
                totals = self._unrolled(number, at, chunks) if unrolled else self._looped(number, at, *everything)
                self.finish(number, at, totals)

    def _blocks(self) -> Expr:
        """Blocks side by side along the rows."""
        return self.gpu.units

    def _start(self) -> list[Index]:
        """Finds the thread's row and first column; gives the coordinates of the row."""
        kernel = self.gpu
        kernel.bound(self.rows.size)
        kernel.bound(self.columns.size)
        unit = kernel.loops[0].at(self.ev, (kernel.block_id(),))
        at = self.begin(unit.first("rows") + self.thread // self.config.per_row)
        if self.config.per_row == self.config.threads:
            self.live = True  # a block for each row that there is
        elif self.config.per_row == WARP:
            self._leave()
        return at

    def _leave(self) -> None:
        """Warps beyond the last row end here, which none of the others waits for. What follows is then under no condition: into
        the branch of one the assembler moves loads that are wanted early. As text: LLVM's return would end a block of code."""
        if not isinstance(self.live, bool):
            text = "{\n.reg .pred live;\nsetp.ne.b32 live, $0, 0;\n@!live exit;\n}"
            llvm.InlineAsmOp(None, [arith.extui(integer_type(32), self.live)], text, "r,~{memory}", has_side_effects=True)
        self.live = True

    def begin(self, row: Index) -> list[Index]:
        """The thread goes to a row; gives its coordinates."""
        c = self.config
        self.live = row.lt(self.rows.extent)
        self.column = (self.thread % c.per_row) * self.lanes
        self.first = True if c.per_row == 1 else self.column.eq(0)
        self.row = row.min(self.rows.extent - 1)
        return self._frame(self.rows.point(self.row))

    def _frame(self, *points: Point) -> list[Index]:
        at = [Index(0)] * len(self.sizes)
        for point in points:
            for axis, c in point.items():
                at[axis] = c
        return at

    def _with(self, at: At, column: Index) -> list[Index]:
        here = list(at)
        for axis, c in self.columns.point(Index.ramp(column, self.lanes)).items():
            here[axis] = c
        return here

    # -- sweeps

    def _kept_chunks(self) -> list[tuple[Index, ir.Value | None]]:
        """Columns of each vector that a thread keeps in registers, and the condition under which it is in the row."""
        c, size = self.config, self.columns.size
        step = c.per_row * self.lanes
        capacity = c.vectors_in_registers * step
        self.gpu.require((size - capacity).maximum(0), f"rows of at most {capacity} columns")
        count = c.vectors_in_registers if size.constant is None else -(-size.constant // step)
        found: list[tuple[Index, ir.Value | None]] = []
        for i in range(count):
            column = self.column + i * step
            whole = size.constant is not None and (i + 1) * step <= size.constant
            inside = True if whole else column.lt(self.columns.extent)
            found.append((column, None if isinstance(inside, bool) else inside))
        return found

    def _unrolled(self, number: int, at: At, chunks: Chunks) -> list[ir.Value]:
        joins = self.joins(number)
        sums = [c.neutral(self.lanes) for c in joins]
        for column, inside in chunks:
            sums = self.step(number, self._with(at, column), inside, sums, held=True)
        return self._join(joins, sums)

    def _load_late(self, at: At, chunks: Chunks) -> None:
        """Elements of operands that only later sweeps read; the evaluator keeps them."""
        reads = self.program.late_reads()
        size = sum(byte_width(ir.RankedTensorType(v.type).element_type) for v in reads) * self.lanes * len(chunks)
        if size > _LATE_BYTES:
            return
        for value, axes in reads.items():
            for column, inside in chunks:
                self.ev.element(value, self.coords(axes, self._with(at, column)), inside)

    def _looped(self, number: int, at: At, begin: Index, end: Index) -> list[ir.Value]:
        """One sweep over the columns from `begin` to `end`."""
        if not self.program.sweeps[number].walks:
            return []
        c, joins = self.config, self.joins(number)
        step = c.per_row * self.lanes
        wide = step * c.unroll

        def steps(count: int, first: Index, *sums: ir.Value) -> list[ir.Value]:
            found = list(sums)
            for i in range(count):
                column = (first + i * step).known_multiple(self.lanes)
                found = self.step(number, self._with(at, column), None, found)
            return found

        sums = [c.neutral(self.lanes) for c in joins]
        whole = begin
        if c.unroll > 1:
            whole = end - (end - begin) % wide
            sums = loop(self.column + begin, whole, wide, lambda i, *s: steps(c.unroll, i, *s), sums, self.index)
        sums = loop(self.column + whole, end, step, lambda i, *s: steps(1, i, *s), sums, self.index)
        return self._join(joins, sums)

    def _join(self, joins: Sequence[Combiner], sums: Sequence[ir.Value]) -> list[ir.Value]:
        """The sums of all lanes and threads of the row."""
        found = []
        for c, value in zip(joins, sums, strict=True):
            lanes = [vector.extract(value, [], [i]) for i in range(lanes_of(value))] if lanes_of(value) > 1 else [value]
            found.append(join_threads(self.gpu, c, c.join(lanes), self.config.per_row, self.thread))
        return found

    # -- stores

    def store(self, memory: Memory, element: ir.Value, coords: Sequence[Index], mask: ir.Value | None) -> None:
        """Threads of rows that there are. Those beyond the last read the last row, be it written over by then or not: it reaches
        no sum of other rows, and what is looked up by it lies within its tensor whatever it is."""
        self._store(memory, element, coords, all_of([mask, self.live]))

    def store_once(self, memory: Memory, element: ir.Value, coords: Sequence[Index], mask: ir.Value | None) -> None:
        """The first thread of a row."""
        self._store(memory, element, coords, all_of([mask, self.live, self.first]))

    def _store(self, memory: Memory, element: ir.Value, coords: Sequence[Index], mask: ir.Value | bool) -> None:
        memory.store(element, coords, None if isinstance(mask, bool) else mask)
