"""How the regions of a partition grow: in program order, or by predicted gain, the best pair first."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.op_kinds import OpKind
from tilewright.passes.linalg.structured import inputs
from tilewright.passes.mlir import ir, owner
from tilewright.passes.partition.alike import Twin
from tilewright.passes.partition.cost import CostModel, total
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.partition import Partition
from tilewright.passes.partition.region import Region
from tilewright.passes.partition.rules import Rule

MANY = 8  # readers of a tensor that are looked at, on each side of one, for what joins beside it


def alone(graph: Graph, rules: Sequence[Rule]) -> Partition:
    """Each operation a region."""
    made = Partition(graph, rules)
    for op in graph.order:
        made.place(op)
    return made


def in_order(graph: Graph, rules: Sequence[Rule], apart: Collection[tuple[int, int]] = (),
             twins: Sequence[Twin] = ()) -> Partition:
    """Each operation joins what it reads, the latest first, in program order; then reductions in parts what they lie beside."""
    made = Partition(graph, rules, apart, twins)
    for op in graph.order:
        made.place(op)
        for source in made.sources(op) if op in made.region_of and op not in made.copied and made.reader(op) else ():
            if made.region_of[op] is not source:
                made.join(op, source)
    _parts_beside(made)
    made.follow()
    return _sorted(made)


def by_gain(graph: Graph, rules: Sequence[Rule], model: CostModel, apart: Collection[tuple[int, int]] = (),
            twins: Sequence[Twin] = ()) -> Partition:
    """Of all pairs that could join, the one that saves the largest share of time does, until none is left that saves any."""
    made = Partition(graph, rules, apart, twins)
    for op in graph.order:
        made.place(op)
    _Growth(made, model).run()
    _parts_beside(made)
    _beside(made, model)
    made.follow()
    return _sorted(made)


def ready_together(partition: Partition) -> None:
    """Reductions over equal rows and columns that wait for the same kernels become one kernel."""
    found: dict[tuple[object, ...], Region] = {}
    for region in partition.regions():
        before = {s.root: None for op in region.ops for s in partition.sources(op) if s is not region}
        if region.kind is OpKind.REDUCTION and before:
            key = (tuple(before), tuple(region.frame), tuple(sorted(region.columns)))
            first = found.setdefault(key, region)
            if first is not region and not partition.join_ready(first, region):
                found[key] = region
    _sorted(partition)


def _sorted(partition: Partition) -> Partition:
    for region in partition.regions():
        region.ops.sort(key=partition.graph.order.__getitem__)
    return partition


@dataclass(eq=False)
class _Grown:
    """A region while it grows. Operations and values are numbers here.

    reads, writes: tensors in memory. moved, work: bytes of these and seconds of arithmetic, at each of the shapes. age: how often
    it and its parts grew. alone: its predicted time, once it was asked for.
    """

    region: Region
    members: list[int]
    reads: set[int]
    writes: set[int]
    moved: tuple[float, ...]
    work: tuple[float, ...]
    age: int = 0
    alone: tuple[float, ...] | None = None


class _Growth:
    """Candidates are readers and the regions they read. A gain that was worked out before one of the two grew is worked out again
    when its turn comes; what a region reads and gives is kept from join to join, so that a gain costs what the smaller has."""

    def __init__(self, partition: Partition, model: CostModel) -> None:
        self.partition, self.model = partition, model
        self.heap: list[tuple[float, int, int, int, int]] = []  # gain, reader, order of the source, producer, age
        graph, order = partition.graph, partition.graph.order
        of = {op: region for op, region in partition.region_of.items() if op not in partition.copied}
        self.ops = list(order)
        self.roots = {region: order[region.root] for region in of.values()}
        self.values: list[ir.Value] = []
        number: dict[ir.Value, int] = {}
        for op in of:
            for value in (*graph.operands(op), *op.results):
                if value not in number:
                    number[value] = len(self.values)
                    self.values.append(value)
        self.bytes = [model.bytes(v) for v in self.values]
        self.users: list[list[int]] = [[] for _ in self.values]  # of the results of regions; -1: outside of all
        self.at: dict[int, _Grown] = {}  # of the operations of regions
        self.makers: dict[int, list[int]] = {}  # operations of regions whose values one reads, in the order of its operands
        self.readers = {order[op] for op in of if partition.reader(op)}
        for op, region in of.items():
            own = order[op]
            made = (owner(v) for v in graph.operands(op))
            self.makers[own] = list(dict.fromkeys(order[p] for p in made if p is not None and p in of))
            results = [number[r] for r in op.results]
            for value in results:
                self.users[value] = [order[u] if u in of else -1 for u in graph.users(self.values[value])]
            reads = {number[v] for v in graph.operands(op) if _in_memory(v, partition)} - set(results)
            writes = {v for v in results if self.users[v]}
            moved = total((self.bytes[v] for v in (*reads, *writes)), len(model.shapes))
            self.at[own] = _Grown(region, [own], reads, writes, moved, model.work(op))
        whole = total(map(self._alone, self.at.values()), len(model.shapes))
        self.weights = [1 / max(t, 1e-12) for t in whole]

    def run(self) -> None:
        for op in self.at:
            self._offer(op)
        while self.heap:
            _, op, _, producer, age = heapq.heappop(self.heap)
            reader, source = self.at[op], self.at[producer]
            if reader is source:
                continue
            if age != reader.age + source.age:
                self._push(op, producer)
            elif self.partition.join(self.ops[op], source.region):
                self._joined(op, reader, source)

    def _offer(self, op: int) -> None:
        """The pairs of an operation and what it reads."""
        if op in self.readers:
            own = self.at[op]
            found: dict[_Grown, int] = {}
            for producer in self.makers[op]:
                source = self.at[producer]
                if source is not own:
                    found.setdefault(source, producer)
            for producer in found.values():
                self._push(op, producer)

    def _push(self, op: int, producer: int) -> None:
        reader, source = self.at[op], self.at[producer]
        gain = self._gain(reader, source)
        if gain > 0:
            heapq.heappush(self.heap, (-gain, op, -self.roots[source.region], producer, reader.age + source.age))

    def _gain(self, reader: _Grown, source: _Grown) -> float:
        """Share of the time of the whole that the join saves, rounded so that equal savings count as equal."""
        moved = _less(total((reader.moved, source.moved), len(self.weights)), self._saved(reader, source))
        work = total((reader.work, source.work), len(self.weights))
        regions = source.region, reader.region
        rooted = next((r for r in regions if r.columns), max(regions, key=lambda r: len(r.frame)))
        joined = self.model.seconds(moved, work, self.model.units(rooted))
        parts = total((self._alone(reader), self._alone(source)), len(self.weights))
        saved = (a - b for a, b in zip(parts, joined, strict=True))
        return float(f"{sum(w * s for w, s in zip(self.weights, saved, strict=True)):.6g}")

    def _saved(self, reader: _Grown, source: _Grown) -> tuple[float, ...]:
        """Bytes that the two as one neither read nor write."""
        passed, gone = self._passed(reader, source)
        shared = _both(reader.reads, source.reads)
        return total((self.bytes[v] for v in (*shared, *passed, *gone)), len(self.weights))

    def _passed(self, reader: _Grown, source: _Grown) -> tuple[list[int], list[int]]:
        """Values of the source that the reader reads, and those among them that nobody else does."""
        passed = _both(reader.reads, source.writes)
        return passed, [v for v in passed if all(u >= 0 and self.at[u] in (reader, source) for u in self.users[v])]

    def _alone(self, grown: _Grown) -> tuple[float, ...]:
        if grown.alone is None:
            grown.alone = self.model.seconds(grown.moved, grown.work, self.model.units(grown.region))
        return grown.alone

    def _joined(self, op: int, reader: _Grown, source: _Grown) -> None:
        passed, gone = self._passed(reader, source)
        moved = _less(total((reader.moved, source.moved), len(self.weights)), self._saved(reader, source))
        few, many = sorted((reader, source), key=lambda r: len(r.members))
        many.members += few.members
        for member in few.members:
            self.at[member] = many
        many.reads |= few.reads
        many.reads -= set(passed)
        many.writes |= few.writes
        many.writes -= set(gone)
        many.moved, many.work = moved, total((reader.work, source.work), len(self.weights))
        many.region, many.alone = self.partition.region_of[self.ops[op]], None
        many.age = reader.age + source.age + 1
        self._neighbours(many)

    def _neighbours(self, made: _Grown) -> None:
        """The pairs that the region is part of, now that it has grown."""
        for op in made.members:
            self._offer(op)
        for value in sorted(made.writes):
            producer = self.partition.graph.order[self.values[value].owner.operation]
            for reader in self.users[value][:MANY]:
                if reader in self.readers and self.at[reader] is not made:
                    self._push(reader, producer)


def _both(a: set[int], b: set[int]) -> list[int]:
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    return [v for v in few if v in many]


def _less(a: Sequence[float], b: Sequence[float]) -> tuple[float, ...]:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _in_memory(value: ir.Value, partition: Partition) -> bool:
    """Is it a tensor that is read from memory, unless it is of the same region?"""
    source = owner(value)
    return isinstance(value.type, ir.RankedTensorType) and (source is None or partition.graph.kinds[source] is not OpKind.CHEAP)


def _parts_beside(partition: Partition) -> None:
    """Regions that read a tensor as one with reductions in parts does join it: its parts are one more thing to do on the way."""
    of = partition.region_of
    for region in [r for r in partition.regions() if r.parts and r.root not in partition.copied]:
        if of[region.root] is not region:
            continue
        shared = [v for op in region.ops for v in inputs(op) if of.get(owner(v)) is not of[op] and _has_axes(v)]
        for value in dict.fromkeys(shared):
            for user in partition.graph.users(value):
                mine, other = of[region.root], of.get(user)
                if other is not None and other is not mine:
                    partition.join_beside(value, mine, other)


def _has_axes(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and ir.RankedTensorType(value.type).rank > 0


def _beside(partition: Partition, model: CostModel) -> None:
    """Regions that read one tensor join, the largest tensors first."""
    graph, of = partition.graph, partition.region_of
    own = [op for op in of if op not in partition.copied and graph.kinds[op] in (OpKind.ELEMENTWISE, OpKind.REDUCTION)]
    values = dict.fromkeys(v for op in own for v in inputs(op) if _in_memory(v, partition) and v not in graph.bound)
    for value in sorted(values, key=lambda v: -model.bytes(v)[-1]):
        rank = ir.RankedTensorType(value.type).rank
        users = [u for u in graph.users(value) if u in of and u not in partition.copied]
        readers = [u for u in users if len(of[u].frame) == rank and partition.reader(of[u].root)]
        for n, user in enumerate(readers):
            for other in readers[n + 1 : n + 1 + MANY]:
                if of[user] is not of[other]:
                    partition.join_beside(value, of[user], of[other])
