"""One row times a transposed matrix that is read once: dot products along k, as many columns at a time as a vector has lanes.

Each column sums in its own vector; the vectors are transposed at the end, and their sum is one vector of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.passes.codegen.emit import lane_mask, loop
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.families.host.host_matmul_block import Block, Loops
from tilewright.passes.families.host.host_matmul_panel import transpose
from tilewright.passes.mlir import arith, ir

_STREAMS = 8  # columns read at once: rows that lie a multiple of a page apart share the ways of a cache set
Store = Callable[[Index, ir.Value, "ir.Value | None"], None]


@dataclass(frozen=True)
class Dot:
    """block: reads operands."""

    block: Block

    def row(self, point: Loops, first: Index, left: Index, store: Store) -> None:
        """The columns [first, first + min(left, columns of a unit)) of one row; store(column, sum, mask) takes each vector."""
        lanes, index = self.block.config.lanes, self.block.evaluator.index_type
        last = first + left - 1

        def vector(c: Index) -> None:
            columns = [(first + c + i).min(last) for i in range(lanes)]
            zero = ProductCode(self.block.plan.view.product).zero(lanes)
            sums: list[ir.Value] = []
            for group in (columns[i : i + _STREAMS] for i in range(0, lanes, _STREAMS)):
                sums += self._nest(point, group, 0, [zero] * len(group))
            rows = transpose(sums)
            while len(rows) > 1:
                rows = [ProductCode(self.block.plan.view.product).add(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
            store(first + c, rows[0], lane_mask(left - c, lanes, index))

        loop(0, left.min(self.block.config.columns), lanes, vector, index=index)

    def _nest(self, point: Loops, columns: list[Index], depth: int, sums: list[ir.Value]) -> list[ir.Value]:
        """The loops over k; the innermost takes vectors, then what is left under a mask, in a loop of one step at most."""
        k, lanes, ev = self.block.plan.view.k, self.block.config.lanes, self.block.evaluator
        extent = ev.emit(self.block.plan.view.extents[k[depth]])

        def at(i: Index) -> Loops:
            return [i if d == k[depth] else x for d, x in enumerate(point)]

        if depth < len(k) - 1:
            return loop(0, extent, 1, lambda i, *c: self._nest(at(i), columns, depth + 1, list(c)), sums, ev.index_type)
        count = lanes * self.block.step
        whole = extent - extent % count
        left = None

        def step(i: Index, *carried: ir.Value) -> list[ir.Value]:
            return self._step(at(i), i, columns, list(carried), left)

        sums = loop(0, whole, count, step, sums, ev.index_type)
        if (extent - whole).const == 0:
            return sums
        left = extent - whole
        return loop(whole, extent, count, step, sums, ev.index_type)

    def _step(self, point: Loops, start: Index, columns: list[Index], sums: list[ir.Value], left: Index | None) -> list[ir.Value]:
        """Adds one vector of k, of which `left` values are there, to the sums of all columns."""
        plan = self.block.plan
        a = self._along(plan.narrow, point, start, left)
        done = []
        for column, total in zip(columns, sums, strict=True):
            here = [column if d == plan.column else x for d, x in enumerate(point)]
            done.append(self.block.multiply_add(a, self._along(plan.wide, here, start, left), total))
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
