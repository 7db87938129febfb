"""Family `gpu_attention`: softmax(f(Q K^T)) V by mma.sync, with no tensor of queries by keys.

A block takes bm queries of one point of the shared loops, a warp wm of them. Keys and values come bn at a time through a ring of
stages in shared memory. A warp keeps its queries and the mixed values in registers, takes the scores of a step through the
softmax there, and multiplies the exponentials with the values where they are; maxima and sums are carried along and the mixed
values rescaled (Milakov and Gimelshein 2018; Dao 2023, algorithm 1). Steps that no query of the block sees are left out, and only
the last ones compare places. The division by the sum comes after the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.codegen.emit import all_of, loop, vector_type, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_space import CollapsedLoops
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.families.gpu.gpu_attention_parts import Parts
from tilewright.passes.families.gpu.gpu_attention_plan import AttentionPlan
from tilewright.passes.families.gpu.gpu_attention_softmax import FragmentSoftmax, Row, joined
from tilewright.passes.families.gpu.gpu_operand import Side
from tilewright.passes.families.gpu.gpu_pointwise import tile_elements
from tilewright.passes.families.gpu.gpu_tile import Stages
from tilewright.passes.families.gpu.mma_tile import MmaLoader
from tilewright.passes.families.gpu.simt_store import Result
from tilewright.passes.families.gpu.stage_ring import StageRing, Steps, Store
from tilewright.passes.mlir import arith, ir, nvvm, vector
from tilewright.passes.spaces.gpu.gpu_attention import PAD, GpuAttentionConfig, padded, slab
from tilewright.runtime.limits import WARP
from tilewright.runtime.shape import Expr

_ROWS, _COLUMNS = 16, 8  # of an instruction
_QUAD = 4  # lanes that share a row
Sums = Sequence[ir.Value]


def emit(kernel: GpuKernel, config: GpuAttentionConfig) -> None:
    """The whole kernel. ValueError when the region is no attention that this family computes."""
    plan = AttentionPlan.of(kernel, config.tf32)
    parts = Parts(kernel, plan, config.split_kv) if config.split_kv > 1 else None
    if parts is not None:
        kernel.use_workspace(parts.bytes())
    kernel.launch(config.threads, lambda: _AttentionBlock(kernel, plan, config, parts).emit(),
                  min_blocks_per_sm=config.min_blocks_per_sm)
    if parts is not None:
        kernel.launch(256, lambda: parts.finish(min(config.vec, 4)), "_join")


def tile(frame: KernelFrame, config: GpuAttentionConfig, tiler: Tiler) -> None:
    """Units of bm queries of one point of the shared loops."""
    view = Attention.of(frame.ops(), frame.shapes)
    rows, batch = view.row_count, view.scores.size(view.shared)
    tiler.loop([batch, rows.ceildiv(config.bm)],
               lambda place: {"batch": Part(place[0]), "rows": tiler.span(place[1], config.bm, rows)},
               view.cut({"batch": view.shared, "rows": view.rows}))
    if config.split_kv > 1:
        tile_elements(frame, tiler, min(config.vec, 4), 256)


class _AttentionBlock:
    """What one block of threads does."""

    def __init__(self, kernel: GpuKernel, plan: AttentionPlan, config: GpuAttentionConfig, parts: Parts | None) -> None:
        self.kernel, self.plan, self.config, self.parts = kernel, plan, config, parts
        view: Attention = plan.view
        scores, mixed = view.scores, view.mixed
        self.batch, self.rows, self.keys, self.depth = (
            CollapsedLoops(kernel, loops, scores.extents) for loops in (view.shared, view.rows, (view.key,), scores.k))
        self.mixed_rows, self.columns, self.mixed_keys = (
            CollapsedLoops(kernel, loops, mixed.extents) for loops in (plan.mixing.rows, plan.mixing.columns, mixed.k))
        self.down, self.across = config.wm // _ROWS, config.bn // _COLUMNS
        self.wide = -(-view.columns // _ROWS) * 2  # instructions across the values
        self.f32 = ir.F32Type.get()

    def emit(self) -> Grid:
        c, kernel = self.config, self.kernel
        units = kernel.loops[0]
        kernel.bound(units.total)
        kernel.bound(self.keys.size)
        kernel.bound(self.rows.size)
        number, down = kernel.block_id(), kernel.evaluator.emit(units.counts[-1])
        tile = number % down
        if self.plan.hidden.row is not None:
            tile = down - 1 - tile  # the longest first
        unit = units.at(kernel.evaluator, (number // down, tile))
        row = unit.first("rows")
        at = self.batch.point(unit.first("batch"))
        thread = kernel.thread()
        self.lane = thread % WARP
        y = thread // WARP * c.wm
        self.softmax = FragmentSoftmax(kernel, self.plan, self.rows, self.keys, at, min(2, c.vec))
        query, key, value = self._loaders(at)
        for store in query.begin(Index(0), row, Index(0), self.depth.extent, thread):
            store()
        nvvm.cp_async_commit_group()
        own = row + (y + self.lane // _QUAD)
        lines = [[self.softmax.line(own + (_ROWS * i + 8 * h)) for h in range(2)] for i in range(self.down)]
        sums = self._steps(query, key, value, row, y, lines, thread)
        self._finish(row, y, unit.first("batch"), lines, sums)
        return units.total, Expr.of(c.split_kv), Expr.of(1)

    def _loaders(self, at: dict[int, Index]) -> tuple[MmaLoader, MmaLoader, MmaLoader]:
        """Of queries, keys and values."""
        c, view, kernel = self.config, self.plan.view, self.kernel
        deep, wide = padded(view.scores.size(view.scores.k).constant or 1), padded(view.columns)
        mixed = {d: at[s] for d, s in enumerate(view.loops) if s is not None and s in at}
        queries = Side(view.scores, view.query, self.rows, self.depth, c.bm, at)
        keys = Side(view.scores, 1 - view.query, self.keys, self.depth, c.bn, at)
        values = Side(view.mixed, 1 - view.weights, self.columns, self.mixed_keys, wide, mixed)
        return (MmaLoader(kernel, queries, Stages(deep, 1, c.vec)), MmaLoader(kernel, keys, Stages(deep, c.stages, c.vec)),
                MmaLoader(kernel, values, Stages(c.bn, c.stages, c.vec)))

    # -- steps over keys

    def _steps(self, query: MmaLoader, key: MmaLoader, value: MmaLoader, row: Index, y: Index, lines: list[list[Row]],
               thread: Index) -> list[ir.Value]:
        """Maxima and sums of each row of a thread, then four mixed values for each instruction."""
        c, kernel = self.config, self.kernel
        last = (row + (c.bm - 1)).min(self.rows.extent - 1)
        least, most = self.softmax.reach(row, last)
        first, end = Index(0), most.ceildiv(c.bn)
        if self.parts is not None:
            share = end.ceildiv(c.split_kv)
            first = (kernel.block_id("y") * share).min(end)
            end = (first + share).min(end)
        whole = (least // c.bn).min(end).max(first)

        def copy(stage: Index, at: Index) -> list[Store]:
            keys = key.begin(stage, at, Index(0), self.depth.extent, thread)
            return [*keys, *value.begin(stage, Index(0), at, self.mixed_keys.extent, thread)]

        steps = Steps(first, end, c.bn, Index(0))
        ring = StageRing(kernel, c.stages, steps, copy, bounded=key.is_async and value.is_async, after_group=True)
        ring.fill()
        ring.wait_for_earlier()
        queries = [self._query(query, y, k) for k in range(self._deep())] if c.queries_in_registers else []

        def body(edge: bool) -> Callable[..., list[ir.Value]]:
            def one(step: Index, *carried: ir.Value) -> list[ir.Value]:
                def compute(stage: Index) -> list[ir.Value]:
                    scores = self._scores(queries or [self._query(query, y, k) for k in range(self._deep())], key, stage)
                    state, weights = self._exponentials(scores, lines, step * c.bn, edge, carried)
                    return self._mix(state, weights, value, stage)

                return ring.step(step, compute)

            return one

        lowest, zero = (self.softmax.number(x) for x in (-inf, 0.0))
        start = [lowest, zero] * (2 * self.down) + [zero] * (4 * self.down * self.wide)
        found = loop(first, whole, 1, body(False), start, kernel.index)
        found = loop(whole, end, 1, body(True), found, kernel.index)
        if not ring.bounded:
            ring.drain()
        return found

    def _deep(self) -> int:
        """Instructions along a query."""
        depth = self.plan.view.scores.size(self.plan.view.scores.k).constant or 1
        return -(-depth // self.plan.product.depth)

    def _query(self, query: MmaLoader, y: Index, k: int) -> list[list[ir.Value]]:
        return [query.fragment(Index(0), y, i * _ROWS, k * self.plan.product.depth, self.lane, True) for i in range(self.down)]

    def _scores(self, queries: list[list[list[ir.Value]]], key: MmaLoader, stage: Index) -> list[ir.Value]:
        """Four scores for each instruction of a warp, [down][across]."""
        view, product = self.plan.view, self.plan.product
        found = [self.softmax.number(0.0)] * (4 * self.down * self.across)
        sides = (view.query, 1 - view.query)
        for k, rows in enumerate(queries):
            for j in range(0, self.across, 2):
                b = key.fragment(stage, Index(0), j * _COLUMNS, k * product.depth, self.lane, False)
                for i in range(self.down):
                    for half in range(2):
                        at = 4 * (i * self.across + j + half)
                        found[at : at + 4] = product.mma(sides, rows[i], b[2 * half : 2 * half + 2], found[at : at + 4])
        return found

    def _exponentials(self, scores: Sums, lines: list[list[Row]], key: Index, edge: bool,
                      carried: Sums) -> tuple[list[ir.Value], list[ir.Value]]:
        """The state with rescaled sums and mixed values, and the exponentials in the places of the scores."""
        state, weights = list(carried), list(scores)
        base = 4 * self.down
        for i in range(self.down):
            for h in range(2):
                at = [4 * (i * self.across + j) + 2 * h + q for j in range(self.across) for q in range(2)]
                mine = 2 * (2 * i + h)
                taken = self.softmax.step(lines[i][h], [scores[x] for x in at], key + self.lane % _QUAD * 2, edge,
                                          state[mine], state[mine + 1])
                state[mine], state[mine + 1] = taken.greatest, taken.total
                for x, value in zip(at, taken.weights, strict=True):
                    weights[x] = value
                for j in range(self.wide):
                    for x in range(2):
                        place = base + 4 * (i * self.wide + j) + 2 * h + x
                        state[place] = self.softmax.times(state[place], taken.factor)
        return state, weights

    def _mix(self, state: list[ir.Value], weights: Sums, value: MmaLoader, stage: Index) -> list[ir.Value]:
        """The state with the products of exponentials and values added."""
        view, product, found = self.plan.view, self.plan.mixing_product, list(state)
        sides = (view.weights, 1 - view.weights)
        base, tall = 4 * self.down, product.depth // _COLUMNS
        for k in range(self.across // tall):
            rows = []
            for i in range(self.down):
                at = 4 * (i * self.across + k * tall)
                rows.append(product.factors(weights[at : at + 4 * tall]))
            for j in range(0, self.wide, 2):
                b = value.fragment(stage, Index(0), j * _COLUMNS, k * product.depth, self.lane, False, paired=tall == 1)
                for i in range(self.down):
                    for half in range(2):
                        at = base + 4 * (i * self.wide + j + half)
                        found[at : at + 4] = product.mma(sides, rows[i], b[2 * half : 2 * half + 2], found[at : at + 4])
        return found

    # -- results

    def _finish(self, row: Index, y: Index, number: Index, lines: list[list[Row]], sums: list[ir.Value]) -> None:
        """Sums of all lanes of a row; values go out divided by them, or undivided to the workspace."""
        base = 4 * self.down
        totals = [joined(sums[2 * r + 1], lambda a, b: arith.addf(a, b)) for r in range(2 * self.down)]
        if self.parts is not None:
            for r in range(2 * self.down):
                mine = row + y + self.lane // _QUAD + 8 * r
                first = (self.lane % _QUAD).eq(0)
                when(first, partial(self.parts.keep_row, number, mine, sums[2 * r], totals[r]))
                for j, x in ((j, x) for j in range(self.wide) for x in range(2)):
                    value = sums[base + 4 * (r // 2 * self.wide + j) + 2 * (r % 2) + x]
                    self.parts.keep(number, mine, self.lane % _QUAD * 2 + (j * _COLUMNS + x), value)
            return
        shares = [self.softmax.share(t) for t in totals]
        values = [self.softmax.times(v, shares[i // (4 * self.wide) * 2 + i % 4 // 2]) for i, v in enumerate(sums[base:])]
        self._store(row, y, number, values)

    def _store(self, row: Index, y: Index, number: Index, values: list[ir.Value]) -> None:
        """16 rows of a warp after the other go through shared memory of the warp's own, a slab of columns at a time."""
        kernel, view = self.kernel, self.plan.view
        wide = slab(view.columns)
        room = kernel.shared(self.f32, [self.config.threads // WARP, 16, wide + PAD], at=0)
        batch = self.batch.point(number)
        mixed = {d: batch[s] for d, s in enumerate(view.loops) if s is not None and s in batch}
        result = Result(kernel, self.plan.mixing, mixed, self.mixed_rows, self.columns)
        width = result.width(min(self.config.vec, 8))
        pair, per_row, warp = vector_type(self.f32, 2), wide // width, kernel.thread() // WARP
        kernel.barrier()
        for i in range(self.down):
            for first in range(0, self.wide * _COLUMNS, wide):
                if i or first:
                    self._sync_warp()
                for j in range(first // _COLUMNS, min(self.wide, (first + wide) // _COLUMNS)):
                    for h in range(2):
                        at = 4 * (i * self.wide + j) + 2 * h
                        two = vector.from_elements(pair, values[at : at + 2])
                        column = (self.lane % _QUAD * 2 + (j * _COLUMNS - first)).known_multiple(2)
                        room.store(two, [warp, self.lane // _QUAD + 8 * h, Index.ramp(column, 2)])
                self._sync_warp()

                def chunk(number: Index, i: int = i, first: int = first) -> None:
                    down, x = number // per_row, number % per_row * width
                    inside = (x + first).lt(view.columns)
                    place = row + y + (down + i * _ROWS)

                    def out() -> None:
                        result.store(place, x + first, room.load([warp, down, Index.ramp(x, width)]))

                    when(all_of([inside]), out)

                loop(self.lane, 16 * per_row, WARP, chunk, index=kernel.index)

    def _sync_warp(self) -> None:
        """The lanes of a warp wait for each other."""
        nvvm.bar_warp_sync(Index(-1).value(ir.IntegerType.get_signless(32)))
