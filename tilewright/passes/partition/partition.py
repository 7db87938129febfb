"""Partition of a function into dispatch regions: what one kernel may hold, by named conditions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from tilewright.passes.analysis.gates import Running, Updates, gated
from tilewright.passes.analysis.op_kinds import OpKind, scatters
from tilewright.passes.analysis.state_walk import MOST_COLUMNS
from tilewright.passes.linalg.copies import COPY
from tilewright.passes.linalg.structured import iterator_kinds, loop_extents
from tilewright.passes.mlir import ir, maps_of, owner, position
from tilewright.passes.partition.alike import Twin
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.region import ROOTED, Place, Refusal, Region, extend, misread, positions
from tilewright.passes.partition.region_order import RegionOrder
from tilewright.passes.partition.rules import PRODUCT_ROWS, Rule

LARGEST = 64  # operations of a region: what walks one does so by recursion, and its kernel has a slot for each tensor it reads
VALUES = 256  # of a region of single values


class Partition:
    """Regions of a graph, at first each operation alone; `region_of` maps an operation to its region.

    rules: which pairs of regions join. apart: pairs of operations, by number, that do not get into one region; a product that is
    apart from itself is apart from the work on its rows. twins: parts that grow as equal ones do, whose operations are `copied`.
    """

    def __init__(self, graph: Graph, rules: Sequence[Rule], apart: Collection[tuple[int, int]] = (),
                 twins: Sequence[Twin] = ()) -> None:
        self.graph, self.rules, self.twins, self.apart = graph, rules, twins, frozenset(apart)
        self.copied = {op for twin in twins for op in twin.ops.values()}
        self._joins: list[tuple[ir.Operation, ir.Operation, dict[ir.Operation, Place], dict[ir.Value, Place], set[int]]] = []
        self._ops = ops = list(graph.order)
        self._apart = [(ops[a], ops[b]) for a, b in apart]
        self.region_of: dict[ir.Operation, Region] = {}
        self.paths: RegionOrder[ir.Operation] = RegionOrder()
        self._refused: dict[tuple[int, int], Refusal] = {}

    def place(self, op: ir.Operation) -> None:
        """The region of one operation by itself, where it needs a kernel; what it reads was placed before."""
        self.paths.add(op, self.graph.producers[op])
        if self.graph.computes(op):
            self.region_of[op] = self._alone(op, self.graph.kinds[op])

    def regions(self) -> list[Region]:
        """Each region once, ordered by its first operation."""
        return list({id(r): r for r in self.region_of.values()}.values())

    @cached_property
    def depths(self) -> dict[Region, int]:
        """Kernels one after the other until a region is ready, of regions that have grown as far as by what they read."""
        of = self.region_of
        found: dict[object, int] = {}
        members: dict[object, list[ir.Operation]] = {}
        for op in sorted(self.graph.order, key=self.paths.level):
            members.setdefault(of.get(op, op), []).append(op)
        for node, ops in members.items():
            before = (found.get(of.get(p, p), 0) for op in ops for p in self.graph.producers[op] if of.get(p, p) is not node)
            found[node] = max(before, default=0) + isinstance(node, Region)
        return {node: depth for node, depth in found.items() if isinstance(node, Region)}

    @property
    def refusals(self) -> list[Refusal]:
        """Why operations are in other regions than those whose values they read, or than those that read the same tensor."""
        ops = list(self.graph.order)
        return [r for (a, b), r in self._refused.items() if self.region_of[ops[a]] is not self.region_of[ops[b]]]

    def reader(self, op: ir.Operation) -> bool:
        """May the operation join a region whose values it reads?"""
        kind = self.graph.kinds[op]
        return kind not in ROOTED and kind is not OpKind.MOVEMENT and op.name != "linalg.fill" and COPY not in op.attributes

    def sources(self, op: ir.Operation) -> list[Region]:
        """Regions other than its own that an operation reads, the latest first."""
        own = self.region_of[op]
        made = (self.region_of.get(p) for v in self.graph.operands(op) if (p := owner(v)) is not None)
        found = {id(r): r for r in made if r is not None}
        return sorted((r for r in found.values() if r is not own), key=lambda r: -self.graph.order[r.root])

    def join(self, op: ir.Operation, source: Region) -> bool:
        """Does the region of `op`, which reads a value of `source`, become one with it?"""
        return self._note(op, source.root, self._merge(op, self.region_of[op], source))

    def join_beside(self, value: ir.Value, region: Region, other: Region) -> bool:
        """Do two regions that read `value`, and nothing of each other, become one?"""
        first, second = region.root, other.root
        return self._note(first, second, self._merge_beside(value, region, other))

    def join_ready(self, region: Region, other: Region) -> bool:
        """Do two regions over equal rows and columns, which wait for the same kernels and not for each other, become one?"""
        return self._note(region.root, other.root, self._merge_ready(region, other))

    def join_rows(self, op: ir.Operation, source: Region, refused: str | None) -> bool:
        """Does the region of `op`, which reduces rows, become one with the product whose rows they are? refused: why no kernel is
        to hold both."""
        refusal = (PRODUCT_ROWS, refused) if refused is not None else self._merge(op, self.region_of[op], source, rows=True)
        return self._note(op, source.root, refusal)

    def _note(self, op: ir.Operation, other: ir.Operation, refusal: tuple[str, str] | None) -> bool:
        if refusal is not None:
            key = (self.graph.order[op], self.graph.order[other])
            self._refused[key] = Refusal(op.name, other.name, *refusal)
        return refusal is None

    def _kept_apart(self, a: Region, b: Region) -> bool:
        return any({self.region_of.get(p), self.region_of.get(q)} == {a, b} for p, q in self._apart)

    def _rule(self, a: Region, b: Region, beside: bool) -> tuple[str, str] | None:
        """The rule that keeps two regions apart, and its reason."""
        for rule in self.rules:
            if rule.beside == beside and rule.applies(a, b):
                reason = rule.joins(a, b)
                return None if reason is None else (rule.name, reason)
        return "rules", "no rule joins such regions"

    def _alone(self, op: ir.Operation, kind: OpKind) -> Region:
        """The region of one operation by itself."""
        if kind in ROOTED or kind is OpKind.MOVEMENT or op.name == "linalg.fill":
            frame = list(self.graph.shapes.dims(op.results[0]))
            whole = tuple(range(len(frame)))
            shown = OpKind.ELEMENTWISE if kind is OpKind.MOVEMENT else kind
            fits = not scatters(op)
            places = {r: whole for r in op.results if fits and ir.RankedTensorType(r.type).rank == len(frame)}
            return Region(shown, op, frame, ops=[op], places=places)
        maps = self.graph.maps(op)
        frame = loop_extents(op, self.graph.shapes)
        parts = kind is OpKind.PARTS
        columns = {d for d, k in enumerate(iterator_kinds(op)) if k == "reduction" and not parts}
        places = {}
        for result, m in zip(op.results, maps[len(maps) - len(op.results) :], strict=True):
            if (place := positions(m)) is not None:
                places[result] = place
        shown = OpKind.ELEMENTWISE if parts else kind
        return Region(shown, op, frame, columns, [op], {op: tuple(range(len(frame)))}, places, parts)

    def _merge_beside(self, value: ir.Value, region: Region, other: Region) -> tuple[str, str] | None:
        """Two regions that read `value` and nothing of each other become one, or stay apart by a rule."""

        for root in (region.root, other.root):
            if not self.reader(root):
                return "one-root", f"rows and elements are done beside each other, not beside {root.name}"
        if self._kept_apart(region, other):
            return "apart", "two of their operations are to stay apart"
        refusal = self._rule(region, other, beside=True)
        if refusal:
            return refusal
        rows = bool(region.columns or other.columns or region.parts or other.parts)
        if not (region.parts or other.parts) and self.depths[region] != self.depths[other]:
            return "same-point", "they are not ready at the same point; what one of them gives would be kept until then"
        into, joins = (region, other) if region.columns else (other, region)
        reads = [self._reads(value, into), self._reads(value, joins)]
        if None in reads or len(reads[0] or ()) != len(into.frame) or len(into.frame) != len(joins.frame):
            return "same-frame", "they do not read one tensor element by element"
        pairs = dict(zip(reads[1] or (), reads[0] or (), strict=True))
        if [into.frame[pairs[a]] for a in range(len(joins.frame))] != joins.frame:
            return "same-frame", "their frames have different extents"
        if len(into.ops) + len(joins.ops) > LARGEST:
            return "largest", f"a region has at most {LARGEST} operations"
        problem = self.graph.not_in_rows([*into.ops, *joins.ops]) if rows else None
        if problem:
            return "same-parts", problem
        if self.paths.leads(into.root, joins.root) or self.paths.leads(joins.root, into.root):
            return "no-cycle", "one of them needs what the other gives"
        self._unite(into, joins, *joins.renamed([pairs[a] for a in range(len(joins.frame))]))
        return None

    def _merge_ready(self, region: Region, other: Region) -> tuple[str, str] | None:
        """Two regions become one whose axes are those of both in their order, or stay apart by a rule."""
        if self._kept_apart(region, other):
            return "apart", "two of their operations are to stay apart"
        refusal = self._rule(region, other, beside=True)
        if refusal:
            return refusal
        if region.frame != other.frame or region.columns != other.columns or region.parts or other.parts:
            return "same-frame", "their rows or columns differ"
        if len(region.ops) + len(other.ops) > LARGEST:
            return "largest", f"a region has at most {LARGEST} operations"
        problem = self.graph.not_in_rows([*region.ops, *other.ops])
        if problem:
            return "same-frame", problem
        if self.paths.leads(region.root, other.root) or self.paths.leads(other.root, region.root):
            return "no-cycle", "one of them needs what the other gives"
        self._unite(region, other, other.loops, other.places)
        return None

    def _reads(self, value: ir.Value, region: Region) -> Place | None:
        """The frame axis that a region's reader moves along on each axis of a value; None where that is not one place."""
        found = set()
        for op in region.ops:
            if op in region.loops and value in (operands := self.graph.operands(op)):
                for operand, m in zip(operands, self.graph.maps(op), strict=True):
                    if operand == value:
                        at = positions(m)
                        found.add(None if at is None else tuple(region.loops[op][d] for d in at))
        return next(iter(found)) if len(found) == 1 else None

    def follow(self) -> None:
        """What was joined, and what was refused, is so in all twins."""
        joins, refused, order = self._joins, list(self._refused.items()), self.graph.order
        for twin in self.twins:
            of = twin.ops
            for into, other, loops, places, columns in joins:
                if into in of:
                    here = {of[op]: place for op, place in loops.items()}
                    there = {twin.values[v]: place for v, place in places.items()}
                    self._unite(self.region_of[of[into]], self.region_of[of[other]], here, there, columns)
            for (a, b), refusal in refused:
                first, second = self._ops[a], self._ops[b]
                if first in of and second in of:
                    self._refused[order[of[first]], order[of[second]]] = refusal

    def _unite(self, into: Region, other: Region, loops: dict[ir.Operation, Place], places: dict[ir.Value, Place],
               columns: Collection[int] = ()) -> None:
        """`other`, whose loops and places are given in the frame of `into`, becomes part of it. columns: further ones."""
        if into.root not in self.copied:
            self._joins.append((into.root, other.root, loops, places, set(columns)))
        self.paths.merge(other.root, into.root)
        into.columns |= set(columns)
        into.ops += other.ops
        into.loops |= loops
        into.places |= places
        into.parts |= other.parts
        for member in other.ops:
            self.region_of[member] = into

    def _merge(self, op: ir.Operation, region: Region, source: Region, rows: bool = False) -> tuple[str, str] | None:
        """`region` (that of the reader `op`) and `source` become one, or stay apart by the rule that forbids it. rows: a kernel
        holds a product and the reductions along its rows."""

        largest = LARGEST if region.frame or source.frame else VALUES
        if len(region.ops) + len(source.ops) > largest:
            return "largest", f"a region has at most {largest} operations"
        gate = gated(source.root)
        if isinstance(gate, Updates):
            return "updates", "its elements are done when all updates are"
        if self._kept_apart(source, region):
            return "apart", "two of their operations are to stay apart"
        rooted = [r for r in (region, source) if r.kind in ROOTED]
        parts = region.parts or source.parts
        summed = isinstance(gate, Running) and region.kind is OpKind.REDUCTION  # at each step, as the states go on
        if len(rooted) == 2 or (rooted and (parts or (OpKind.REDUCTION in (region.kind, source.kind) and not (summed or rows)))):
            return "one-root", f"a region has one {rooted[0].kind.value} or row reductions, not both"
        refusal = self._rule(source, region, beside=False)
        if refusal:
            return refusal
        if parts and self.graph.kinds[source.root] is OpKind.MOVEMENT:
            return "one-root", f"what {source.root.name} places is a value before it is reduced in parts"
        if self._waits(region, source):
            return "waits", "the reduction would wait for other kernels that give single values, and these for it"
        unplaced = {r for o in source.ops for r in o.results if r not in source.places}
        if unplaced and any(v in unplaced for o in region.ops for v in self.graph.operands(o)):
            return "one-map", "the value has no place in its region"
        pairs = self._pairs(op, region, source)
        if isinstance(pairs, str):
            return "one-map", pairs
        problem = extend(pairs, region, source)
        if problem:
            return "same-frame", problem
        into, other = (
            (source, region)
            if (len(source.frame) >= len(region.frame)
            and source.kind is not OpKind.ELEMENTWISE)
            or region.kind is OpKind.ELEMENTWISE
            else (region, source)
        )
        axes = pairs if other is source else {m: h for h, m in pairs.items()}
        loops, places = other.renamed([axes[a] for a in range(len(other.frame))])
        columns = source.columns
        if summed or rows:
            columns = region.columns if into is region else {axes[a] for a in region.columns}
        if isinstance(gate, Running) and (problem := _off_the_walk(source, gate, columns, places if other is region else None)):
            return "running", problem
        frames = (loops, source.places) if other is region else (region.loops, places)
        problem = next((p for o in self._readers(region, source) if (p := misread(o, *frames))), None)
        if problem:
            return "one-map", problem
        computed = (v for o in self._readers(region, source) for v in self.graph.inside(o))
        if any(v in frames[1] and len(self.graph.users(v)) > 1 for v in computed):
            return "one-map", "a value of the region is read at computed coordinates, too, where it would be computed again"
        if self.paths.leads_around(source.root, op):
            return "no-cycle", "a value of the region comes back through an operation outside it"
        problem = self.graph.not_in_rows([*into.ops, *other.ops]) if parts else None
        if problem:
            return "same-parts", problem
        self._unite(into, other, loops, places, columns if summed or rows else ())
        return None

    def _waits(self, region: Region, source: Region) -> bool:
        """Is `region` arithmetic on single values, some of which come from kernels that `source`, a reduction, does not need and
        cannot be one with? Reductions that do not wait for each other run side by side; a sum of what they give is nothing
        beside them."""
        if region.frame or not (source.columns or source.parts):
            return False
        others = (r for o in region.ops for r in self.sources(o) if r is not source)
        return any(not (other.columns and other.frame == source.frame) and not self.paths.leads(other.root, source.root)
                   for other in others)

    def _readers(self, region: Region, source: Region) -> Iterable[ir.Operation]:
        """The operations of `region` that may read values of `source`."""
        if len(region.ops) <= len(source.ops):
            return region.ops
        return dict.fromkeys(u for v in source.places for u in self.graph.users(v) if self.region_of.get(u) is region)

    def _pairs(self, op: ir.Operation, region: Region, source: Region) -> dict[int, int] | str:
        """Axis of the source's frame -> axis of the region's frame, from how `op` reads the source's values."""
        pairs: dict[int, int] = {}
        for value, m in zip(self.graph.operands(op), self.graph.maps(op), strict=False):
            if owner(value) is None or self.region_of.get(owner(value)) is not source:
                continue
            for axis, e in zip(source.places[value], m.results, strict=True):
                loop = position(e)
                if loop is None:
                    return "the value is read at computed coordinates"
                if pairs.setdefault(axis, region.loops[op][loop]) != region.loops[op][loop]:
                    return "the value is read under two index maps"
        if len(set(pairs.values())) != len(pairs):
            return "two axes of the value are read along one loop"
        return pairs


def _off_the_walk(source: Region, gate: Running, columns: set[int], places: Mapping[ir.Value, Place] | None) -> str | None:
    """Why the walk of a running reduction cannot do what follows from its states. columns: that are summed at each step; places:
    of what joins, in the frame of the states; None where it does not join them."""
    rank, axis = len(source.frame), [position(e) for e in maps_of(gate.op)[-1].results].index(gate.along)
    if places is None or any(p != tuple(a for a in range(rank) if len(p) == rank or a not in columns) for p in places.values()):
        return "what follows from a running reduction is done as it walks, so its axes have the same order"
    if not columns:
        return None
    if axis in columns or len(columns) + 1 >= rank:
        return "no axis is left beside the steps and those that are summed"
    if source.columns and source.columns != columns:
        return "the states of a step are summed along the same axes"
    count = 1
    for a in columns:
        count *= source.frame[a].constant or MOST_COLUMNS + 1
    return f"at most {MOST_COLUMNS} states of a place are kept beside its walk" if count > MOST_COLUMNS else None
