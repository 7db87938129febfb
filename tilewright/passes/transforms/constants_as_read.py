"""constants-as-read: what is known at compile time lies in memory as elementwise operations read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.compile_time import known_values
from tilewright.passes.base import Pass
from tilewright.passes.linalg.copies import transposed
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import inputs, iterator_kinds, main_of
from tilewright.passes.mlir import ir, maps_of, operations, position


@dataclass(frozen=True)
class ConstantsAsRead(Pass):
    """A known tensor of at least `elements` elements, of which an elementwise operation on others reads its axes in another order
    than that of its loops, as a table of biases [query, key, head] is added to scores [head, query, key], is read through a copy
    in that order. The copy is made at compile time, like all that is computed of constants alone; without it vectors along the
    last loop gather elements from places far apart.
    """

    name: ClassVar[str] = "constants-as-read"
    elements: int = 256

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            known, tensors = known_values(fn), Reshaper(fn)
            for op in list(operations(fn.regions[0].blocks[0])):
                if op.name != "linalg.generic" or "reduction" in iterator_kinds(op) or known.issuperset(op.results):
                    continue
                for number, value in enumerate(inputs(op)):
                    size = 1
                    for extent in tensors.shapes.dims(value) if value in known else ():
                        size *= extent.constant or 0
                    if value in known and size >= self.elements:
                        _turn(op, number, tensors)


def _turn(op: ir.Operation, number: int, tensors: Reshaper) -> None:
    read, written = maps_of(op)[number], [position(e) for e in maps_of(op)[-1].results]
    loops = [position(e) for e in read.results]
    if None in loops or len(set(loops)) < len(loops) or not set(loops) <= set(written):
        return
    order = sorted(range(len(loops)), key=lambda a: written.index(loops[a]))
    if order == list(range(len(loops))):
        return
    with ir.InsertionPoint(op):
        op.operands[number] = transposed(tensors, op.operands[number], order)
    listed = list(ir.ArrayAttr(op.attributes["indexing_maps"]))
    listed[number] = ir.AffineMapAttr.get(ir.AffineMap.get(read.n_dims, 0, [read.results[a] for a in order]))
    op.attributes["indexing_maps"] = ir.ArrayAttr.get(listed)
