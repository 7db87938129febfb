"""Partition of a function into dispatch regions, by named rules.

A region has a frame: for a contraction or a window op the axes of its result, for row reductions the loops of the
reduction (rows and columns), else the loops of the elementwise operations. Every value of a region has a place in it,
the frame axis of each of its axes, and an operation joins a region only when it reads all values of the region at their
places: then a kernel that walks the frame can compute each value where it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.passes.analysis.gates import Updates, gated
from tilewright.passes.analysis.op_kinds import OpKind, arithmetic, body_names, expensive, op_kind, scatters
from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.dispatch_creation.region_order import RegionOrder
from tilewright.passes.linalg.clone import captured, users
from tilewright.passes.linalg.data_movement import constant_pad
from tilewright.passes.linalg.strides import Views
from tilewright.passes.linalg.structured import inputs, iterator_kinds, loop_extents
from tilewright.passes.linalg.symbolic import CONSTANT, SymbolicShapes, argument_attributes
from tilewright.passes.mlir import ir, maps_of, operations, owner, position
from tilewright.passes.transforms.channels_last import COPY
from tilewright.passes.transforms.find_codes import CODES
from tilewright.runtime.shape import Expr

LOAD_ARITHMETIC = 2
LARGEST = 64  # operations of a region: what walks one does so by recursion, and its kernel has a slot for each tensor it reads
_ROOTED = (OpKind.CONTRACTION, OpKind.WINDOW)
_COMPUTE = (OpKind.CONTRACTION, OpKind.REDUCTION, OpKind.PARTS, OpKind.WINDOW, OpKind.ELEMENTWISE, OpKind.MOVEMENT)
Place = tuple[int, ...]


@dataclass
class Region:
    """Operations of one kernel. `loops` gives the frame axis of each loop of an op, `places` of each value axis.

    parts: does it hold reductions in parts? What they give has no place: it is read when all parts are done."""

    kind: OpKind
    root: ir.Operation
    frame: list[Expr]
    columns: set[int] = field(default_factory=set)
    ops: list[ir.Operation] = field(default_factory=list)
    loops: dict[ir.Operation, Place] = field(default_factory=dict)
    places: dict[ir.Value, Place] = field(default_factory=dict)
    parts: bool = False

    def renamed(self, axes: Sequence[int]) -> tuple[dict[ir.Operation, Place], dict[ir.Value, Place]]:
        """Loops and places with frame axis a called axes[a]."""
        return (
            {o: tuple(axes[a] for a in p) for o, p in self.loops.items()},
            {v: tuple(axes[a] for a in p) for v, p in self.places.items()},
        )


@dataclass(frozen=True)
class Refusal:
    """Why `op` does not join the region of `other`: rule names the condition that fails."""

    op: str
    other: str
    rule: str
    reason: str


class Partition:
    """Regions of `fn`; `region_of` maps an operation to its region. join=False leaves each operation alone."""

    def __init__(self, fn: ir.Operation, join: bool = True) -> None:
        self.join = join
        self.block = fn.regions[0].blocks[0]
        self.shapes = SymbolicShapes(fn)
        self.views = Views(self.shapes)
        self.order = {op: i for i, op in enumerate(operations(self.block))}
        self.kinds = {op: op_kind(op, self.views) for op in self.order}
        self.region_of: dict[ir.Operation, Region] = {}
        self.paths: RegionOrder[ir.Operation] = RegionOrder()
        self._loads: dict[ir.Operation, list[ir.Operation] | None] = {}
        self.refusals: list[Refusal] = []
        named = zip(self.block.arguments, argument_attributes(fn), strict=True)
        self.bound = {v for v, attributes in named if CONSTANT in attributes}  # known at compile time
        for op in self.order:
            if self._known(op) or (self.kinds[op] is OpKind.VIEW and op.operands[0] in self.bound):
                self.bound.update(op.results)
        for op, kind in self.kinds.items():
            self.paths.add(op, [p for v in captured(op) if (p := owner(v)) is not None])
            if kind in _COMPUTE:
                self._place(op, kind)
            elif op.name == "linalg.fill" and any(self.kinds[u] not in _COMPUTE for u in users(op.results[0])):
                self._place(op, OpKind.ELEMENTWISE)
        for region in self.regions() if join else ():
            if region.parts and self.region_of[region.ops[0]] is region:
                self._join_beside(region)
        for region in self.regions():
            region.ops.sort(key=self.order.__getitem__)

    def regions(self) -> list[Region]:
        """Each region once, ordered by its first operation."""
        return list({id(r): r for r in self.region_of.values()}.values())

    def _place(self, op: ir.Operation, kind: OpKind) -> None:
        region = self._alone(op, kind)
        self.region_of[op] = region
        if not self.join or kind in _ROOTED or kind is OpKind.MOVEMENT or op.name == "linalg.fill" or COPY in op.attributes:
            return
        sources = {
            id(r): r for v in op.operands if (p := owner(v)) is not None and (r := self.region_of.get(p)) is not None
        }
        for source in sorted(sources.values(), key=lambda r: -self.order[r.root]):
            if self.region_of[op] is not source:
                self._join(op, source)

    def _alone(self, op: ir.Operation, kind: OpKind) -> Region:
        """The region of one operation by itself."""
        if kind in _ROOTED or kind is OpKind.MOVEMENT or op.name == "linalg.fill":
            frame = list(self.shapes.dims(op.results[0]))
            whole = tuple(range(len(frame)))
            shown = OpKind.ELEMENTWISE if kind is OpKind.MOVEMENT else kind
            fits = not scatters(op)
            places = {r: whole for r in op.results if fits and ir.RankedTensorType(r.type).rank == len(frame)}
            return Region(shown, op, frame, ops=[op], places=places)
        maps = maps_of(op)
        frame = loop_extents(op, self.shapes)
        parts = kind is OpKind.PARTS
        columns = {d for d, k in enumerate(iterator_kinds(op)) if k == "reduction" and not parts}
        places = {}
        for result, m in zip(op.results, maps[len(maps) - len(op.results) :], strict=True):
            if (place := _positions(m)) is not None:
                places[result] = place
        shown = OpKind.ELEMENTWISE if parts else kind
        return Region(shown, op, frame, columns, [op], {op: tuple(range(len(frame)))}, places, parts)

    def _join(self, op: ir.Operation, source: Region) -> None:
        refusal = self._merge(op, self.region_of[op], source)
        if refusal is not None:
            self.refusals.append(refusal)

    def _join_beside(self, region: Region) -> None:
        """Regions that read a tensor as `region` does join it, whose reductions in parts are one more thing to do on the way."""
        shared = [v for op in region.ops for v in inputs(op) if self.region_of.get(owner(v)) is not self.region_of[op]]
        for value in dict.fromkeys(shared):
            for user in dict.fromkeys(users(value)) if isinstance(value.type, ir.RankedTensorType) else ():
                mine, other = self.region_of[region.root], self.region_of.get(user)
                if other is not None and other is not mine:
                    refusal = self._merge_beside(value, mine, other)
                    self.refusals += [refusal] if refusal is not None else []

    def _merge_beside(self, value: ir.Value, region: Region, other: Region) -> Refusal | None:
        """Two regions that read `value` and nothing of each other become one, or stay apart by a rule."""

        def no(rule: str, reason: str) -> Refusal:
            return Refusal(region.root.name, other.root.name, rule, reason)

        if other.kind in _ROOTED or OpKind.MOVEMENT in (self.kinds[region.root], self.kinds[other.root]):
            return no("one-root", f"reductions in parts are done beside rows or elements, not beside {other.root.name}")
        into, joins = (region, other) if region.columns else (other, region)
        reads = [self._reads(value, into), self._reads(value, joins)]
        if None in reads or len(reads[0] or ()) != len(into.frame) or len(into.frame) != len(joins.frame):
            return no("same-frame", "they do not read one tensor element by element")
        pairs = dict(zip(reads[1] or (), reads[0] or (), strict=True))
        if [into.frame[pairs[a]] for a in range(len(joins.frame))] != joins.frame:
            return no("same-frame", "their frames have different extents")
        problem = self._not_in_rows([*into.ops, *joins.ops])
        if problem:
            return no("same-parts", problem)
        if self.paths.leads(into.root, joins.root) or self.paths.leads(joins.root, into.root):
            return no("no-cycle", "one of them needs what the other gives")
        self._unite(into, joins, *joins.renamed([pairs[a] for a in range(len(joins.frame))]))
        return None

    def _reads(self, value: ir.Value, region: Region) -> Place | None:
        """The frame axis that a region's reader moves along on each axis of a value; None where that is not one place."""
        found = set()
        for op in users(value):
            if self.region_of.get(op) is region and op in region.loops:
                for operand, m in zip(op.operands, maps_of(op), strict=True):
                    if operand == value:
                        at = _positions(m)
                        found.add(None if at is None else tuple(region.loops[op][d] for d in at))
        return next(iter(found)) if len(found) == 1 else None

    def _not_in_rows(self, ops: Sequence[ir.Operation]) -> str | None:
        """Why operations, some of which reduce in parts, are no program over rows and columns; None where they are one."""
        if len(ops) > LARGEST:
            return f"a region has at most {LARGEST} operations"
        members = set(ops)
        results = [r for op in ops for r in op.results if any(u not in members for u in users(r))]
        try:
            RowProgram(sorted(ops, key=self.order.__getitem__), results, self.shapes)
        except ValueError as reason:
            return str(reason)
        return None

    def _unite(self, into: Region, other: Region, loops: dict[ir.Operation, Place], places: dict[ir.Value, Place]) -> None:
        """`other`, whose loops and places are given in the frame of `into`, becomes part of it."""
        self.paths.merge(other.root, into.root)
        into.ops += other.ops
        into.loops |= loops
        into.places |= places
        into.parts |= other.parts
        for member in other.ops:
            self.region_of[member] = into

    def _merge(self, op: ir.Operation, region: Region, source: Region) -> Refusal | None:
        """`region` (that of the reader `op`) and `source` become one, or stay apart by the rule that forbids it."""

        def no(rule: str, reason: str) -> Refusal:
            return Refusal(op.name, source.root.name, rule, reason)

        if len(region.ops) + len(source.ops) > LARGEST:
            return no("largest", f"a region has at most {LARGEST} operations")
        if isinstance(gated(source.root), Updates):
            return no("updates", "its elements are done when all updates are")
        rooted = [r for r in (region, source) if r.kind in _ROOTED]
        parts = region.parts or source.parts
        if len(rooted) == 2 or (rooted and (parts or OpKind.REDUCTION in (region.kind, source.kind))):
            return no("one-root", f"a region has one {rooted[0].kind.value} or row reductions, not both")
        if parts and self.kinds[source.root] is OpKind.MOVEMENT:
            return no("one-root", f"what {source.root.name} places is a value before it is reduced in parts")
        pairs = self._pairs(op, region, source)
        if isinstance(pairs, str):
            return no("one-map", pairs)
        problem = _extend(pairs, region, source)
        if problem:
            return no("same-frame", problem)
        into, other = (
            (source, region)
            if (len(source.frame) >= len(region.frame)
            and source.kind is not OpKind.ELEMENTWISE)
            or region.kind is OpKind.ELEMENTWISE
            else (region, source)
        )
        axes = pairs if other is source else {m: h for h, m in pairs.items()}
        loops, places = other.renamed([axes[a] for a in range(len(other.frame))])
        frames = (loops, source.places) if other is region else (region.loops, places)
        problem = next((p for o in self._readers(region, source) if (p := _misread(o, *frames))), None)
        if problem:
            return no("one-map", problem)
        if self.paths.leads_around(source.root, op):
            return no("no-cycle", "a value of the region comes back through an operation outside it")
        problem = self._not_in_rows([*into.ops, *other.ops]) if parts else None
        if problem:
            return no("same-parts", problem)
        self._unite(into, other, loops, places)
        return None

    def _readers(self, region: Region, source: Region) -> Iterable[ir.Operation]:
        """The operations of `region` that may read values of `source`."""
        if len(region.ops) <= len(source.ops):
            return region.ops
        return dict.fromkeys(u for v in source.places for u in users(v) if self.region_of.get(u) is region)

    def _pairs(self, op: ir.Operation, region: Region, source: Region) -> dict[int, int] | str:
        """Axis of the source's frame -> axis of the region's frame, from how `op` reads the source's values."""
        pairs: dict[int, int] = {}
        for value, m in zip(op.operands, maps_of(op), strict=False):
            if owner(value) is None or self.region_of.get(owner(value)) is not source:
                continue
            if value not in source.places:
                return "the value has no place in its region"
            for axis, e in zip(source.places[value], m.results, strict=True):
                loop = position(e)
                if loop is None:
                    return "the value is read at computed coordinates"
                if pairs.setdefault(axis, region.loops[op][loop]) != region.loops[op][loop]:
                    return "the value is read under two index maps"
        if len(set(pairs.values())) != len(pairs):
            return "two axes of the value are read along one loop"
        return pairs

    def adopt(self, copy: ir.Operation, original: ir.Operation, region: Region) -> None:
        """`copy` of `original` becomes a member of `region`."""
        self.kinds[copy] = self.kinds[original]
        self.region_of[copy] = region
        region.ops.append(copy)

    def _known(self, op: ir.Operation) -> bool:
        """Does `op` read nothing but tensors that are bound at compile time?"""
        tensors = [v for v in inputs(op) if isinstance(v.type, ir.RankedTensorType)]
        return op.name == "linalg.generic" and bool(tensors) and all(v in self.bound for v in tensors)

    def _constant(self, op: ir.Operation) -> bool:
        """Does `op` compute something from such tensors?"""
        return self._known(op) and len(body_names(op)) > 1

    def loads(self, op: ir.Operation) -> list[ir.Operation] | None:
        """`_chain`, found once: copies that are made of a chain change no answer."""
        if op not in self._loads:
            self._loads[op] = self._chain(op)
        return self._loads[op]

    def _chain(self, op: ir.Operation) -> list[ir.Operation] | None:
        """The chain of cheap producers up to `op` that a reader may compute at each load; None when it must be a value.

        Rule "cheap-load": casts, permutations, broadcasts and constant pads always; up to LOAD_ARITHMETIC scalar
        operations when nothing else reads the value; never a function of math, a division or a lookup, nor arithmetic on
        constants alone, which runs once at compile time; but weights in few bits are decoded at each load (find-codes).
        """
        region = self.region_of.get(op)
        if CODES in op.attributes:
            return [op]
        if region is None or region.kind is not OpKind.ELEMENTWISE or op.name == "linalg.fill" or self._constant(op):
            return None
        if COPY in op.attributes or self.kinds[op] is OpKind.PARTS:
            return None
        kind = self.kinds[op]
        if kind is OpKind.MOVEMENT:
            return [op] if op.name in ("tensor.collapse_shape", "tensor.extract_slice") or constant_pad(op) else None
        if expensive(op) or len(op.results) != 1:
            return None
        chain = [op]
        for value in op.operands:
            producer = owner(value)
            inner = self.loads(producer) if producer is not None else None
            if inner is not None:
                chain = [o for o in inner if o not in chain] + chain
        count = sum(arithmetic(o) for o in chain)
        if count > LOAD_ARITHMETIC or (count and len(users(op.results[0])) > 1):
            return None
        return chain


