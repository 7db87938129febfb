"""TmaOperand: tiles of an operand that tensor copies bring to shared memory and wgmma reads by descriptors.

A tile is rows of 128 bytes, their chunks of 16 bytes permuted by the row. The rows run along k, or along the outer axis where
memory does; then the tile is blocks of 128 bytes of the outer axis, one behind the other.
"""

from __future__ import annotations

from tilewright.passes.codegen.emit import byte_width, gep, integer_type, resized
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_space import Point
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.product_code import coords_of
from tilewright.passes.families.gpu.simt_plan import SimtPlan, loops_at
from tilewright.passes.mlir import arith, ir, llvm, nvvm, position
from tilewright.passes.spaces.gpu.wgmma import ROW

_SWIZZLE_128, _PERIOD = 1 << 62, 1024  # of a descriptor; bytes of 8 rows
_MASK = 0x3FFF


class TmaOperand:
    """`bytes`: of a tile. `along_k`: rows run along k. `parts`: blocks of a cluster that have the tile in common; each of them
    fetches its part of the tile for all."""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, which: int, extent: int, offset: int, parts: int = 1) -> None:
        self.kernel, self.view, self.which, self.extent, self.offset = kernel, plan.view, which, extent, offset
        self.parts = parts
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
        if not self.along_k and extent % self.per:
            raise ValueError(f"tiles of {extent} elements of operand {slot.number} are no whole rows of {ROW} bytes")
        self.outer_loop, self.k_loop = outer_loops[0], view.k[0]
        self.bytes = extent * ROW
        self._order = [slot.unit, *(a for a in reversed(range(slot.rank)) if a != slot.unit)]
        if extent % (8 * parts) or self.per % (8 * parts):
            raise ValueError(f"tiles of {extent} by {self.per} elements have no {parts} parts of whole groups of 8 rows")
        self._rows = (extent if self.along_k else self.per) // parts  # of a copy
        lengths = {k_axis: self.per, outer_axis: self._rows} if self.along_k else {k_axis: self._rows, outer_axis: self.per}
        box = [lengths.get(axis, 1) for axis in self._order if axis is not None]
        self._number = kernel.use_tensor_map(slot, [a for a in self._order if a is not None], box, ROW)

    def copies(self) -> int:
        """Copies of one tile."""
        return 1 if self.along_k else self.extent // self.per

    def fetch(self, stage: ir.Value, batch: Point, outer: Index, k: Index, barrier: ir.Value, part: Index) -> None:
        """Starts the copies of a part of the tile at (outer, k) into the stage at address `stage`; their bytes complete at
        `barrier`, of every block that has the tile too."""
        cluster = ir.Type.parse("!llvm.ptr<7>")
        i32 = integer_type(32)
        block, first = self.per * ROW, part * self._rows if self.parts > 1 else Index(0)
        mask = Index((1 << self.parts) - 1).value(integer_type(16)) if self.parts > 1 else None
        outer, k = (outer + first, k) if self.along_k else (outer, k + first)
        for j in range(self.copies()):
            at = loops_at(self.view, batch, {self.outer_loop: outer + j * self.per, self.k_loop: k})
            coords = coords_of(self.view, self.which, at)
            listed = [resized(coords[a].value(self.kernel.index), i32) for a in self._order if a is not None]
            to = gep(stage, (first * ROW + (self.offset + j * block)).value(i32), integer_type(8))
            nvvm.cp_async_bulk_tensor_shared_cluster_global(
                llvm.AddrSpaceCastOp(cluster, to).result, self.kernel.tensor_map(self._number), listed, barrier, [],
                multicast_mask=mask)

    def descriptor(self, stage: Index, first: Index) -> ir.Value:
        """Of the tile in the stage at byte `stage` of the shared space, from position `first` of the outer axis on."""
        i64 = integer_type(64)
        lead = 1 if self.along_k else self.per * ROW // 16
        fixed = _SWIZZLE_128 | _PERIOD // 16 << 32 | lead << 16
        start = (stage + self.offset + self._outer_bytes(first)) // 16
        masked = arith.andi(start.value(integer_type(32)), Index(_MASK).value(integer_type(32)))
        return arith.ori(arith.extui(i64, masked), Index(fixed).value(i64))

    def _outer_bytes(self, first: Index) -> Index:
        return first * ROW if self.along_k else first // self.per * (self.per * ROW)

    def advance(self, descriptor: ir.Value, outer: int, k: int) -> ir.Value:
        """The descriptor of what lies `outer` and `k` elements further."""
        move = outer * ROW + k * self.size if self.along_k else outer // self.per * (self.per * ROW) + k * ROW
        return descriptor if not move else arith.addi(descriptor, Index(move // 16).value(integer_type(64)))
