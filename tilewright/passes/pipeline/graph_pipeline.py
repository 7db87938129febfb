"""The passes between the recovered form and the outlined form."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.base import Mlir, Pass
from tilewright.passes.dispatch_creation.copy_results import CopyResults
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.dispatch_creation.fuse_attention import FuseAttention
from tilewright.passes.dispatch_creation.inline_control_flow import InlineControlFlow
from tilewright.passes.dispatch_creation.outline import Outline
from tilewright.passes.dispatch_creation.update_in_place import UpdateInPlace
from tilewright.passes.transforms.channels_last import ChannelsLast
from tilewright.passes.transforms.constants_along_k import ConstantsAlongK
from tilewright.passes.transforms.constants_as_read import ConstantsAsRead
from tilewright.passes.transforms.decompose import Decompose
from tilewright.passes.transforms.distribute_codes import DistributeCodes
from tilewright.passes.transforms.find_codes import FindCodes
from tilewright.passes.transforms.fold_scales import FoldScales
from tilewright.passes.transforms.integer_products import IntegerProducts
from tilewright.passes.transforms.nonpositive_exponents import NonpositiveExponents
from tilewright.passes.transforms.normalize import Normalize
from tilewright.passes.transforms.quantise_activations import QuantiseActivations
from tilewright.passes.transforms.sink_reshapes import SinkReshapes
from tilewright.passes.transforms.split_init import SplitInit
from tilewright.passes.transforms.split_reductions import SplitReductions
from tilewright.passes.transforms.widen_accumulator import WidenAccumulator


def graph_passes(attention: Sequence[Pass] | None = None, integers: IntegerProducts | None = None,
                 parts: SplitReductions | None = None, images: ChannelsLast | None = None,
                 weights: ConstantsAlongK | None = None, activations: QuantiseActivations | None = None,
                 in_place: UpdateInPlace | None = None, runs: Sequence[Pass] = ()) -> list[Pass]:
    """Recovered form -> outlined form: operations in one form, dispatch regions, functions.

    attention: which attentions become one kernel, and what else that takes in; None for all that there are, by themselves.
    integers: how the target multiplies bytes, where it is faster at it than at what they stand for.
    parts: how the target reduces along rows, where it does so in parts. images: which images it computes with channels last.
    weights: which constants its tensor cores read along k only.
    activations: how rows that meet weights in few bits become bytes, where that is asked for. in_place: which parts
    the target's host program puts into what loops carry. runs: what brings images into forms of which vectors read runs.
    """
    return [
        Decompose(),
        WidenAccumulator(),
        SplitInit(),
        Normalize(),
        Mlir("canonicalize,cse"),
        DistributeCodes(),
        *([integers, Mlir("canonicalize,cse")] if integers is not None else []),
        FindCodes(),
        *([activations, Mlir("canonicalize,cse")] if activations is not None else []),
        *([weights] if weights is not None else []),
        images or ChannelsLast(),
        *runs,
        SinkReshapes(),
        ConstantsAsRead(),
        FindCodes(),
        FoldScales(),
        *([in_place] if in_place is not None else []),
        CopyResults(),
        *([parts] if parts is not None else []),
        NonpositiveExponents(),
        Fuse(),
        *(attention if attention is not None else [FuseAttention()]),
        Outline(),
        InlineControlFlow(),
        Mlir("cse"),
    ]
