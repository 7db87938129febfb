"""TmaOperand: tiles of an operand that tensor copies bring to shared memory and wgmma reads by descriptors.

A tile is rows of 128 bytes, their chunks of 16 bytes permuted by the row. The rows run along k, or along the outer axis where
memory does; then the tile is blocks of 128 bytes of the outer axis, one behind the other, the last of which products may read in
part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from tilewright.passes.codegen.emit import byte_width, constant, gep, integer_type, loop
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_space import Point
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.product_code import coords_of
from tilewright.passes.families.gpu.simt_plan import SimtPlan, loops_at
from tilewright.passes.mlir import arith, ir, llvm, nvvm, position
from tilewright.passes.spaces.gpu.wgmma import ROW, whole_rows

_SWIZZLE_128, _PERIOD = 1 << 62, 1024  # of a descriptor; bytes of 8 rows
_MASK = 0x3FFF
_CHUNK = 16  # bytes of a store


@dataclass(frozen=True)
class Common:
    """Which blocks of a cluster have a tile in common: `parts` of them, every `apart`th. several: there is more than one such
    group in the cluster."""

    parts: int
    apart: int = 1
    several: bool = False


ALONE = Common(1)


@dataclass(frozen=True)
class Share:
    """What a block fetches of a tile: its part; mask: of the ranks that get it, None for itself alone."""

    part: Index
    mask: ir.Value | None


MINE = Share(Index(0), None)


class TmaOperand:
    """`bytes`: of what is fetched at once, tiles of one row along k each, `deep` of them. `along_k`: rows run along k. common:
    which blocks of a cluster have them in common; each of those fetches its part of every tile for all. clears: does the kernel
    clear what is fetched of the next sequence, where k runs along the rows of one (`strange`)?"""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, which: int, extent: int, deep: int = 1, common: Common = ALONE,
                 clears: bool = False) -> None:
        self.kernel, self.view, self.which, self.deep, self.common = kernel, plan.view, which, deep, common
        parts = common.parts
        view, value = plan.view, plan.view.operand(which)
        where = f"{view.op.name} at {view.op.location}"
        slot = next((s for s in kernel.operands if s.value == value and not s.result), None)
        if slot is None:
            raise ValueError(f"{where}: operand {which} is computed; tensor copies move it as it lies")
        outer_loops = plan.rows if which == plan.row_side else plan.columns
        axes = [view.linear_axis(which, loops[0]) if len(loops) == 1 else None for loops in (outer_loops, view.k)]
        outer_axis, k_axis = axes
        if outer_axis is None or k_axis is None or position(view.maps[which].results[k_axis]) != view.k[0]:
            raise ValueError(f"{where}: operand {which} is no matrix along one axis and k")
        if slot.unit not in axes:
            raise ValueError(f"operand {slot.number} is contiguous along neither axis of its tiles")
        if slot.rank > 5:
            raise ValueError(f"operand {slot.number} has {slot.rank} axes; a tensor copy has at most 5")
        size = byte_width(slot.element)
        self.size, self.per = size, ROW // size
        self.along_k = slot.unit == k_axis
        if not self.along_k and size != 2:
            raise ValueError(f"operand {slot.number} of {slot.element} must be contiguous along k")
        self.outer_loop, self.k_loop = outer_loops[0], view.k[0]
        self._room = extent if self.along_k else whole_rows(extent)  # rows, or elements, of a tile in shared memory
        self.bytes = deep * self._room * ROW
        self._order = [slot.unit, *(a for a in reversed(range(slot.rank)) if a != slot.unit)]
        if extent % (8 * parts) or self.per % (8 * parts):
            raise ValueError(f"tiles of {extent} by {self.per} elements have no {parts} parts of whole groups of 8 rows")
        self._rows = (extent if self.along_k else self.per) // parts  # of a copy
        lengths = {k_axis: self.per, outer_axis: self._rows} if self.along_k else {k_axis: self._rows, outer_axis: self.per}
        box = [lengths.get(axis, 1) for axis in self._order if axis is not None]
        self.strange = kernel.sums_sequences(slot, k_axis)
        if self.strange and (self.along_k or not clears):
            raise ValueError(f"{where}: operand {which} is summed over the rows of a sequence, and copies would bring those of "
                             "the next one too")
        self._number = kernel.use_tensor_map(slot, [a for a in self._order if a is not None], box, ROW)

    def copies(self) -> int:
        """Copies of one tile."""
        return 1 if self.along_k else self._room // self.per

    def share(self, rank: Index) -> Share:
        """Of the block of that rank in its cluster."""
        parts, apart = self.common.parts, self.common.apart
        if parts == 1:
            return Share(Index(0), None)
        i32, part = integer_type(32), rank // apart % parts
        mask = Index(sum(1 << apart * i for i in range(parts))).value(i32)
        if self.common.several:
            mask = arith.shli(mask, (rank - part * apart).value(i32))
        return Share(part, arith.trunci(integer_type(16), mask))

    def fetch(self, to: ir.Value, batch: Point, place: tuple[Index, Index], barrier: ir.Value, share: Share) -> None:
        """Starts the copies of a share of the tiles at a place (outer, k) to an address; their bytes complete at `barrier`, of
        every block that has them too."""
        cluster = ir.Type.parse("!llvm.ptr<7>")
        i32 = integer_type(32)
        part = share.part * self._rows
        outer, k = (place[0] + part, place[1]) if self.along_k else (place[0], place[1] + part)
        for deep, j in product(range(self.deep), range(self.copies())):
            at = loops_at(self.view, batch, {self.outer_loop: outer + j * self.per, self.k_loop: k + deep * self.per})
            listed = self.kernel.tensor_map_place(self._number, dict(enumerate(coords_of(self.view, self.which, at))))
            begin = part * ROW + (deep * self._room + j * self.per) * ROW
            nvvm.cp_async_bulk_tensor_shared_cluster_global(
                llvm.AddrSpaceCastOp(cluster, gep(to, begin.value(i32), integer_type(8))).result,
                self.kernel.tensor_map(self._number), listed, barrier, [], multicast_mask=share.mask)

    def clear(self, at: ir.Value, first: Index, threads: tuple[Index, int]) -> None:
        """Zeros from position `first` of k on, in the tiles at an address whose rows do not run along k. threads: the number of
        this one, and of all that share the work. Visible to products once all of them have met."""
        i32, in_row = integer_type(32), self.copies() * (ROW // _CHUNK)
        zeros = constant(i32, 0, 4)

        def one(number: Index) -> None:
            k, chunk = first + number // in_row, number % in_row
            row = k // self.per * self._room + chunk // (ROW // _CHUNK) * self.per + k % self.per
            offset = row * ROW + chunk % (ROW // _CHUNK) * _CHUNK
            llvm.StoreOp(zeros, gep(at, offset.value(i32), integer_type(8)), alignment=_CHUNK)

        loop(threads[0], (self.deep * self.per - first) * in_row, threads[1], one, index=i32)
        shared = ir.Attribute.parse("#nvvm.shared_space<cta>")
        nvvm.fence_proxy(ir.Attribute.parse("#nvvm.proxy_kind<async.shared>"), space=shared)

    def descriptor(self, address: Index, first: Index) -> ir.Value:
        """Of the tiles at a byte of the shared space, from position `first` of the outer axis on. What lies further on differs
        from it by a sixteenth of the bytes between: no place in shared memory overflows its bits."""
        i32, i64, lead = integer_type(32), integer_type(64), 1 if self.along_k else self.per * ROW // 16
        bytes_ = first * ROW if self.along_k else first // self.per * (self.per * ROW)
        masked = arith.andi(((address + bytes_) // 16).value(i32), Index(_MASK).value(i32))
        fixed = Index(_SWIZZLE_128 | _PERIOD // 16 << 32 | lead << 16).value(i64)
        return arith.ori(arith.extui(i64, masked), fixed)

    def advance(self, descriptor: ir.Value, outer: int, k: int) -> ir.Value:
        """The descriptor of what lies `outer` and `k` elements further."""
        deep, k = divmod(k, self.per)
        move = outer * ROW + k * self.size if self.along_k else outer // self.per * (self.per * ROW) + k * ROW
        step = (deep * self._room * ROW + move) // 16
        return arith.addi(descriptor, Index(step).value(integer_type(64))) if step else descriptor
