"""Family `wgmma_attention`: softmax(f(Q K^T)) V by warpgroups on sm_90a, with no tensor of queries by keys.

After FlashAttention-3 (Shah et al. 2024, algorithm 2). One warpgroup copies queries, keys and values by tensor copies; each of
the others has 64 queries, their scores and mixed values in registers. The exponentials of a step are the left operand of the
second product where the first has left the scores. While a step's softmax is computed the products of the step before with its
values are under way, the scores of a step are begun before them. Steps go from the last keys to the first, so that only the
first ones compare places.

Blocks may take tiles of queries one after the other: the copies go on to the next ones ahead of those who multiply, and the first
step of a tile is computed with the last products of the one before. Warpgroups may take turns: one begins its products of a step
when the one before has begun its own, so that the tensor cores multiply for one while another computes exponentials.

In a launch for several sequences the first step's copies of values bring rows of the next sequence: they are cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.codegen.emit import all_of, integer_type, loop, vector_type, when, when_values
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.index import Index, select
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.gpu.gpu_attention_block import COLUMNS, QUAD, AttentionBlock, KeySteps, Queries, cut_queries
from tilewright.passes.families.gpu.gpu_attention_parts import Parts
from tilewright.passes.families.gpu.gpu_attention_plan import AttentionPlan, with_one_row_loop
from tilewright.passes.families.gpu.gpu_attention_softmax import FragmentSoftmax
from tilewright.passes.families.gpu.gpu_pointwise import tile_elements
from tilewright.passes.families.gpu.mbarrier_ring import MbarrierRing
from tilewright.passes.families.gpu.simt_store import Result
from tilewright.passes.families.gpu.wgmma_attention_tiles import PER_STEP, AttentionTiles
from tilewright.passes.families.gpu.wgmma_code import commit, fence, wait
from tilewright.passes.families.gpu.wgmma_operand import MINE
from tilewright.passes.families.gpu.wgmma_result import CopiedResult
from tilewright.passes.mlir import ir, llvm, nvvm, scf, vector
from tilewright.passes.spaces.gpu.wgmma import BARRIER, GROUP, ROWS
from tilewright.passes.spaces.gpu.wgmma_attention import (
    COPIER,
    MULTIPLIER,
    WgmmaAttentionConfig,
    slab,
)
from tilewright.runtime.limits import WARP
from tilewright.runtime.shape import Expr

_WARPS = GROUP // WARP
_ROWS = 16  # of a warp
_CLEARED = _TURNS = 1  # barriers: of all warpgroups that multiply; the first of those by which they take turns, never beside it
_STATE = 4  # maximum and sum of each of the two rows of a thread


def emit(kernel: GpuKernel, config: WgmmaAttentionConfig) -> None:
    """The whole kernel. ValueError when the region is no attention that this family computes."""
    plan = AttentionPlan.of(kernel, False).with_one_row_loop()
    tiles = AttentionTiles.of(kernel, plan, config)
    parts = Parts(kernel, plan, config.split_kv) if config.split_kv > 1 else None
    if parts is not None:
        kernel.use_workspace(parts.bytes())
    copied = CopiedResult(kernel, plan.mixing, plan.view.columns) if config.copied else None
    kernel.launch(config.threads, lambda: _Block(kernel, plan, config, tiles, parts, copied).emit(), min_blocks_per_sm=1,
                  persistent=bool(config.blocks))
    if parts is not None:
        kernel.launch(256, lambda: parts.finish(min(config.vec, 4)), "_join")


def tile(frame: KernelFrame, config: WgmmaAttentionConfig, tiler: Tiler) -> None:
    """Units of bm queries of one point of the shared loops and of all row loops but one."""
    cut_queries(with_one_row_loop(Attention.of(frame.ops(), frame.shapes)), config.bm, tiler)
    if config.split_kv > 1:
        tile_elements(frame, tiler, min(config.vec, 4), 256)


@dataclass(frozen=True)
class _Tile:
    """Queries that a block takes at once, what makes exponentials of their scores, their steps of keys; turn: how many tiles the
    block took before, done: how many steps those had."""

    queries: Queries
    softmax: FragmentSoftmax
    steps: KeySteps
    turn: Index
    done: Index

    @property
    def count(self) -> Index:
        return self.steps.end - self.steps.first


@dataclass(frozen=True)
class _Scored:
    """A step whose scores are computed: the turn of its tile, its number among those of the block. read: the tile and the step's
    number there, which nothing waits for before the products are under way."""

    turn: Index
    step: Index
    read: Callable[[], tuple[_Tile, Index]]


@dataclass(frozen=True)
class _Step:
    """What a step of a tile leaves: maxima and sums of both rows of a thread, mixed values of the step before, exponentials, by
    what those mixed values are scaled."""

    tile: _Tile
    state: list[ir.Value]
    mixed: list[ir.Value]
    weights: list[ir.Value]
    factors: list[ir.Value]


class _Block(AttentionBlock):
    """What one block of threads does."""

    def __init__(self, kernel: GpuKernel, plan: AttentionPlan, config: WgmmaAttentionConfig, tiles: AttentionTiles,
                 parts: Parts | None, copied: CopiedResult | None) -> None:
        super().__init__(kernel, plan, config.bm, config.bn, parts)
        self.repeats = bool(config.blocks)
        self.config, self.tiles, self.copied = config, tiles, copied
        self.i32 = integer_type(32)

    def emit(self) -> Grid:
        c, kernel = self.config, self.kernel
        self.units = kernel.loops[0].total
        if self.plan.hidden.lengths:  # a kernel before may have made them
            kernel.follow()
        if c.blocks:  # every tile has a step
            kernel.require((Expr.of(1) - self.keys.size).maximum(0), "keys")
            self._count_tiles()
        first = self._tile(Index(0), Index(0))
        self._memory()
        thread = kernel.thread()
        when(thread.eq(0), self._start)
        kernel.barrier()
        kernel.follow()
        self.group, self.member = thread // GROUP, thread % GROUP
        copies = self.group.eq(c.consumers)

        assert not isinstance(copies, bool)
        role = scf.IfOp(copies, has_else=True)
        with ir.InsertionPoint(role.then_block):
            self._registers(COPIER, nvvm.SetMaxRegisterAction.decrease)
            some = [] if c.blocks else [first.steps.first.lt(first.steps.end)]
            for warp, copy in enumerate((self._copy_keys, self._copy_values)):
                bring = partial(self._copy_all if c.blocks else self._copy_one, copy, first)
                when(all_of([(self.member // WARP).eq(warp), *some]), partial(_by_one, bring))
            scf.YieldOp([])
        with ir.InsertionPoint(role.else_block):
            self._registers(MULTIPLIER, nvvm.SetMaxRegisterAction.increase)
            y = thread // WARP * _ROWS
            if c.blocks:
                self._multiply_all(first, y)
            else:
                self._multiply(first, y)
            if self.copied is not None:
                self.copied.finish(self.member)
            scf.YieldOp([])
        return self.units.minimum(c.blocks) if c.blocks else self.units, Expr.of(c.split_kv), Expr.of(1)

    def _memory(self) -> None:
        """Tiles at multiples of 1024 bytes, then what needs less."""
        c, kernel, t = self.config, self.kernel, self.tiles
        counts = (c.query_stages, c.stages, c.stages)
        bases = [kernel.shared(integer_type(8), [count * tile.bytes]).pointer
                 for tile, count in zip((t.query, t.key, t.value), counts, strict=True)]
        if self.copied is not None:
            count = self.plan.view.columns // self.copied.columns
            self.copied.launch(c.consumers, count, count)
        else:
            self.results = self.room(_WARPS * c.consumers, slab(self.plan.view.columns))
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

    # -- the tiles of a block

    def _count_tiles(self) -> None:
        """How many tiles the block takes: one of each round of as many as there are blocks."""
        kernel = self.kernel
        self.block, self.stride, total = kernel.block_id(), kernel.blocks(), kernel.evaluator.emit(self.units)
        whole = total // self.stride
        self.turns = whole + select(self._number(whole).lt(total), Index(1), Index(0), type_=self.i32)

    def _number(self, turn: Index) -> Index:
        """The tile of a round. Where lengths differ every other round goes backwards, so that no block gets all the long ones."""
        mine = self.block
        if self.plan.hidden.row is not None:
            mine = select((turn % 2).eq(0), mine, self.stride - 1 - mine, type_=self.i32)
        return turn * self.stride + mine

    def _tile(self, turn: Index, done: Index, queries: Queries | None = None) -> _Tile:
        """queries: those of the tile, where they are known."""
        if queries is None:
            queries = self.queries(self._number(turn) if self.config.blocks else None)
        softmax = FragmentSoftmax(self.kernel, self.plan, self.rows, self.keys, queries.at, min(2, self.config.vec),
                                  True)
        steps = self.steps(softmax, queries.row)
        if self.config.blocks and self.plan.hidden.reach is not None:
            steps = replace(steps, end=steps.end.max(1))
        if self.plan.hidden.reach is None:  # asked of the launch, not of a row: warps that part cost addresses in registers
            softmax.cut = steps.whole.lt(steps.end)
        return _Tile(queries, softmax, steps, turn, done)

    # -- the warpgroup that copies: a thread of one warp queries and keys, of another values, so that neither waits for the other

    def _copy_one(self, copy: Callable[[_Tile], None], tile: _Tile) -> None:
        copy(tile)

    def _copy_all(self, copy: Callable[[_Tile], None], _: _Tile) -> None:
        def one(turn: Index, done: ir.Value) -> list[ir.Value]:
            tile = self._tile(turn, Index(done))
            copy(tile)
            return [(tile.done + tile.count).value(self.i32)]

        loop(0, self.turns, 1, one, [Index(0).value(self.i32)], index=self.i32)

    def _copy_keys(self, tile: _Tile) -> None:
        t, at, nothing = self.tiles, tile.queries.at, Index(0)
        row = tile.queries.row
        self._fetch(self.query, tile.turn, lambda stage, full: t.query.fetch(stage, at, (row, nothing), full, MINE))

        def one(number: Index) -> None:
            key = (tile.steps.end - 1 - number) * self.bn
            self._fetch(self.key, tile.done + number, lambda stage, full: t.key.fetch(stage, at, (key, nothing), full, MINE))

        loop(0, tile.count, 1, one, index=self.i32)

    def _copy_values(self, tile: _Tile) -> None:
        value, mixed, nothing = self.tiles.value, self.mixed_point(tile.queries.at), Index(0)

        def one(number: Index) -> None:
            key = (tile.steps.end - 1 - number) * self.bn
            self._fetch(self.value, tile.done + number, lambda stage, full: value.fetch(stage, mixed, (nothing, key), full, MINE))

        loop(0, tile.count, 1, one, index=self.i32)

    def _fetch(self, ring: MbarrierRing, number: Index, fetch: Callable[[ir.Value, ir.Value], None]) -> None:
        """Starts the copies of a step once its stage is empty."""
        place = ring.place(number)
        if ring.stages > 1:
            ring.wait_empty(place)
        full = ring.full(place.stage)
        nvvm.mbarrier_arrive_expect_tx(full, Index(ring.stage_bytes).value(self.i32), results=[])
        fetch(ring.at(place.stage), full)

    # -- the warpgroups that multiply

    def _multiply(self, tile: _Tile, y: Index) -> None:
        """The one tile of the block. y: the first query of the warp."""
        start = self.start(tile.softmax, 1)

        def steps() -> list[ir.Value]:
            state, weights = self._begin(tile, y, start)
            return self._end(tile, self._steps(tile, y, [*state, *start[_STATE:], *weights]))

        self._finish(tile, y, when_values(tile.steps.first.lt(tile.steps.end), start, steps))

    def _multiply_all(self, first: _Tile, y: Index) -> None:
        """All tiles of the block. The last step of one is the first of the next: its scores are begun before the last products of
        the one before, its softmax is computed while those are under way."""
        start, i32 = self.start(first.softmax, 1), self.i32
        state, weights = self._begin(first, y, start)
        zero = Index(0).value(i32)

        def place(tile: _Tile) -> list[ir.Value]:
            return [tile.queries.number.value(i32), tile.queries.row.value(i32)]

        def one(turn: Index, before: ir.Value, number: ir.Value, row: ir.Value, *held: ir.Value) -> list[ir.Value]:
            queries = Queries(self.batch.point(Index(number)), Index(number), Index(row), self.units)
            tile = self._tile(turn, Index(before), queries)
            carried = self._steps(tile, y, [*held[:_STATE], *start[_STATE:], *held[_STATE:]])
            self._release(self.query, turn)
            done = tile.done + tile.count
            more = (turn + 1).lt(self.turns)
            assert not isinstance(more, bool)
            last = scf.IfOp(more, [v.type for v in (*start[_STATE:], zero, zero, *held)], has_else=True)
            with ir.InsertionPoint(last.then_block):
                self._arrived(self.query, turn + 1)
                self._arrived(self.key, done)
                scored = _Scored(turn + 1, done, lambda: (self._tile(turn + 1, done), Index(0)))
                made = self._step(scored, y, True, [*start[:_STATE], *carried[_STATE:]])
                scf.YieldOp([*made.mixed, *place(made.tile), *made.state, *self._packed(made.weights)])
            with ir.InsertionPoint(last.else_block):
                mixed = self._end(tile, carried)[_STATE:]
                scf.YieldOp([*mixed, zero, zero, *start[:_STATE], *(zero for _ in held[_STATE:])])
            found = list(last.results_)
            mixed, after = found[: len(start) - _STATE], found[len(start) - _STATE :]
            self._finish(tile, y, [*carried[:_STATE], *mixed])
            return [done.value(i32), *after]

        loop(0, self.turns, 1, one, [zero, *place(first), *state, *weights], index=i32)

    def _finish(self, tile: _Tile, y: Index, sums: Sequence[ir.Value]) -> None:
        """sums: maxima and sums of both rows of a thread, then its mixed values."""
        values = self.finish(tile.softmax, tile.queries, y, sums)
        if self.copied is not None:
            self._store_copied(self.copied, tile, y, values)
        elif values:
            self.store(self.results, tile.queries, y, values, self.config.vec)

    def _store_copied(self, copied: CopiedResult, tile: _Tile, y: Index, values: Sequence[ir.Value]) -> None:
        mixed = self.mixed_point(self.batch.point(tile.queries.number))
        result = Result(self.kernel, self.plan.mixing, mixed, self.mixed_rows, self.columns)
        result.width(2)
        pair, per = vector_type(self.f32, 2), copied.columns // COLUMNS

        def sums(box: int, j: int, half: int) -> ir.Value:
            at = 4 * (box * per + j) + 2 * half
            return vector.from_elements(pair, values[at : at + 2])

        copied.store_at_once(result, sums, (self.group, self.member), tile.queries.row + y // ROWS * ROWS)

    def _begin(self, tile: _Tile, y: Index, start: Sequence[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        """The first step of the block's first tile: maxima and sums, packed exponentials."""
        self._arrived(self.query, tile.turn)
        self._arrived(self.key, tile.done)
        self._take_turn(True)
        fence([])
        scores = self._scores(tile.turn, y, tile.done)
        self._give_turn()
        scores = wait(0, scores)
        self._release(self.key, tile.done)
        if self.tiles.value.strange:
            self._clear_values(self.keys.extent - (tile.steps.end - 1) * self.bn)
        weights, state, _ = self._weights(tile, scores, y, Index(0), True, start[:_STATE])
        self._next_keys(tile, Index(1))
        return state, self._packed(weights)

    def _steps(self, tile: _Tile, y: Index, carried: list[ir.Value]) -> list[ir.Value]:
        """The steps behind the first. carried: maxima and sums, mixed values, and what they are to get of the step before."""
        def body(edge: bool) -> Callable[..., list[ir.Value]]:
            def one(number: Index, *before: ir.Value) -> list[ir.Value]:
                made = self._step(_Scored(tile.turn, tile.done + number, lambda: (tile, number)), y, edge, before)
                mixed = [tile.softmax.times(v, made.factors[i // 2 % 2]) for i, v in enumerate(made.mixed)]
                return [*made.state, *mixed, *self._packed(made.weights)]

            return one

        edges = Index(1)
        if self.plan.hidden.row is not None:
            edges = (tile.steps.end - tile.steps.whole).max(1)
            carried = loop(1, edges, 1, body(True), carried, self.i32)
        return loop(edges, tile.count, 1, body(False), carried, self.i32)

    def _step(self, scored: _Scored, y: Index, edge: bool, before: Sequence[ir.Value]) -> _Step:
        """Scores and exponentials of a step of a tile, and the products of the step before, of the tile before too, with its
        values. before: the tile's maxima and sums, mixed values and packed exponentials of the step before."""
        base, step = len(before) - self.bn // 4, scored.step
        self._take_turn()
        fence([])
        scores = self._scores(scored.turn, y, step)
        self._arrived(self.value, step - 1)
        ready = fence(before[_STATE:])
        mixed = self._mixed(ready[: base - _STATE], ready[base - _STATE :], step - 1)
        self._give_turn()
        tile, number = scored.read()
        scores = wait(1, scores)
        self._release(self.key, step)
        weights, state, factors = self._weights(tile, scores, y, number, edge, before[:_STATE])
        self._next_keys(tile, number + 1)  # a branch, which keeps ptxas from moving the exponentials behind the wait
        done = wait(0, [*mixed, *weights])
        self._release(self.value, step - 1)
        return _Step(tile, state, done[: len(mixed)], done[len(mixed) :], factors)

    def _end(self, tile: _Tile, carried: list[ir.Value]) -> list[ir.Value]:
        """Maxima, sums and mixed values, with the products of the last step."""
        base, last = len(carried) - self.bn // 4, tile.done + tile.count - 1
        self._take_turn()
        self._arrived(self.value, last)
        ready = fence(carried[_STATE:])
        mixed = self._mixed(ready[: base - _STATE], ready[base - _STATE :], last)
        self._give_turn(True)
        return [*carried[:_STATE], *wait(0, mixed)]

    def _next_keys(self, tile: _Tile, number: Index) -> None:
        when(number.lt(tile.count), lambda: self._arrived(self.key, tile.done + number))

    # -- turns: products of one warpgroup while the others compute exponentials

    def _take_turn(self, first: bool = False) -> None:
        """Until the warpgroup before has begun its products of the step. first: of the block; the first warpgroup waits for
        nobody."""
        if self.config.pingpong:
            when(Index(0).lt(self.group) if first else True, lambda: self._meet(self.group, _sync))

    def _give_turn(self, last: bool = False) -> None:
        """To the warpgroup behind. last: of the block; nobody waits for the last warpgroup."""
        if self.config.pingpong:
            final = self.config.consumers - 1
            behind = select(self.group.eq(final), Index(0), self.group + 1, type_=self.i32)
            when(self.group.lt(final) if last else True, lambda: self._meet(behind, _arrive))

    def _meet(self, group: Index, how: Callable[[ir.Value, ir.Value], None]) -> None:
        how((group + _TURNS).value(self.i32), Index(2 * GROUP).value(self.i32))

    def _clear_values(self, own: Index) -> None:
        """Of the first step, which has the last keys: behind the sequence's `own` lie those of the next one, whose weights are 0;
        0 times what they may be, such as NaN, would not be."""
        count = GROUP * self.config.consumers

        def clear() -> None:
            self._arrived(self.value, Index(0))
            self.tiles.value.clear(self.value.at(Index(0)), own, (self.kernel.thread(), count))
            _sync(Index(_CLEARED).value(self.i32), Index(count).value(self.i32))

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

    def _scores(self, turn: Index, y: Index, step: Index) -> list[ir.Value]:
        """Begins a group of products of the warpgroup's queries, those of the warp from `y` on, with the keys of a step."""
        t, depth = self.tiles, self.plan.view.scores.size(self.plan.view.scores.k).constant or 1
        left = t.query.descriptor(self._stage(self.query, turn), y // ROWS * ROWS)
        right = t.key.descriptor(self._stage(self.key, step), Index(0))
        found: list[ir.Value] = []
        for k in range(0, -(-depth // PER_STEP) * PER_STEP, PER_STEP):
            found = t.scores.product(found, [t.query.advance(left, 0, k)], t.key.advance(right, 0, k))
        commit()
        return found

    def _mixed(self, held: Sequence[ir.Value], weights: Sequence[ir.Value], number: Index) -> list[ir.Value]:
        """Begins a group of products of exponentials, four registers an instruction, with the values of a step."""
        found, value = list(held), self.tiles.value
        start = value.descriptor(self._stage(self.value, number), Index(0))
        for k in range(0, self.bn, PER_STEP):
            at = k // PER_STEP * 4
            found = self.tiles.mixing.product(found, weights[at : at + 4], value.advance(start, 0, k))
        commit()
        return found

    def _weights(self, tile: _Tile, scores: Sequence[ir.Value], y: Index, number: Index, edge: bool,
                 state: Sequence[ir.Value]) -> tuple[list[ir.Value], list[ir.Value], list[ir.Value]]:
        """Exponentials in the places of the scores, maxima and sums with them, by what mixed values of each row are scaled."""
        weights, after, factors = list(scores), list[ir.Value](), list[ir.Value]()
        first = (tile.steps.end - 1 - number) * self.bn + self.lane % QUAD * 2
        for h, line in enumerate(self.lines(tile.softmax, tile.queries.row + y, 1)[0]):
            at = [4 * j + 2 * h + q for j in range(self.bn // COLUMNS) for q in range(2)]
            mine = [scores[x] for x in at]
            taken = tile.softmax.step(line, mine, first, edge, state[2 * h], state[2 * h + 1])
            after += [taken.greatest, taken.total]
            factors.append(taken.factor)
            for x, value in zip(at, taken.weights, strict=True):
                weights[x] = value
        return weights, after, factors

    def _packed(self, weights: Sequence[ir.Value]) -> list[ir.Value]:
        """The registers of the left operand of the second product."""
        per = 4 * PER_STEP // COLUMNS
        return [x for at in range(0, len(weights), per) for x in self.plan.mixing_product.factors(weights[at : at + per])]


def _sync(number: ir.Value, threads: ir.Value) -> None:
    nvvm.barrier(barrier_id=number, number_of_threads=threads)


def _arrive(number: ir.Value, threads: ir.Value) -> None:
    nvvm.barrier_arrive(threads, barrier_id=number)


def _by_one(body: Callable[[], None]) -> None:
    """By one thread of a warp."""
    when(nvvm.elect_sync(), body)
