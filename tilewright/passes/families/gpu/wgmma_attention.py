"""Family `wgmma_attention`: softmax(f(Q K^T)) V by warpgroups on sm_90a, with no tensor of queries by keys.

After FlashAttention-3 (Shah et al. 2024, algorithm 2). One warpgroup copies queries, keys and values by tensor copies; each of
the others has 64 queries, their scores and mixed values in registers. The exponentials of a step are the left operand of the
second product where the first has left the scores. While a step's softmax is computed the products of the step before with its
values are under way, the scores of a step are begun before them. Steps go from the last keys to the first, so that only the
first ones compare places.

In a launch for several sequences the first step's copies of values bring rows of the next sequence: they are cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.codegen.emit import all_of, integer_type, loop, when, when_values
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.gpu.gpu_attention_block import COLUMNS, QUAD, AttentionBlock, KeySteps, Queries, cut_queries
from tilewright.passes.families.gpu.gpu_attention_parts import Parts
from tilewright.passes.families.gpu.gpu_attention_plan import AttentionPlan, with_one_row_loop
from tilewright.passes.families.gpu.gpu_attention_softmax import FragmentSoftmax, Row
from tilewright.passes.families.gpu.gpu_pointwise import tile_elements
from tilewright.passes.families.gpu.mbarrier_ring import MbarrierRing
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.gpu.wgmma_code import WgmmaCode, commit, fence, wait
from tilewright.passes.families.gpu.wgmma_operand import MINE, TmaOperand
from tilewright.passes.mlir import ir, llvm, nvvm, scf
from tilewright.passes.spaces.gpu.wgmma import BARRIER, GROUP, ROWS, STEP
from tilewright.passes.spaces.gpu.wgmma_attention import (
    BLOCK,
    COPIER,
    MULTIPLIER,
    SIZE,
    WgmmaAttentionConfig,
    blocks,
    fragments,
    slab,
)
from tilewright.runtime.limits import WARP
from tilewright.runtime.shape import Expr

_WARPS = GROUP // WARP
_ROWS = 16  # of a warp
_CLEARED = 1  # the barrier at which the warpgroups that multiply meet
_STATE = 4  # maximum and sum of each of the two rows of a thread
_PER_STEP = STEP // SIZE  # positions along k of an instruction


def emit(kernel: GpuKernel, config: WgmmaAttentionConfig) -> None:
    """The whole kernel. ValueError when the region is no attention that this family computes."""
    plan = AttentionPlan.of(kernel, False).with_one_row_loop()
    tiles = _Tiles.of(kernel, plan, config)
    parts = Parts(kernel, plan, config.split_kv) if config.split_kv > 1 else None
    if parts is not None:
        kernel.use_workspace(parts.bytes())
    kernel.launch(config.threads, lambda: _Block(kernel, plan, config, tiles, parts).emit(), min_blocks_per_sm=1)
    if parts is not None:
        kernel.launch(256, lambda: parts.finish(min(config.vec, 4)), "_join")


def tile(frame: KernelFrame, config: WgmmaAttentionConfig, tiler: Tiler) -> None:
    """Units of bm queries of one point of the shared loops and of all row loops but one."""
    cut_queries(with_one_row_loop(Attention.of(frame.ops(), frame.shapes)), config.bm, tiler)
    if config.split_kv > 1:
        tile_elements(frame, tiler, min(config.vec, 4), 256)


@dataclass(frozen=True)
class _Tiles:
    """Of queries, keys and values, and the products of them."""

    query: TmaOperand
    key: TmaOperand
    value: TmaOperand
    scores: WgmmaCode
    mixing: WgmmaCode

    @staticmethod
    def of(kernel: GpuKernel, plan: AttentionPlan, config: WgmmaAttentionConfig) -> _Tiles:
        view = plan.view
        depth = view.scores.size(view.scores.k).constant or 1
        factors = SimtPlan(view.scores, view.query, 1 - view.query, view.rows, (view.key,), (), False)
        query, key = (TmaOperand(kernel, factors, which, extent, blocks(depth))
                      for which, extent in ((view.query, config.bm), (1 - view.query, config.bn)))
        value = TmaOperand(kernel, plan.mixing, 1 - view.weights, blocks(view.columns) * BLOCK, config.bn // BLOCK, clears=True)
        if query.size != SIZE:
            raise ValueError(f"{view.scores.op.name} at {view.scores.op.location}: operands have elements of "
                             f"{query.size} bytes, wanted {SIZE}")
        turned = [not t.along_k for t in (query, key, value)]
        kinds, mixed = plan.product.kinds, plan.mixing_product.kinds
        scores = WgmmaCode(config.bn, _PER_STEP, (kinds[view.query], kinds[1 - view.query]), (turned[0], turned[1]))
        mixing = WgmmaCode(fragments(view.columns), _PER_STEP, (mixed[view.weights], mixed[1 - view.weights]), (False, turned[2]))
        return _Tiles(query, key, value, scores, mixing)


class _Block(AttentionBlock):
    """What one block of threads does."""

    def __init__(self, kernel: GpuKernel, plan: AttentionPlan, config: WgmmaAttentionConfig, tiles: _Tiles,
                 parts: Parts | None) -> None:
        super().__init__(kernel, plan, config.bm, config.bn, parts)
        self.config, self.tiles = config, tiles
        self.i32 = integer_type(32)

    def emit(self) -> Grid:
        c, kernel = self.config, self.kernel
        queries = self.queries()
        self.softmax = FragmentSoftmax(kernel, self.plan, self.rows, self.keys, queries.at, min(2, c.vec))
        steps = self.steps(self.softmax, queries.row)
        self._memory()
        thread = kernel.thread()
        when(thread.eq(0), self._start)
        kernel.barrier()
        kernel.follow()
        group, member = thread // GROUP, thread % GROUP
        copies = group.eq(c.consumers)

        assert not isinstance(copies, bool)
        role = scf.IfOp(copies, has_else=True)
        with ir.InsertionPoint(role.then_block):
            self._registers(COPIER, nvvm.SetMaxRegisterAction.decrease)
            when(all_of([(member // WARP).eq(0), steps.first.lt(steps.end)]),
                 lambda: when(nvvm.elect_sync(), lambda: self._copy(queries, steps)))
            scf.YieldOp([])
        with ir.InsertionPoint(role.else_block):
            self._registers(MULTIPLIER, nvvm.SetMaxRegisterAction.increase)
            self._multiply(queries, steps, thread // WARP * _ROWS)
            scf.YieldOp([])
        return queries.total, Expr.of(c.split_kv), Expr.of(1)

    def _memory(self) -> None:
        """Tiles at multiples of 1024 bytes, then what needs less."""
        c, kernel, t = self.config, self.kernel, self.tiles
        bases = [kernel.shared(integer_type(8), [count * tile.bytes]).pointer
                 for tile, count in ((t.query, 1), (t.key, c.stages), (t.value, c.stages))]
        self.results = self.room(_WARPS * c.consumers, slab(self.plan.view.columns))
        counts = (1, c.stages, c.stages)
        barriers = [kernel.shared(integer_type(8 * BARRIER), [2 * count]) for count in counts]
        sizes = (t.query.bytes, t.key.bytes, t.value.bytes)
        self.query, self.key, self.value = (MbarrierRing(*x) for x in zip(counts, sizes, bases, barriers, strict=True))

    def _start(self) -> None:
        """One thread, before all meet."""
        self.kernel.prefetch_tensor_maps()
        for ring in (self.query, self.key, self.value):
            ring.initialise(_WARPS * self.config.consumers)
        nvvm.fence_mbarrier_init()

    def _registers(self, given: dict[int, int], action: nvvm.SetMaxRegisterAction) -> None:
        """Hands registers from the warpgroup that copies to those that multiply."""
        if self.config.consumers > 1:
            nvvm.setmaxregister(given[self.config.consumers], action)

    # -- the warpgroup that copies, one thread of it

    def _copy(self, queries: Queries, steps: KeySteps) -> None:
        t, at, mixed, nothing = self.tiles, queries.at, self.mixed_point(queries.at), Index(0)
        self._fetch(self.query, nothing, lambda stage, full: t.query.fetch(stage, at, (queries.row, nothing), full, MINE))

        def one(number: Index) -> None:
            key = (steps.end - 1 - number) * self.bn
            self._fetch(self.key, number, lambda stage, full: t.key.fetch(stage, at, (key, nothing), full, MINE))
            self._fetch(self.value, number, lambda stage, full: t.value.fetch(stage, mixed, (nothing, key), full, MINE))

        loop(0, steps.end - steps.first, 1, one, index=self.i32)

    def _fetch(self, ring: MbarrierRing, number: Index, fetch: Callable[[ir.Value, ir.Value], None]) -> None:
        """Starts the copies of a step once its stage is empty."""
        place = ring.place(number)
        if ring.stages > 1:
            ring.wait_empty(place)
        full = ring.full(place.stage)
        nvvm.mbarrier_arrive_expect_tx(full, Index(ring.stage_bytes).value(self.i32), results=[])
        fetch(ring.at(place.stage), full)

    # -- the warpgroups that multiply

    def _multiply(self, queries: Queries, steps: KeySteps, y: Index) -> None:
        """y: the first query of the warp."""
        lines = self.lines(self.softmax, queries.row + y, 1)[0]
        start = self.start(self.softmax, 1)
        sums = when_values(steps.first.lt(steps.end), start, lambda: self._steps(steps, y, lines, start))
        values = self.finish(self.softmax, queries, y, sums)
        if values:
            self.store(self.results, queries, y, values, self.config.vec)

    def _steps(self, steps: KeySteps, y: Index, lines: list[Row], start: list[ir.Value]) -> list[ir.Value]:
        """Maxima and sums of both rows of a thread, then its mixed values."""
        row = y // ROWS * ROWS
        self._arrived(self.query, Index(0))
        self._arrived(self.key, Index(0))
        fence([])
        scores = wait(0, self._scores(row, Index(0)))
        self._release(self.key, Index(0))
        if self.tiles.value.strange:
            self._clear_values(self.keys.extent - (steps.end - 1) * self.bn)
        weights, state, _ = self._weights(scores, lines, (steps.end - 1) * self.bn, True, start[:_STATE])
        carried = [*state, *start[_STATE:], *self._packed(weights)]
        base = len(start)

        def body(edge: bool) -> Callable[..., list[ir.Value]]:
            def one(number: Index, *before: ir.Value) -> list[ir.Value]:
                fence([])
                scores = self._scores(row, number)
                self._arrived(self.value, number - 1)
                ready = fence(before[_STATE:])
                mixed = self._mixed(ready[: base - _STATE], ready[base - _STATE :], number - 1)
                scores = wait(1, scores)
                self._release(self.key, number)
                key = (steps.end - 1 - number) * self.bn
                weights, state, factors = self._weights(scores, lines, key, edge, before[:_STATE])
                next_keys(number + 1)  # a branch, which keeps ptxas from moving the exponentials behind the wait
                done = wait(0, [*mixed, *weights])
                self._release(self.value, number - 1)
                mixed, weights = done[: len(mixed)], done[len(mixed) :]
                mixed = [self.softmax.times(v, factors[i // 2 % 2]) for i, v in enumerate(mixed)]
                return [*state, *mixed, *self._packed(weights)]

            return one

        count, edges = steps.end - steps.first, Index(1)

        def next_keys(number: Index) -> None:
            when(number.lt(count), lambda: self._arrived(self.key, number))

        next_keys(Index(1))
        if self.plan.hidden.row is not None:
            edges = (steps.end - steps.whole).max(1)
            carried = loop(1, edges, 1, body(True), carried, self.i32)
        carried = loop(edges, count, 1, body(False), carried, self.i32)
        self._arrived(self.value, count - 1)
        ready = fence(carried[_STATE:])
        mixed = wait(0, self._mixed(ready[: base - _STATE], ready[base - _STATE :], count - 1))
        return [*carried[:_STATE], *mixed]

    def _clear_values(self, own: Index) -> None:
        """Of the first step, which has the last keys: behind the sequence's `own` lie those of the next one, whose weights are 0;
        0 times what they may be, such as NaN, would not be."""
        count = GROUP * self.config.consumers

        def clear() -> None:
            self._arrived(self.value, Index(0))
            self.tiles.value.clear(self.value.at(Index(0)), own, (self.kernel.thread(), count))
            nvvm.barrier(barrier_id=Index(_CLEARED).value(self.i32), number_of_threads=Index(count).value(self.i32))

        when(own.lt(self.bn), clear)

    def _arrived(self, ring: MbarrierRing, number: Index) -> None:
        ring.wait_full(ring.place(number))

    def _release(self, ring: MbarrierRing, number: Index) -> None:
        """The warp has read the stage of a step."""

        def arrive() -> None:
            nvvm.mbarrier_arrive(ring.empty(ring.place(number).stage), results=[integer_type(64)])

        when(self.lane.eq(0), arrive)

    def _stage(self, ring: MbarrierRing, number: Index) -> Index:
        """Address of the stage of a step in the shared space."""
        return Index(llvm.PtrToIntOp(self.i32, ring.base).result) + ring.place(number).stage * ring.stage_bytes

    def _scores(self, row: Index, number: Index) -> list[ir.Value]:
        """Begins a group of products of the warpgroup's queries, from `row` of the block on, with the keys of a step."""
        t, depth = self.tiles, self.plan.view.scores.size(self.plan.view.scores.k).constant or 1
        left = t.query.descriptor(self._stage(self.query, Index(0)), row)
        right = t.key.descriptor(self._stage(self.key, number), Index(0))
        found: list[ir.Value] = []
        for k in range(0, -(-depth // _PER_STEP) * _PER_STEP, _PER_STEP):
            found = t.scores.product(found, [t.query.advance(left, 0, k)], t.key.advance(right, 0, k))
        commit()
        return found

    def _mixed(self, held: Sequence[ir.Value], weights: Sequence[ir.Value], number: Index) -> list[ir.Value]:
        """Begins a group of products of exponentials, four registers an instruction, with the values of a step."""
        found, value = list(held), self.tiles.value
        start = value.descriptor(self._stage(self.value, number), Index(0))
        for k in range(0, self.bn, _PER_STEP):
            at = k // _PER_STEP * 4
            found = self.tiles.mixing.product(found, weights[at : at + 4], value.advance(start, 0, k))
        commit()
        return found

    def _weights(self, scores: Sequence[ir.Value], lines: list[Row], key: Index, edge: bool,
                 state: Sequence[ir.Value]) -> tuple[list[ir.Value], list[ir.Value], list[ir.Value]]:
        """Exponentials in the places of the scores, maxima and sums with them, by what mixed values of each row are scaled."""
        weights, after, factors = list(scores), list[ir.Value](), list[ir.Value]()
        for h, line in enumerate(lines):
            at = [4 * j + 2 * h + q for j in range(self.bn // COLUMNS) for q in range(2)]
            mine, first = [scores[x] for x in at], key + self.lane % QUAD * 2
            taken = self.softmax.step(line, mine, first, edge, state[2 * h], state[2 * h + 1])
            after += [taken.greatest, taken.total]
            factors.append(taken.factor)
            for x, value in zip(at, taken.weights, strict=True):
                weights[x] = value
        return weights, after, factors

    def _packed(self, weights: Sequence[ir.Value]) -> list[ir.Value]:
        """The registers of the left operand of the second product."""
        per = 4 * _PER_STEP // COLUMNS
        return [x for at in range(0, len(weights), per) for x in self.plan.mixing_product.factors(weights[at : at + per])]
