"""Predicted time of a partition: bytes through the level of memory that holds them, arithmetic, launches, lost parallelism.

The prediction is a sum over regions and a mean over shapes of the range. It decides between partitions that are right alike, so
only its order counts. It knows neither the machine's load nor its number of threads, on which no bit of a result may depend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.passes.analysis.op_kinds import OpKind, arithmetic, expensive
from tilewright.passes.linalg.structured import loop_extents
from tilewright.passes.mlir import ir
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.loads import Loads
from tilewright.passes.partition.partition import Partition
from tilewright.passes.partition.region import Region
from tilewright.passes.spaces.gpu.gpu_rates import GpuRates
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.shape import Expr

Seconds = tuple[float, ...]  # at each of the shapes that are looked at
SHAPES = 3
SPEEDS = ("launch", "l1", "l2", "l3", "memory", "operations", "products")  # picoseconds, then bytes or operations a second
_UNKNOWN = 64  # what an extent counts as that no dim tells


@dataclass(frozen=True)
class Machine:
    """What time is made of: figures of a recent x86-64 core, or of a GPU. They decide only which of two partitions is the cheaper
    one.

    launch: seconds of a call of a kernel. caches: (bytes, bytes a second) of each level, one thread; memory: beyond them.
    operations: a second, one thread, of elementwise work; products: of contractions. slow: operations that a function of math,
    a division or a lookup counts as. threads: that a call is taken to have. piece: seconds of work that a thread is worth.
    together: are calls that do not need each other one launch anyway? On a host they are.
    """

    launch: float = 1.5e-7
    caches: tuple[tuple[int, float], ...] = ((1 << 15, 6e10), (1 << 20, 4e10), (1 << 24, 2.5e10))
    memory: float = 1.2e10
    operations: float = 2e10
    products: float = 8e10
    slow: int = 12
    threads: int = 4
    piece: float = 5e-6
    together: bool = True

    @staticmethod
    def gpu(limits: GpuLimits) -> Machine:
        """Of a GPU: a thread is a multiprocessor, which has an equal share of both levels of memory. Calls follow each other."""
        rates, second = GpuRates.of(limits), GpuRates.of(limits).clock
        return Machine(launch=rates.launch / second, caches=((limits.l2, rates.l2 * second),), memory=rates.memory * second,
                       operations=rates.issue * WARP * second, products=2 * rates.mma * rates.matrix * second,
                       threads=limits.multiprocessors, piece=rates.latency / second, together=False)

    @staticmethod
    def of(speeds: Sequence[int], together: bool = True) -> Machine:
        """With the figures that a machine was measured to have, as SPEEDS names them; the usual ones where there are none."""
        if not speeds:
            return Machine(together=together)
        launch, *caches, memory, operations, products = speeds
        levels = tuple((size, float(speed)) for (size, _), speed in zip(Machine().caches, caches, strict=True))
        return Machine(launch / 1e12, levels, float(memory), float(operations), float(products), together=together)

    def seconds(self, moved: float, work: float, units: float) -> float:
        """Of a call that moves so many bytes, computes for `work` seconds on one thread, and has so many units of work."""
        bandwidth = next((speed for size, speed in self.caches if moved <= size), self.memory)
        alone = max(moved / bandwidth, work)
        return self.launch + alone / max(1.0, min(self.threads, units, alone / self.piece))


@dataclass(frozen=True)
class Traffic:
    """What a region reads and writes: values, each once."""

    reads: dict[ir.Value, None]
    writes: dict[ir.Value, None]


class CostModel:
    """Costs of regions of one graph, at so many shapes of its range."""

    def __init__(self, graph: Graph, machine: Machine | None = None, shapes: int = SHAPES) -> None:
        self.graph, self.machine = graph, machine or Machine()
        dims = graph.shapes.ranges.dims
        values = [(name, dim.values(shapes)) for name, dim in dims]
        self.shapes = [{name: found[min(n, len(found) - 1)] for name, found in values} for n in range(shapes)]
        if not dims:
            self.shapes = self.shapes[:1]
        self._extents: dict[Expr, tuple[int, ...]] = {}
        self._bytes: dict[ir.Value, tuple[float, ...]] = {}
        self._work: dict[ir.Operation, tuple[float, ...]] = {}

    def extent(self, expr: Expr) -> tuple[int, ...]:
        """An extent at each of the shapes."""
        if expr not in self._extents:
            known = [shape | {s: _UNKNOWN for s in expr.symbols if s not in shape} for shape in self.shapes]
            self._extents[expr] = tuple(_evaluated(expr, shape) for shape in known)
        return self._extents[expr]

    def bytes(self, value: ir.Value) -> tuple[float, ...]:
        """Bytes of a tensor at each of the shapes; none of anything else."""
        if value not in self._bytes:
            found = (0.0,) * len(self.shapes)
            if isinstance(value.type, ir.RankedTensorType):
                element = ir.RankedTensorType(value.type).element_type
                width = getattr(element, "width", 64) / 8
                sizes = [self.extent(d) for d in self.graph.shapes.dims(value)]
                found = tuple(width * prod(size[n] for size in sizes) for n in range(len(self.shapes)))
            self._bytes[value] = found
        return self._bytes[value]

    def work(self, op: ir.Operation) -> tuple[float, ...]:
        """Seconds of an operation's arithmetic on one thread."""
        if op not in self._work:
            found = (0.0,) * len(self.shapes)
            if op.name.startswith("linalg.") and op.name != "linalg.fill":
                extents = [self.extent(e) for e in loop_extents(op, self.graph.shapes)]
                rate = self.machine.products if self.graph.kinds[op] is OpKind.CONTRACTION else self.machine.operations
                each = (arithmetic(op) + (self.machine.slow if expensive(op) else 0)) / rate
                found = tuple(each * prod(extent[n] for extent in extents) for n in range(len(self.shapes)))
            self._work[op] = found
        return self._work[op]

    def units(self, region: Region) -> tuple[float, ...]:
        """Units of work that threads may share: rows, or elements where there are no rows."""
        rows = [self.extent(e) for a, e in enumerate(region.frame) if a not in region.columns]
        return tuple(float(prod(row[n] for row in rows)) for n in range(len(self.shapes)))

    def seconds(self, moved: Sequence[float], work: Sequence[float], units: Sequence[float]) -> Seconds:
        """A launch at each of the shapes."""
        return tuple(self.machine.seconds(*each) for each in zip(moved, work, units, strict=True))

    def moved(self, traffic: Traffic) -> tuple[float, ...]:
        """Bytes that a region reads and writes."""
        return total([*map(self.bytes, traffic.reads), *map(self.bytes, traffic.writes)], len(self.shapes))

    def region_seconds(self, region: Region, traffic: Traffic) -> Seconds:
        """Predicted time of a region."""
        work = total(map(self.work, region.ops), len(self.shapes))
        return self.seconds(self.moved(traffic), work, self.units(region))


