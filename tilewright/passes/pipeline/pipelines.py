"""The pipelines, each a plain list read from top to bottom."""

from __future__ import annotations

from tilewright.passes.base import Mlir, Pass
from tilewright.passes.transforms.assert_to_facts import AssertToFacts
from tilewright.passes.transforms.drop_dead_results import DropDeadResults
from tilewright.passes.transforms.extract_to_operand import ExtractToOperand
from tilewright.passes.transforms.flatten_contraction import FlattenContraction
from tilewright.passes.transforms.fold_broadcast import FoldBroadcast
from tilewright.passes.transforms.fold_reshapes import FoldReshapes
from tilewright.passes.transforms.fold_transpose import FoldTranspose
from tilewright.passes.transforms.fold_unit_dims import FoldUnitDims
from tilewright.passes.transforms.generalize import Generalize
from tilewright.passes.transforms.resolve_reshape import ResolveReshape
from tilewright.passes.transforms.simplify_shapes import SimplifyShapes
from tilewright.passes.transforms.split_init import SplitInit
from tilewright.passes.transforms.uncollapse_contraction import UncollapseContraction


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
