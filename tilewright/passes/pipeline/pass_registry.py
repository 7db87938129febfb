"""Every pass by name: what `tilewright opt --pass` accepts."""

from __future__ import annotations

from tilewright.passes.base import Mlir, Pass
from tilewright.passes.codegen.emit_micro_kernel import EmitMicroKernel
from tilewright.passes.codegen.tile import Tile
from tilewright.passes.dispatch_creation.copy_results import CopyResults
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.dispatch_creation.fuse_attention import FuseAttention
from tilewright.passes.dispatch_creation.inline_control_flow import InlineControlFlow
from tilewright.passes.dispatch_creation.look_up_in_attention import LookUpInAttention
from tilewright.passes.dispatch_creation.look_up_in_product import LookUpInProduct
from tilewright.passes.dispatch_creation.outline import Outline
from tilewright.passes.dispatch_creation.pack_constants import PackConstants
from tilewright.passes.dispatch_creation.update_in_place import UpdateInPlace
from tilewright.passes.lowering.define_arithmetic import DefineArithmetic
from tilewright.passes.lowering.expand_math import ExpandMath
from tilewright.passes.lowering.lower_to_llvm import LowerToLlvm
from tilewright.passes.lowering.math_to_instructions import MathToInstructions
from tilewright.passes.lowering.math_to_libdevice import MathToLibdevice
from tilewright.passes.lowering.promote_bf16 import PromoteBf16
from tilewright.passes.lowering.split_masked_stores import SplitMaskedStores
from tilewright.passes.spaces.option_text import parse_specs
from tilewright.passes.transforms.assert_to_facts import AssertToFacts
from tilewright.passes.transforms.channels_last import ChannelsLast
from tilewright.passes.transforms.constants_along_k import ConstantsAlongK
from tilewright.passes.transforms.constants_as_read import ConstantsAsRead
from tilewright.passes.transforms.decompose import Decompose
from tilewright.passes.transforms.distribute_codes import DistributeCodes
from tilewright.passes.transforms.drop_dead_results import DropDeadResults
from tilewright.passes.transforms.expand_layouts import ExpandLayouts
from tilewright.passes.transforms.extract_to_operand import ExtractToOperand
from tilewright.passes.transforms.find_codes import FindCodes
from tilewright.passes.transforms.flatten_contraction import FlattenContraction
from tilewright.passes.transforms.fold_broadcast import FoldBroadcast
from tilewright.passes.transforms.fold_reshapes import FoldReshapes
from tilewright.passes.transforms.fold_scales import FoldScales
from tilewright.passes.transforms.fold_transpose import FoldTranspose
from tilewright.passes.transforms.fold_unit_dims import FoldUnitDims
from tilewright.passes.transforms.gathered_channels import GatheredChannels
from tilewright.passes.transforms.generalize import Generalize
from tilewright.passes.transforms.hoist_from_loops import HoistFromLoops
from tilewright.passes.transforms.insert_to_select import InsertToSelect
from tilewright.passes.transforms.integer_products import IntegerProducts
from tilewright.passes.transforms.lift_control_flow import LiftControlFlow
from tilewright.passes.transforms.loops_to_scans import LoopsToScans
from tilewright.passes.transforms.lower_precision import LowerPrecision
from tilewright.passes.transforms.nonpositive_exponents import NonpositiveExponents
from tilewright.passes.transforms.normalize import Normalize
from tilewright.passes.transforms.quantise_activations import QuantiseActivations
from tilewright.passes.transforms.resolve_reshape import ResolveReshape
from tilewright.passes.transforms.simplify_shapes import SimplifyShapes
from tilewright.passes.transforms.sink_reshapes import SinkReshapes
from tilewright.passes.transforms.skip_zero_products import SkipZeroProducts
from tilewright.passes.transforms.split_init import SplitInit
from tilewright.passes.transforms.split_reductions import SplitReductions
from tilewright.passes.transforms.taps_with_channels import TapsWithChannels
from tilewright.passes.transforms.uncollapse_contraction import UncollapseContraction
from tilewright.passes.transforms.widen_accumulator import WidenAccumulator
from tilewright.passes.transforms.widen_sub_byte import WidenSubByte
from tilewright.runtime.errors import OptionError

PASSES: tuple[type[Pass], ...] = (
    Mlir,
    ExpandLayouts,
    InsertToSelect,
    WidenSubByte,
    DefineArithmetic,
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
    IntegerProducts,
    DistributeCodes,
    FindCodes,
    QuantiseActivations,
    ConstantsAlongK,
    ChannelsLast,
    TapsWithChannels,
    GatheredChannels,
    SinkReshapes,
    ConstantsAsRead,
    LiftControlFlow,
    LoopsToScans,
    HoistFromLoops,
    SkipZeroProducts,
    InlineControlFlow,
    UpdateInPlace,
    FoldScales,
    CopyResults,
    SplitReductions,
    NonpositiveExponents,
    Fuse,
    FuseAttention,
    LookUpInAttention,
    LookUpInProduct,
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
