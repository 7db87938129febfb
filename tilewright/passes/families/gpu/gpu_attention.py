"""Family `gpu_attention`: softmax(f(Q K^T)) V by mma.sync, with no tensor of queries by keys.

A block takes bm queries of one point of the shared loops, a warp wm of them. Keys and values come bn at a time through a ring of
stages in shared memory. A warp keeps its queries and the mixed values in registers, takes the scores of a step through the
softmax there, and multiplies the exponentials with the values where they are; maxima and sums are carried along and the mixed
values rescaled (Milakov and Gimelshein 2018; Dao 2023, algorithm 1). Steps that no query of the block sees are left out, and only
the last ones compare places; values of keys behind the last one that a query sees are zeros. The division by the sum comes after
the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.codegen.emit import loop
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_space import Point
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.gpu.gpu_attention_block import COLUMNS, QUAD, ROWS, AttentionBlock, cut_queries
from tilewright.passes.families.gpu.gpu_attention_parts import Parts
from tilewright.passes.families.gpu.gpu_attention_plan import AttentionPlan
from tilewright.passes.families.gpu.gpu_attention_softmax import FragmentSoftmax, Row
from tilewright.passes.families.gpu.gpu_operand import Side
from tilewright.passes.families.gpu.gpu_pointwise import tile_elements
from tilewright.passes.families.gpu.gpu_tile import Stages
from tilewright.passes.families.gpu.mma_tile import MmaLoader
from tilewright.passes.families.gpu.stage_ring import StageRing, Steps, Store
from tilewright.passes.mlir import ir, nvvm
from tilewright.passes.spaces.gpu.gpu_attention import GpuAttentionConfig, padded, slab
from tilewright.runtime.limits import WARP
from tilewright.runtime.shape import Expr

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
    cut_queries(Attention.of(frame.ops(), frame.shapes), config.bm, tiler)
    if config.split_kv > 1:
        tile_elements(frame, tiler, min(config.vec, 4), 256)


class _AttentionBlock(AttentionBlock):
    """What one block of threads does."""

    def __init__(self, kernel: GpuKernel, plan: AttentionPlan, config: GpuAttentionConfig, parts: Parts | None) -> None:
        super().__init__(kernel, plan, config.bm, config.bn, parts)
        self.config = config
        self.down, self.across = config.wm // ROWS, config.bn // COLUMNS

    def emit(self) -> Grid:
        c, kernel = self.config, self.kernel
        queries = self.queries()
        thread = kernel.thread()
        y = thread // WARP * c.wm
        self.softmax = FragmentSoftmax(kernel, self.plan, self.rows, self.keys, queries.at, min(2, c.vec))
        query, key, value = self._loaders(queries.at)
        for store in query.begin(Index(0), queries.row, Index(0), self.depth.extent, thread):
            store()
        nvvm.cp_async_commit_group()
        lines = self.lines(self.softmax, queries.row + y, self.down)
        sums = self._steps(query, key, value, queries.row, y, lines, thread)
        values = self.finish(self.softmax, queries, y, sums)
        if values:
            room = self.room(c.threads // WARP, slab(self.plan.view.columns), at=0)
            kernel.barrier()
            self.store(room, queries, y, values, min(c.vec, 8))
        return queries.total, Expr.of(c.split_kv), Expr.of(1)

    def _loaders(self, at: Point) -> tuple[MmaLoader, MmaLoader, MmaLoader]:
        """Of queries, keys and values."""
        c, view, kernel = self.config, self.plan.view, self.kernel
        deep, wide = padded(view.scores.size(view.scores.k).constant or 1), padded(view.columns)
        queries = Side(view.scores, view.query, self.rows, self.depth, c.bm, at)
        keys = Side(view.scores, 1 - view.query, self.keys, self.depth, c.bn, at)
        values = Side(view.mixed, 1 - view.weights, self.columns, self.mixed_keys, wide, self.mixed_point(at))
        return (MmaLoader(kernel, queries, Stages(deep, 1, c.vec)), MmaLoader(kernel, keys, Stages(deep, c.stages, c.vec)),
                MmaLoader(kernel, values, Stages(c.bn, c.stages, c.vec)))

    # -- steps over keys

    def _steps(self, query: MmaLoader, key: MmaLoader, value: MmaLoader, row: Index, y: Index, lines: list[list[Row]],
               thread: Index) -> list[ir.Value]:
        """Maxima and sums of each row of a thread, then four mixed values for each instruction."""
        c, kernel, steps = self.config, self.kernel, self.steps(self.softmax, row)

        def copy(stage: Index, at: Index) -> list[Store]:
            keys = key.begin(stage, at, Index(0), self.depth.extent, thread)
            return [*keys, *value.begin(stage, Index(0), at, steps.keys, thread)]

        ring = StageRing(kernel, c.stages, Steps(steps.first, steps.end, c.bn, Index(0)), copy,
                         bounded=key.is_async and value.is_async, after_group=True)
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

        found = loop(steps.first, steps.whole, 1, body(False), self.start(self.softmax, self.down), kernel.index)
        found = loop(steps.whole, steps.end, 1, body(True), found, kernel.index)
        if not ring.bounded:
            ring.drain()
        return found

    def _deep(self) -> int:
        """Instructions along a query."""
        depth = self.plan.view.scores.size(self.plan.view.scores.k).constant or 1
        return -(-depth // self.plan.product.depth)

    def _query(self, query: MmaLoader, y: Index, k: int) -> list[list[ir.Value]]:
        return [query.fragment(Index(0), y, i * ROWS, k * self.plan.product.depth, self.lane, True) for i in range(self.down)]

    def _scores(self, queries: list[list[list[ir.Value]]], key: MmaLoader, stage: Index) -> list[ir.Value]:
        """Four scores for each instruction of a warp, [down][across]."""
        view, product = self.plan.view, self.plan.product
        found = [self.softmax.number(0.0)] * (4 * self.down * self.across)
        sides = (view.query, 1 - view.query)
        for k, rows in enumerate(queries):
            for j in range(0, self.across, 2):
                b = key.fragment(stage, Index(0), j * COLUMNS, k * product.depth, self.lane, False)
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
                taken = self.softmax.step(lines[i][h], [scores[x] for x in at], key + self.lane % QUAD * 2, edge,
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
        base, tall = 4 * self.down, product.depth // COLUMNS
        for k in range(self.across // tall):
            rows = []
            for i in range(self.down):
                at = 4 * (i * self.across + k * tall)
                rows.append(product.factors(weights[at : at + 4 * tall]))
            for j in range(0, self.wide, 2):
                b = value.fragment(stage, Index(0), j * COLUMNS, k * product.depth, self.lane, False, paired=tall == 1)
                for i in range(self.down):
                    for half in range(2):
                        at = base + 4 * (i * self.wide + j + half)
                        found[at : at + 4] = product.mma(sides, rows[i], b[2 * half : 2 * half + 2], found[at : at + 4])
        return found
