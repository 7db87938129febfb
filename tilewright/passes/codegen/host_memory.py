"""HostMemory: a strided tensor as host kernels read it, with places that lie close together picked out of one register."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import Memory, all_of, byte_width, choose, integer_type, lanes_of, vector_type
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.mlir import arith, ir, vector

_PERMUTE = {8: "llvm.x86.avx2.permd", 16: "llvm.x86.avx512.permvar.si.512"}  # of words of 4 bytes, by how many
_STEPS = (2, 1, 3, 4)  # places that elements lie apart, likelier ones first


@dataclass(frozen=True)
class HostMemory(Memory):
    """permutes: may elements at places along the axis of unit stride, where all of them lie within one vector, come from this
    vector by a permutation? Whether they do is asked at run time; a loop in which the places stay the same asks once. apart: may
    elements lie a few places apart along every axis, as those of every other column do? Then the step is asked at run time."""

    permutes: bool = False
    apart: bool = False

    def _raw(self, coords: Sequence[Index], mask: ir.Value | None) -> ir.Value:
        axis = self._scattered(coords)
        if axis is None:
            return super()._raw(coords, mask)
        lanes = coords[axis].lanes
        at = coords[axis].value(self.index)
        if mask is not None:  # a lane that is off may hold any place
            at = arith.select(mask, at, splat_to(vector.extract(at, [], [0]), lanes))
        kinds = vector.CombiningKind.MINSI, vector.CombiningKind.MAXSI
        low, high = (Index(vector.reduction(self.index, kind, at)) for kind in kinds)
        start = low.min(self.sizes[axis] - lanes)
        fits = all_of([start.ge(0), (high - start).lt(lanes)])

        def picked() -> ir.Value:
            run = [Index.ramp(start, lanes) if a == axis else c for a, c in enumerate(coords)]
            return self._permuted(self._load(self.offset(run), None), Index(at) - start)

        return choose(fits, vector_type(self.stored, lanes), picked, lambda: super(HostMemory, self)._raw(coords, mask))

    def _load(self, offset: Index, mask: ir.Value | None) -> ir.Value:
        step = offset.step
        if not self.apart or not offset.is_vector or step is None or step.const is not None:
            return super()._load(offset, mask)
        found, lanes = vector_type(self.stored, offset.lanes), offset.lanes

        def by_step(left: tuple[int, ...]) -> ir.Value:
            if not left:
                return super(HostMemory, self)._load(offset, mask)
            known = Index.ramp(offset.base, lanes, left[0])
            return choose(step.eq(left[0]), found, lambda: super(HostMemory, self)._load(known, mask), lambda: by_step(left[1:]))

        return by_step(_STEPS)

    def _scattered(self, coords: Sequence[Index]) -> int | None:
        """The axis along which a vector of places lies, if no other coordinate is a vector."""
        moving = [a for a, c in enumerate(coords) if c.is_vector]
        if not self.permutes or len(moving) != 1 or coords[moving[0]].step is not None:
            return None
        fits = self.strides[moving[0]].const == 1 and coords[moving[0]].lanes in _PERMUTE and byte_width(self.stored) <= 4
        return moving[0] if fits else None

    def _permuted(self, window: ir.Value, places: Index) -> ir.Value:
        lanes, width = lanes_of(window), 8 * byte_width(self.stored)
        words, own = (vector_type(integer_type(n), lanes) for n in (32, width))
        bits = window if window.type == own else arith.bitcast(own, window)
        given = [bits if width == 32 else arith.extui(words, bits), arith.trunci(words, places.value(self.index))]
        found = ir.Operation.create("llvm.call_intrinsic", [words], given, {
            "intrin": ir.StringAttr.get(_PERMUTE[lanes]),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 0]),
        }).results[0]
        narrow = found if width == 32 else arith.trunci(own, found)
        return narrow if narrow.type == window.type else arith.bitcast(window.type, narrow)
