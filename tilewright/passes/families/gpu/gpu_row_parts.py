"""RowParts: what the blocks that share a row found, in the workspace between two launches."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.codegen.emit import byte_width, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.row_reduction import Combiner, combiners
from tilewright.passes.mlir import ir
from tilewright.runtime.shape import Expr


class RowParts:
    """Partial totals [accumulator][block][row] of all sweeps, in slots as wide as the widest of them."""

    def __init__(self, kernel: GpuKernel, program: RowProgram, blocks: int) -> None:
        self.kernel, self.blocks = kernel, blocks
        self.rows = Expr.of(1)
        for axis in program.rows:
            self.rows = self.rows * program.frame[axis]
        self._sweeps = [[c for op in sweep.reductions for c in combiners(op)] for sweep in program.sweeps]
        self._count = sum(map(len, self._sweeps))
        self._slot = max(byte_width(c.wide) for joins in self._sweeps for c in joins)

    def bytes(self) -> Expr:
        size = self.rows * (self._count * self.blocks * self._slot)
        self.kernel.bound(size)
        return size

    def keep(self, sweep: int, row: Index, block: Index, totals: Sequence[ir.Value], mine: ir.Value | bool) -> None:
        """Stores a block's totals of a sweep, by the threads for which `mine` holds."""

        def store() -> None:
            for number, (c, total) in enumerate(zip(self._sweeps[sweep], totals, strict=True)):
                self._memory(c).store(total, self._at(sweep, number, block, row))

        when(mine, store)

    def totals(self, sweep: int, row: Index) -> list[ir.Value]:
        """The totals of a sweep over all blocks, joined in the order of the blocks."""
        found = []
        for number, c in enumerate(self._sweeps[sweep]):
            memory = self._memory(c)
            found.append(c.join([memory.load(self._at(sweep, number, Index(b), row)) for b in range(self.blocks)]))
        return found

    def _at(self, sweep: int, number: int, block: Index, row: Index) -> list[Index]:
        first = sum(map(len, self._sweeps[:sweep]))
        return [Index(first + number), block, row, Index(0)]

    def _memory(self, c: Combiner) -> GpuMemory:
        sizes = [Index(self._count), Index(self.blocks), self.kernel.evaluator.emit(self.rows)]
        return self.kernel.workspace_tensor(c.wide, [*sizes, Index(self._slot // byte_width(c.wide))])