@dataclass(frozen=True)
class Predicted:
    """What a partition costs: of each region that is launched its traffic and seconds at each of the shapes."""

    shapes: tuple[dict[str, int], ...]
    regions: tuple[tuple[Region, Traffic, Seconds, tuple[float, ...]], ...]

    @property
    def launches(self) -> int:
        return len(self.regions)

    @property
    def seconds(self) -> Seconds:
        return total((seconds for _, _, seconds, _ in self.regions), len(self.shapes))

    @property
    def bytes(self) -> tuple[float, ...]:
        return total((moved for _, _, _, moved in self.regions), len(self.shapes))


def predicted(partition: Partition, model: CostModel, loads: bool = True) -> Predicted:
    """The cost of a partition.

    loads: are cheap producers computed where they are loaded? What only such loads read is no value in memory.
    """
    found = Loads(partition)
    regions = partition.regions()
    reads: dict[Region, dict[ir.Value, None]] = {}
    for region in regions:
        reads[region] = {}
        for op in region.ops:
            chain = [o for v in partition.graph.operands(op) for o in (found.read_by(op, v, region) or ())] if loads else []
            made = {r for o in chain for r in o.results}
            for reader in (op, *chain):
                own = (v for v in partition.graph.operands(reader) if v not in made and _is_read(v, region, partition))
                reads[region].update(dict.fromkeys(v for v in own if reader is not op or not loads
                                                   or found.read_by(op, v, region) is None))
    wanted = {v for values in reads.values() for v in values}
    launched = []
    for region in regions:
        writes = [r for op in region.ops for r in op.results
                  if r in wanted or any(u not in partition.region_of for u in partition.graph.users(r))]
        if writes:
            traffic = Traffic(reads[region], dict.fromkeys(writes))
            launched.append((region, traffic, model.region_seconds(region, traffic), model.moved(traffic)))
    return Predicted(tuple(model.shapes), tuple(launched))


def _evaluated(expr: Expr, shape: Mapping[str, int]) -> int:
    """An extent; 0 where it is a quotient by an extent of 0, as a mean over no rows has it, which nothing is computed of."""
    try:
        return expr.evaluate(shape)
    except ShapeError:
        return 0


def _is_read(value: ir.Value, region: Region, partition: Partition) -> bool:
    """Is it a tensor that comes from outside of the region?"""
    if not isinstance(value.type, ir.RankedTensorType) or isinstance(value.owner, ir.Block):
        return isinstance(value.type, ir.RankedTensorType)
    source = value.owner.operation
    if partition.region_of.get(source) is region:
        return False
    return partition.graph.kinds.get(source) is not OpKind.CHEAP


def total(parts: Iterable[Sequence[float]], count: int) -> tuple[float, ...]:
    """Sum of vectors of `count` numbers."""
    found = [0.0] * count
    for part in parts:
        for n, number in enumerate(part):
            found[n] += number
    return tuple(found)
