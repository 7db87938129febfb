"""The register block of a host matmul: h rows by v vectors of accumulators, carried through the loops over k."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from tilewright.passes.analysis.named_rows import NamedRows
from tilewright.passes.codegen.affine_index import evaluate
from tilewright.passes.codegen.emit import Memory, byte_width, loop, vector_type
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.memory_source import MemorySource
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_spans import Spans
from tilewright.passes.families.host.host_matmul_words import Words
from tilewright.passes.mlir import ir, llvm, owner, position
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig
from tilewright.runtime.limits import LINE

Loops = list[Index | None]
_IN_FLIGHT = 8  # multiply-adds that hide the latency of one


@dataclass(frozen=True)
class Columns:
    """Vectors of columns: the first column of each, its lane mask, and its place in the copied panel. whole: says at run time
    whether the last mask covers all lanes; None where it does not, or there is none."""

    first: tuple[Index, ...]
    masks: tuple[ir.Value | None, ...]
    panel: tuple[Index, ...]
    whole: ir.Value | bool | None = None


@dataclass(frozen=True)
class Block:
    """panel: the copied columns as [k][column], or None when they are read in place. rows: the factors that rows differ in
    as [row of the block][k], or None when they are read from their operand. span: first value of the one k loop and the one
    beyond the last, where k is done in pieces; the copies hold the piece. fills: the columns are read in place and written to
    the panel on the way, for the blocks that follow. triangle: where factors of the rows are 0 by construction, with the rows of
    this block, so that it is summed over no more of k than they need; before: steps of k of the copies before its span. A step
    takes the values of k of a word, and copies hold words,
    where the configuration has them.
    unroll: steps of every set of accumulators in one turn of the innermost loop, where they divide a constant k. next_panel: the
    column whose panel is fetched on the way, so that its lines come while there are multiply-adds to do. shared_fetch: likewise
    of a prepacked panel, a line each turn, so that the first few blocks of rows share it; with it, the number of this block.
    next_rows: rows from the first of this block to the first of the one that is fetched on the way; 0 fetches none.
    """

    evaluator: Evaluator
    plan: Plan
    config: HostMatmulConfig
    panel: Memory | None
    rows: Memory | None = None
    span: tuple[Index, Index] | None = None
    fills: bool = False
    unroll: int = 1
    next_panel: Index | None = None
    shared_fetch: tuple[Index, Index] | None = None
    triangle: tuple[Spans, Index, Index] | None = None
    before: Index | int = 0
    next_rows: int = 0

    @property
    def step(self) -> int:
        """Values of the last k loop that are multiplied at once."""
        return self.config.side

    @property
    def words(self) -> Words:
        return Words(self.evaluator, self.plan, self.config.lanes, self.config.side)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self.words.multiply_add(a, b, c) if self.step > 1 else ProductCode(self.plan.view.product).multiply_add(a, b, c)

    def accumulate(self, rows: Sequence[Loops], columns: Columns) -> list[list[ir.Value]]:
        """[row][vector] sums over k, in the accumulator's type. Small blocks carry several sets of accumulators,
        unless they sum in order."""
        view = self.plan.view
        size = len(rows) * len(columns.first)
        sets = 1 if size >= _IN_FLIGHT or self.config.ordered else min(_IN_FLIGHT, -(-_IN_FLIGHT // size))
        zero = ProductCode(view.product).zero(self.config.lanes)
        sums = [zero] * (size * sets)
        for block, scope in self._parts():
            with scope:
                sums = block._nest(rows, columns, 0, Index(0), sums, sets)
        total = sums[:size]
        for s in range(1, sets):
            total = [ProductCode(view.product).add(a, b) for a, b in zip(total, sums[s * size : (s + 1) * size], strict=True)]
        width = len(columns.first)
        return [total[i * width : (i + 1) * width] for i in range(len(rows))]

    def _parts(self) -> list[tuple[Block, AbstractContextManager[None]]]:
        """The block for one part of k after the other, each in a scope that says how factors are read there."""
        if self.triangle is None:
            return [(self, nullcontext())]
        assert self.span is not None
        spans, low, high = self.triangle
        parts = spans.parts(low, high, self.span) if self.rows is None else ((spans.whole(low, high, self.span), False),)
        return [(replace(self, span=part, before=part[0] - self.span[0]), spans.unmasked() if plain else nullcontext())
                for part, plain in parts]

    def _nest(self, rows: Sequence[Loops], columns: Columns, depth: int, linear: Index, sums: list[ir.Value],
              sets: int) -> list[ir.Value]:
        """The loops over k from number `depth` on; the innermost is unrolled by `sets` and more. Two turns are no loop: LLVM
        would count them in a flag and keep sums in memory."""
        k = self.plan.view.k
        if not k:
            return [*self._step(rows, columns, linear, sums[: len(sums) // sets]), *sums[len(sums) // sets :]]
        extent = self.evaluator.emit(self.plan.view.extents[k[depth]])
        low = Index(0)
        if self.span is not None:
            low, extent = self.span[0], self.span[1] - self.span[0]
        index = self.evaluator.index_type

        def at(i: Index, each: int = 1) -> list[Loops]:
            return [[low + i * each if d == k[depth] else x for d, x in enumerate(row)] for row in rows]

        if depth < len(k) - 1:
            return loop(0, extent, 1, lambda i, *c: self._nest(at(i), columns, depth + 1, linear * extent + i, list(c), sets),
                        sums, index)
        size, each = len(sums) // sets, self.step
        steps, base = extent // each, linear * extent.ceildiv(each) + self.before

        def several(i: Index, *carried: ir.Value) -> list[ir.Value]:
            done = list(carried)
            self._fetch_share(rows[0], i, turn, whole.const)
            for s in range(turn):
                here, first = i + s, s % sets * size
                self._fetch_rows(rows[0], low, here)
                done[first : first + size] = self._step(at(here, each), columns, base + here, done[first : first + size])
            return done

        turn = sets * self.unroll if (steps % (sets * self.unroll)).const == 0 else sets
        whole = steps - steps % turn
        if whole.const is not None and whole.const <= 2 * turn:
            for first in range(0, whole.const, turn):
                sums = several(Index(first), *sums)
        else:
            sums = loop(0, whole, turn, several, sums, index)
        rest = sums[:size]
        if sets > 1 and (steps - whole).const != 0:
            rest = loop(whole, steps, 1, lambda i, *c: self._step(at(i, each), columns, base + i, list(c)), rest, index)
        if (extent % each).const != 0:
            rest = loop(steps, extent.ceildiv(each), 1,
                        lambda i, *c: self._step(at(i, each), columns, base + i, list(c), extent % each), rest, index)
        return [*rest, *sums[size:]]

    def _step(self, rows: Sequence[Loops], columns: Columns, linear: Index, sums: list[ir.Value],
              left: Index | None = None) -> list[ir.Value]:
        """One k, or one word of them, for the whole block; left: values that the word has, None for all."""
        plan, lanes = self.plan, self.config.lanes
        self.prefetch(rows[0], columns)
        wide = [self.wide(rows[0], columns, j, linear, left) for j in range(len(columns.first))]
        varies = plan.column in plan.view.loops_of(plan.narrow)
        done = []
        for i, row in enumerate(rows):
            shared = None if varies else self._shared(i, row, linear, left)
            for j, b in enumerate(wide):
                point = list(row)
                point[plan.column] = Index.ramp(columns.first[j], lanes)
                a = shared if shared is not None else self.narrow(point, columns.masks[j])
                done.append(self.multiply_add(a, b, sums[i * len(wide) + j]))
        return done

    def _shared(self, i: int, row: Loops, linear: Index, left: Index | None) -> ir.Value:
        if self.rows is None:
            return self.narrow(row, left=left)
        return splat_to(self.rows.load([Index(i), linear]), self.config.lanes)

    def narrow(self, loops: Loops, mask: ir.Value | None = None, left: Index | None = None) -> ir.Value:
        """The factor that rows differ in, one value or word in all lanes unless it varies along the columns too."""
        if self.step > 1:
            return self.words.shared(loops, left)
        view, which = self.plan.view, self.plan.narrow
        value = self.evaluator.element(view.operand(which), coords_of(view, which, loops), mask)
        return splat_to(ProductCode(view.product).factor(which, value), self.config.lanes)

    def wide(self, loops: Loops, columns: Columns, j: int, linear: Index, left: Index | None = None) -> ir.Value:
        """Vector `j` of the columns of the other factor; `linear` numbers the steps of k in the copied panel."""
        view, which, lanes = self.plan.view, self.plan.wide, self.config.lanes
        if self.panel is not None and not self.fills:
            return self.panel.load([linear, Index.ramp(columns.panel[j], lanes)])
        if self.plan.side > 1:
            return self._packed_words(loops, columns.first[j])
        mask = None if self.plan.tile else columns.masks[j]
        if self.step > 1:
            point = list(loops)
            point[self.plan.column] = Index.ramp(columns.first[j], lanes)
            value = self.words.wide(point, mask, left)
        else:
            value = self.evaluator.element(view.operand(which), self._coords(loops, columns.first[j]), mask)
            value = splat_to(ProductCode(view.product).factor(which, value), lanes)
        if self.panel is not None:
            self.panel.store(value, [linear, Index.ramp(columns.panel[j], lanes)])
        return value

    def _packed_words(self, loops: Loops, column: Index) -> ir.Value:
        stored = ir.RankedTensorType(self.plan.view.operand(self.plan.wide).type).element_type
        at = self.packed_address(loops, column)
        return self.words.packed(llvm.LoadOp(vector_type(stored, self.step * self.config.lanes), at,
                                             alignment=byte_width(stored)).result)

    def packed_address(self, loops: Loops, column: Index) -> ir.Value:
        """Of the words of a vector of prepacked columns."""
        return self._lies_at(self._coords(loops, column))

    def _lies_at(self, coords: Sequence[Index]) -> ir.Value:
        """The address of an element of the vector operand, which is in memory, perhaps where a table says."""
        found = self._source(self.plan.wide, coords)
        assert found is not None
        return found.memory.address(list(found.coords))

    def _source(self, which: int, coords: Sequence[Index]) -> MemorySource | None:
        with self.evaluator.kept():
            return MemorySource.of(self.evaluator, self.plan.view.operand(which), [c.base for c in coords])

    @property
    def _stored(self) -> ir.Type | None:
        """Element of the vector operand in memory; None of one that is computed."""
        value = self.plan.view.operand(self.plan.wide)
        while value not in self.evaluator.memories:
            named = NamedRows.of(owner(value))
            if named is None:
                return None
            value = named.table
        return self.evaluator.memories[value].stored

    def _coords(self, loops: Loops, column: Index) -> list[Index]:
        """Coordinates of the vector operand; of a prepacked one without dividing lanes: a block lies in one panel."""
        plan = self.plan
        point = list(loops)
        point[plan.column] = Index.ramp(column, self.config.lanes)
        if not plan.tile:
            return coords_of(plan.view, plan.wide, point)
        within = Index.ramp(column % plan.tile, self.config.lanes)
        found = []
        for e in plan.view.maps[plan.wide].results:
            if isinstance(e, ir.AffineModExpr) and position(ir.AffineModExpr(e).lhs) == plan.column:
                found.append(within)
            elif isinstance(e, ir.AffineFloorDivExpr) and position(ir.AffineFloorDivExpr(e).lhs) == plan.column:
                found.append(column // plan.tile)
            elif plan.side > 1 and isinstance(e, ir.AffineModExpr):
                found.append(Index(0))
            elif plan.side > 1 and isinstance(e, ir.AffineFloorDivExpr):
                found.append(evaluate(ir.AffineFloorDivExpr(e).lhs, point) // plan.side)
            else:
                found.append(evaluate(e, point))
        return found

    def _fetch_share(self, loops: Loops, step: Index, turn: int, steps: int | None) -> None:
        """This turn's line of the next panel, for the second-level cache. steps: of all turns."""
        stored = self._stored
        if self.shared_fetch is None or stored is None or not steps or len(self.plan.view.k) != 1:
            return
        line = LINE // byte_width(stored)
        if line % turn:
            return
        panel, number = self.shared_fetch
        turns, lines = steps // turn, -(-steps * self.config.columns // line)
        share = number.min(-(-lines // turns) - 1) * (turns * line)
        start = [Index(0) if d == self.plan.view.k[0] else x for d, x in enumerate(loops)]
        *outer, last = (c.base for c in self._coords(start, panel))
        llvm.intr_prefetch(self._lies_at([*outer, last + share + step * (line // turn)]), 0, 2, 1)

    def _fetch_rows(self, loops: Loops, low: Index, step: Index) -> None:
        """One line of the next block of rows at each step of k, from `low` on: all of them by the end, since a block has no more
        rows than a line has values."""
        if not self.next_rows:
            return
        view, which = self.plan.view, self.plan.narrow
        (row,), (k,), point = self.plan.rows, view.k, list(loops)
        line = LINE // byte_width(ir.RankedTensorType(view.operand(which).type).element_type)
        here = point[row]
        assert here is not None
        point[row], point[k] = here + self.next_rows + step % line, low + step // line * line
        found = self._source(which, coords_of(view, which, point))
        if found is not None:
            llvm.intr_prefetch(found.memory.address(list(found.coords)), 0, 3, 1)

    def prefetch(self, loops: Loops, columns: Columns) -> None:
        """The lines of the row of columns that is `prefetch` values of the last k ahead, and, to the second-level cache, those of
        this row in the next panel."""
        plan = self.plan
        stored, copied = self._stored, self.panel is not None and not self.fills
        if copied or stored is None or not plan.view.k:
            return
        if self.next_panel is not None:
            for line in range(0, self.config.columns, LINE // byte_width(stored)):
                llvm.intr_prefetch(self._lies_at(self._coords(loops, self.next_panel.displace(line))), 0, 2, 1)
        if not self.config.prefetch:
            return
        k = plan.view.k[-1]
        here = loops[k]
        assert here is not None
        bytes_each = self.config.lanes * byte_width(stored) * plan.side
        for row in range(1 if plan.side > 1 else self.step):
            ahead = [here + (self.config.prefetch + row) if d == k else x for d, x in enumerate(loops)]
            for j, column in enumerate(columns.first):
                if j * bytes_each % LINE == 0:
                    llvm.intr_prefetch(self._lies_at(self._coords(ahead, column)), 0, 3, 1)

