"""GpuMemory: a strided tensor in global or shared memory, as one GPU thread sees it.

A vector access is as wide as its alignment is proven, by the multiples that coordinates and strides are known to be of. Masks of
one lane are predicates; elements that are not contiguous are accessed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd

from tilewright.passes.codegen.emit import Memory, byte_width, choose, constant, gep, lanes_of, vector_type, when
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.mlir import ir, llvm, vector

WIDEST = 16  # bytes of one access


@dataclass(frozen=True)
class GpuMemory(Memory):
    """rely_on: told of every alignment (in elements) that an access needs of the pointer and the strides. multiple: of elements
    that the pointer is from an aligned one; 0 when it is one."""

    rely_on: Callable[[int], None] | None = None
    multiple: int = 0

    def window(self, coords: Sequence[Index]) -> GpuMemory:
        """The tensor from `coords` on, at a pointer of its own: constant coordinates in it cost no arithmetic."""
        offset = self.offset(coords)
        at = gep(self.pointer, offset.value(self.index), self.stored)
        return replace(self, pointer=at, multiple=gcd(self.multiple, offset.multiple))

    def run_of(self, offset: Index) -> int:
        """Elements of an access at `offset` that are contiguous and aligned to their own size."""
        if offset.step is None or offset.step.const != 1:
            return 1
        return gcd(offset.base.multiple, self.multiple, offset.lanes, WIDEST // byte_width(self.stored))

    def alignment(self, offset: Index) -> int:
        run = self.run_of(offset)
        if run > 1 and self.rely_on is not None:
            self.rely_on(run)
        return run * byte_width(self.stored)

    def masked_alignment(self, offset: Index) -> int:
        """Less than the vector's: of one under a constant mask that is aligned, LLVM takes the other lanes for anything, and they
        are 0."""
        element = byte_width(self.stored)
        return max(element, min(self.alignment(offset), element * offset.lanes // 2))

    def _load(self, offset: Index, mask: ir.Value | None) -> ir.Value:
        if mask is not None and lanes_of(mask) == 1:
            loaded = vector_type(self.stored, offset.lanes)
            return choose(mask, loaded, lambda: splat_to(self._load(offset, None), offset.lanes),
                          lambda: constant(self.stored, 0, offset.lanes))
        apart = offset.is_vector and (offset.step is None or offset.step.const not in (0, 1))
        if mask is not None or not apart:
            return super()._load(offset, mask)
        lanes = [llvm.LoadOp(self.stored, self._at(offset, i), alignment=byte_width(self.stored)).result
                 for i in range(offset.lanes)]
        return vector.from_elements(vector_type(self.stored, offset.lanes), lanes)

    def store(self, value: ir.Value, coords: Sequence[Index], mask: ir.Value | None = None) -> None:
        if mask is not None and lanes_of(mask) == 1:
            when(mask, lambda: self.store(value, coords))
            return
        offset = self.offset(coords)
        apart = offset.is_vector and (offset.step is None or offset.step.const != 1)
        if mask is not None or not apart:
            super().store(value, coords, mask)
            return
        value = splat_to(value, offset.lanes)
        for i in range(offset.lanes):
            super().store(vector.extract(value, [], [i]), [_lane(c, i) for c in coords])

    def _at(self, offset: Index, lane: int) -> ir.Value:
        return gep(self.pointer, _lane(offset, lane).value(self.index), self.stored)


def _lane(c: Index, number: int) -> Index:
    """One lane of a coordinate."""
    if c.is_vector and c.step is None:
        assert c.type is not None
        return Index(vector.extract(c.value(c.type), [], [number]))
    return c.lane(number)
