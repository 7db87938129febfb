"""Copies a panel of columns of the vector operand to [k][column] in the workspace, through the evaluator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.passes.codegen.emit import Memory, lane_mask, loop, when
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_words import Words
from tilewright.passes.mlir import ir, vector
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig

Loops = list[Index | None]


@dataclass(frozen=True)
class PanelCopy:
    """The panel holds the factors as they are multiplied, in the accumulator's type, or words of values of k.

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

        def row(point: Loops, k: Index, left: Index | None) -> None:
            for column, at, mask in vectors:
                point[self.plan.column] = Index.ramp(column, self.config.lanes)
                words = self._step > 1
                self._put(self._words.wide(point, mask, left) if words else self._factor(point, mask), k, at)

        self._nest(loops, 0, Index(0), row)

    def _nest(self, loops: Loops, depth: int, linear: Index, body: Callable[[Loops, Index, Index | None], None],
              inner: int = 0) -> None:
        """Loops over all k dims but the last `inner`; body(loops, linear number of the step, values of its word or None)."""
        k = self.plan.view.k
        if depth == len(k) - inner:
            body(list(loops), linear, None)
            return
        low, extent = self._range(k[depth])
        each = self._step if depth == len(k) - 1 else 1

        def one(i: Index, left: Index | None = None) -> None:
            point = list(loops)
            point[k[depth]] = low + i * each
            step = linear * extent.ceildiv(each) + i
            if left is not None:
                body(point, step, left)
            else:
                self._nest(point, depth + 1, step, body, inner)

        loop(0, extent // each, 1, one, index=self.panel.index)
        if (extent % each).const != 0:
            loop(extent // each, extent.ceildiv(each), 1, lambda i: one(i, extent % each), index=self.panel.index)

    @property
    def _step(self) -> int:
        """Values of the last k loop in a row of the panel."""
        return self.config.side

    @property
    def _words(self) -> Words:
        return Words(self.evaluator, self.plan, self.config.lanes, self._step)

    def _transposed(self, loops: Loops, first: Index, at: Index, extent: Index) -> None:
        """One vector of columns, `lanes` steps of the last k loop at a time; columns beyond the last repeat it.

        Rows beyond the last of a group are overwritten by the next group, or lie beyond the panel's last.
        """
        lanes, k = self.config.lanes, self.plan.view.k[-1]
        columns = [(first + at + i).min(extent - 1) for i in range(lanes)]
        low, size = self._range(k)

        each = self._step

        def group(point: Loops, linear: Index, _: Index | None) -> None:
            def square(start: Index, left: Index | None) -> None:
                here = list(point)
                rows = []
                for column in columns:
                    here[self.plan.column] = column
                    rows.append(self._along(here, low + start * each, left))
                for i, row in enumerate(transpose(rows)):
                    self._put(row, linear * size.ceildiv(each) + start + i, at)

            steps = size // (lanes * each) * lanes
            loop(0, steps, lanes, lambda start: square(start, None), index=self.panel.index)
            over = size - steps * each
            when(Index(0).lt(over), lambda: square(steps, over))

        self._nest(loops, 0, Index(0), group, inner=1)

    def _along(self, loops: Loops, start: Index, left: Index | None) -> ir.Value:
        """A vector along the last k loop, of which `left` values are there."""
        wide, lanes = self.plan.wide, self.config.lanes
        if self._step > 1:
            return self._words.along(wide, loops, start, left)
        here = list(loops)
        here[self.plan.view.k[-1]] = Index.ramp(start, lanes)
        return self._factor(here, None if left is None else lane_mask(left, lanes, self.panel.index))

    def _range(self, d: int) -> tuple[Index, Index]:
        """First value and count of a k loop."""
        if self.span is not None:
            return self.span[0], self.span[1] - self.span[0]
        return Index(0), self.evaluator.emit(self.plan.view.extents[d])

    def _factor(self, loops: Loops, mask: ir.Value | None) -> ir.Value:
        view, wide = self.plan.view, self.plan.wide
        value = self.evaluator.element(view.operand(wide), coords_of(view, wide, loops), mask)
        return ProductCode(view.product).factor(wide, value)

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
