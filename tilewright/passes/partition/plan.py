"""The partition of a function that is taken: the cheaper of two by prediction, cut where no kernel holds a region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.passes.analysis.op_kinds import OpKind
from tilewright.passes.partition.alike import twins
from tilewright.passes.partition.cost import SHAPES, CostModel, Machine, Predicted, predicted
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.growth import alone, by_gain, in_order, ready_together
from tilewright.passes.partition.partition import Partition
from tilewright.passes.partition.region import Region
from tilewright.passes.partition.rules import Rule
from tilewright.passes.partition.stitching import RowKernels, Stitched, Stitching

WAYS = ("cost", "gain", "greedy", "alone")
LESS = 0.98  # share of the time of the partition in program order that another one has at most to be taken
ROUNDS = 32  # plans of one function; each cuts all regions of the one before that were refused


@dataclass(frozen=True)
class Plan:
    """A partition and what it is predicted to cost.

    cuts: pairs of operations that were put apart, by number, and why. way: how its regions grew. other: the plan that it was
    preferred to. kernels: those that hold a product and the work on its rows; stitched: the products that are one with
    it; weighed: those that have room, be they one with it or not.
    """

    partition: Partition
    cost: Predicted
    way: str
    cuts: dict[tuple[int, int], str] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    other: Plan | None = None
    kernels: RowKernels | None = None
    stitched: tuple[Stitched, ...] = ()
    weighed: tuple[Stitched, ...] = ()


def plan_of(graph: Graph, rules: Sequence[Rule], way: str = "cost", loads: bool = True,
            apart: Sequence[tuple[int, int]] = (), machine: Machine | None = None, kernels: RowKernels | None = None,
            shapes: int = SHAPES) -> Plan:
    """The plan of a graph; one whose region is refused is made again with that region cut.

    Args:
        way: "cost" for the cheaper of the next two, "gain" for the best pair first, "greedy" for program order, "alone" for
            each operation by itself.
        loads: are cheap producers computed where they are loaded?
        apart: pairs of operations, by number, that do not get into one region.
        machine: what time is made of.
        kernels: of a GPU, that hold a product and the work on its rows.
        shapes: of the range that are looked at.
    """
    model, cuts = CostModel(graph, machine, shapes), dict.fromkeys(apart, "asked for")
    for _ in range(ROUNDS):
        plan = _plan(graph, rules, model, way, _Kernels(loads, kernels), cuts)
        refused = _refusals(plan.partition)
        if not refused:
            return plan
        cuts |= refused
    return plan


@dataclass(frozen=True)
class _Kernels:
    """What kernels do beside the operations of a region. loads: of `plan_of`; rows: its `kernels`."""

    loads: bool
    rows: RowKernels | None


def _plan(graph: Graph, rules: Sequence[Rule], model: CostModel, way: str, kernels: _Kernels,
          cuts: dict[tuple[int, int], str]) -> Plan:
    alike = twins(graph, cuts) if way != "alone" else []
    grown: dict[str, Callable[[], Partition]] = {
        "greedy": lambda: in_order(graph, rules, cuts, alike),
        "gain": lambda: by_gain(graph, rules, model, cuts, alike),
        "alone": lambda: alone(graph, rules),
    }

    def planned(name: str) -> Plan:
        partition = grown[name]()
        if name != "alone" and not model.machine.together:
            ready_together(partition)
        rows = kernels.rows if name != "alone" else None
        stitching = Stitching(partition, model, rows) if rows is not None else None
        stitched = stitching.run() if stitching is not None else ()
        weighed = tuple(Stitched(n, times) for n, times in stitching.times.items()) if stitching is not None else ()
        cost = predicted(partition, model, kernels.loads)
        return Plan(partition, cost, name, cuts, model.machine, None, kernels.rows, stitched, weighed)

    if way != "cost":
        return planned(way)
    usual, other = planned("greedy"), planned("gain")
    if other.cost.launches <= usual.cost.launches and _share(other.cost, usual.cost) <= LESS:
        return replace(other, other=usual)
    return replace(usual, other=other)


def _share(cost: Predicted, of: Predicted) -> float:
    """Mean over the shapes of the time of one partition, as a share of that of another."""
    shares = [a / b for a, b in zip(cost.seconds, of.seconds, strict=True) if b]
    return sum(shares) / len(shares) if shares else 1.0


def _refusals(partition: Partition) -> dict[tuple[int, int], str]:
    """A cut through each region whose operations are no program over rows: the last operation leaves it."""
    cuts: dict[tuple[int, int], str] = {}
    order = partition.graph.order
    for region in partition.regions():
        if len(region.ops) < 2 or region.parts or region.root in partition.copied:
            continue
        reason = _refused(region, partition.graph)
        if reason is not None:
            like = [region.ops, *([twin.ops[op] for op in region.ops] for twin in partition.twins if region.root in twin.ops)]
            for ops in like:
                numbers = [order[op] for op in ops]
                cuts |= {(number, numbers[-1]): reason for number in numbers[:-1]}
    return cuts


def _refused(region: Region, graph: Graph) -> str | None:
    """Why the operations of a region with reductions are no rows; None of any other."""
    return graph.not_in_rows(region.ops) if region.kind is OpKind.REDUCTION else None
