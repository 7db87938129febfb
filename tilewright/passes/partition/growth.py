"""How the regions of a partition grow: in program order, or by predicted gain, the best pair first."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from tilewright.passes.analysis.op_kinds import OpKind
from tilewright.passes.linalg.structured import inputs
from tilewright.passes.mlir import ir, owner
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


def in_order(graph: Graph, rules: Sequence[Rule], apart: Collection[tuple[int, int]] = ()) -> Partition:
    """Each operation joins what it reads, the latest first, in program order; then reductions in parts what they lie beside."""
    made = Partition(graph, rules, apart)
    for op in graph.order:
        made.place(op)
        for source in made.sources(op) if op in made.region_of and made.reader(op) else ():
            if made.region_of[op] is not source:
                made.join(op, source)
    for region in made.regions():
        if region.parts and made.region_of[region.ops[0]] is region:
            _parts_beside(made, region)
    return _sorted(made)


def by_gain(graph: Graph, rules: Sequence[Rule], model: CostModel, apart: Collection[tuple[int, int]] = ()) -> Partition:
    """Of all pairs that could join, the one that saves the largest share of time does, until none is left that saves any."""
    made = Partition(graph, rules, apart)
    for op in graph.order:
        made.place(op)
    _Growth(made, model).run()
    for region in made.regions():
        if region.parts and made.region_of[region.ops[0]] is region:
            _parts_beside(made, region)
    _beside(made, model)
    return _sorted(made)


def _sorted(partition: Partition) -> Partition:
    for region in partition.regions():
        region.ops.sort(key=partition.graph.order.__getitem__)
    return partition


class _Growth:
    """Candidates are readers and the regions they read. A gain that was worked out before one of the two grew is worked out again
    when its turn comes; what a region reads and gives is kept from join to join."""

    def __init__(self, partition: Partition, model: CostModel) -> None:
        self.partition, self.model = partition, model
        self.heap: list[tuple[float, int, int, int, int]] = []  # gain, reader, order of the source, producer, age
        self.ops = list(partition.graph.order)
        self.age: dict[Region, int] = {}
        self.reads: dict[Region, dict[ir.Value, None]] = {}
        self.work: dict[Region, tuple[float, ...]] = {}
        self.alone: dict[Region, tuple[float, ...]] = {}  # predicted times of the regions as they are
        self.readers = {r: partition.graph.users(r) for op in partition.region_of for r in op.results}
        count = len(model.shapes)
        for op, region in partition.region_of.items():
            self.age[region] = 0
            self.reads[region] = dict.fromkeys(v for v in partition.graph.operands(op) if _in_memory(v, partition))
            self.work[region] = model.work(op)
        whole = total((self._seconds([r]) for r in partition.regions()), count)
        self.weights = [1 / max(t, 1e-12) for t in whole]

    def run(self) -> None:
        for op in self.partition.region_of:
            self._offer(op)
        while self.heap:
            _, number, _, source_number, age = heapq.heappop(self.heap)
            op, producer = self.ops[number], self.ops[source_number]
            region, source = self.partition.region_of[op], self.partition.region_of[producer]
            if region is source:
                continue
            if age != self.age[region] + self.age[source]:
                self._push(op, producer)
            elif self.partition.join(op, source):
                self._joined(op, region, source)

    def _offer(self, op: ir.Operation) -> None:
        if self.partition.reader(op):
            for source in self.partition.sources(op):
                producers = (owner(v) for v in self.partition.graph.operands(op))
                self._push(op, next(p for p in producers if p is not None and self.partition.region_of.get(p) is source))

    def _push(self, op: ir.Operation, producer: ir.Operation) -> None:
        region, source = self.partition.region_of[op], self.partition.region_of[producer]
        gain = self._gain(region, source)
        if gain > 0:
            order = self.partition.graph.order
            age = self.age[region] + self.age[source]
            heapq.heappush(self.heap, (-gain, order[op], -order[source.root], order[producer], age))

    def _gain(self, region: Region, source: Region) -> float:
        """Share of the time of the whole that the join saves, rounded so that equal savings count as equal."""
        parts = total((self._alone(region), self._alone(source)), len(self.weights))
        saved = (a - b for a, b in zip(parts, self._seconds([source, region]), strict=True))
        return float(f"{sum(w * s for w, s in zip(self.weights, saved, strict=True)):.6g}")

    def _alone(self, region: Region) -> tuple[float, ...]:
        if region not in self.alone:
            self.alone[region] = self._seconds([region])
        return self.alone[region]

    def _seconds(self, regions: Sequence[Region]) -> tuple[float, ...]:
        """Predicted time of regions as one."""
        own = {r for region in regions for op in region.ops for r in op.results}
        members = {op for region in regions for op in region.ops}
        reads = dict.fromkeys(v for region in regions for v in self.reads[region] if v not in own)
        writes = [r for r in own if any(u not in members for u in self.readers[r])]
        moved = total([*map(self.model.bytes, reads), *map(self.model.bytes, writes)], len(self.model.shapes))
        work = total((self.work[r] for r in regions), len(self.model.shapes))
        rooted = next((r for r in regions if r.columns), max(regions, key=lambda r: len(r.frame)))
        return self.model.seconds(moved, work, self.model.units(rooted))

    def _joined(self, op: ir.Operation, region: Region, source: Region) -> None:
        made = self.partition.region_of[op]
        reads = self.reads[source] | self.reads[region]
        own = {r for member in made.ops for r in member.results}
        self.reads[made] = {v: None for v in reads if v not in own}
        self.work[made] = total((self.work[region], self.work[source]), len(self.weights))
        self.alone.pop(made, None)
        self.age[made] = self.age[region] + self.age[source] + 1
        self._neighbours(made)

    def _neighbours(self, made: Region) -> None:
        """The pairs that the region is part of, now that it has grown."""
        for op in made.ops:
            self._offer(op)
            for result in op.results:
                for reader in self.readers[result][:MANY]:
                    if self.partition.region_of.get(reader) not in (None, made) and self.partition.reader(reader):
                        self._push(reader, op)


def _in_memory(value: ir.Value, partition: Partition) -> bool:
    """Is it a tensor that is read from memory, unless it is of the same region?"""
    source = owner(value)
    return isinstance(value.type, ir.RankedTensorType) and (source is None or partition.graph.kinds[source] is not OpKind.CHEAP)


def _parts_beside(partition: Partition, region: Region) -> None:
    """Regions that read a tensor as `region` does join it, whose reductions in parts are one more thing to do on the way."""
    of = partition.region_of
    shared = [v for op in region.ops for v in inputs(op) if of.get(owner(v)) is not of[op]]
    for value in dict.fromkeys(shared):
        for user in partition.graph.users(value) if isinstance(value.type, ir.RankedTensorType) else ():
            mine, other = of[region.root], of.get(user)
            if other is not None and other is not mine:
                partition.join_beside(value, mine, other)


def _beside(partition: Partition, model: CostModel) -> None:
    """Regions that read one tensor join, the largest tensors first."""
    graph, of = partition.graph, partition.region_of
    values = dict.fromkeys(v for op in of if graph.kinds[op] in (OpKind.ELEMENTWISE, OpKind.REDUCTION) for v in inputs(op)
                           if _in_memory(v, partition) and v not in graph.bound)
    for value in sorted(values, key=lambda v: -model.bytes(v)[-1]):
        rank = ir.RankedTensorType(value.type).rank
        readers = [u for u in graph.users(value) if u in of and len(of[u].frame) == rank and partition.reader(of[u].root)]
        for n, user in enumerate(readers):
            for other in readers[n + 1 : n + 1 + MANY]:
                if of[user] is not of[other]:
                    partition.join_beside(value, of[user], of[other])
