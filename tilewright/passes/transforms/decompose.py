"""decompose: linalg.softmax becomes the row reductions and elementwise operations that it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise, fill, reduction
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import erase_unused, main_of, replace
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import arith, ir, math, operations


@dataclass(frozen=True)
class Decompose(Pass):
    """exp(x - max) / sum(exp(x - max)). The maximum propagates NaN; a row of -inf gives NaN.

    f16 and bf16 are computed in f32 and rounded once, at the end.
    """

    name: ClassVar[str] = "decompose"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            tensors = Reshaper(fn)
            for op in operations(fn.regions[0].blocks[0]):
                if op.name == "linalg.softmax":
                    with ir.InsertionPoint(op), op.location:
                        replace(op, [_softmax(op, tensors)])
            erase_unused(fn)


def _softmax(op: ir.Operation, tensors: Reshaper) -> ir.Value:
    source, axis = op.operands[0], integer(op.attributes["dimension"])
    dims = list(tensors.shapes.dims(source))
    narrow = ir.RankedTensorType(op.results[0].type).element_type
    wide = ir.F32Type.get() if str(narrow) in ("f16", "bf16") else narrow
    source = tensors.as_type(source, tensors.empty(dims, ir.RankedTensorType(source.type).element_type).type)
    rows = dims[:axis] + dims[axis + 1 :]
    per_row = ir.AffineMap.get(len(dims), 0, [ir.AffineExpr.get_dim(d) for d in range(len(dims)) if d != axis])
    same = ir.AffineMap.get_identity(len(dims))

    def start(value: float) -> ir.Value:
        return fill(arith.ConstantOp(wide, value).result, tensors.empty(rows, wide))

    if wide != narrow:
        source = elementwise([source], tensors.empty(dims, wide), lambda v: arith.ExtFOp(wide, v[0]).result)
    peak = reduction(source, start(-inf), axis, lambda v: arith.MaximumFOp(v[0], v[1]).result)
    shifted = elementwise(
        [source, peak], tensors.empty(dims, wide), lambda v: arith.SubFOp(v[0], v[1]).result, [same, per_row]
    )
    power = elementwise([shifted], tensors.empty(dims, wide), lambda v: math.ExpOp(v[0]).result)
    total = reduction(power, start(0.0), axis, lambda v: arith.AddFOp(v[0], v[1]).result)
    result = elementwise(
        [power, total], tensors.empty(dims, wide), lambda v: arith.DivFOp(v[0], v[1]).result, [same, per_row]
    )
    if wide != narrow:
        result = elementwise([result], tensors.empty(dims, narrow), lambda v: arith.TruncFOp(narrow, v[0]).result)
    return tensors.as_type(result, op.results[0].type)
