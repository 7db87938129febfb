"""Copies a panel of columns of the vector operand to [k][column] in the workspace, through the evaluator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from passes.emit import Memory, lane_mask, loop, when
from passes.evaluator import Evaluator
from passes.families.host_matmul_plan import Plan
from passes.index import Index
from passes.mlir import ir, vector
from passes.spaces.host_matmul import HostMatmulConfig

Loops = list[Index | None]


@dataclass(frozen=True)
class PanelCopy:
    """The panel holds the factors as they are multiplied, in the accumulator's type.

    span: first value of the one k loop and the one beyond the last, where a piece of k is copied.
    """

    evaluator: Evaluator
    plan: Plan
    config: HostMatmulConfig
    panel: Memory
    span: tuple[Index, Index] | None = None

    def copy(self, loops: Loops, first: Index, left: Index, extent: Index) -> None:
        """Columns [first, first + min(left, columns of a block)); lanes beyond them hold anything, none is read from there.

        loops: coordinates of the shared loops; extent: the columns of the whole operand.
        """
        lanes, count = self.config.lanes, self.config.nv
        if self.plan.transposed:
            vectors = ((left + (lanes - 1)) // lanes).min(count)
            loop(0, vectors, 1, lambda j: self._transposed(loops, first, j * lanes, extent), index=self.panel.index)
            return

        def whole() -> None:
            self._rows(loops, [(first + j * lanes, Index(j * lanes), None) for j in range(count)])

        def part() -> None:
            def one(j: Index) -> None:
                at = j * lanes
                self._rows(loops, [(first + at, at, lane_mask(left - at, lanes, self.panel.index))])

            loop(0, ((left + (lanes - 1)) // lanes).min(count), 1, one, index=self.panel.index)

        when(left.ge(self.config.columns), whole, part)

    def _rows(self, loops: Loops, vectors: list[tuple[Index, Index, ir.Value | None]]) -> None:
        """Every k of some vectors, each given by its first column, its place in the panel and its mask."""

        def row(point: Loops, k: Index) -> None:
            for column, at, mask in vectors:
                point[self.plan.column] = Index.ramp(column, self.config.lanes)
                self._put(self._factor(point, mask), k, at)

        self._nest(loops, 0, Index(0), row)

    def _nest(self, loops: Loops, depth: int, linear: Index, body: Callable[[Loops, Index], None], inner: int = 0) -> None:
        """Loops over all k dims but the last `inner`; body(loops, linear number)."""
        k = self.plan.view.k
        if depth == len(k) - inner:
            body(list(loops), linear)
            return
        low, extent = self._range(k[depth])

        def one(i: Index) -> None:
            point = list(loops)
            point[k[depth]] = low + i
            self._nest(point, depth + 1, linear * extent + i, body, inner)

        loop(0, extent, 1, one, index=self.panel.index)

    def _transposed(self, loops: Loops, first: Index, at: Index, extent: Index) -> None:
        """One vector of columns, `lanes` values of the last k loop at a time; columns beyond the last repeat it.

        Rows beyond the last of a group are overwritten by the next group, or lie beyond the panel's last.
        """
        lanes, k = self.config.lanes, self.plan.view.k[-1]
        columns = [(first + at + i).min(extent - 1) for i in range(lanes)]
        low, size = self._range(k)

        def group(point: Loops, linear: Index) -> None:
            def square(start: Index, mask: ir.Value | None) -> None:
                here = list(point)
                here[k] = Index.ramp(low + start, lanes)
                rows = []
                for column in columns:
                    here[self.plan.column] = column
                    rows.append(self._factor(here, mask))
                for i, row in enumerate(transpose(rows)):
                    self._put(row, linear * size + start + i, at)

            whole = size - size % lanes
            loop(0, whole, lanes, lambda start: square(start, None), index=self.panel.index)
            over = size - whole
            when(Index(0).lt(over), lambda: square(whole, lane_mask(over, lanes, self.panel.index)))

        self._nest(loops, 0, Index(0), group, inner=1)

    def _range(self, d: int) -> tuple[Index, Index]:
        """First value and count of a k loop."""
        if self.span is not None:
            return self.span[0], self.span[1] - self.span[0]
        return Index(0), self.evaluator.emit(self.plan.view.extents[d])

    def _factor(self, loops: Loops, mask: ir.Value | None) -> ir.Value:
        view, wide = self.plan.view, self.plan.wide
        value = self.evaluator.element(view.operand(wide), view.coords(wide, loops), mask)
        return view.product.factor(wide, value)

    def _put(self, value: ir.Value, k: Index, at: Index) -> None:
        self.panel.store(value, [k, Index.ramp(at, self.config.lanes)])


def transpose(rows: list[ir.Value]) -> list[ir.Value]:
    """n vectors of n lanes, n a power of two, to the transposed n: log2(n) rounds of pairwise shuffles."""
    n, width = len(rows), 1
    while width < n:
        out = list(rows)
        even = [lane if not lane & width else n + lane - width for lane in range(n)]
        odd = [lane + width if not lane & width else n + lane for lane in range(n)]
        for i in (i for i in range(n) if not i & width):
            out[i] = vector.shuffle(rows[i], rows[i + width], even)
            out[i + width] = vector.shuffle(rows[i], rows[i + width], odd)
        rows, width = out, width * 2
    return rows
