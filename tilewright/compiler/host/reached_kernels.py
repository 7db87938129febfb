"""Which kernels of the calls that are made for each sequence can be chosen at all. A GPU launches each of them for every batch,
since nobody there waits for the lengths; one that no sequence chooses would be a launch of blocks that find nothing to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tilewright.compiler.host.decision_tree import layout_of
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.host_segments import split
from tilewright.compiler.host.plan_steps import PlannedCall
from tilewright.runtime.program.dispatch import DispatchTable, Leaf, Node, Split, leaves, renumbered
from tilewright.runtime.program.kernel import offset_symbol
from tilewright.runtime.ragged_dim import total_name
from tilewright.runtime.shape import Expr

Ranges = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Use:
    """Of a tree by the sequences of a call. values: of its names. ranges: of the dims in them, as far as they are known."""

    values: Mapping[str, Expr]
    ranges: Ranges

    def span(self, expr: Expr) -> tuple[float, float]:
        """The least and the largest value."""
        own = expr.substitute(self.values)
        return own.bounds(self.ranges) if own.symbols <= self.ranges.keys() else (-math.inf, math.inf)

    def where(self, expr: Expr, lo: float, hi: float) -> Use:
        """Those sequences of which a value lies within; what follows for its dim is noted."""
        name = expr.substitute(self.values).symbol
        if name is None or name not in self.ranges:
            return self
        least, most = self.ranges[name]
        return Use(self.values, {**self.ranges, name: (max(least, lo), min(most, hi))})


def with_reached(plan: HostPlan, tables: Sequence[DispatchTable], ranges: Ranges) -> list[DispatchTable]:
    """Tables of a plan with block tables, of which those of calls for each sequence have the kernels alone that some sequence may
    choose. ranges: of the model's dims."""
    calls: dict[str, list[PlannedCall]] = {}
    for call in plan.calls:
        if call.segments is not None:
            calls.setdefault(call.workload.key, []).append(call)
    return [_pruned(t, [_use(plan, c, t, ranges) for c in calls[t.workload]]) if t.workload in calls else t for t in tables]


def _pruned(table: DispatchTable, uses: Sequence[Use]) -> DispatchTable:
    root = reached(table.root, uses)
    kept = sorted({leaf.kernel for leaf in leaves(root)})
    pads = tuple(table.pads[k] for k in kept) if table.pads else ()
    return msgspec.structs.replace(table, kernels=tuple(table.kernels[k] for k in kept), pads=pads,
                                   root=renumbered(root, {k: i for i, k in enumerate(kept)}))


def reached(node: Node, uses: Sequence[Use]) -> Node:
    """The tree without the sides that none of the uses takes."""
    if isinstance(node, Leaf):
        return node
    expr = Expr.parse(node.expr)
    spans = [(use, *use.span(expr)) for use in uses]
    below = [use.where(expr, -math.inf, node.bound) for use, lo, _ in spans if lo <= node.bound]
    above = [use.where(expr, node.bound + 1, math.inf) for use, _, hi in spans if hi > node.bound]
    if not above:
        return reached(node.below, below)
    if not below:
        return reached(node.above, above)
    return Split(node.expr, node.bound, reached(node.below, below), reached(node.above, above))


def _use(plan: HostPlan, call: PlannedCall, table: DispatchTable, ranges: Ranges) -> Use:
    """A sequence begins, in each operand, behind some rows, products of lengths or sequences: any number of them."""
    known = {**ranges}
    for o in plan.ragged:
        known |= {o.dim.name: (o.dim.lo, o.dim.hi), total_name(o.dim.name): (0, math.inf)}
    values = {**dict(zip(call.workload.dims, call.dims, strict=True)), **layout_of(call, table)}
    names = {o.dim.name: o for o in plan.ragged}
    for operand, elements in enumerate(call.segments or ()):
        name = offset_symbol(operand)
        if name in values and elements is not None:
            for own, rest in split(elements, names):
                begin = f"begin({own})"
                known[begin] = (0, math.inf)
                values[name] = values[name] + Expr.dim(begin) * rest
    return Use(values, known)
