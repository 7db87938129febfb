"""CopiedResult: results of a warpgroup on their way out by tensor copies, through tiles of shared memory of its own.

A tile is 64 rows of 128 bytes, in boxes of so many columns as divide those of the block: side by side in the result, one behind
the other in shared memory. Chunks of 16 bytes of a box are permuted by the row, as its copy expects them. Every thread puts the
elements of its sums there, two bytes wide by stmatrix, and one of them starts the copies of all. That one is not elected: behind
an election the assembler takes warps to be apart, and computes addresses of the products thread by thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd

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
    """Before the launch: the tensor map of the one result, in boxes of 64 rows. ValueError when it is no matrix along one row
    loop and one column loop. columns: of a tile, 128 bytes; `box`: of a box."""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, bn: int) -> None:
        self.kernel, self.plan, self._all = kernel, plan, bn
        slots = [s for s in kernel.operands if s.result]
        if len(slots) != 1 or len(plan.rows) != 1 or len(plan.columns) != 1:
            raise ValueError("tensor copies store one result along one row loop and one column loop")
        self.slot = slots[0]
        self.size = byte_width(self.slot.element)
        self.columns = ROW // self.size
        if self.size not in COPIED_BYTES:
            raise ValueError(f"tensor copies store elements of {COPIED_BYTES} bytes, not {self.slot.element}")
        self.box = gcd(bn, self.columns)
        self._row = self.box * self.size  # bytes
        at = [self._axis(loops[0]) for loops in (plan.rows, plan.columns)]
        if None in at or at[1] != self.slot.unit or self.slot.rank > 5:
            raise ValueError(f"result {self.slot.number} is not contiguous along the columns")
        self._order = [at[1], *(a for a in reversed(range(self.slot.rank)) if a != at[1])]
        box = [self.box if a == at[1] else ROWS if a == at[0] else 1 for a in self._order]
        self._number = kernel.use_tensor_map(self.slot, [a for a in self._order if a is not None], box, self._row)

    def _axis(self, loop: int) -> int | None:
        """The axis of the stored tensor along which the loop runs."""
        root = [a for a, e in enumerate(self.plan.view.maps[OUT].results) if position(e) == loop]
        named = Expr.dim(axis_name(root[0]))
        found = [a for a, e in enumerate(self.plan.places[0]) if e == named]
        return found[0] if len(found) == 1 else None

    def launch(self, groups: int, buffers: int, count: int, turns: bool = False) -> None:
        """Inside a launch: room for `buffers` tiles of each warpgroup, a whole multiple of 1024 bytes. count: of tiles that each
        has at once; turns: does it have them in turn with another? The last of a row may have fewer boxes than the others."""
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
        boxes = self._boxes(number)
        self._put(result, sums, member, (place, boxes), buffer)
        self._meet(group)
        pending = 0 if number == self.count - 1 and self.count % self.buffers else self.buffers - 1
        when(member.eq(0), lambda: self._copy(result, (buffer, pending, boxes), row, column))

    def store_at_once(self, result: Result, sums: Callable[[int, int, int], ir.Value], at: tuple[Index, Index],
                      row: Index) -> None:
        """All tiles of a warpgroup's rows, one beside the other, as soon as the copies of those before have read theirs; there is
        a buffer for each. sums: of a tile, as those of `store`."""
        group, member = at
        when(member.eq(0), lambda: nvvm.cp_async_bulk_wait_group(0, read=True))
        self._meet(group)
        places = [(row, Index(number * self.columns)) for number in range(self.count)]
        for number, place in enumerate(places):
            self._put(result, partial(sums, number), member, (place, self._boxes(number)), group * self.buffers + number)
        self._meet(group)

        def copies() -> None:
            for number, place in enumerate(places):
                for box, at in enumerate(self._boxes(number)):
                    self._start(result, (group * self.buffers + number, box), place[0], place[1] + at)
            nvvm.cp_async_bulk_commit_group()

        when(all_of([member.eq(0), row.lt(result.rows.extent)]), copies)

    def _boxes(self, number: int) -> range:
        """First columns of the boxes of a tile, counted from its own. number: of the tile, from left to right, row after row."""
        first = number % -(-self._all // self.columns) * self.columns
        return range(0, min(self.columns, self._all - first), self.box)

    def _put(self, result: Result, sums: Callable[[int, int], ir.Value], member: Index, of: tuple[tuple[Index, Index], range],
             buffer: Index) -> None:
        """The sums of a thread into a buffer, for the copies to see once all have met. of: place and boxes of the tile."""
        ((row, column), boxes), lane, warp = of, member % WARP, member // WARP
        put = self._matrices if self.size == 2 else self._pairs

        def value(at: int, j: int, h: int) -> ir.Value:
            y, x = row + (warp * 16 + lane // 4 + 8 * h), column + (lane % 4 * 2 + (at + j * PAIRS)).known_multiple(2)
            return result.value(y, x, sums(at // PAIRS + j, h))

        for number, at in enumerate(boxes):
            begin = (number * ROWS + warp * (ROWS // 4)) * self._row
            put(self.tiles.address([buffer, begin]), lane, partial(value, at))
        shared = ir.Attribute.parse("#nvvm.shared_space<cta>")
        nvvm.fence_proxy(ir.Attribute.parse("#nvvm.proxy_kind<async.shared>"), space=shared)

    def _matrices(self, first: ir.Value, lane: Index, value: Callable[[int, int], ir.Value]) -> None:
        """Four matrices of 8 x 8 at a time: 16 rows by 16 columns."""
        i32 = integer_type(32)
        shape, kind = ir.Attribute.parse("#nvvm.ld_st_matrix_shape<m = 8, n = 8>"), ir.Attribute.parse(
            "#nvvm.ld_st_matrix_elt_type<b16>")
        layout = ir.Attribute.parse("#nvvm.mma_layout<row>")
        for j in range(0, self.box // PAIRS, 2):
            words = [llvm.BitcastOp(i32, value(j + number // 2, number % 2)).result for number in range(4)]
            chunk = self._permuted(lane // 16 + j, lane % 8)
            offset = (lane % 16 * self._row + chunk * _CHUNK).value(i32)
            nvvm.stmatrix(gep(first, offset, integer_type(8)), words, layout, shape, kind)

    def _pairs(self, first: ir.Value, lane: Index, value: Callable[[int, int], ir.Value]) -> None:
        i32 = integer_type(32)
        for j in range(self.box // PAIRS):
            for h in range(2):
                chunk = self._permuted(lane % 4 // 2 + 2 * j, lane // 4)
                offset = (lane // 4 + 8 * h) * self._row + chunk * _CHUNK + lane % 2 * 8
                llvm.StoreOp(value(j, h), gep(first, offset.value(i32), integer_type(8)), alignment=8)

    def _permuted(self, chunk: Index, row: Index) -> Index:
        """Where a chunk of a row of a box lies in it."""
        i32 = integer_type(32)
        by = row // (ROW // self._row) % (self._row // _CHUNK)
        return Index(arith.xori(chunk.value(i32), by.value(i32)))

    def _copy(self, result: Result, of: tuple[Index, int, range], row: Index, column: Index) -> None:
        """Starts the copies of the tile in a buffer, but of boxes that lie wholly outside, and waits until no more than so many
        tiles are still to be read: the next one may be written then."""
        buffer, pending, boxes = of
        for number, at in enumerate(boxes):
            inside = [row.lt(result.rows.extent), (column + at).lt(result.columns.extent)]
            when(all_of(inside), lambda n=number, x=at: self._start(result, (buffer, n), row, column + x))  # type: ignore[misc]
        nvvm.cp_async_bulk_commit_group()
        nvvm.cp_async_bulk_wait_group(pending, read=True)

    def _start(self, result: Result, of: tuple[Index, int], row: Index, column: Index) -> None:
        ev, (buffer, number) = self.kernel.evaluator, of
        root = root_at(self.plan.view, result.batch, result.rows.point(row), result.columns.point(column))
        ev.dims.update({axis_name(axis): c for axis, c in enumerate(root)})
        coords = [ev.emit(e) for e in self.plan.places[0]]
        listed = [coords[a].value(integer_type(32)) for a in self._order if a is not None]
        box = self.tiles.address([buffer, Index(number * ROWS * self._row)])
        nvvm.cp_async_bulk_tensor_global_shared_cta(self.kernel.tensor_map(self._number), box, listed)

    def _meet(self, group: Index) -> None:
        """All threads of the warpgroup wait for each other."""
        i32 = integer_type(32)
        nvvm.barrier(barrier_id=(group + _FIRST_BARRIER).value(i32), number_of_threads=Index(GROUP).value(i32))

