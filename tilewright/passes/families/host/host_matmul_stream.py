"""A few rows times a matrix that is read once: a few values of k at a time along long pieces of its rows.

Memory sees a few sequential reads, which the hardware prefetches; the sums of the piece stay in the workspace, in the
first-level cache. Faster than sums in registers where the matrix comes from beyond the second-level cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.passes.codegen.emit import Memory, lane_mask, loop, when
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.families.host.host_matmul_block import Block, Columns, Loops
from tilewright.passes.families.host.host_matmul_rows import row_blocks
from tilewright.passes.mlir import ir

Points = Callable[[Loops, Index, int], list[Loops]]
Store = Callable[[Loops, Index, ir.Value, "ir.Value | None"], None]


@dataclass(frozen=True)
class Stream:
    """Rows [low, high) of the columns [first, first + count).

    block: reads operands. sums: [row of these][column] in the workspace. points(loops, row, height): the coordinates of
    consecutive rows. alone: there is one row.
    """

    block: Block
    sums: Memory
    points: Points
    low: Index
    high: Index
    first: Index
    count: Index
    alone: bool

    def run(self, loops: Loops, store: Store) -> None:
        """All of k; store(point, column, sum, mask) takes each vector of each row."""
        zero = ProductCode(self.block.plan.view.product).zero(self.block.config.lanes)

        def clear(row: Index) -> None:
            loop(0, self.count, self.block.config.lanes, lambda c: self._put(row, c, zero), index=self.sums.index)

        def finish(row: Index) -> None:
            point = self.points(loops, row, 1)[0]
            self._vectors(lambda c, mask: store(point, self.first + c, self._get(row, c), mask))

        self._each_row(clear)
        self._nest(loops, 0)
        self._each_row(finish)

    def _each_row(self, body: Callable[[Index], None]) -> None:
        if self.alone:
            body(self.low)
        else:
            loop(self.low, self.high, 1, body, index=self.sums.index)

    def _nest(self, loops: Loops, depth: int) -> None:
        """The loops over k; the innermost takes `stream` values at a time, then what is left one by one."""
        k, ev = self.block.plan.view.k, self.block.evaluator
        if not k:
            self._rows([loops])
            return
        extent = ev.emit(self.block.plan.view.extents[k[depth]])

        def at(i: Index) -> Loops:
            return [i if d == k[depth] else x for d, x in enumerate(loops)]

        if depth < len(k) - 1:
            loop(0, extent, 1, lambda i: self._nest(at(i), depth + 1), index=self.sums.index)
            return
        several, each = self.block.config.stream, self.block.step
        whole = extent - extent % several
        loop(0, whole, several, lambda i: self._rows([at(i + s) for s in range(0, several, each)]), index=self.sums.index)
        even = extent - extent % each
        loop(whole, even, each, lambda i: self._rows([at(i)]), index=self.sums.index)
        if (extent - even).const != 0:
            loop(even, extent, each, lambda i: self._rows([at(i)], extent - even), index=self.sums.index)

    def _rows(self, values: list[Loops], left: Index | None = None) -> None:
        """Adds the products of some values of k, given by their loops, to all sums; left: values of the one word."""

        def some(row: Index, height: int) -> None:
            self._pass(row, [self.points(loops, row, height) for loops in values], left)

        if self.alone:
            some(self.low, 1)
        else:
            row_blocks(self.low, self.high, self.block.config.mr, self.block.config.exact_tails, self.sums.index, some)

    def _pass(self, row: Index, points: list[list[Loops]], left: Index | None) -> None:
        """The same for some rows, points[value of k][row]; a single row sums in two chains."""
        product = ProductCode(self.block.plan.view.product)
        shared = [[self.block.narrow(p, left=left) for p in rows] for rows in points]
        count = len(points[0])

        def vector(c: Index, mask: ir.Value | None) -> None:
            columns = Columns((self.first + c,), (mask,), (c,))
            sums = [self._get(row + i, c) for i in range(count)]
            other = [product.zero(self.block.config.lanes)] if count == 1 and len(points) > 1 else []
            for s, rows in enumerate(points):
                self.block.prefetch(rows[0], columns)
                wide = self.block.wide(rows[0], columns, 0, Index(0), left)
                chain = other if other and s % 2 else sums
                chain[:] = [self.block.multiply_add(a, wide, total) for a, total in zip(shared[s], chain, strict=True)]
            for i, total in enumerate(sums):
                self._put(row + i, c, product.add(total, other[0]) if other else total)

        self._vectors(vector)

    def _vectors(self, body: Callable[[Index, ir.Value | None], None]) -> None:
        """body(column, mask) for whole vectors, then for the last one under a mask."""
        lanes = self.block.config.lanes
        whole = self.count - self.count % lanes
        loop(0, whole, lanes, lambda c: body(c, None), index=self.sums.index)
        over = self.count - whole
        when(Index(0).lt(over), lambda: body(whole, lane_mask(over, lanes, self.sums.index)))

    def _place(self, row: Index, c: Index) -> list[Index]:
        return [Index(0) if self.alone else row - self.low, Index.ramp(c, self.block.config.lanes)]

    def _get(self, row: Index, c: Index) -> ir.Value:
        return self.sums.load(self._place(row, c))

    def _put(self, row: Index, c: Index, value: ir.Value) -> None:
        self.sums.store(value, self._place(row, c))
