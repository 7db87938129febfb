"""Products and the work on their rows as one kernel, on GPUs: which are, by what a family of kernels holds and by predicted time.

After regions have grown. A product whose rows another region reduces becomes one region with that, where a block has room for
whole rows; what passes between the two is then in its shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from tilewright.passes.analysis.contraction import OUT, Groups
from tilewright.passes.analysis.op_kinds import OpKind
from tilewright.passes.analysis.product_rows import narrowed
from tilewright.passes.linalg.collapse import collapse
from tilewright.passes.linalg.reshape import RESHAPES
from tilewright.passes.linalg.structured import is_zero_tensor, loop_extents
from tilewright.passes.mlir import ir, maps_of, position
from tilewright.passes.partition.cost import CostModel
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.partition import Partition
from tilewright.passes.partition.region import Region
from tilewright.passes.partition.rules import PRODUCT_ROWS
from tilewright.passes.partition.strip_choice import StripChoice
from tilewright.passes.spaces.gpu.mma_rows_gain import RowsOfProduct, cycles, why_not
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

GAIN = 0.02  # share of the time that has to be predicted to be saved


@dataclass(frozen=True)
class Stitched:
    """A product that is, or may be, one kernel with the work on its rows. product: its number. cycles: predicted of two launches,
    and of one, at each of the shapes."""

    product: int
    cycles: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class RowKernels:
    """What kernels of a GPU hold. types: of the elements that they multiply. choice: WIDELY, all that have room."""

    limits: GpuLimits
    types: tuple[str, ...]
    choice: StripChoice = StripChoice.PREDICTED


@dataclass
class Stitching:
    """Of one partition. times: predicted cycles of pairs that have room, by the number of the product."""

    partition: Partition
    model: CostModel
    kernels: RowKernels
    times: dict[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    def run(self) -> tuple[Stitched, ...]:
        """Joins pairs whose product comes first in the program first; gives what became one."""
        found = list[Stitched]()
        if self.kernels.choice is StripChoice.NEVER or all(rule.name != PRODUCT_ROWS for rule in self.partition.rules):
            return ()
        for reader, product in self._pairs():
            source, rows = self.partition.region_of[product], self.partition.region_of[reader]
            if rows is not source and rows.kind is OpKind.REDUCTION and source.kind is OpKind.CONTRACTION and not source.columns:
                number = self.partition.graph.order[source.root]
                if self.partition.join_rows(reader, source, self._refused(source, rows)):
                    found.append(Stitched(number, self.times[number]))
                    self.partition.region_of[product].ops.sort(key=self.partition.graph.order.__getitem__)
        for reader, source, between in self._reshaped():
            self.partition.join_rows(reader, source, f"{between.name} lies between the two: its rows are other ones")
        return tuple(found)

    def _reshaped(self) -> Iterator[tuple[ir.Operation, Region, ir.Operation]]:
        """An operation of a region with reductions that reads a reshape of a product's region, that region, and the reshape."""
        of, graph = self.partition.region_of, self.partition.graph
        for region in self.partition.regions():
            made = [r for op in region.ops for r in op.results] if region.kind is OpKind.CONTRACTION else []
            between = [u for r in made for u in graph.users(r) if u.name in RESHAPES]
            for reshape in between:
                yield from ((u, region, reshape) for u in graph.users(reshape.results[0])
                            if u in of and of[u] is not region and of[u].kind is OpKind.REDUCTION)

    def _pairs(self) -> Iterator[tuple[ir.Operation, ir.Operation]]:
        """An operation of a region with reductions that reads a value of a product's region in full, and the product."""
        of, graph = self.partition.region_of, self.partition.graph
        for region in self.partition.regions():
            if region.kind is not OpKind.CONTRACTION:
                continue
            readers = {of[u]: u for op in region.ops for r in op.results for u in graph.users(r)
                       if u in of and of[u] is not region and of[u].kind is OpKind.REDUCTION
                       and len(of[u].loops.get(u, ())) == len(of[u].frame)}
            yield from ((reader, region.root) for reader in readers.values())

    def _refused(self, source: Region, rows: Region) -> str | None:
        """Why the two stay apart."""
        graph, number = self.partition.graph, self.partition.graph.order[source.root]
        if (number, number) in self.partition.apart:
            return "its kernel was refused"
        shapes = _shapes(source, rows, self.model, self.kernels)
        if isinstance(shapes, str):
            return shapes
        others = [op for op in (*source.ops, *rows.ops) if op != source.root]
        problem = graph.not_in_rows(others) or _flat(source, rows, graph) or _attends(rows, graph)
        if problem is not None:
            return problem
        broken = next((reason for shape, _ in shapes if (reason := why_not(shape, self.kernels.limits)) is not None), None)
        if broken is not None:
            return broken
        self.times[number] = times = tuple(cycles(shape, count, self.kernels.limits) for shape, count in shapes)
        share = sum(one / two for two, one in times) / len(times)
        most = inf if self.kernels.choice is StripChoice.WIDELY else 1 - GAIN
        return f"one launch is predicted to take {share:.2f} of the time of two" if share > most else None


