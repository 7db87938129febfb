"""What `tilewright explain --partition` prints: how a model is cut into kernels, and what else it could have been cut into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tilewright.compiler.cli.output import Output, dims_text
from tilewright.passes.dispatch_creation.partition_summary import PartitionSummary
from tilewright.runtime.program.explanation import duration

SHOWN = 12  # operations of an area whose numbers are printed


def print_partitions(out: Output, found: Sequence[PartitionSummary]) -> None:
    """The areas of the last of the partitions, what kept operations apart in it, and all of them beside each other."""
    taken = found[-1]
    for summary in found:
        out.event("partition", asked=summary.asked, way=summary.way, launches=len(summary.areas), shapes=list(summary.shapes),
                  bytes=list(summary.bytes), seconds=list(summary.seconds))
    for number, area in enumerate(taken.areas):
        out.event("area", number=number, **asdict(area))
    for kept in (*taken.kept, *taken.cuts):
        out.event("kept_apart", **asdict(kept))
    rows = [(n, a.name, a.kind, _numbers(a.operations), _figures(a.bytes), _times(a.seconds)) for n, a in enumerate(taken.areas)]
    out.table("Areas", ("area", "operator", "kind", "operations", "bytes", "predicted"), rows)
    if apart := [(k.rule, k.reason, k.pairs) for k in (*taken.kept, *taken.cuts)]:
        out.table("Kept apart", ("rule", "reason", "pairs"), apart)
    ways = [(s.asked if s.asked == s.way else f"{s.asked}: {s.way}", len(s.areas), _figures(s.bytes), _times(s.seconds))
            for s in found]
    out.table("Partitions", ("way", "launches", "bytes", "predicted"), ways)
    if any(taken.shapes):
        out.text("bytes and predicted times at " + "; ".join(map(dims_text, taken.shapes)))


def _numbers(operations: Sequence[int]) -> str:
    more = "" if len(operations) <= SHOWN else f" and {len(operations) - SHOWN} more"
    return " ".join(map(str, operations[:SHOWN])) + more


def _figures(values: Sequence[float]) -> str:
    return " ".join(f"{v:.4g}" for v in values)


def _times(values: Sequence[float]) -> str:
    return " ".join(map(duration, values))
