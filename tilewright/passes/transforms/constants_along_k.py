"""constants-along-k: weights of products are turned so that k runs along memory, where tensor cores read them only so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.compile_time import constant_arguments
from tilewright.passes.analysis.contraction import LHS, RHS, Contraction, is_contraction
from tilewright.passes.base import Pass
from tilewright.passes.linalg.copies import transposed
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.mlir import ir, operations


@dataclass(frozen=True)
class ConstantsAlongK(Pass):
    """A factor that is a constant argument, of one of the types in `types`, as in "f32,f8E4M3FN", and along whose last axis no
    sum runs is read through a copy with the axis of k last. The copy is made at compile time, like all that is computed of
    constants alone. Products with several loops of k, such as convolutions, stay as they are.
    """

    name: ClassVar[str] = "constants-along-k"
    types: str = "f32"

    def run(self, module: ir.Module) -> None:
        types = self.types.split(",")
        for fn in main_of(module):
            constants, tensors = constant_arguments(fn), Reshaper(fn)
            for op in list(operations(fn.regions[0].blocks[0])):
                if not is_contraction(op):
                    continue
                view = Contraction.of(op, tensors.shapes)
                for which in (LHS, RHS):
                    value = view.operand(which)
                    if value in constants and str(ir.RankedTensorType(value.type).element_type) in types:
                        _turn(view, which, tensors)


def _turn(view: Contraction, which: int, tensors: Reshaper) -> None:
    value, op = view.operand(which), view.op
    rank = ir.RankedTensorType(value.type).rank
    axis = view.linear_axis(which, view.k[0]) if len(view.k) == 1 else None
    if axis is None or axis == rank - 1:
        return
    order = [*(a for a in range(rank) if a != axis), axis]
    with ir.InsertionPoint(op):
        op.operands[which] = transposed(tensors, value, order)
    old, listed = view.maps[which], list(ir.ArrayAttr(op.attributes["indexing_maps"]))
    listed[which] = ir.AffineMapAttr.get(ir.AffineMap.get(old.n_dims, 0, [old.results[a] for a in order]))
    op.attributes["indexing_maps"] = ir.ArrayAttr.get(listed)
