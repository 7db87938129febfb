"""The pipelines, each a plain list read from top to bottom."""

from __future__ import annotations

from tilewright.passes.base import Mlir, Pass
from tilewright.passes.mlir import ir, walk
from tilewright.passes.transforms.assert_to_facts import AssertToFacts
from tilewright.passes.transforms.drop_dead_results import DropDeadResults
from tilewright.passes.transforms.expand_layouts import LAYOUT_OPS, ExpandLayouts
from tilewright.passes.transforms.extract_to_operand import ExtractToOperand
from tilewright.passes.transforms.flatten_contraction import FlattenContraction
from tilewright.passes.transforms.fold_broadcast import FoldBroadcast
from tilewright.passes.transforms.fold_reshapes import FoldReshapes
from tilewright.passes.transforms.fold_transpose import FoldTranspose
from tilewright.passes.transforms.fold_unit_dims import FoldUnitDims
from tilewright.passes.transforms.generalize import Generalize
from tilewright.passes.transforms.insert_to_select import InsertToSelect
from tilewright.passes.transforms.lift_control_flow import LiftControlFlow
from tilewright.passes.transforms.resolve_reshape import ResolveReshape
from tilewright.passes.transforms.simplify_shapes import SimplifyShapes
from tilewright.passes.transforms.split_init import SplitInit
from tilewright.passes.transforms.uncollapse_contraction import UncollapseContraction
from tilewright.passes.transforms.widen_sub_byte import WidenSubByte, narrow_type


def legalize_passes(fn: ir.Operation) -> list[Pass]:
    """What brings the function's operations to the forms that the other passes read; none where all are in them already."""
    ops = walk(fn)
    names = {op.name for op in ops}
    values = [*fn.regions[0].blocks[0].arguments, *(r for op in ops for r in op.results)]
    found: list[Pass] = []
    if any(op.name.startswith(("arith.", "math.")) and op.name != "arith.constant"
           and any(isinstance(r.type, ir.RankedTensorType) for r in op.results) for op in ops):
        found.append(Mlir("convert-elementwise-to-linalg"))
    if "scf.for" in names:
        found.append(Mlir("func.func(scf-for-to-while)"))
    if "tensor.insert" in names:
        found.append(InsertToSelect())
    if names.intersection(LAYOUT_OPS):
        found.append(ExpandLayouts())
    if any(narrow_type(v.type) is not None for v in values):
        found += [WidenSubByte(), Mlir("canonicalize")]
    return found


def recover_passes() -> list[Pass]:
    """What exporters hide, recovered: shapes as dims, reshapes as views, broadcasts and transposes as indexing maps."""
    return [
        AssertToFacts(),
        LiftControlFlow(),
        SimplifyShapes(),
        Mlir("int-range-optimizations,canonicalize,cse"),
        ResolveReshape(),
        DropDeadResults(),
        ExtractToOperand(),
        Generalize(),
        SplitInit(),
        UncollapseContraction(),
        FoldBroadcast(),
        FoldTranspose(),
        FlattenContraction(),
        FoldUnitDims(),
        FoldReshapes(),
        FoldTranspose(),
        FoldReshapes(),
        SimplifyShapes(),
        Mlir("canonicalize,cse"),
    ]
