"""From how much work on a second thread pays. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.spaces.threshold import threshold

_PAIRED = "timings on one thread and on all in turn, not kept; a search measures the bound again (thread_bound.py)"


@dataclass(frozen=True)
class Thresholds:
    """small: the work that one thread does alone, about 0.5 us at 250 operations or 80 bytes a nanosecond. Others: work."""

    small: int = threshold(220_000, unit="half-operations", operator="softmax", results=_PAIRED)
    byte: int = threshold(6, unit="half-operations of a byte", operator="layernorm", results=_PAIRED)
    transcendental: int = threshold(120, unit="half-operations of an exponential and its like", operator="softmax",
                                    results=_PAIRED)
    narrow: int = threshold(25, unit="half-operations of an element of 16 bits that is widened or narrowed",
                            operator="softmax_bf16", results=_PAIRED)
    product: int = threshold(10_000, unit="half-operations of a product of a batch, besides its arithmetic", operator="bmm_nt",
                             results=_PAIRED)
