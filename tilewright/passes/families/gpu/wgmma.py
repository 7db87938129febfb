"""Family `wgmma`: contractions by warpgroups on sm_90a.

One warpgroup copies tiles by tensor copies into a ring of stages, the others multiply them. A stage has two mbarriers: `full`,
which the bytes of its copies complete, and `empty`, at which every warp that has read it arrives. Blocks take tiles of the result
one after the other; the ring goes on across tiles, so that copies run ahead while results are stored. A step past an edge is
filled with zeros by the copies. Sums of 8-bit floats, of which the hardware keeps few bits, are taken out after each step and
added up in f32. Blocks of a cluster take tiles below and beside each other: each fetches its part of an operand that it has in
common with others for all of those, and a stage is empty when the warps of all of them have read it. Blocks may share a tile as
well, each with a part of k, or share the steps of all tiles evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.passes.codegen.emit import all_of, gep, integer_type, loop, vector_type, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.gpu.gpu_pointwise import tile_elements
from tilewright.passes.families.gpu.mbarrier_ring import MbarrierRing, RingPlace
from tilewright.passes.families.gpu.mma_product import TensorProduct
from tilewright.passes.families.gpu.mma_tile import added, extract
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.gpu.simt_store import Result, SplitSum
from tilewright.passes.families.gpu.stream_of_steps import Piece
from tilewright.passes.families.gpu.tile_grid import GridTile, TileGrid, part_of, tile_contraction
from tilewright.passes.families.gpu.wgmma_code import unknown
from tilewright.passes.families.gpu.wgmma_operand import Common, TmaOperand
from tilewright.passes.families.gpu.wgmma_parts import SharedParts
from tilewright.passes.families.gpu.wgmma_result import CopiedResult
from tilewright.passes.families.gpu.wgmma_stream import StreamedSums
from tilewright.passes.families.gpu.whole_tiles import by_wholeness
from tilewright.passes.mlir import arith, ir, llvm, nvvm, scf, vector
from tilewright.passes.spaces.gpu.wgmma import BARRIER, GROUP, PAD, PAIRS, REGISTERS, ROWS, STEP, SUMMING, WgmmaConfig
from tilewright.runtime.limits import WARP

_WARPS = GROUP // WARP
_TURNS = 1  # of the barriers by which warpgroups take turns


def emit(kernel: GpuKernel, config: WgmmaConfig) -> None:
    """The whole kernel. ValueError when the region is no contraction that this family computes."""
    plan = SimtPlan.of(kernel)
    product = TensorProduct.of(plan.view, config.tf32)
    m, n, several = config.cluster_m, config.cluster_n, config.cluster_k > 1
    left = TmaOperand(kernel, plan, plan.row_side, config.bm, config.deep, Common(n, 1, several or m > 1))
    right = TmaOperand(kernel, plan, plan.column_side, config.bn, config.deep, Common(m, n, several or n > 1))
    split = SplitSum(kernel, plan, config.split_k) if config.split_k > 1 else None
    if split is not None:
        kernel.use_workspace(split.bytes())
    copied = CopiedResult(kernel, plan, config.bn) if config.copied else None
    streamed = StreamedSums(kernel, plan, config) if config.streamed else None
    planned = _Planned(plan, product, left, right, split, copied, streamed)
    kernel.launch(config.threads, lambda: _WgmmaBlock(kernel, config, planned).emit(), min_blocks_per_sm=1,
                  cluster=config.cluster * config.cluster_k, persistent=bool(config.blocks))
    if split is not None:
        kernel.launch(256, lambda: split.finish(min(config.vec, 4)), "_sum")
    if streamed is not None:
        kernel.launch(SUMMING, lambda: streamed.finish(config.deep * left.per), "_sum")


def tile(frame: KernelFrame, config: WgmmaConfig, tiler: Tiler) -> None:
    """Units of bm rows by bn columns, the tiles of a cluster together."""
    tile_contraction(SimtPlan.of(frame), config.bm * config.cluster_m, config.bn * config.cluster_n, tiler)
    if config.split_k > 1:
        tile_elements(frame, tiler, min(config.vec, 4), 256)


@dataclass(frozen=True)
class _Planned:
    """What is known before the launch. left, right: the operands of rows and columns. split: where sums of parts of k go; copied:
    how results leave by tensor copies; streamed: where sums of tiles go that several blocks have a part of."""

    plan: SimtPlan
    product: TensorProduct
    left: TmaOperand
    right: TmaOperand
    split: SplitSum | None
    copied: CopiedResult | None
    streamed: StreamedSums | None


def _i32(number: int) -> ir.Value:
    return Index(number).value(integer_type(32))


class _WgmmaBlock:
    """What one block of threads does."""

    def __init__(self, kernel: GpuKernel, config: WgmmaConfig, planned: _Planned) -> None:
        self.kernel, self.config, self.plan, self.product = kernel, config, planned.plan, planned.product
        self.left, self.right, self.split, self.copied = planned.left, planned.right, planned.split, planned.copied
        self.streamed = planned.streamed
        self.rows, self.columns, self.depth, self.batch = self.plan.groups(kernel)
        self.stage_bytes = self.left.bytes + self.right.bytes
        self.blocks = config.rows // ROWS  # instructions of a warpgroup, one below the other
        self.i32 = integer_type(32)

    def emit(self) -> Grid:
        c, kernel = self.config, self.kernel
        self.grid = TileGrid(kernel, c.group_m)
        self.rank = kernel.block_id() % (c.cluster * c.cluster_k)  # parts of k, rows and columns, in this order
        self.down, self.across = self.rank // c.cluster_n % c.cluster_m, self.rank % c.cluster_n
        kernel.bound(self.depth.size)
        grid = self.grid.blocks(c.split_k)
        if self.copied is not None:
            self.copied.launch(c.consumers, c.buffers, c.rows // ROWS * -(-c.bn // self.copied.columns), c.pingpong)
        self.ring = MbarrierRing.of(kernel, c.stages, self.stage_bytes)
        if self.copied is None and c.cluster_k == 1:
            self.results = kernel.shared(self.product.sum, [_WARPS * c.consumers, 16, c.slab + PAD])
        self.parts = SharedParts(kernel, ProductCode(self.plan.view.product), c) if c.cluster_k > 1 else None
        part = None if self.parts is None else self.parts.cluster.rank
        self.steps, _ = part_of(kernel, self.depth, c.deep * self.left.per, c.split_k * c.cluster_k, part)
        thread = kernel.thread()
        when(thread.eq(0), self._start)
        self._meet()
        kernel.follow()
        group, member = thread // GROUP, thread % GROUP
        role = scf.IfOp(_value(group.eq(c.consumers)), has_else=True)
        with ir.InsertionPoint(role.then_block):
            self._registers(0, nvvm.SetMaxRegisterAction.decrease)
            when((member // WARP).eq(0), lambda: when(nvvm.elect_sync(), self._bring))
            scf.YieldOp([])
        with ir.InsertionPoint(role.else_block):
            self._registers(1, nvvm.SetMaxRegisterAction.increase)
            at = (self._group_at_run_time(group) if c.readers == 1 else group, member)
            if c.pingpong:  # each in code of its own, so that what tells their products apart is constant there
                when(group.eq(0), lambda: self._work(Index(0), at), lambda: self._work(Index(1), at))
            else:
                self._work(Index(0), at)
            scf.YieldOp([])
        tiles, parts, one = grid
        if c.streamed:
            kernel.bound(tiles * (self.depth.size + c.deep * self.left.per))
            return tiles.minimum(1) * c.blocks, parts, one
        tiles = tiles * (c.cluster * c.cluster_k)
        return tiles.minimum(c.blocks) if c.blocks else tiles, parts, one

    def _start(self) -> None:
        """One thread, before all meet."""
        self.kernel.prefetch_tensor_maps()
        self.ring.start(_WARPS * self.config.readers * self.config.cluster)

    def _meet(self) -> None:
        """All threads of the cluster wait for each other; the fence of mbarriers tells of them, and there is nothing else."""
        if self.config.cluster == 1:
            self.kernel.barrier()
            return
        nvvm.cluster_arrive_relaxed()
        nvvm.cluster_wait()

    def _registers(self, which: int, action: nvvm.SetMaxRegisterAction) -> None:
        """Hands registers from the warpgroup that copies to those that multiply."""
        if self.config.consumers in REGISTERS:
            nvvm.setmaxregister(REGISTERS[self.config.consumers][which], action)

    def _tiles(self, body: Callable[[Piece, Index], None], first: Index, every: int) -> Index:
        """`body(piece, steps done before)` for tiles of this block, from the `first` of them on each `every`th; the steps of all
        that were passed."""
        c, kernel = self.config, self.kernel
        begin, total = kernel.block_id() // (c.cluster * c.cluster_k), kernel.evaluator.emit(self.grid.tiles)
        if not c.blocks:
            body(self._whole(begin), Index(0))
            return self.steps.end
        self.stride = kernel.blocks() // c.cluster
        if self.streamed is not None:
            stream = self.streamed.steps(self.grid, self.steps.end)

            def work(worker: Index, done: ir.Value) -> list[ir.Value]:
                return [stream.over(worker, body, Index(done), self.i32).value(self.i32)]

            workers = Index(self.streamed.workers)
            return Index(loop(begin, workers, self.stride, work, [Index(0).value(self.i32)], kernel.index)[0])

        def one(number: Index, done: ir.Value) -> list[ir.Value]:
            body(self._whole(number), Index(done))
            return [(Index(done) + self.steps.end * every).value(self.i32)]

        done = (self.steps.end * first).value(self.i32)
        return Index(loop(begin + self.stride * first, total, self.stride * every, one, [done], kernel.index)[0])

    def _whole(self, number: Index) -> Piece:
        return Piece(number, Index(0), self.steps.end)

    def _mine(self, number: Index) -> GridTile:
        """This block's tile of those that its cluster takes at once."""
        c, tile = self.config, self.grid.place(number)
        return replace(tile, row=tile.row + self.down * c.bm, column=tile.column + self.across * c.bn)

    # -- the warpgroup that copies, one thread of it

    def _bring(self) -> None:
        """All tiles; in a cluster then waits for all who read, here and there, so that the block does not leave before them."""
        done = self._tiles(self._copy, Index(0), 1)
        if self.config.cluster > 1:
            place = self.ring.place(done)
            for _ in range(self.config.stages):
                self.ring.wait_empty(place)
                place = self.ring.after(place)

    def _copy(self, piece: Piece, done: Index) -> None:
        tile = self._mine(piece.number)
        batch = self.batch.point(tile.batch)
        sides = ((self.left, tile.row, 0), (self.right, tile.column, self.left.bytes))
        shares = [side.share(self.rank) for side, _, _ in sides]

        def one(step: Index, *held: ir.Value) -> list[ir.Value]:
            place = RingPlace.of(held)
            self.ring.wait_empty(place)
            full, stage = self.ring.full(place.stage), self.ring.at(place.stage)
            nvvm.mbarrier_arrive_expect_tx(full, _i32(self.stage_bytes), results=[])
            k = self.steps.origin + step * self.steps.depth
            for (side, outer, at), share in zip(sides, shares, strict=True):
                side.fetch(gep(stage, _i32(at), integer_type(8)), batch, (outer, k), full, share)
            return self.ring.after(place).values()

        loop(piece.first, piece.end, 1, one, self.ring.place(done).values(), index=self.i32)

    # -- the warpgroups that multiply

    def _group_at_run_time(self, group: Index) -> Index:
        """Its number where no compiler knows it: shared memory at a constant address, made where threads are apart, keeps the
        assembler from computing the addresses of products once a warp."""
        i32 = self.i32
        return Index(nvvm.shfl_sync(_i32(-1), group.value(i32), _i32(0), _i32(WARP - 1), nvvm.ShflKind.idx, results=[i32]))

    def _work(self, turn: Index, at: tuple[Index, Index]) -> None:
        """All tiles of a warpgroup, from the tile number `turn` of the block on. at: the warpgroup, and the thread in it."""
        every = self.config.consumers if self.config.pingpong else 1
        self._tiles(lambda piece, done: self._multiply((piece, done), turn, at), turn, every)
        if self.copied is not None:
            self.copied.finish(at[1])

    def _multiply(self, step: tuple[Piece, Index], turn: Index, at: tuple[Index, Index]) -> None:
        """A tile, or a piece of it. step: which, and the steps before it."""
        c, (piece, done), (group, member) = self.config, step, at
        number, tile = piece.number, self._mine(piece.number)
        first = Index(0) if c.readers == 1 else group * c.rows
        sums = ir.Type.parse(f"!llvm.struct<({', '.join([str(self.product.sum)] * (c.bn // 2))})>")
        address = Index(llvm.PtrToIntOp(self.i32, self.ring.base).result)
        bases = [unknown(self.left.descriptor(address, first)),
                 unknown(self.right.descriptor(address + self.left.bytes, Index(0)))]
        leader = (member % WARP).lt(c.cluster)
        release = self._releaser(member % WARP)

        def one(step: Index, *held: ir.Value) -> list[ir.Value]:
            place, last, before = RingPlace.of(held[:2]), Index(held[2]), held[3:]
            self.ring.wait_full(place)
            nvvm.wgmma_fence_aligned()
            stage, here = self._wide(place.stage * (self.stage_bytes // 16)), place.stage.value(self.i32)
            pair = (arith.addi(bases[0], stage), arith.addi(bases[1], stage))
            if self.product.promoted:
                apart = self._products(sums, [llvm.ZeroOp(sums).result] * self.blocks, pair, fresh=True)
                nvvm.wgmma_wait_group_sync_aligned(0)
                when(leader, lambda: release(place.stage))
                return [*self.ring.after(place).values(), here, *(added(x, y) for x, y in zip(before, apart, strict=True))]
            found = self._products(sums, before, pair)
            nvvm.wgmma_wait_group_sync_aligned(1)
            when(leader, lambda: release(last))
            return [*self.ring.after(place).values(), here, *found]

        if c.pingpong:
            when(self.stride.le(number), lambda: self._take_turn(turn))
        none = self.ring.none.value(self.i32)
        start = [*self.ring.place(done).values(), none, *[llvm.ZeroOp(sums).result] * self.blocks]
        _, _, last, *found = loop(piece.first, piece.end, 1, one, start, self.i32)
        if c.pingpong:
            total = self.kernel.evaluator.emit(self.grid.tiles)
            when((number + self.stride).lt(total), lambda: self._give_turn(turn))
        if not self.product.promoted:
            nvvm.wgmma_wait_group_sync_aligned(0)
            # with no step the other blocks of the cluster may have left
            when(all_of([leader, piece.first.lt(piece.end)]), lambda: release(Index(last)))
        pairs = [partial(self._pair, sums) for sums in found]
        if self.parts is not None:
            self.parts.store(self._result(tile), tile, at, pairs)
            return
        keep = None if self.streamed is None else partial(self.streamed.keep, piece, self.rank, at, pairs)
        when(piece.whole, lambda: self._store(replace(tile, row=tile.row + first), group, member, found), keep)

    def _wide(self, number: Index) -> ir.Value:
        return arith.extui(integer_type(64), number.value(self.i32))

    def _take_turn(self, turn: Index) -> None:
        """Until the other warpgroup has issued the products of the tile before."""
        nvvm.barrier(barrier_id=(turn + _TURNS).value(self.i32), number_of_threads=_i32(2 * GROUP))

    def _give_turn(self, turn: Index) -> None:
        """To the other warpgroup, which has the next tile: its products follow while this one stores its results."""
        nvvm.barrier_arrive(_i32(2 * GROUP), barrier_id=(1 - turn + _TURNS).value(self.i32))

    def _releaser(self, rank: Index) -> Callable[[Index], None]:
        """Tells that the warp has read a stage, to the block of that rank, whose copies fill it too. The scope is that of the
        block there too: what is read came by copies and is overwritten by copies, so that nothing has to be made visible."""
        if self.config.cluster == 1:
            return lambda stage: nvvm.mbarrier_arrive(self.ring.empty(stage), results=[integer_type(64)])
        apart = self.config.cluster  # lanes behind them do not tell
        block = (rank % apart + (self.rank - self.rank % apart)).value(self.i32)
        there = nvvm.mapa(ir.Type.parse("!llvm.ptr<7>"), self.ring.empty(Index(0)), block)
        scope = ir.Attribute.parse("#nvvm.mem_scope<cta>")
        return lambda stage: nvvm.mbarrier_arrive(
            gep(there, (stage * BARRIER).value(self.i32), integer_type(8)), scope=scope, results=[])

    def _products(self, sums: ir.Type, before: Sequence[ir.Value], pair: tuple[ir.Value, ir.Value],
                  fresh: bool = False) -> list[ir.Value]:
        """The sums of a warpgroup with the products of a step added, as one group in flight. fresh: sums of this step alone."""
        found = list(before)
        for k in range(0, self.config.deep * self.left.per, STEP // self.left.size):
            for q in range(self.blocks):
                a, b = self.left.advance(pair[0], q * ROWS, k), self.right.advance(pair[1], 0, k)
                found[q] = self._product(sums, found[q], (a, b), fresh and k == 0)
        nvvm.wgmma_commit_group_sync_aligned()
        return found

    def _product(self, sums: ir.Type, held: ir.Value, pair: tuple[ir.Value, ir.Value], fresh: bool) -> ir.Value:
        def text(name: str) -> ir.Attribute:
            return ir.Attribute.parse(f"#nvvm.{name}")

        kinds = [text(f"wgmma_type<{self.product.kinds[side]}>") for side in (self.plan.row_side, self.plan.column_side)]
        total = text(f"wgmma_type<{'s32' if str(self.product.sum) == 'i32' else 'f32'}>")
        one = text("wgmma_scale_in<one>")
        layouts = [text(f"mma_layout<{'row' if self.left.along_k else 'col'}>"),
                   text(f"mma_layout<{'col' if self.right.along_k else 'row'}>")]
        shape = text(f"shape<m = {ROWS}, n = {self.config.bn}, k = {self.product.depth}>")
        again = text(f"wgmma_scale_out<{'zero' if fresh else 'one'}>")
        found: ir.Value = nvvm.wgmma_mma_async(sums, held, *pair, shape, *kinds, total, again, one, one, *layouts)
        return found

    # -- results

    def _store(self, tile: GridTile, group: Index, member: Index, found: list[ir.Value]) -> None:
        """The results of a warpgroup's sums; the tile begins at its first row."""
        c = self.config
        result = self._result(tile)
        if self.copied is None:
            width = 1 if self.split is not None else result.width(c.vec)

            def slabs_of(whole: bool) -> None:
                result.whole = whole
                for q, sums in enumerate(found):
                    for first in range(0, c.bn, c.slab):
                        self._store_slab(result, replace(tile, row=tile.row + q * ROWS), (group, member), (sums, first), width)

            by_wholeness(self.kernel, [(self.rows, tile.row, c.rows), (self.columns, tile.column, c.bn)], slabs_of)
            return
        result.width(2)
        slabs = -(-c.bn // self.copied.columns)
        for number in range(len(found) * slabs):
            q, first = number // slabs, number % slabs * self.copied.columns
            self.copied.store(result, lambda j, h, q=q, first=first: self._pair(found[q], first + j * PAIRS, h),  # type: ignore[misc]
                              (group, member), (tile.row + q * ROWS, tile.column + first), number)

    def _result(self, tile: GridTile) -> Result:
        return Result(self.kernel, self.plan, self.batch.point(tile.batch), self.rows, self.columns)

    def _pair(self, sums: ir.Value, column: int, half: int) -> ir.Value:
        """The two neighbouring sums of this thread among the 8 columns from `column` on, of its upper or lower row."""
        at = column // 2 + 2 * half
        return vector.from_elements(vector_type(self.product.sum, 2), [extract(sums, at), extract(sums, at + 1)])

    def _store_slab(self, result: Result, tile: GridTile, at: tuple[Index, Index], of: tuple[ir.Value, int], width: int) -> None:
        """16 rows of each warp go through shared memory of the warp's own, a slab of columns at a time."""
        c, (group, member), (sums, first) = self.config, at, of
        lane, warp = member % WARP, member // WARP
        mine, row, per_row = group * _WARPS + warp, tile.row + warp * 16, c.slab // width
        nvvm.bar_warp_sync(_i32(-1))
        for j in range(0, c.slab, PAIRS):
            for h in range(2):
                column = (lane % 4 * 2 + j).known_multiple(2)
                self.results.store(self._pair(sums, first + j, h), [mine, lane // 4 + 8 * h, Index.ramp(column, 2)])
        nvvm.bar_warp_sync(_i32(-1))

        def chunk(number: Index) -> None:
            y, x = number // per_row, number % per_row * width
            value = self.results.load([mine, y, Index.ramp(x, width)])
            if self.split is not None:
                self.split.keep(tile.batch, row + y, tile.column + (x + first), value)
            else:
                result.store(row + y, tile.column + (x + first), value)

        loop(lane, 16 * per_row, WARP, chunk, index=self.kernel.index)


def _value(condition: ir.Value | bool) -> ir.Value:
    assert not isinstance(condition, bool)
    return condition
