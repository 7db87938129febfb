"""The register block of a host matmul: h rows by v vectors of accumulators, carried through the loops over k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from passes.emit import Memory, byte_width, loop
from passes.evaluator import Evaluator, evaluate
from passes.families.host_matmul_plan import Plan
from passes.index import Index, splat_to
from passes.mlir import ir, llvm, position
from passes.spaces.host_matmul import HostMatmulConfig

Loops = list[Index | None]
_IN_FLIGHT = 8  # multiply-adds that hide the latency of one
_LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class Columns:
    """Vectors of columns: the first column of each, its lane mask, and its place in the copied panel."""

    first: tuple[Index, ...]
    masks: tuple[ir.Value | None, ...]
    panel: tuple[Index, ...]


@dataclass(frozen=True)
class Block:
    """panel: the copied columns as [k][column], or None when they are read in place. rows: the factors that rows differ in
    as [row of the block][k], or None when they are read from their operand. span: first value of the one k loop and the one
    beyond the last, where k is done in pieces; the copies hold the piece. fills: the columns are read in place and written to
    the panel on the way, for the blocks that follow.
    """

    evaluator: Evaluator
    plan: Plan
    config: HostMatmulConfig
    panel: Memory | None
    rows: Memory | None = None
    span: tuple[Index, Index] | None = None
    fills: bool = False

    def accumulate(self, rows: Sequence[Loops], columns: Columns) -> list[list[ir.Value]]:
        """[row][vector] sums over k, in the accumulator's type. Small blocks carry several sets of accumulators."""
        view = self.plan.view
        size = len(rows) * len(columns.first)
        sets = 1 if size >= _IN_FLIGHT else min(_IN_FLIGHT, -(-_IN_FLIGHT // size))
        zero = view.product.zero(self.config.lanes)
        sums = self._nest(rows, columns, 0, Index(0), [zero] * (size * sets), sets)
        total = sums[:size]
        for s in range(1, sets):
            total = [view.product.add(a, b) for a, b in zip(total, sums[s * size : (s + 1) * size], strict=True)]
        width = len(columns.first)
        return [total[i * width : (i + 1) * width] for i in range(len(rows))]

    def _nest(self, rows: Sequence[Loops], columns: Columns, depth: int, linear: Index, sums: list[ir.Value],
              sets: int) -> list[ir.Value]:
        """The loops over k from number `depth` on; the innermost is unrolled by `sets`."""
        k = self.plan.view.k
        if not k:
            return [*self._step(rows, columns, linear, sums[: len(sums) // sets]), *sums[len(sums) // sets :]]
        extent = self.evaluator.emit(self.plan.view.extents[k[depth]])
        low = Index(0)
        if self.span is not None:
            low, extent = self.span[0], self.span[1] - self.span[0]
        index = self.evaluator.index_type

        def at(i: Index) -> list[Loops]:
            return [[low + i if d == k[depth] else x for d, x in enumerate(row)] for row in rows]

        if depth < len(k) - 1:
            return loop(0, extent, 1, lambda i, *c: self._nest(at(i), columns, depth + 1, linear * extent + i, list(c), sets),
                        sums, index)
        size = len(sums) // sets

        def several(i: Index, *carried: ir.Value) -> list[ir.Value]:
            done: list[ir.Value] = []
            for s in range(sets):
                here = i + s
                done += self._step(at(here), columns, linear * extent + here, list(carried[s * size : (s + 1) * size]))
            return done

        whole = extent - extent % sets
        sums = loop(0, whole, sets, several, sums, index)
        if sets == 1 or (extent - whole).const == 0:
            return sums
        rest = loop(whole, extent, 1, lambda i, *c: self._step(at(i), columns, linear * extent + i, list(c)), sums[:size], index)
        return [*rest, *sums[size:]]

    def _step(self, rows: Sequence[Loops], columns: Columns, linear: Index, sums: list[ir.Value]) -> list[ir.Value]:
        """One k for the whole block."""
        plan, lanes = self.plan, self.config.lanes
        product = plan.view.product
        self.prefetch(rows[0], columns)
        wide = [self.wide(rows[0], columns, j, linear) for j in range(len(columns.first))]
        varies = plan.column in plan.view.loops_of(plan.narrow)
        done = []
        for i, row in enumerate(rows):
            shared = None if varies else self._shared(i, row, linear)
            for j, b in enumerate(wide):
                point = list(row)
                point[plan.column] = Index.ramp(columns.first[j], lanes)
                a = shared if shared is not None else self.narrow(point, columns.masks[j])
                done.append(product.multiply_add(a, b, sums[i * len(wide) + j]))
        return done

    def _shared(self, i: int, row: Loops, linear: Index) -> ir.Value:
        if self.rows is None:
            return self.narrow(row)
        return splat_to(self.rows.load([Index(i), linear]), self.config.lanes)

    def narrow(self, loops: Loops, mask: ir.Value | None = None) -> ir.Value:
        """The factor that rows differ in, one value in all lanes unless it varies along the columns too."""
        view, which = self.plan.view, self.plan.narrow
        value = self.evaluator.element(view.operand(which), view.coords(which, loops), mask)
        return splat_to(view.product.factor(which, value), self.config.lanes)

    def wide(self, loops: Loops, columns: Columns, j: int, linear: Index) -> ir.Value:
        """Vector `j` of the columns of the other factor; `linear` numbers the values of k in the copied panel."""
        view, which, lanes = self.plan.view, self.plan.wide, self.config.lanes
        if self.panel is not None and not self.fills:
            return self.panel.load([linear, Index.ramp(columns.panel[j], lanes)])
        mask = None if self.plan.tile else columns.masks[j]
        value = self.evaluator.element(view.operand(which), self._coords(loops, columns.first[j]), mask)
        value = splat_to(view.product.factor(which, value), lanes)
        if self.panel is not None:
            self.panel.store(value, [linear, Index.ramp(columns.panel[j], lanes)])
        return value

    def _coords(self, loops: Loops, column: Index) -> list[Index]:
        """Coordinates of the vector operand; of a prepacked one without dividing lanes: a block lies in one panel."""
        plan = self.plan
        point = list(loops)
        point[plan.column] = Index.ramp(column, self.config.lanes)
        if not plan.tile:
            return plan.view.coords(plan.wide, point)
        within = Index.ramp(column % plan.tile, self.config.lanes)
        found = []
        for e in plan.view.maps[plan.wide].results:
            if isinstance(e, ir.AffineModExpr) and position(ir.AffineModExpr(e).lhs) == plan.column:
                found.append(within)
            elif isinstance(e, ir.AffineFloorDivExpr) and position(ir.AffineFloorDivExpr(e).lhs) == plan.column:
                found.append(column // plan.tile)
            else:
                found.append(evaluate(e, point))
        return found

    def prefetch(self, loops: Loops, columns: Columns) -> None:
        """The lines of the row of columns that is `prefetch` values of the last k ahead."""
        plan = self.plan
        memory = self.evaluator.memories.get(plan.view.operand(plan.wide))
        copied = self.panel is not None and not self.fills
        if not self.config.prefetch or copied or memory is None or not plan.view.k:
            return
        ahead = list(loops)
        k = plan.view.k[-1]
        here = ahead[k]
        assert here is not None
        ahead[k] = here + self.config.prefetch
        bytes_each = self.config.lanes * byte_width(memory.stored)
        for j, column in enumerate(columns.first):
            if j * bytes_each % _LINE == 0:
                at = memory.address([c.base for c in self._coords(ahead, column)])
                llvm.intr_prefetch(at, 0, 3, 1)

