"""quantise-activations: rows that meet weights in few bits become codes of 8 bits, so that products are sums of integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.codes import Codes, multiplies
from tilewright.passes.analysis.contraction import Contraction, is_contraction
from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise, fill, reduction
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import arith, ir, math, operations, owner, position
from tilewright.passes.spaces.byte_rows import LARGEST_BYTE, SMALLEST
from tilewright.passes.transforms.find_codes import CODES
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class QuantiseActivations(Pass):
    """Each f32 row is cut into the groups of k that the weights have scales for, or is one group where these do not divide it.
    The scale of a group is its largest magnitude over 127, its codes are bytes with a sign, and what the contraction reads is
    their decoding. Rows that several products read are quantised once.
    """

    name: ClassVar[str] = "quantise-activations"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            shapes = SymbolicShapes(fn)
            done: dict[tuple[ir.Value, int], ir.Value] = {}
            for op in operations(fn.regions[0].blocks[0]):
                found = _rows(op, shapes) if is_contraction(op) else None
                if found is None:
                    continue
                which, group = found
                rows = op.operands[which]
                if (rows, group) not in done:
                    with _behind(rows, op), op.location:
                        done[rows, group] = _decoded(fn, rows, group)
                op.operands[which] = done[rows, group]


def _behind(value: ir.Value, first: ir.Operation) -> ir.InsertionPoint:
    """Where the value is made, so that all that read it come after; before `first` where it is an argument, which may come before
    the extents that the code asks for."""
    made = owner(value)
    return ir.InsertionPoint(first) if made is None else ir.InsertionPoint.after(made)


def _rows(op: ir.Operation, shapes: SymbolicShapes) -> tuple[int, int] | None:
    """The operand of a product that is f32 [M, K], not decoded itself, and meets a weight in few bits, and values of a group."""
    try:
        view = Contraction.of(op, shapes)
    except ValueError:
        return None
    for which in (0, 1):
        made = owner(op.operands[1 - which])
        codes = Codes.of(made) if made is not None and CODES in made.attributes else None
        rows = op.operands[which]
        if codes is None or not multiplies(view, 1 - which, codes) or Codes.of(owner(rows)) is not None:
            continue
        along, depth = [position(e) for e in view.maps[which].results], view.extents[view.k[0]].constant
        if len(along) != 2 or along[1] != view.k[0] or not depth or str(ir.RankedTensorType(rows.type).element_type) != "f32":
            continue
        return which, codes.group if 0 < codes.group < depth and depth % codes.group == 0 else depth
    return None


def _decoded(fn: ir.Operation, rows: ir.Value, group: int) -> ir.Value:
    """codes[m, k] * scale[m, k floordiv group] of f32 rows [M, K]."""
    tensors, f32, i8 = Reshaper(fn), ir.F32Type.get(), ir.IntegerType.get_signless(8)
    count, depth = tensors.shapes.dims(rows)
    groups = [count, depth // group]
    parts = tensors.reshape(rows, [*groups, Expr.of(group)])
    start = fill(_number(0.0), tensors.empty(groups, f32))
    top = reduction(parts, start, 2, lambda v: arith.MaximumFOp(v[1], math.AbsFOp(v[0]).result).result)
    by = elementwise([top], tensors.empty(groups, f32), _factor)
    m, g = ir.AffineExpr.get_dim(0), ir.AffineExpr.get_dim(1)
    shared = ir.AffineMap.get(3, 0, [m, g])
    codes = elementwise([parts, by], tensors.empty([*groups, Expr.of(group)], i8), _code,
                        [ir.AffineMap.get_identity(3), shared])
    scale = elementwise([top], tensors.empty(groups, f32), lambda v: arith.MulFOp(v[0], _number(1.0 / LARGEST_BYTE)).result)
    codes = tensors.reshape(codes, [count, depth])
    of_group = [m, ir.AffineExpr.get_floor_div(g, group)]
    if group == depth.constant:
        scale, of_group = tensors.reshape(scale, [count]), [m]
    decoded = elementwise([codes, scale], tensors.empty([count, depth], f32),
                          lambda v: arith.MulFOp(arith.SIToFPOp(f32, v[0]).result, v[1]).result,
                          [ir.AffineMap.get_identity(2), ir.AffineMap.get(2, 0, of_group)])
    made = owner(decoded)
    found = Codes.of(made)
    assert made is not None and found is not None
    made.attributes[CODES] = ir.StringAttr.get(found.text)
    return decoded


def _factor(values: list[ir.Value]) -> ir.Value:
    """What the values of a group are multiplied by: 127 over their largest magnitude, 0 where that is as good as 0, else NaN."""
    top = values[0]
    some = arith.CmpFOp(arith.CmpFPredicate.OGE, top, _number(SMALLEST)).result
    return arith.SelectOp(some, arith.DivFOp(_number(LARGEST_BYTE), top).result, arith.MulFOp(top, _number(0.0)).result).result


def _code(values: list[ir.Value]) -> ir.Value:
    """The nearest code, to even; 0 for NaN, whose scale is NaN."""
    code = math.RoundEvenOp(arith.MulFOp(values[0], values[1]).result).result
    some = arith.CmpFOp(arith.CmpFPredicate.OGE, code, _number(-LARGEST_BYTE)).result
    safe = arith.SelectOp(some, code, _number(0.0)).result
    whole = arith.FPToSIOp(ir.IntegerType.get_signless(32), safe).result
    return arith.TruncIOp(ir.IntegerType.get_signless(8), whole).result


def _number(value: float) -> ir.Value:
    return arith.ConstantOp(ir.F32Type.get(), value).result