def _positions(m: ir.AffineMap) -> Place | None:
    found = [position(e) for e in m.results]
    return None if None in found else tuple(p for p in found if p is not None)


def _extend(pairs: dict[int, int], region: Region, source: Region) -> str | None:
    """Complete `pairs` (source axis -> region axis) to an embedding of one frame in the other; else what fails."""
    free_source = [a for a in range(len(source.frame)) if a not in pairs]
    free_region = [a for a in range(len(region.frame)) if a not in pairs.values()]
    if not source.columns and not region.columns:
        return "the reader does not walk each element of the region once" if free_source or free_region else None
    if source.columns and region.columns:
        if any((a in source.columns) != (b in region.columns) for a, b in pairs.items()):
            return "the reductions run along different axes"
        if any(a not in source.columns for a in free_source) or any(a not in region.columns for a in free_region):
            return "the reductions have different rows"
        return _match(pairs, free_source, free_region, region, source)
    if source.columns:
        if not free_source:
            return "the reader has a loop that the region does not" if free_region else None
        if any(a not in source.columns for a in free_source):
            return "the reader does not walk all rows"
        return (
            _match(pairs, free_source, free_region, region, source)
            if free_region
            else (None if len(free_source) == len(source.columns) else "the reader walks some of the columns only")
        )
    if free_source:
        return "the value has an axis that the reduction does not walk"
    rows_only = set(free_region) == region.columns
    return None if not free_region or rows_only else "the value is not one per row or per element"


def _match(
    pairs: dict[int, int], sources: Sequence[int], regions: Sequence[int], region: Region, source: Region
) -> str | None:
    if [source.frame[a] for a in sources] != [region.frame[a] for a in regions]:
        return "the columns have different extents"
    pairs.update(zip(sources, regions, strict=True))
    return None


def _misread(op: ir.Operation, loops_of: Mapping[ir.Operation, Place], places: Mapping[ir.Value, Place]) -> str | None:
    """Does `op` read a value elsewhere than at its place?"""
    loops = loops_of.get(op)
    maps = maps_of(op) if op.name.startswith("linalg.") else []
    for i, value in enumerate(op.operands):
        if value not in places:
            continue
        if loops is None or i >= len(maps):
            return f"{op.name} reads a value of the region at other places"
        at = _positions(maps[i])
        if at is None or tuple(loops[d] for d in at) != places[value]:
            return f"{op.name} reads a value of the region under another index map"
    return None
