"""AttentionBlock: what blocks of both attention families do alike around their steps.

Mixed values lie as instructions of tensor cores leave them: a lane has two neighbouring columns of every eight, of rows lane / 4
and lane / 4 + 8 of every 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.codegen.emit import all_of, loop, vector_type, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.gpu_space import CollapsedLoops, Point
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.families.gpu.gpu_attention_parts import Parts
from tilewright.passes.families.gpu.gpu_attention_plan import AttentionPlan
from tilewright.passes.families.gpu.gpu_attention_softmax import FragmentSoftmax, Row, joined
from tilewright.passes.families.gpu.simt_store import Result
from tilewright.passes.families.gpu.whole_tiles import by_wholeness
from tilewright.passes.mlir import arith, ir, nvvm, vector
from tilewright.passes.spaces.gpu.gpu_attention import PAD
from tilewright.runtime.limits import WARP
from tilewright.runtime.shape import Expr

ROWS, COLUMNS = 16, 8  # of an instruction of a warp
QUAD = 4  # lanes that share a row


def cut_queries(view: Attention, bm: int, tiler: Tiler) -> None:
    """Units of bm queries of one point of the shared loops."""
    rows, batch = view.row_count, view.scores.size(view.shared)
    tiler.loop([batch, rows.ceildiv(bm)],
               lambda place: {"batch": Part(place[0]), "rows": tiler.span(place[1], bm, rows)},
               view.cut({"batch": view.shared, "rows": view.rows}))


@dataclass(frozen=True)
class Queries:
    """The queries of a block: their shared point and its number, the first row, the number of blocks that there are."""

    at: Point
    number: Index
    row: Index
    total: Expr


@dataclass(frozen=True)
class KeySteps:
    """Steps of keys of a block, from number `first` up to `end`; before `whole` all queries see all keys of a step. keys: of all
    blocks of these queries, how many keys some query sees."""

    first: Index
    whole: Index
    end: Index
    keys: Index


class AttentionBlock:
    """bm: queries of a block; bn: keys of a step; split_kv: parts of the keys, which `parts` joins."""

    def __init__(self, kernel: GpuKernel, plan: AttentionPlan, bm: int, bn: int, parts: Parts | None) -> None:
        self.kernel, self.plan, self.bm, self.bn, self.parts = kernel, plan, bm, bn, parts
        self.repeats = False  # is a block's room for results used again?
        view: Attention = plan.view
        scores, mixed = view.scores, view.mixed
        self.batch, self.rows, self.keys, self.depth = (
            CollapsedLoops(kernel, loops, scores.extents) for loops in (view.shared, view.rows, (view.key,), scores.k))
        self.mixed_rows, self.columns, self.mixed_keys = (
            CollapsedLoops(kernel, loops, mixed.extents) for loops in (plan.mixing.rows, plan.mixing.columns, mixed.k))
        self.wide = -(-view.columns // ROWS) * 2  # instructions across the values
        self.f32 = ir.F32Type.get()
        self.lane = kernel.thread() % WARP

    def queries(self, number: Index | None = None) -> Queries:
        """Those of a number, of this block where none is said."""
        kernel, units = self.kernel, self.kernel.loops[0]
        kernel.bound(units.total)
        kernel.bound(self.keys.size)
        kernel.bound(self.rows.size)
        if self.plan.hidden.lengths:
            kernel.bound((self.keys.size + self.rows.size) * 2)  # what is added to lengths
        number, down = kernel.block_id() if number is None else number, kernel.evaluator.emit(units.counts[-1])
        tile = number % down
        if self.plan.hidden.row is not None:
            tile = down - 1 - tile  # the longest first
        unit = units.at(kernel.evaluator, (number // down, tile))
        return Queries(self.batch.point(unit.first("batch")), unit.first("batch"), unit.first("rows"), units.total)

    def mixed_point(self, at: Point) -> Point:
        """The shared point in the loops of the second contraction."""
        return {d: at[s] for d, s in enumerate(self.plan.view.loops) if s is not None and s in at}

    def steps(self, softmax: FragmentSoftmax, row: Index) -> KeySteps:
        """Of the queries from `row` on, or the part of them that is this block's."""
        last = (row + (self.bm - 1)).min(self.rows.extent - 1)
        least, most = softmax.reach(row, last)
        first, end = Index(0), most.ceildiv(self.bn)
        if self.parts is not None:
            share = end.ceildiv(self.parts.parts)
            first = (self.kernel.block_id("y") * share).min(end)
            end = (first + share).min(end)
        return KeySteps(first, (least // self.bn).min(end).max(first), end, most)

    def lines(self, softmax: FragmentSoftmax, row: Index, down: int) -> list[list[Row]]:
        """The two rows that a lane has of each 16 of a warp's rows from `row` on."""
        own = row + self.lane // QUAD
        return [[softmax.line(own + (ROWS * i + 8 * h)) for h in range(2)] for i in range(down)]

    def start(self, softmax: FragmentSoftmax, down: int) -> list[ir.Value]:
        """Maxima and sums of each row of a lane, then four mixed values for each instruction."""
        lowest, zero = softmax.number(-float("inf")), softmax.number(0.0)
        return [lowest, zero] * (2 * down) + [zero] * (4 * down * self.wide)

    # -- results

    def finish(self, softmax: FragmentSoftmax, queries: Queries, y: Index, sums: Sequence[ir.Value]) -> list[ir.Value]:
        """Sums of all lanes of a row; the values divided by them, or none: they went undivided to the workspace. y: the first of
        the warp's queries."""
        down = len(sums) // (4 + 4 * self.wide)
        base = 4 * down
        totals = [joined(sums[2 * r + 1], lambda a, b: arith.addf(a, b)) for r in range(2 * down)]
        if self.parts is None:
            shares = [softmax.share(t) for t in totals]
            return [softmax.times(v, shares[i // (4 * self.wide) * 2 + i % 4 // 2]) for i, v in enumerate(sums[base:])]
        for r in range(2 * down):
            mine = queries.row + y + self.lane // QUAD + 8 * r
            first = (self.lane % QUAD).eq(0)
            when(first, partial(self.parts.keep_row, queries.number, mine, sums[2 * r], totals[r]))
            for j, x in ((j, x) for j in range(self.wide) for x in range(2)):
                value = sums[base + 4 * (r // 2 * self.wide + j) + 2 * (r % 2) + x]
                self.parts.keep(queries.number, mine, self.lane % QUAD * 2 + (j * COLUMNS + x), value)
        return []

    def room(self, warps: int, slab: int, at: int | None = None) -> GpuMemory:
        """Shared memory for a slab of columns of 16 rows of each warp."""
        return self.kernel.shared(self.f32, [warps, ROWS, slab + PAD], at)

    def store(self, room: GpuMemory, queries: Queries, y: Index, values: Sequence[ir.Value], vec: int) -> None:
        """16 rows of a warp after the other go through shared memory of the warp's own, a slab of columns at a time."""
        kernel = self.kernel
        mixed = self.mixed_point(self.batch.point(queries.number))
        result = Result(kernel, self.plan.mixing, mixed, self.mixed_rows, self.columns)
        width = result.width(vec)

        def slabs(whole: bool) -> None:
            result.whole = whole
            self._store_slabs(result, room, queries.row + y, values, width)

        by_wholeness(kernel, [(self.mixed_rows, queries.row, self.bm)], slabs)

    def _store_slabs(self, result: Result, room: GpuMemory, row: Index, values: Sequence[ir.Value], width: int) -> None:
        """row: the first of the warp."""
        kernel, view, slab = self.kernel, self.plan.view, (room.sizes[2].const or 0) - PAD
        pair, per_row, warp = vector_type(self.f32, 2), slab // width, kernel.thread() // WARP
        for i in range(len(values) // (4 * self.wide)):
            for first in range(0, self.wide * COLUMNS, slab):
                if i or first or self.repeats:
                    self._sync_warp()
                for j in range(first // COLUMNS, min(self.wide, (first + slab) // COLUMNS)):
                    for h in range(2):
                        at = 4 * (i * self.wide + j) + 2 * h
                        two = vector.from_elements(pair, values[at : at + 2])
                        column = (self.lane % QUAD * 2 + (j * COLUMNS - first)).known_multiple(2)
                        room.store(two, [warp, self.lane // QUAD + 8 * h, Index.ramp(column, 2)])
                self._sync_warp()

                def chunk(number: Index, i: int = i, first: int = first) -> None:
                    down, x = number // per_row, number % per_row * width
                    inside = (x + first).lt(view.columns)
                    place = row + (down + i * ROWS)

                    def out() -> None:
                        result.store(place, x + first, room.load([warp, down, Index.ramp(x, width)]))

                    when(all_of([inside]), out)

                loop(self.lane, ROWS * per_row, WARP, chunk, index=kernel.index)

    def _sync_warp(self) -> None:
        """The lanes of a warp wait for each other."""
        nvvm.bar_warp_sync(Index(-1).value(ir.IntegerType.get_signless(32)))
