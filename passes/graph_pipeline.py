"""The passes between the recovered form and the outlined form."""

from __future__ import annotations

from passes.base import Mlir, Pass
from passes.channels_last import ChannelsLast
from passes.copy_results import CopyResults
from passes.decompose import Decompose
from passes.fuse import Fuse
from passes.fuse_attention import FuseAttention
from passes.normalize import Normalize
from passes.outline import Outline
from passes.split_init import SplitInit
from passes.widen_accumulator import WidenAccumulator


def graph_passes(attention: FuseAttention | None = None) -> list[Pass]:
    """Recovered form -> outlined form: operations in one form, dispatch regions, functions.

    attention: what the target's family for fused attention takes; None for all that there is.
    """
    return [
        Decompose(),
        WidenAccumulator(),
        SplitInit(),
        Normalize(),
        Mlir("canonicalize,cse"),
        ChannelsLast(),
        CopyResults(),
        Fuse(),
        attention or FuseAttention(),
        Outline(),
        Mlir("cse"),
    ]
