"""A few rows times a transposed matrix that is read once: dot products along k, some columns at a time.

Each column sums in a vector of its own for each row of a block; the vectors are folded into each other at the end, so that
their sums are one vector of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import lane_mask, loop
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.families.host.host_matmul_block import Block, Loops
from tilewright.passes.families.host.host_matmul_rows import row_blocks
from tilewright.passes.mlir import arith, ir, vector

_STREAMS = 8  # columns read at once: rows that lie a multiple of a page apart share the ways of a cache set
Points = Callable[[Index, int], list[Loops]]
Store = Callable[[Loops, Index, ir.Value, "ir.Value | None"], None]


@dataclass(frozen=True)
class Dot:
    """block: reads operands. store(point, column, sum, mask) takes each vector."""

    block: Block

    def row(self, point: Loops, first: Index, left: Index, store: Store) -> None:
        """The columns [first, first + min(left, columns of a unit)) of one row, a vector of them at a time."""
        lanes = self.block.config.lanes
        self._each(lanes, left, lambda c: self._some([point], c, lanes, first, left, store))

    def rows(self, points: Points, low: Index, high: Index, first: Index, left: Index, store: Store) -> None:
        """Those of the rows [low, high); points(row, height): the coordinates of consecutive ones."""
        config, index = self.block.config, self.block.evaluator.index_type
        if config.mr == 1:
            loop(low, high, 1, lambda row: self.row(points(row, 1)[0], first, left, store), index=index)
            return
        width = next(n for n in (8, 4, 2, 1) if n == 1 or n <= min(config.stream, config.lanes))

        def column(c: Index) -> None:
            row_blocks(low, high, config.mr, config.exact_tails, index,
                       lambda row, height: self._some(points(row, height), c, width, first, left, store))

        self._each(width, left, column)

    def _each(self, step: int, left: Index, body: Callable[[Index], None]) -> None:
        loop(0, left.min(self.block.config.columns), step, body, index=self.block.evaluator.index_type)

    def _some(self, points: Sequence[Loops], c: Index, width: int, first: Index, left: Index, store: Store) -> None:
        """The columns from `first + c` on, `width` of them, a power of two, of some rows."""
        lanes, product, rows = self.block.config.lanes, ProductCode(self.block.plan.view.product), len(points)
        last = first + left - 1
        columns = [(first + c + i).min(last) for i in range(width)]
        sums: list[list[ir.Value]] = [[] for _ in points]
        for group in (columns[i : i + _STREAMS] for i in range(0, width, _STREAMS)):
            found = self._nest(points, group, 0, [product.zero(lanes)] * (len(group) * rows))
            for n, row in enumerate(sums):
                row += found[n * len(group) : (n + 1) * len(group)]
        for point, vectors in zip(points, sums, strict=True):
            mask = lane_mask((left - c).min(width) if width < lanes else left - c, lanes, self.block.evaluator.index_type)
            store(point, first + c, _folded(vectors, product), mask)

    def _nest(self, points: Sequence[Loops], columns: list[Index], depth: int, sums: list[ir.Value]) -> list[ir.Value]:
        """The loops over k; the innermost takes vectors, then what is left under a mask, in a loop of one step at most."""
        k, lanes, ev = self.block.plan.view.k, self.block.config.lanes, self.block.evaluator
        extent = ev.emit(self.block.plan.view.extents[k[depth]])

        def at(i: Index) -> list[Loops]:
            return [[i if d == k[depth] else x for d, x in enumerate(point)] for point in points]

        if depth < len(k) - 1:
            return loop(0, extent, 1, lambda i, *c: self._nest(at(i), columns, depth + 1, list(c)), sums, ev.index_type)
        count = lanes * self.block.step
        whole = extent - extent % count
        left = None

        def step(i: Index, *carried: ir.Value) -> list[ir.Value]:
            return self._step(at(i), i, columns, carried, left)

        sums = loop(0, whole, count, step, sums, ev.index_type)
        if (extent - whole).const == 0:
            return sums
        left = extent - whole
        return loop(whole, extent, count, step, sums, ev.index_type)

    def _step(self, points: Sequence[Loops], start: Index, columns: list[Index], sums: Sequence[ir.Value],
              left: Index | None) -> list[ir.Value]:
        """Adds one vector of k, of which `left` values are there, to the sums of all rows and columns."""
        plan, done = self.block.plan, list(sums)
        rows = [self._along(plan.narrow, point, start, left) for point in points]
        for j, column in enumerate(columns):
            wide = self._along(plan.wide, [column if d == plan.column else x for d, x in enumerate(points[0])], start, left)
            for n, a in enumerate(rows):
                number = n * len(columns) + j
                done[number] = self.block.multiply_add(a, wide, done[number])
        return done

    def _along(self, which: int, loops: Loops, start: Index, left: Index | None) -> ir.Value:
        """A vector of a factor along the last k loop, zero where there is none."""
        view, lanes = self.block.plan.view, self.block.config.lanes
        if self.block.step > 1:
            return self.block.words.along(which, loops, start, left)
        here = [Index.ramp(start, lanes) if d == view.k[-1] else x for d, x in enumerate(loops)]
        mask = None if left is None else lane_mask(left, lanes, self.block.evaluator.index_type)
        value = self.block.evaluator.element(view.operand(which), coords_of(view, which, here), mask)
        return self._kept(splat_to(ProductCode(view.product).factor(which, value), lanes), mask)

    def _kept(self, value: ir.Value, mask: ir.Value | None) -> ir.Value:
        """Zero in the lanes that are off."""
        if mask is None:
            return value
        return arith.select(mask, value, ProductCode(self.block.plan.view.product).zero(self.block.config.lanes))


def _folded(vectors: Sequence[ir.Value], product: ProductCode) -> ir.Value:
    """The sum of the lanes of each of n vectors in the first n lanes, n a power of two: vectors are halved, then lanes."""
    lanes, found, width = ir.VectorType(vectors[0].type).shape[0], list(vectors), 1
    while width < lanes:
        even = [lane if not lane & width else lanes + lane - width for lane in range(lanes)]
        odd = [lane + width if not lane & width else lanes + lane for lane in range(lanes)]
        if len(found) > 1:
            found = [product.add(vector.shuffle(a, b, even), vector.shuffle(a, b, odd))
                     for a, b in zip(found[::2], found[1::2], strict=True)]
        else:
            found = [product.add(found[0], vector.shuffle(found[0], found[0], [lane ^ width for lane in range(lanes)]))]
        width *= 2
    return found[0]
