"""CopiedResult: results of a warpgroup on their way out by tensor copies, through tiles of shared memory of its own.

A tile is 64 rows of 128 bytes whose chunks of 16 bytes are permuted by the row, as the copy expects them. Every thread puts the
elements of its sums there, two bytes wide by stmatrix, and one of them starts the copy of all. That one is not elected: behind
an election the assembler takes warps to be apart, and computes addresses of the products thread by thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.passes.analysis.contraction import OUT
from tilewright.passes.analysis.placement import axis_name
from tilewright.passes.codegen.emit import all_of, byte_width, gep, integer_type, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.gpu.simt_plan import SimtPlan, root_at
from tilewright.passes.families.gpu.simt_store import Result
from tilewright.passes.mlir import arith, ir, llvm, nvvm, position
from tilewright.passes.spaces.gpu.wgmma import COPIED_BYTES, GROUP, PAIRS, ROW, ROWS
from tilewright.runtime.limits import WARP
from tilewright.runtime.shape import Expr

_CHUNK = 16  # bytes that stay together
_FIRST_BARRIER = 4  # of the barriers that warpgroups meet at


class CopiedResult:
    """Before the launch: the tensor map of the one result, boxes of 64 rows by `columns`, which are 128 bytes. ValueError when it
    is no matrix along one row loop and one column loop, or tiles of bn columns are no whole boxes."""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, bn: int) -> None:
        self.kernel, self.plan = kernel, plan
        slots = [s for s in kernel.operands if s.result]
        if len(slots) != 1 or len(plan.rows) != 1 or len(plan.columns) != 1:
            raise ValueError("tensor copies store one result along one row loop and one column loop")
        self.slot = slots[0]
        self.size = byte_width(self.slot.element)
        self.columns = ROW // self.size
        if self.size not in COPIED_BYTES or bn % self.columns:
            raise ValueError(f"tiles of {bn} columns of {self.slot.element} are no whole boxes of {ROW} bytes of 2 or 4 each")
        at = [self._axis(loops[0]) for loops in (plan.rows, plan.columns)]
        if None in at or at[1] != self.slot.unit or self.slot.rank > 5:
            raise ValueError(f"result {self.slot.number} is not contiguous along the columns")
        self._order = [at[1], *(a for a in reversed(range(self.slot.rank)) if a != at[1])]
        box = [self.columns if a == at[1] else ROWS if a == at[0] else 1 for a in self._order]
        self._number = kernel.use_tensor_map(self.slot, [a for a in self._order if a is not None], box, ROW)

    def _axis(self, loop: int) -> int | None:
        """The axis of the stored tensor along which the loop runs."""
        root = [a for a, e in enumerate(self.plan.view.maps[OUT].results) if position(e) == loop]
        named = Expr.dim(axis_name(root[0]))
        found = [a for a, e in enumerate(self.plan.places[0]) if e == named]
        return found[0] if len(found) == 1 else None

    def launch(self, groups: int, buffers: int, count: int, turns: bool = False) -> None:
        """Inside a launch: room for `buffers` tiles of each warpgroup, a whole multiple of 1024 bytes. count: of tiles that each
        has at once; turns: does it have them in turn with another?"""
        self.buffers, self.count, self.turns = buffers, count, turns
        self.tiles = self.kernel.shared(integer_type(8), [groups * buffers, ROWS * ROW])

    def finish(self, member: Index) -> None:
        """The block may leave when the copies have read what it leaves behind."""
        if not self.count % self.buffers:
            when(member.eq(0), lambda: nvvm.cp_async_bulk_wait_group(0, read=True))

    def store(self, result: Result, sums: Callable[[int, int], ir.Value], at: tuple[Index, Index], place: tuple[Index, Index],
              number: int) -> None:
        """A tile of a warpgroup. sums: two sums of this thread, in pair j of columns and half h of the rows. at: the warpgroup
        and this thread's number in it; place: the tile's row and column; number: of the tile, among `count` that follow each
        other and begin in the first buffer."""
        group, member = at
        row, column = place
        buffer = group * self.buffers + number % self.buffers
        if number or not self.turns:  # who waited for the buffer has met the others to take turns
            self._meet(group)
        self._put(result, sums, member, place, buffer)
        self._meet(group)
        pending = 0 if number == self.count - 1 and self.count % self.buffers else self.buffers - 1
        when(member.eq(0), lambda: self._copy(result, (buffer, pending), row, column))

    def store_at_once(self, result: Result, sums: Callable[[int, int, int], ir.Value], at: tuple[Index, Index],
                      row: Index) -> None:
        """All tiles of a warpgroup's rows, one beside the other, as soon as the copies of those before have read theirs; there is
        a buffer for each. sums: of a tile, as those of `store`."""
        group, member = at
        when(member.eq(0), lambda: nvvm.cp_async_bulk_wait_group(0, read=True))
        self._meet(group)
        places = [(row, Index(number * self.columns)) for number in range(self.count)]
        for number, place in enumerate(places):
            self._put(result, partial(sums, number), member, place, group * self.buffers + number)
        self._meet(group)

        def copies() -> None:
            for number, place in enumerate(places):
                self._start(result, group * self.buffers + number, *place)
            nvvm.cp_async_bulk_commit_group()

        when(all_of([member.eq(0), row.lt(result.rows.extent)]), copies)

    def _put(self, result: Result, sums: Callable[[int, int], ir.Value], member: Index, place: tuple[Index, Index],
             buffer: Index) -> None:
        """The sums of a thread into a buffer, for the copies to see once all have met."""
        (row, column), lane, warp = place, member % WARP, member // WARP
        first = self.tiles.address([buffer, warp * (ROWS // 4 * ROW)])
        put = self._matrices if self.size == 2 else self._pairs
        put(first, lane, lambda j, h: result.value(row + (warp * 16 + lane // 4 + 8 * h),
                                                   column + (lane % 4 * 2 + j * PAIRS).known_multiple(2), sums(j, h)))
        shared = ir.Attribute.parse("#nvvm.shared_space<cta>")
        nvvm.fence_proxy(ir.Attribute.parse("#nvvm.proxy_kind<async.shared>"), space=shared)

    def _matrices(self, first: ir.Value, lane: Index, value: Callable[[int, int], ir.Value]) -> None:
        """Four matrices of 8 x 8 at a time: 16 rows by 16 columns."""
        i32 = integer_type(32)
        shape, kind = ir.Attribute.parse("#nvvm.ld_st_matrix_shape<m = 8, n = 8>"), ir.Attribute.parse(
            "#nvvm.ld_st_matrix_elt_type<b16>")
        layout = ir.Attribute.parse("#nvvm.mma_layout<row>")
        for j in range(0, self.columns // PAIRS, 2):
            words = [llvm.BitcastOp(i32, value(j + number // 2, number % 2)).result for number in range(4)]
            chunk = _permuted(lane // 16 + j, lane % 8)
            nvvm.stmatrix(gep(first, (lane % 16 * ROW + chunk * _CHUNK).value(i32), integer_type(8)), words, layout, shape, kind)

    def _pairs(self, first: ir.Value, lane: Index, value: Callable[[int, int], ir.Value]) -> None:
        i32 = integer_type(32)
        for j in range(self.columns // PAIRS):
            for h in range(2):
                chunk = _permuted(lane % 4 // 2 + 2 * j, lane // 4)
                offset = (lane // 4 + 8 * h) * ROW + chunk * _CHUNK + lane % 2 * 8
                llvm.StoreOp(value(j, h), gep(first, offset.value(i32), integer_type(8)), alignment=8)

    def _copy(self, result: Result, of: tuple[Index, int], row: Index, column: Index) -> None:
        """Starts the copy of the tile in a buffer, unless it lies wholly outside, and waits until no more than so many copies
        are still to be read: the next tile may be written then."""
        buffer, pending = of
        inside = [row.lt(result.rows.extent), column.lt(result.columns.extent)]
        when(all_of(inside), lambda: self._start(result, buffer, row, column))
        nvvm.cp_async_bulk_commit_group()
        nvvm.cp_async_bulk_wait_group(pending, read=True)

    def _start(self, result: Result, buffer: Index, row: Index, column: Index) -> None:
        ev = self.kernel.evaluator
        root = root_at(self.plan.view, result.batch, result.rows.point(row), result.columns.point(column))
        ev.dims.update({axis_name(axis): c for axis, c in enumerate(root)})
        coords = [ev.emit(e) for e in self.plan.places[0]]
        listed = [coords[a].value(integer_type(32)) for a in self._order if a is not None]
        box = self.tiles.address([buffer, Index(0)])
        nvvm.cp_async_bulk_tensor_global_shared_cta(self.kernel.tensor_map(self._number), box, listed)

    def _meet(self, group: Index) -> None:
        """All threads of the warpgroup wait for each other."""
        i32 = integer_type(32)
        nvvm.barrier(barrier_id=(group + _FIRST_BARRIER).value(i32), number_of_threads=Index(GROUP).value(i32))


def _permuted(chunk: Index, row: Index) -> Index:
    """Where a chunk of a row lies in it."""
    i32 = integer_type(32)
    return Index(arith.xori(chunk.value(i32), row.value(i32)))