def _shapes(source: Region, rows: Region, model: CostModel, kernels: RowKernels) -> list[tuple[RowsOfProduct, int]] | str:
    """What is multiplied and how many rows there are, at each of the shapes; why no kernel does."""
    root, graph = source.root, model.graph
    groups = Groups.of(root)
    written = [position(e) for e in maps_of(root)[OUT].results]
    if groups.batch or len(groups.n) != 1 or written != [*groups.m, *groups.n] or not is_zero_tensor(root.operands[OUT]):
        return "wanted sums from zero, of rows of the first factor by columns of the second"
    factors = {str(ir.RankedTensorType(root.operands[n].type).element_type) for n in range(OUT)}
    if len(factors) != 1 or not factors <= set(kernels.types):
        return f"tensor cores do not multiply {' by '.join(sorted(factors))} here; wanted {' or '.join(kernels.types)}"
    factor, columns = DType(next(iter(factors))), source.frame[-1].constant
    if columns is None:
        return "how many columns a row has is known when it runs"
    kept = narrowed(root.results[0], [])
    made = _results(source, rows, graph)
    result = max((_type(v) for v in made), key=lambda t: t.bytes, default=_type(kept))
    others = sum(_type(v).bytes for v in _others(source, rows, graph)) + sum(_type(v).bytes for v in made[1:])
    reductions = sum(graph.kinds[op] is OpKind.REDUCTION for op in rows.ops)
    depths, heights = model.extent(_depth(root, graph)), model.extent(_product(source.frame[:-1]))
    return [(RowsOfProduct(columns, max(1, depth), factor, _type(kept), result, reductions, others),
             max(1, height)) for depth, height in zip(depths, heights, strict=True)]


def _depth(root: ir.Operation, graph: Graph) -> Expr:
    """What the product sums over."""
    extents = loop_extents(root, graph.shapes)
    return _product([extents[d] for d in Groups.of(root).k])


def _product(extents: Sequence[Expr]) -> Expr:
    total = Expr.of(1)
    for extent in extents:
        total = total * extent
    return total


def _type(value: ir.Value) -> DType:
    return DType(str(ir.RankedTensorType(value.type).element_type))


def _results(source: Region, rows: Region, graph: Graph) -> list[ir.Value]:
    """Values of both, an element for each of the product's, that others read."""
    inside = {*source.ops, *rows.ops}
    return [r for op in (*source.ops, *rows.ops) for r in op.results
            if ir.RankedTensorType(r.type).rank == len(source.frame) and any(u not in inside for u in graph.users(r))]


def _others(source: Region, rows: Region, graph: Graph) -> list[ir.Value]:
    """Tensors from elsewhere with an element for each of the product's."""
    made = {r for op in (*source.ops, *rows.ops) for r in op.results}
    found = dict.fromkeys(v for op in (*source.ops, *rows.ops) if op != source.root for v in graph.operands(op) if v not in made)
    return [v for v in found if isinstance(v.type, ir.RankedTensorType) and graph.shapes.dims(v) == tuple(source.frame)
            and not _fresh(v)]


def _fresh(value: ir.Value) -> bool:
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    return op is not None and op.name in ("tensor.empty", "linalg.fill")


def _flat(source: Region, rows: Region, graph: Graph) -> str | None:
    """Are rows one axis, once axes that are walked together are one?"""
    groups = collapse([*source.ops, *rows.ops], graph.views).of(source.root.results[0])
    return None if len(groups) == 2 else f"its rows are {len(groups) - 1} axes that no single one stands for"


def _attends(rows: Region, graph: Graph) -> str | None:
    """Are these the weights of an attention? It has kernels of its own, which hold both of its products."""
    read = (u for op in rows.ops for r in op.results for u in graph.users(r))
    if rows.has("math.exp") and any(graph.kinds.get(u) is OpKind.CONTRACTION for u in read):
        return "a product of exponentials is an attention's"
    return None
