"""The pipelines, each a plain list read from top to bottom."""

from __future__ import annotations

from passes.assert_to_facts import AssertToFacts
from passes.base import Mlir, Pass
from passes.drop_dead_results import DropDeadResults
from passes.extract_to_operand import ExtractToOperand
from passes.flatten_contraction import FlattenContraction
from passes.fold_broadcast import FoldBroadcast
from passes.fold_reshapes import FoldReshapes
from passes.fold_transpose import FoldTranspose
from passes.fold_unit_dims import FoldUnitDims
from passes.generalize import Generalize
from passes.resolve_reshape import ResolveReshape
from passes.simplify_shapes import SimplifyShapes
from passes.split_init import SplitInit
from passes.uncollapse_contraction import UncollapseContraction


def recover_passes() -> list[Pass]:
    """What exporters hide, recovered: shapes as dims, reshapes as views, broadcasts and transposes as indexing maps."""
    return [
        AssertToFacts(),
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
