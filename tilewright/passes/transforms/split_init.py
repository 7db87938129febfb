"""split-init: a contraction or convolution that accumulates onto a tensor starts at 0, and the tensor is added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.contraction import sums_products
from tilewright.passes.base import Pass
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import body, erase_unused, inits, main_of
from tilewright.passes.mlir import arith, ir, linalg, operations, owner, walk

_ADDITIONS = {"arith.addf": arith.AddFOp, "arith.addi": arith.AddIOp}

_EXACT = ("f32", "f64", "i8", "i16", "i32", "i64")


@dataclass(frozen=True)
class SplitInit(Pass):
    """So a bias is an epilogue wherever the exporter put it. Narrow floats stay: their sum would be rounded twice."""

    name: ClassVar[str] = "split-init"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            views = Reshaper(fn)
            for op in walk(fn):
                if len(op.results) == 1 and (
                    sums_products(op) or op.name.startswith(("linalg.conv_", "linalg.depthwise_conv"))
                ):
                    _split(op, views)
            erase_unused(fn)


def _split(op: ir.Operation, views: Reshaper) -> None:
    start = inits(op)[0]
    filled = owner(start)
    inner = operations(body(op))
    last = owner(inner[-1].operands[0])
    if (
        (filled is not None and filled.name in ("linalg.fill", "tensor.empty"))
        or last is None
        or last.name not in _ADDITIONS
    ):
        return
    kind = ir.RankedTensorType(start.type)
    if str(kind.element_type) not in _EXACT:
        return
    dims = views.shapes.dims(start)
    with ir.InsertionPoint(op), op.location:
        zero = arith.constant(kind.element_type, 0.0 if last.name == "arith.addf" else 0)
        blank = linalg.fill(zero, outs=[views.empty(dims, kind.element_type)])
        blank = views.as_type(blank, start.type)
    op.operands[len(op.operands) - 1] = blank
    with ir.InsertionPoint.after(op), op.location:
        empty = views.as_type(views.empty(dims, kind.element_type), start.type)
        total = _add(op.results[0], start, empty, _ADDITIONS[last.name])
    op.results[0].replace_all_uses_except(total.results[0], total)


def _add(a: ir.Value, b: ir.Value, out: ir.Value, kind: type) -> ir.Operation:
    rank = ir.RankedTensorType(out.type).rank
    element = ir.RankedTensorType(out.type).element_type
    same = ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([same] * 3),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 1]),
    }
    op = ir.Operation.create("linalg.generic", [out.type], [a, b, out], attributes, regions=1)
    block = ir.Block.create_at_start(op.regions[0], [element] * 3)
    with ir.InsertionPoint(block):
        linalg.YieldOp([kind(block.arguments[0], block.arguments[1]).result])
    return op
