"""Copies a chunk of rows of the operand that rows differ in to [row][k] in the workspace, through the evaluator.

So a block reads a few sequential runs, whatever lies between the rows, what is converted is converted once, and the chunk
stays in the second-level cache while panels of columns pass. Where the operand is contiguous along the rows, the rows of a block
lie side by side, as [block][k][row of the block]: values of one k are read and written together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.passes.codegen.emit import Memory, gep, lane_mask, loop, when
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import Loops, row_points
from tilewright.passes.families.host.host_matmul_words import Words
from tilewright.passes.mlir import ir


@dataclass(frozen=True)
class RowCopy:
    """rows: [row of the chunk][k], holding the factors as they are multiplied, in the accumulator's type, or words of several.

    side: values of k in a word. span: first value of the one k loop and the one beyond the last, where a piece of k is copied.
    together: rows of a block that lie side by side; 0 where each row is by itself.
    """

    evaluator: Evaluator
    plan: Plan
    lanes: int
    rows: Memory
    span: tuple[Index, Index] | None = None
    side: int = 1
    together: int = 0

    def copy(self, loops: Loops, low: Index, high: Index) -> None:
        """Rows [low, high)."""
        if self.together:
            self._blocks(loops, low, high)
            return
        sizes = [self.evaluator.emit(self.plan.view.extents[d]) for d in self.plan.rows]

        def row(i: Index) -> None:
            point = row_points(loops, self.plan.rows, sizes, i, 1)[0]
            self._nest(point, 0, Index(0), i - low)

        loop(low, high, 1, row, index=self.rows.index)

    def block(self, first: Index) -> Memory:
        """The copied rows from number `first` of the chunk on, of one block where they lie side by side."""
        if self.together:
            within = first % self.together
            start = (first - within) * self.rows.strides[0] + within
            at = gep(self.rows.pointer, start.value(self.rows.index), self.rows.element)
            return replace(self.rows, pointer=at, strides=(Index(1), Index(self.together)))
        at = gep(self.rows.pointer, (first * self.rows.strides[0]).value(self.rows.index), self.rows.element)
        return replace(self.rows, pointer=at)

    def _blocks(self, loops: Loops, low: Index, high: Index) -> None:
        """Rows [low, high) for one value of k after the other, so that every line of the operand is read once."""
        each, count = self.together, high - low
        first, end = self.span or (Index(0), self.evaluator.emit(self.plan.depth))
        whole = count // each * each

        def at(k: Index) -> None:
            def some(row: Index, mask: ir.Value | None) -> None:
                point = list(loops)
                point[self.plan.rows[0]], point[self.plan.view.k[0]] = Index.ramp(low + row, each), first + k
                self._put(point, row, Index.ramp(k * each, each), mask, every=True)

            loop(0, whole, each, lambda row: some(row, None), index=self.rows.index)
            when(whole.lt(count), lambda: some(whole, lane_mask(count - whole, each, self.rows.index)))

        loop(0, end - first, 1, at, index=self.rows.index)

    def _nest(self, point: Loops, depth: int, linear: Index, to: Index) -> None:
        k, lanes = self.plan.view.k, self.lanes
        if not k:
            self._put(point, to, Index(0), None)
            return
        low, extent = Index(0), self.evaluator.emit(self.plan.view.extents[k[depth]])
        if self.span is not None:
            low, extent = self.span[0], self.span[1] - self.span[0]

        def at(i: Index) -> Loops:
            return [low + i if d == k[depth] else x for d, x in enumerate(point)]

        if depth < len(k) - 1:
            loop(0, extent, 1, lambda i: self._nest(at(i), depth + 1, linear * extent + i, to), index=self.rows.index)
            return

        each = self.side
        base = linear * extent.ceildiv(each)

        def vector(i: Index, left: Index | None) -> None:
            mask = None if left is None else lane_mask(left.ceildiv(each), lanes, self.rows.index)
            place = Index.ramp(base + i, lanes)
            if each > 1:
                words = Words(self.evaluator, self.plan, lanes, each).along(self.plan.narrow, point, low + i * each, left)
                self.rows.store(words, [to, place], mask)
                return
            here = list(point)
            here[k[depth]] = Index.ramp(low + i, lanes)
            self._put(here, to, place, mask)

        steps = extent // (lanes * each) * lanes
        loop(0, steps, lanes, lambda i: vector(i, None), index=self.rows.index)
        over = extent - steps * each
        when(Index(0).lt(over), lambda: vector(steps, over))

    def _put(self, point: Loops, row: Index, k: Index, mask: ir.Value | None, every: bool = False) -> None:
        """every: of what is stored, also what the mask leaves out of what is read."""
        view, which = self.plan.view, self.plan.narrow
        value = self.evaluator.element(view.operand(which), coords_of(view, which, point), mask)
        self.rows.store(ProductCode(view.product).factor(which, value), [row, k], None if every else mask)
