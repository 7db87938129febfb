"""Zero padding that the windows of a contraction pass over: what leaving it out saves. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.gemm_operands import Gemm
from tilewright.passes.spaces.workload import Window, Workload
from tilewright.runtime.shape import Expr


def padded_windows(workload: Workload) -> list[Window]:
    """The windows that pass over zero padding along rows; none where the columns, along the vectors, are pixels."""
    return [w for w in row_windows(workload) if w.padded]


def row_windows(workload: Workload) -> list[Window]:
    """The same with those that pass over no padding."""
    gemm = Gemm.of(workload)
    return [w for w in workload.windows if gemm is not None and w.row in gemm.rows]


def tap_depth(workload: Workload) -> Expr:
    """Values of k that a tap multiplies: the loops of k that no window of padding goes along."""
    taken = {w.tap for w in workload.windows if w.padded}
    total = Expr.of(1)
    for number, loop in enumerate(workload.loops):
        if loop.role == "k" and number not in taken:
            total = total * loop.extent
    return total


def padding_share(workload: Workload, found: list[Window], rows: int = 0) -> float:
    """The share of the products that are with padding; 0 where an extent is not known.

    rows: stands for every extent along rows that is not known, over an image that the windows cover exactly.
    """
    kept = 1.0
    for w in found:
        taps, count = workload.loops[w.tap].extent.constant, workload.loops[w.row].extent.constant or rows
        if not taps or not count:
            return 0.0
        last = (count - 1) * w.stride + (taps - 1) * w.dilation + 1
        end = (w.extent.constant or last) - w.high
        inside = sum(w.low <= row * w.stride + tap * w.dilation < end for row in range(count) for tap in range(taps))
        kept *= inside / (count * taps)
    return 1.0 - kept
