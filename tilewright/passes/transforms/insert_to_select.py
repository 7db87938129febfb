"""insert-to-select: tensor.insert of one element becomes a generic that takes it at its place, and else the old element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise
from tilewright.passes.linalg.structured import main_of, replace
from tilewright.passes.mlir import arith, ir, linalg, operations, tensor

EQUAL = 0  # arith.cmpi eq


@dataclass(frozen=True)
class InsertToSelect(Pass):
    """A chain of inserts, as exporters write it, is one generic each; fusion makes one kernel of them."""

    name: ClassVar[str] = "insert-to-select"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            for op in operations(fn.regions[0].blocks[0]):
                if op.name == "tensor.insert":
                    with ir.InsertionPoint(op), op.location:
                        replace(op, [_select(op)])
                    op.erase()


def _select(op: ir.Operation) -> ir.Value:
    scalar, into, *place = list(op.operands)
    t = ir.RankedTensorType(into.type)
    sizes = [tensor.DimOp(into, arith.constant(ir.IndexType.get(), a)).result if t.is_dynamic_dim(a) else t.get_dim_size(a)
             for a in range(t.rank)]

    def element(old: list[ir.Value]) -> ir.Value:
        here = arith.constant(ir.IntegerType.get_signless(1), 1)
        for axis, position in enumerate(place):
            at = linalg.IndexOp(ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis)).result
            here = arith.AndIOp(here, arith.CmpIOp(EQUAL, at, position).result).result
        return arith.SelectOp(here, scalar, old[0]).result

    return elementwise([into], tensor.EmptyOp(sizes, t.element_type).result, element)
