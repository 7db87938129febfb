"""What `generic` runs untuned. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.spaces.host.generic import GenericConfig, has_column_table, has_shared_table
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node
from tilewright.runtime.shape import Expr

_PACKED = 32  # bytes of a register of AVX2; wider ones are narrowed one by one
_NONE = "not measured: no operator of the bench is elementwise alone; that one pads and transposes beside its product"


@dataclass(frozen=True)
class Thresholds:
    """Sizes of pieces of rows."""

    lanes: int = threshold(32, unit="elements of a vector at most", operator="conv3x3_64x56_64_nchw", results=_NONE)
    chunk: int = threshold(4096, unit="elements of a row in one work unit", operator="conv3x3_64x56_64_nchw", results=_NONE)
    loop_chunk: int = threshold(256, unit="the same where each element takes a loop", operator="conv3x3_64x56_64_nchw",
                                results=_NONE)
    interleaved: int = threshold(3, unit="functions of math in an element, from which on two registers are computed side by side",
                                 operator="lstm_16x64", results="zen3-avx2.md: gates of an LSTM, 16 x 64 and 16 x 256")
    rows: int = threshold(32, unit="rows that share a table of places", operator="conv3x3_64x56_64_nchw", results=_NONE)
    channels: int = threshold(8, unit="rows that share the places of one image", operator="conv3x3_64x56_64_nchw",
                              results="zen5-avx512.md: grid_sample of 3 and 8 channels, nearest ones of 16 and 64")


def default(workload: Workload, limits: HostLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[GenericConfig, ...], Node]:
    """One configuration: vectors of the element type computed in; whole small rows, long rows in pieces."""
    widest = max((o.dtype.bytes for o in workload.outputs), default=4)
    lanes = max(1, min(thresholds.lanes, _lanes(workload, limits) * _side_by_side(workload, thresholds)))
    chunk = thresholds.chunk if workload.kind is Kind.POINTWISE else thresholds.loop_chunk
    if not has_column_table(workload) and has_shared_table(workload):
        return (GenericConfig(lanes, chunk, thresholds.channels),), Leaf(0)
    if not has_column_table(workload):
        return (GenericConfig(limits.lanes(widest) if _moves_rows(workload) else lanes, chunk),), Leaf(0)
    words = limits.lanes(4)
    permute = limits.permutes and widest <= 4 and words <= chunk
    return (GenericConfig(words if permute else lanes, chunk, thresholds.rows, permute),), Leaf(0)


def _lanes(workload: Workload, limits: HostLimits) -> int:
    """Elements of a register; of as many as make one of results that are narrower than what they are computed in, which AVX2
    packs by pairs. Floats are computed in 32 bits at least, and wide integers that are only read are mostly places."""
    operands = (*workload.inputs, *workload.outputs)
    results = [o.dtype.bytes for o in workload.outputs]
    read = min(4, max((4 if o.dtype.is_float else o.dtype.bytes for o in operands), default=4))
    computed = max([read, *results])
    packed = min(results, default=computed) < computed and limits.vector_bytes == _PACKED
    pairs = packed and not workload.transcendentals and workload.kind is Kind.POINTWISE
    return limits.lanes(computed) * (max(2, computed // max(1, min(results))) if pairs else 1)


def _side_by_side(workload: Workload, thresholds: Thresholds) -> int:
    """Registers of elements at a time: two where one element is a long chain of functions of math, so that one chain has
    instructions while the other waits."""
    chains = workload.kind is Kind.POINTWISE and workload.transcendentals >= thresholds.interleaved
    return 2 if chains and all(o.dtype.is_float for o in workload.outputs) else 1


def _moves_rows(workload: Workload) -> bool:
    """Are elements only moved, and none from one axis of unit stride to another?"""
    out = workload.outputs[0].along if workload.outputs else None
    return out is not None and workload.flops == Expr.of(0) and all(o.along in (None, out) for o in workload.inputs)
