"""Alternatives of a plan: other ways to grow, and cuts through regions, those first that are predicted to cost least.

A search measures them, since a prediction that says nearly the same of two partitions does not tell which is the faster one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.passes.mlir import ir
from tilewright.passes.partition.cost import CostModel, Machine
from tilewright.passes.partition.plan import Plan, plan_of
from tilewright.passes.partition.region import Region
from tilewright.passes.partition.rules import Rule

ASKED = "asked for"
_WAYS = ("gain", "greedy", "alone")
_TRIED = 3  # cuts that are planned whole for one that is returned, at most
_MOST = 1024  # pairs of operations of one cut

Pairs = tuple[tuple[int, int], ...]


def alternatives(taken: Plan, rules: Sequence[Rule], loads: bool, machine: Machine, count: int) -> list[Plan]:
    """Up to `count` plans with other regions than `taken`, the cheapest by prediction first; each has the cuts of `taken` too.

    Regions that hold the same operations, as equal layers do, are cut alike.
    """
    graph = taken.partition.graph
    model = CostModel(graph, machine)
    found: dict[frozenset[tuple[int, ...]], Plan] = {areas_of(taken): taken}
    tried: list[tuple[str, Pairs]] = [(way, ()) for way in _WAYS if way != taken.way]
    tried += [(taken.way, pairs) for pairs in _cuts(taken, model)][: _TRIED * count]
    for way, pairs in tried:
        plan = plan_of(graph, rules, way, loads, (*taken.cuts, *pairs), machine, taken.kernels)
        found.setdefault(areas_of(plan), plan)
    others = [p for p in found.values() if p is not taken]
    return sorted(others, key=lambda p: _relative(p, taken))[:count]


def areas_of(plan: Plan) -> frozenset[tuple[int, ...]]:
    """The operations of each region, by their numbers."""
    order = plan.partition.graph.order
    return frozenset(tuple(sorted(order[op] for op in r.ops)) for r in plan.partition.regions())


def _relative(plan: Plan, taken: Plan) -> float:
    """Mean over the shapes of its time, as a share of that of the plan that is taken."""
    shares = [a / b for a, b in zip(plan.cost.seconds, taken.cost.seconds, strict=True) if b]
    return sum(shares) / max(1, len(shares))


def _cuts(plan: Plan, model: CostModel) -> list[Pairs]:
    """Cuts of each kind of region into what comes before an operation and the rest; those first through which least is passed."""
    kinds: dict[str, list[Region]] = {}
    for region in plan.partition.regions():
        if len(region.ops) > 1:
            kinds.setdefault(_held(region, model), []).append(region)
    found = [(passed * len(alike), pairs) for alike in kinds.values() for passed, pairs in _cuts_of(alike, model)]
    return [pairs for _, pairs in sorted(found, key=lambda cut: cut[0]) if len(pairs) <= _MOST]


def _held(region: Region, model: CostModel) -> str:
    """What regions of equal operations over equal extents have alike."""
    extents = [str(e) for e in region.frame]
    named = [sorted(f"{name}={op.attributes[name]}" for name in op.attributes) for op in region.ops]
    return f"{extents} {[op.name for op in region.ops]} {named} {[str(r.type) for op in region.ops for r in op.results]}"


def _cuts_of(alike: Sequence[Region], model: CostModel) -> Iterator[tuple[float, Pairs]]:
    """The bytes that each cut passes through memory, and its pairs of operations, in all regions of a kind."""
    first, order = alike[0].ops, model.graph.order
    for at in range(1, len(first)):
        pairs = tuple((order[a], order[b]) for region in alike for a in region.ops[:at] for b in region.ops[at:])
        yield _passed(first[:at], first[at:], model), pairs


def _passed(before: Sequence[ir.Operation], behind: Sequence[ir.Operation], model: CostModel) -> float:
    """Bytes of what the second operations read of the first ones, and of what both read, at the largest shape."""
    made = {r for op in before for r in op.results}
    reads = [{v for op in ops for v in model.graph.operands(op)} for ops in (before, behind)]
    return sum(model.bytes(v)[-1] for v in reads[1] if v in made or v in reads[0])
