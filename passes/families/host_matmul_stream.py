"""One row times a matrix that is read once: a few values of k at a time along long pieces of its rows.

Memory sees a few sequential reads, which the hardware prefetches; the sums of the piece stay in the workspace, in the
first-level cache. Faster than sums in registers where the matrix comes from beyond the second-level cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from passes.emit import Memory, lane_mask, loop, when
from passes.families.host_matmul_block import Block, Columns, Loops
from passes.index import Index
from passes.mlir import ir

Store = Callable[[Index, ir.Value, "ir.Value | None"], None]


@dataclass(frozen=True)
class Stream:
    """block: reads operands; sums: a row of columns in the workspace."""

    block: Block
    sums: Memory

    def row(self, point: Loops, first: Index, left: Index, store: Store) -> None:
        """The columns [first, first + min(left, columns of a unit)) of one row; store(column, sum, mask) takes each vector."""
        plan, lanes = self.block.plan, self.block.config.lanes
        count = left.min(self.block.config.columns)
        zero = plan.view.product.zero(lanes)
        loop(0, count, lanes, lambda c: self._put(c, zero), index=self.sums.index)
        self._nest(point, 0, first, count)

        def finish(c: Index, mask: ir.Value | None) -> None:
            store(first + c, self._get(c), mask)

        self._vectors(count, finish)

    def _nest(self, point: Loops, depth: int, first: Index, count: Index) -> None:
        """The loops over k; the innermost takes `stream` values at a time, then what is left one by one."""
        k, ev = self.block.plan.view.k, self.block.evaluator
        if not k:
            self._pass([point], first, count)
            return
        extent = ev.emit(self.block.plan.view.extents[k[depth]])

        def at(i: Index) -> Loops:
            return [i if d == k[depth] else x for d, x in enumerate(point)]

        if depth < len(k) - 1:
            loop(0, extent, 1, lambda i: self._nest(at(i), depth + 1, first, count), index=self.sums.index)
            return
        several, each = self.block.config.stream, self.block.step
        whole = extent - extent % several
        loop(0, whole, several, lambda i: self._pass([at(i + s) for s in range(0, several, each)], first, count),
             index=self.sums.index)
        even = extent - extent % each
        loop(whole, even, each, lambda i: self._pass([at(i)], first, count), index=self.sums.index)
        if (extent - even).const != 0:
            loop(even, extent, each, lambda i: self._pass([at(i)], first, count, alone=True), index=self.sums.index)

    def _pass(self, points: list[Loops], first: Index, count: Index, alone: bool = False) -> None:
        """Adds the products of some values of k to all sums, in two chains; alone: it is one value, half a pair."""
        product = self.block.plan.view.product
        shared = [self.block.narrow(p, alone=alone) for p in points]

        def vector(c: Index, mask: ir.Value | None) -> None:
            chains = [self._get(c), product.zero(self.block.config.lanes)]
            columns = Columns((first + c,), (mask,), (c,))
            for s, (p, a) in enumerate(zip(points, shared, strict=True)):
                self.block.prefetch(p, columns)
                chains[s % 2] = self.block.multiply_add(a, self.block.wide(p, columns, 0, Index(0), alone), chains[s % 2])
            self._put(c, product.add(*chains) if len(points) > 1 else chains[0])

        self._vectors(count, vector)

    def _vectors(self, count: Index, body: Callable[[Index, ir.Value | None], None]) -> None:
        """body(column, mask) for whole vectors, then for the last one under a mask."""
        lanes = self.block.config.lanes
        whole = count - count % lanes
        loop(0, whole, lanes, lambda c: body(c, None), index=self.sums.index)
        over = count - whole
        when(Index(0).lt(over), lambda: body(whole, lane_mask(over, lanes, self.sums.index)))

    def _get(self, c: Index) -> ir.Value:
        return self.sums.load([Index(0), Index.ramp(c, self.block.config.lanes)])

    def _put(self, c: Index, value: ir.Value) -> None:
        self.sums.store(value, [Index(0), Index.ramp(c, self.block.config.lanes)])
