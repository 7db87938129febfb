"""What a partition is, in words and numbers for people: its areas, what kept others apart, bytes, launches, predicted time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.dispatch_creation.workload_name import workload_name
from tilewright.passes.mlir import ir
from tilewright.passes.partition.stitching import Stitched


@dataclass(frozen=True)
class Area:
    """A region that becomes a kernel. operations: their numbers in the function, as `fuse{apart=...}` takes them. bytes, seconds:
    what is predicted at each of the shapes."""

    name: str
    kind: str
    operations: tuple[int, ...]
    bytes: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Kept:
    """A rule or condition that kept operations apart, its reason, and how many pairs."""

    rule: str
    reason: str
    pairs: int


@dataclass(frozen=True)
class PartitionSummary:
    """asked: how regions were to grow, way: how they did. shapes: what bytes and seconds are predicted for. cuts: regions that no
    kernel holds, by reason. stitched: products that are one kernel with the work on their rows."""

    asked: str
    way: str
    shapes: tuple[dict[str, int], ...]
    areas: tuple[Area, ...]
    kept: tuple[Kept, ...]
    cuts: tuple[Kept, ...]
    stitched: tuple[Stitched, ...] = ()

    @property
    def bytes(self) -> tuple[float, ...]:
        """Of all areas, at each shape."""
        return tuple(map(sum, zip(*(a.bytes for a in self.areas), strict=True)))

    @property
    def seconds(self) -> tuple[float, ...]:
        """Of all areas one after the other, at each shape."""
        return tuple(map(sum, zip(*(a.seconds for a in self.areas), strict=True)))


def partition_summary(fn: ir.Operation, fuse: Fuse) -> PartitionSummary:
    """Of a function that is not fused yet, for the options of a pass."""
    plan = fuse.plan(fn)
    graph = plan.partition.graph
    areas = tuple(
        Area(workload_name(region.ops, graph.views), region.kind.value, tuple(map(graph.order.__getitem__, region.ops)), moved,
             seconds)
        for region, _, seconds, moved in plan.cost.regions)
    kept = Counter((r.rule, r.reason) for r in plan.partition.refusals)
    cuts = Counter(plan.cuts.values())
    return PartitionSummary(
        fuse.partition if fuse.epilogues else "alone", plan.way, plan.cost.shapes, areas,
        tuple(Kept(rule, reason, n) for (rule, reason), n in kept.most_common()),
        tuple(Kept("cut", reason, n) for reason, n in cuts.most_common()), plan.stitched)
