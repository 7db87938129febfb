"""fuse: each operation gets the number of its dispatch region, `tw.region`; cheap producers are copied to readers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.dispatch_creation.split_by_shape import (
    SHAPES_OF_RANGE,
    split_by_shape,
    where_plans_cross,
    where_stitching_pays,
)
from tilewright.passes.linalg.clone import clone, erase_dead
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.linalg.symbolic import integer, read_ranges
from tilewright.passes.mlir import functions, ir, operations, owner
from tilewright.passes.partition.alternatives import alternatives
from tilewright.passes.partition.cost import SHAPES, SPEEDS, Machine
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.loads import Loads
from tilewright.passes.partition.partition import Partition
from tilewright.passes.partition.plan import WAYS, Plan, plan_of
from tilewright.passes.partition.region import Region
from tilewright.passes.partition.rules import rules_named
from tilewright.passes.partition.stitching import RowKernels
from tilewright.passes.partition.strip_choice import StripChoice
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import GpuLimits

_TYPES = ("f16", "bf16", "f32")  # that tensor cores multiply
REGION, OPERATION, GRAPH = "tw.region", "tw.operation", "tw.graph"


@dataclass(frozen=True)
class Fuse(Pass):
    """Regions by the rules of passes/partition.

    epilogues: elementwise operations and further reductions join their producers. loads: cheap producers are computed at load.
    partition: how regions grow: "greedy" in program order, "gain" the pair first that saves most, "cost" whichever of these is
    predicted to be faster. rules: which join regions, by name; all where none is named. apart: numbers of operations, two and
    two, that do not get into one region. numbers: operations keep their number, `tw.operation`. digest: the function
    says what graph these are of, `tw.graph`. speeds: of the machine, as SPEEDS of passes/partition/cost.py names them.
    together: are calls that do not need each other one launch anyway? Where they are not, reductions over equal rows join too.
    by-shape: may small and large extents have partitions of their own? Only of "cost", and where nothing is to stay apart; with
    `products`, by what becomes of these alone.
    arch: of the GPU that time is predicted for, by published figures; empty for a host. products: element types, as in f16,bf16,
    of products that kernels of this GPU hold with the work on their rows; none where it is empty. strips: which of them do: those
    that are "predicted" to gain, "widely" all that have room, or "never" any.
    """

    name: ClassVar[str] = "fuse"
    epilogues: bool = True
    loads: bool = True
    partition: str = "cost"
    rules: tuple[str, ...] = ()
    apart: tuple[int, ...] = ()
    numbers: bool = False
    digest: bool = False
    speeds: tuple[int, ...] = ()
    together: bool = True
    by_shape: bool = False
    products: str = ""
    arch: str = ""
    strips: str = StripChoice.PREDICTED.value

    def __post_init__(self) -> None:
        if self.partition not in WAYS:
            raise OptionError(f"fuse: partition={self.partition!r}; wanted one of {', '.join(WAYS)}")
        if len(self.apart) % 2:
            raise OptionError(f"fuse: apart={','.join(map(str, self.apart))} has {len(self.apart)} numbers; wanted pairs of "
                              "numbers of operations, as in apart=3,5")
        if self.speeds and (len(self.speeds) != len(SPEEDS) or min(self.speeds) <= 0):
            raise OptionError(f"fuse: speeds={','.join(map(str, self.speeds))}; wanted {len(SPEEDS)} numbers above 0: "
                              f"{', '.join(SPEEDS)}")
        if self.strips not in list(StripChoice):
            raise OptionError(f"fuse: strips={self.strips!r}; wanted one of {', '.join(StripChoice)}")
        unknown = self.products and [t for t in self.products.split(",") if t not in _TYPES]
        if (self.products or self.arch) and (unknown or not GpuLimits(self.arch, 0).version):
            raise OptionError(f"fuse: products={self.products!r} arch={self.arch!r}; wanted some of {', '.join(_TYPES)} and an "
                              "architecture such as sm_80")
        rules_named(self.rules)

    def run(self, module: ir.Module) -> None:
        mains = main_of(module)
        plans = [self.plan(fn) for fn in mains]
        if self.by_shape and len(list(functions(module))) == 1:
            bound = self._crossing(mains[0], plans[0])
            if bound is not None:
                split_by_shape(module, mains[0], bound)
                mains = main_of(module)
                plans = [self.plan(fn) for fn in mains]
        for fn, plan in zip(mains, plans, strict=True):
            partition = plan.partition
            if self.digest:
                fn.attributes[GRAPH] = ir.StringAttr.get(partition.graph.digest)
            loads, regions = Loads(partition), partition.regions()
            own = [[partition.graph.order[op] for op in region.ops] for region in regions]
            for region in reversed(regions) if self.loads else ():  # readers first: what reads a copy is another one to a dict
                _copy_loads(loads, region)
            for number, region in enumerate(regions):
                for op, its in zip_longest(list(region.ops), own[number]):  # copies, which have no number of their own, are last
                    op.attributes[REGION] = _number(number)
                    if self.numbers and its is not None:
                        op.attributes[OPERATION] = _number(its)
            erase_dead(fn.regions[0].blocks[0])
            renumber_regions(fn.regions[0].blocks[0])

    def _crossing(self, fn: ir.Operation, plan: Plan) -> int | None:
        """The extent up to which a function wants another partition than beyond: on a GPU by what becomes of its products."""
        ranges = read_ranges(fn)
        if not self.products:
            return where_plans_cross(plan, ranges, self.loads)
        if self.strips != StripChoice.PREDICTED or self.partition != WAYS[0]:
            return None
        return where_stitching_pays(plan, ranges, lambda: self.plan(fn, SHAPES_OF_RANGE))

    def plan(self, fn: ir.Operation, shapes: int = SHAPES) -> Plan:
        """The partition of a function, predicted at so many shapes; OptionError names a number in `apart` that no operation
        has."""
        graph = Graph(fn)
        for number in self.apart:
            if not 0 <= number < len(graph.order):
                raise OptionError(f"fuse: apart names operation {number}; the function has {len(graph.order)}, counted from 0")
        pairs = list(zip(self.apart[::2], self.apart[1::2], strict=True))
        way = self.partition if self.epilogues else "alone"
        return plan_of(graph, rules_named(self.rules), way, self.loads, pairs, self._machine, self._kernels, shapes)

    @property
    def _machine(self) -> Machine:
        """What time is made of."""
        return Machine.gpu(GpuLimits.of(self.arch)) if self.arch else Machine.of(self.speeds, self.together)

    @property
    def _kernels(self) -> RowKernels | None:
        """Those that hold a product and the work on its rows."""
        types = tuple(self.products.split(","))
        return RowKernels(GpuLimits.of(self.arch), types, StripChoice(self.strips)) if self.products else None

    def alternatives(self, fn: ir.Operation, count: int) -> list[Plan]:
        """Other partitions of a function than the one that `plan` gives."""
        taken = self.plan(fn)
        return alternatives(taken, rules_named(self.rules), self.loads, self._machine, count)


def _copy_loads(loads: Loads, region: Region) -> None:
    """Copy the cheap producers of each operand from other regions in front of its reader."""
    copies: dict[ir.Operation, ir.Operation] = {}

    def value(v: ir.Value) -> ir.Value:
        source = owner(v)
        if source is None or source not in copies:
            return v
        return copies[source].results[list(source.results).index(v)]

    for op in list(region.ops):
        for i, operand in enumerate(op.operands):
            chain = loads.read_by(op, operand, region)
            if chain is None:
                continue
            with ir.InsertionPoint(op):
                for link in chain:
                    if link not in copies:
                        copies[link] = clone(link, value)
                        _adopt(loads.partition, copies[link], link, region)
            op.operands[i] = value(operand)


def _adopt(partition: Partition, copy: ir.Operation, original: ir.Operation, region: Region) -> None:
    """`copy` of `original` becomes a member of `region`."""
    partition.graph.kinds[copy] = partition.graph.kinds[original]
    partition.region_of[copy] = region
    region.ops.append(copy)


def _number(number: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def renumber_regions(block: ir.Block) -> None:
    """Numbers 0, 1, ... in the order of the first operation of each region."""
    seen: dict[int, int] = {}
    for op in operations(block):
        if REGION in op.attributes:
            op.attributes[REGION] = _number(seen.setdefault(integer(op.attributes[REGION]), len(seen)))
