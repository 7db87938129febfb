"""RowProgram: a region of row reductions cut into sweeps along the columns.

The frame of a region is the loop nest of its reductions: rows (parallel) and columns (reduced). The depth of a value is the
number of reductions one after another that it needs. Sweep s walks the columns once: it accumulates all reductions of depth s
and computes the results of depth s; reductions of depth s and the row scalars made of them are known afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.passes.analysis.op_kinds import ROW_COMBINERS
from tilewright.passes.analysis.parts import parts_of
from tilewright.passes.linalg.clone import captured
from tilewright.passes.linalg.structured import iterator_kinds, loop_extents
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, maps_of, operations, owner, position
from tilewright.runtime.shape import Expr

Place = tuple[int | None, ...]  # frame axis of each axis of a value; None: the one coordinate is 0

_STORE_FROM = 8  # a value that costs this much is stored by the first sweep that computes it and read back later
_COST = {"arith.divf": 8, "arith.remf": 16, "math.absf": 1, "math.copysign": 1, "math.fma": 1, "math.floor": 1,
         "math.ceil": 1, "math.roundeven": 1, "math.trunc": 1}


@dataclass(frozen=True)
class RowJoin:
    """How one result of a reduction joins values: by the associative operation `op`, whose operand `side` is the new value and
    whose other one is the accumulator, operand `number` of the reduction."""

    op: ir.Operation
    number: int
    side: int


@dataclass
class Sweep:
    """One walk along the columns, and the row scalars that follow from it."""

    reductions: list[ir.Operation] = field(default_factory=list)
    parts: list[ir.Operation] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    kept: list[ir.Value] = field(default_factory=list)
    scalars: list[ir.Value] = field(default_factory=list)
    row_results: list[int] = field(default_factory=list)

    @property
    def walks(self) -> bool:
        return bool(self.reductions or self.parts or self.results)

    @property
    def is_empty(self) -> bool:
        return not (self.walks or self.scalars or self.row_results)


class RowProgram:
    """Analysis of one region; ValueError says why it is no row program. over: may results lie where operands do that the region
    reads element by element? The last sweep then stores all results that have columns: nothing is read after it. A result with an
    element a row is stored by the last sweep that reads what it is made of."""

    def __init__(self, ops: Sequence[ir.Operation], results: Sequence[ir.Value], shapes: SymbolicShapes,
                 over: bool = False) -> None:
        self.over = over
        self.ops, self.results, self.shapes = list(ops), list(results), shapes
        self._made = {v for op in self.ops for v in op.results}
        self.parts = {op: parts for op in self.ops if (parts := parts_of(op)) is not None}
        self._reductions = {op for op in self.ops if is_reduction(op)}
        self._captured: dict[ir.Operation, list[ir.Value]] = {}
        found = [op for op in self.ops if op in self._reductions and op not in self.parts]
        if not found and not self.parts:
            raise ValueError("a region without a reduction has no rows")
        self.joins = {op: row_joins(op) for op in [*found, *self.parts]}
        root = [*found, *self.parts][0]
        kinds = iterator_kinds(root)
        self.frame = self.extents(root)
        self.rows = [a for a, k in enumerate(kinds) if k == "parallel"]
        self.columns = [a for a, k in enumerate(kinds) if k == "reduction"]
        if not found:
            order = [*self.parts[root].rows, *self.parts[root].columns]
            self.frame = [self.frame[d] for d in order]
            self.rows, self.columns = list(range(len(self.parts[root].rows))), list(range(len(self.parts[root].rows), len(order)))
        self.loops: dict[ir.Operation, list[int]] = {}
        self.places: dict[ir.Value, Place] = {}
        self._read_at = self._reads_of(root) if found else {}
        self._depth: dict[ir.Value, int] = {}
        for op in self.ops:
            self._place(op)
        self.result_places = [self._result_place(v) for v in self.results]
        depths = [self.depth(v) for v in self.results]
        self.sweeps = [Sweep() for _ in range(1 + max([*depths, *map(self.op_depth, self.joins)]))]
        self._schedule(depths)
        self._keep()

    def cut(self, axes: Mapping[str, Sequence[int]]) -> dict[ir.Value, dict[str, tuple[int, ...]]]:
        """The results, with their axes that run along axes of the frame, by name of these."""
        return {value: {name: tuple(place.index(a) for a in found) for name, found in axes.items()}
                for value, place in zip(self.results, self.result_places, strict=True)}

    def extents(self, op: ir.Operation) -> list[Expr]:
        return loop_extents(op, self.shapes)

    def is_row_place(self, place: Place) -> bool:
        return not set(place) & set(self.columns)

    # -- where values are in the frame

    def _reads_of(self, root: ir.Operation) -> dict[ir.Value, Place]:
        """Where the reduction that the frame is of reads its operands, and those the elements that they are made of. Others that
        read these go by that too."""
        found: dict[ir.Value, Place] = {}
        for op in reversed(self.ops):
            if op == root:
                axes: dict[int, int] = {d: d for d in range(len(self.frame))}
            elif op.name == "linalg.generic" and op.results[0] in found and "reduction" not in iterator_kinds(op):
                pairs = zip(maps_of(op)[-1].results, found[op.results[0]], strict=True)
                axes = {d: a for e, a in pairs if (d := position(e)) is not None and a is not None}
            else:
                continue
            for value, m in zip(op.operands, maps_of(op), strict=True):
                found.setdefault(value, tuple(axes.get(d) if (d := position(e)) is not None else None for e in m.results))
        return found

    def _place(self, op: ir.Operation) -> None:
        """Frame axis of each loop of a linalg op from those of its operands; free loops by extent, in order."""
        if op.name == "tensor.cast" and op.operands[0] in self.places:
            self.places[op.results[0]] = self.places[op.operands[0]]
        if not op.name.startswith("linalg.") or op.name == "linalg.fill":
            return
        maps, extents = maps_of(op), self.extents(op)
        bound: dict[int, int] = {}
        for value, m in zip(op.operands, maps, strict=True):
            for axis, e in zip(self.places.get(value, ()), m.results, strict=False):
                loop = position(e)
                if loop is not None and axis is not None:
                    bound.setdefault(loop, axis)
        reduced = op in self._reductions
        seen = [*zip(op.results, maps[len(op.operands) - len(op.results) :], strict=True), *zip(op.operands, maps, strict=True)]
        for value, m in seen if not reduced else ():
            told = {loop: axis for axis, e in zip(self._read_at.get(value, ()), m.results, strict=False)
                    if (loop := position(e)) is not None and axis is not None}
            together = {**told, **bound}
            if len(set(together.values())) == len(together):  # not where a sum is read along another axis than it read this one
                bound = together
        kinds = self._row_kinds(op)
        every = range(len(extents)) if op not in self.parts else [*self.parts[op].rows, *self.parts[op].columns]
        free = [d for d in every if d not in bound]
        left = [a for a in range(len(self.frame)) if a not in bound.values()]
        if reduced:
            order = [(d, a) for kind, axes in (("parallel", self.rows), ("reduction", self.columns))
                     for d, a in zip([d for d in free if kinds[d] == kind], [a for a in left if a in axes], strict=False)]
        else:
            rows = [a for a in left if a in self.rows]
            order = list(zip(free, left if len(free) == len(left) else rows, strict=False))
        bound.update(order)
        axes = [bound.get(d) for d in range(len(extents))]
        fits = None not in axes and len(set(axes)) == len(axes) and all(
            a is not None and self.frame[a] == e and (not reduced or (a in self.columns) == (kinds[d] == "reduction"))
            for d, (a, e) in enumerate(zip(axes, extents, strict=True)))
        if not fits or (reduced and len(axes) != len(self.frame)):
            if reduced:
                raise ValueError(f"{op.name} at {op.location}: its loops are not the rows and columns of the region")
            return
        self.loops[op] = [a for a in axes if a is not None]
        if op in self.parts:
            self._place_parts(op)
            return
        for result, m in zip(op.results, maps[len(op.operands) - len(op.results) :], strict=True):
            at = [position(e) for e in m.results]
            if all(p is not None or isinstance(e, ir.AffineConstantExpr) for p, e in zip(at, m.results, strict=True)):
                self.places[result] = tuple(None if p is None else axes[p] for p in at)

    def _row_kinds(self, op: ir.Operation) -> list[str]:
        """Of each loop: "parallel" along rows, "reduction" along columns."""
        if op not in self.parts:
            return iterator_kinds(op)
        return ["parallel" if d in self.parts[op].rows else "reduction" for d in range(len(iterator_kinds(op)))]

    def _place_parts(self, op: ir.Operation) -> None:
        """The parts of one region cut the same rows in the same way."""
        own, at = self.parts[op], self.loops[op]
        other = next(iter(self.parts))
        cuts = [(p.size, self.loops[o][p.rows[0]]) for o, p in ((op, own), (other, self.parts[other]))]
        if cuts[0] != cuts[1]:
            raise ValueError(f"{op.name} at {op.location}: parts of {own.size} steps beside parts of {cuts[1][0]}")
        if [at[d] for d in own.rows] != self.rows:
            raise ValueError(f"{op.name} at {op.location}: its rows are walked in another order than those of the region")
        self.places[op.results[0]] = (at[own.rows[0]], *(at[d] for d in (() if own.whole else own.columns)))

    @property
    def part_rows(self) -> int:
        """Steps along the first row axis that make a part; 0 where nothing is done in parts."""
        return next((p.size for p in self.parts.values()), 0)

    @property
    def has_row_work(self) -> bool:
        """Do rows need reductions, results or sweeps of their own, beside what is done in parts?"""
        [first, *later] = self.sweeps
        return bool(later or first.row_results) or any(op not in self.parts for op in first.reductions)

    def _result_place(self, value: ir.Value) -> Place:
        """The place of a result; its axes cover the rows, and either all columns or none."""
        place = self.places.get(value)
        if place is not None and owner(value) in self.parts:
            return place
        dims = self.shapes.dims(value)
        if place is None:
            for candidates in (list(range(len(self.frame))), self.rows):
                place = _match(dims, candidates, self.frame)
                if place is not None:
                    break
        if place is None:
            raise ValueError(f"a result of extents {[*map(str, dims)]} is not over the rows of the region")
        axes = [a for a in place if a is not None]
        covers = sorted(axes) == list(range(len(self.frame))) or sorted(axes) == self.rows
        ones = all(d == Expr.of(1) for d, a in zip(dims, place, strict=True) if a is None)
        if not covers or not ones:
            raise ValueError(f"a result of extents {[*map(str, dims)]} does not have one element per row or per element")
        return place

    # -- when values are known

    def depth(self, value: ir.Value) -> int:
        """Reductions one after another that `value` needs."""
        if value not in self._depth:
            op = owner(value) if value in self._made else None
            self._depth[value] = 0 if op is None else self.op_depth(op) + (op in self._reductions)
        return self._depth[value]

    def op_depth(self, op: ir.Operation) -> int:
        """Depth of what `op` reads."""
        return max((self.depth(v) for v in self._reads(op) if isinstance(v.type, ir.RankedTensorType) or owner(v) is not None),
                   default=0)

    def _reads(self, op: ir.Operation) -> list[ir.Value]:
        """What an operation reads, found once."""
        if op not in self._captured:
            self._captured[op] = list(captured(op))
        return self._captured[op]

    def _schedule(self, depths: Sequence[int]) -> None:
        for op in self.joins:
            sweep = self.sweeps[self.op_depth(op)]
            (sweep.parts if op in self.parts and not self.parts[op].whole else sweep.reductions).append(op)
        for op in self.ops:
            for value in op.results:
                place, depth = self.places.get(value), self.depth(value)
                if op in self.loops and op not in self.joins and depth and place is not None and self.is_row_place(place):
                    self.sweeps[depth - 1].scalars.append(value)
        whole = [set(place) >= set(self.columns) for place in self.result_places]
        apart = [owner(v) in self.parts for v in self.results]
        stored = (d for d, of_columns, part in zip(depths, whole, apart, strict=True) if of_columns and not part)
        last = max((*map(self.op_depth, self.joins), *stored))
        for number, (of_columns, depth) in enumerate(zip(whole, depths, strict=True)):
            if apart[number]:
                continue
            if of_columns:
                self.sweeps[last if self.over else depth].results.append(number)
        once = {n: max(d - 1, 0) for n, d in enumerate(depths) if not apart[n] and not whole[n]}
        for number, at in (self._after_reads(once, last) if self.over else once).items():
            self.sweeps[at].row_results.append(number)
        while len(self.sweeps) > 1 and self.sweeps[-1].is_empty:  # what the last results are made of is known by then
            self.sweeps.pop()

    def _after_reads(self, once: Mapping[int, int], last: int) -> dict[int, int]:
        """Results with an element a row -> the last sweep that reads an operand which they are made of. once: where they are
        known; last: the sweep that all with columns are made in."""
        read = {number: self._made_of([self.results[number]]) for number in once}
        others = [(self.op_depth(op), self._made_of(self._reads(op))) for op in self.joins]
        others += [(last, self._made_of([v])) for n, v in enumerate(self.results) if n not in once and owner(v) not in self.parts]
        found = {number: max([known, *(sweep for sweep, operands in others if operands & read[number])])
                 for number, known in once.items()}
        for _ in found:  # what shares operands is stored together
            found = {number: max(found[other] for other in found if other == number or read[other] & read[number])
                     for number in found}
        return found

    def _made_of(self, values: Sequence[ir.Value]) -> set[ir.Value]:
        """Operands of the region that values follow from element by element."""
        todo, found = list(values), set[ir.Value]()
        while todo:
            value = todo.pop()
            op = owner(value) if value in self._made else None
            if value in found or (op is not None and op in self.joins):
                continue
            found.add(value)
            todo += self._reads(op) if op is not None else []
        return {v for v in found if v not in self._made and isinstance(v.type, ir.RankedTensorType)}

    def first_reads(self) -> dict[ir.Value, tuple[Place, int]]:
        """Operands of the region that are read at each row and column, with their places and the first sweep that may read them;
        those that are read at two places are left out."""
        found: dict[ir.Value, tuple[Place, int] | None] = {}
        for op in self.ops:
            for value, m in zip(op.operands, maps_of(op), strict=True) if op in self.loops else ():
                at = [position(e) for e in m.results]
                place = tuple(None if p is None else self.loops[op][p] for p in at)
                if value in self._made or not isinstance(value.type, ir.RankedTensorType) or set(place) != self._axes:
                    continue
                before = found.get(value, (place, self.op_depth(op)))
                found[value] = (place, min(before[1], self.op_depth(op))) if before is not None and before[0] == place else None
        return {value: where for value, where in found.items() if where is not None}

    @cached_property
    def _axes(self) -> set[int | None]:
        return set(range(len(self.frame)))

    def late_reads(self) -> dict[ir.Value, Place]:
        """Operands of the region that elementwise work behind the first sweep reads along the columns, and nothing before it,
        with their places; an operand that is read at two places is left out."""
        found: dict[ir.Value, Place | None] = {}
        early = set[ir.Value]()
        for op in self.ops:
            if op not in self.loops:
                early |= set(op.operands)
                continue
            for value, m in zip(op.operands, maps_of(op), strict=True):
                at = [position(e) for e in m.results]
                place = tuple(None if p is None else self.loops[op][p] for p in at)
                if op in self._reductions or not self.op_depth(op):
                    early.add(value)
                elif value not in self._made and isinstance(value.type, ir.RankedTensorType) and None not in place:
                    found[value] = place if found.get(value, place) == place else None
        return {v: p for v, p in found.items() if p is not None and v not in early and set(p) & set(self.columns)}

    # -- what is stored between sweeps

    def roots(self, sweep: Sweep) -> list[ir.Value]:
        """Tensor values that a sweep computes at each column."""
        values = [v for op in [*sweep.reductions, *sweep.parts] for v in op.operands[: len(op.operands) - len(op.results)]]
        return [*values, *(self.results[n] for n in sweep.results)]

    def _keep(self) -> None:
        """Marks the costly values of full rank that a later sweep needs again."""
        computed: dict[ir.Value, Sweep] = {}
        kept: set[ir.Value] = set()
        for sweep in self.sweeps:
            todo, seen = self.roots(sweep), dict[ir.Value, None]()
            while todo:
                value = todo.pop()
                op = owner(value) if value in self._made else None
                if op is None or value in seen or op in self.joins or value in kept:
                    continue
                first = computed.get(value)
                if first is not None and self._full(value) and self._cost(value, kept) >= _STORE_FROM:
                    first.kept.append(value)
                    kept.add(value)
                    continue
                seen[value] = None
                todo += [v for v in self._reads(op) if isinstance(v.type, ir.RankedTensorType)]
            for value in seen:
                computed.setdefault(value, sweep)

    def _full(self, value: ir.Value) -> bool:
        return len(self.places.get(value, ())) >= len(self.frame) \
            and set(self.places.get(value, ())) >= set(range(len(self.frame)))

    def _cost(self, value: ir.Value, kept: set[ir.Value]) -> int:
        """Scalar operations to compute one element again."""
        op = owner(value)
        if op is None or op in self.joins or value in kept or not op.name.startswith("linalg.") or not self._full(value):
            return 0
        own = sum(_COST.get(o.name, 16 if o.name.startswith("math.") else 1) for o in operations(op.regions[0].blocks[0])[:-1])
        return own + sum(self._cost(v, kept) for v in op.operands if isinstance(v.type, ir.RankedTensorType))


def row_joins(op: ir.Operation) -> list[RowJoin]:
    """One per result. ValueError when a body is not one associative operation on its own accumulator."""
    block = op.regions[0].blocks[0]
    first = len(op.operands) - len(op.results)
    found = []
    for number, value in enumerate(operations(block)[-1].operands, first):
        accumulator, last = block.arguments[number], owner(value)
        if last is None or last.name not in ROW_COMBINERS or len(list(accumulator.uses)) != 1 \
                or accumulator not in list(last.operands) or len(list(last.results[0].uses)) != 1:
            name = last.name if last is not None else "a block argument"
            raise ValueError(f"{op.name} at {op.location}: result {number - first} is no associative reduction ({name})")
        found.append(RowJoin(last, number, 1 - list(last.operands).index(accumulator)))
    return found


def is_reduction(op: ir.Operation) -> bool:
    """A linalg op with a body and reduction loops."""
    return op.name.startswith("linalg.") and op.name != "linalg.fill" and len(op.regions) == 1 \
        and len(op.regions[0].blocks) == 1 and "reduction" in iterator_kinds(op)


def _match(dims: Sequence[Expr], axes: Sequence[int], frame: Sequence[Expr]) -> Place | None:
    """`axes` in order over `dims`, axes of extent 1 skipped where they must be."""
    left, place = list(axes), list[int | None]()
    for extent in dims:
        if left and frame[left[0]] == extent:
            place.append(left.pop(0))
        elif extent == Expr.of(1):
            place.append(None)
        else:
            return None
    return None if left else tuple(place)
