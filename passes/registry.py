"""Every pass by name: what `tilewright opt --pass` accepts."""

from __future__ import annotations

from passes.assert_to_facts import AssertToFacts
from passes.base import Mlir, Pass
from passes.channels_last import ChannelsLast
from passes.copy_results import CopyResults
from passes.decompose import Decompose
from passes.drop_dead_results import DropDeadResults
from passes.emit_micro_kernel import EmitMicroKernel
from passes.expand_math import ExpandMath
from passes.extract_to_operand import ExtractToOperand
from passes.flatten_contraction import FlattenContraction
from passes.fold_broadcast import FoldBroadcast
from passes.fold_reshapes import FoldReshapes
from passes.fold_transpose import FoldTranspose
from passes.fold_unit_dims import FoldUnitDims
from passes.fuse import Fuse
from passes.fuse_attention import FuseAttention
from passes.generalize import Generalize
from passes.lower_precision import LowerPrecision
from passes.lower_to_llvm import LowerToLlvm
from passes.math_to_instructions import MathToInstructions
from passes.math_to_libdevice import MathToLibdevice
from passes.normalize import Normalize
from passes.option_text import parse_specs
from passes.outline import Outline
from passes.pack_constants import PackConstants
from passes.promote_bf16 import PromoteBf16
from passes.resolve_reshape import ResolveReshape
from passes.simplify_shapes import SimplifyShapes
from passes.split_init import SplitInit
from passes.split_masked_stores import SplitMaskedStores
from passes.tile import Tile
from passes.uncollapse_contraction import UncollapseContraction
from passes.widen_accumulator import WidenAccumulator
from runtime.errors import OptionError

PASSES: tuple[type[Pass], ...] = (
    Mlir,
    AssertToFacts,
    SimplifyShapes,
    ResolveReshape,
    DropDeadResults,
    ExtractToOperand,
    Generalize,
    SplitInit,
    FoldBroadcast,
    UncollapseContraction,
    FoldTranspose,
    FlattenContraction,
    FoldUnitDims,
    FoldReshapes,
    LowerPrecision,
    Decompose,
    WidenAccumulator,
    Normalize,
    ChannelsLast,
    CopyResults,
    Fuse,
    FuseAttention,
    Outline,
    PackConstants,
    ExpandMath,
    PromoteBf16,
    SplitMaskedStores,
    Tile,
    EmitMicroKernel,
    MathToInstructions,
    MathToLibdevice,
    LowerToLlvm,
)


def pass_named(name: str) -> type[Pass]:
    """The pass class of a spec name; OptionError lists the known names."""
    for candidate in PASSES:
        if candidate.name == name:
            return candidate
    raise OptionError(f"no pass {name!r}; the passes are {', '.join(sorted(p.name for p in PASSES))}")


def passes_from_text(text: str) -> list[Pass]:
    """`simplify-shapes,fold-transpose{results=false}` as passes; OptionError names what does not parse."""
    return [pass_named(name).parse(options) for name, options in parse_specs(text)]
