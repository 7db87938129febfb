"""Borders: where along the axes of a result the elements begin to come from somewhere else.

A concatenation, a pad or an inserted slice chooses a source by a coordinate. Along an axis that its coordinate follows one to one
the choice changes at few places, known before the loop along that axis: the loop is split there, and no element chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.passes.linalg.clone import captured
from tilewright.passes.linalg.structured import iterator_kinds
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer, kept_axes, mixed
from tilewright.passes.mlir import ir, maps_of, owner, position
from tilewright.runtime.shape import Expr

MOST_PARTS = 32  # of all borders of a result together: each is a loop of its own in the code
MOST_JOINED = 512  # arguments that are put together and nothing else, whose loops are small


@dataclass(frozen=True)
class Border:
    """Along `axis` of the result, `op` takes its part k, by its own axis `own`, of the places in front of ends[k] that no earlier
    part takes; the last part the rest. A pad and an inserted slice have three parts: below, inside and above."""

    op: ir.Operation
    own: int
    axis: int
    ends: tuple[Expr, ...]

    @property
    def parts(self) -> int:
        return len(self.ends) + 1

    def settles(self, part: int) -> bool:
        """Is nothing left to choose in this part, whatever the other axes say?"""
        return self.op.name == "tensor.pad" and part != 1


_Place = tuple[int, Expr] | None  # the axis of the result that an axis follows, and where its first place lies in it


@dataclass
class _Finder:
    shapes: SymbolicShapes
    found: dict[tuple[ir.Operation, int], Border | None] = field(default_factory=dict)
    barred: set[ir.Operation] = field(default_factory=set)  # read at computed places, too
    walked: set[tuple[ir.Value, tuple[_Place, ...]]] = field(default_factory=set)

    def walk(self, value: ir.Value, places: Sequence[_Place]) -> None:
        """places: of each axis of the value, None where its coordinate is not one of the result's and a number."""
        op, at = owner(value), (value, tuple(places))
        if op is None or at in self.walked:
            return
        self.walked.add(at)
        if op.name == "tensor.concat":
            self._concat(op, places)
        elif op.name == "tensor.pad":
            self._pad(op, places)
        elif op.name == "tensor.insert_slice":
            self._insert(op, places)
        elif op.name == "tensor.cast":
            self.walk(op.operands[0], places)
        elif op.name == "tensor.extract_slice":
            self._slice(op, places)
        elif op.name.startswith("linalg.") and op.name != "linalg.fill" and "reduction" not in iterator_kinds(op):
            self._loops(op, value, places)
        else:
            self._bar(captured(op))

    def _bar(self, values: Sequence[ir.Value]) -> None:
        """What these are computed from is read elsewhere than at the place of the result."""
        todo = list(values)
        while todo:
            op = owner(todo.pop())
            if op is not None and op not in self.barred:
                self.barred.add(op)
                todo += captured(op)

    def _loops(self, op: ir.Operation, value: ir.Value, places: Sequence[_Place]) -> None:
        maps = maps_of(op)
        inputs = len(op.operands) - len(op.results)
        read = list(op.operands)[:inputs]
        self._bar([v for v in captured(op) if v not in read])
        loops: list[_Place] = [None] * maps[0].n_dims
        for e, place in zip(maps[inputs + list(op.results).index(value)].results, places, strict=True):
            at = position(e)
            if at is not None:
                loops[at] = place
        for operand, m in zip(read, maps, strict=False):
            if isinstance(operand.type, ir.RankedTensorType):
                at_of = [position(e) for e in m.results]
                self.walk(operand, [None if at is None else loops[at] for at in at_of])

    def _slice(self, op: ir.Operation, places: Sequence[_Place]) -> None:
        found: list[_Place] = [None] * ir.RankedTensorType(op.operands[0].type).rank
        steps = mixed(op, "static_strides", 3)
        offsets = mixed(op, "static_offsets", 1)
        for place, axis in zip(places, kept_axes(op), strict=True):
            offset = self._number(offsets[axis])
            if place is not None and steps[axis] == 1 and offset is not None:
                found[axis] = (place[0], place[1] - offset)
        self.walk(op.operands[0], found)

    def _concat(self, op: ir.Operation, places: Sequence[_Place]) -> None:
        own, start, ends = integer(op.attributes["dim"]), Expr.of(0), list[Expr]()
        place = places[own]
        for source in op.operands:
            at = list(places)
            at[own] = None if place is None else (place[0], place[1] + start)
            self.walk(source, at)
            start = start + self.shapes.dims(source)[own]
            ends.append(start)
        self._add(op, own, place, ends[:-1])

    def _pad(self, op: ir.Operation, places: Sequence[_Place]) -> None:
        low, high = (mixed(op, *which) for which in (("static_low", 1), ("static_high", 2)))
        self._inside(op, 0, places, low, [a for a, ends in enumerate(zip(low, high, strict=True)) if ends != (0, 0)])

    def _insert(self, op: ir.Operation, places: Sequence[_Place]) -> None:
        self.walk(op.operands[1], places)
        source, steps = op.operands[0], mixed(op, "static_strides", 4)
        if ir.RankedTensorType(source.type).rank == len(steps) and all(s == 1 for s in steps):
            self._inside(op, 0, places, mixed(op, "static_offsets", 2), range(len(steps)))

    def _inside(self, op: ir.Operation, number: int, places: Sequence[_Place], low: Sequence[int | ir.Value],
                cut: Sequence[int]) -> None:
        source, within = op.operands[number], list[_Place]()
        for own, (place, offset) in enumerate(zip(places, map(self._number, low), strict=True)):
            first = None if place is None or offset is None else (place[0], place[1] + offset)
            within.append(first)
            if own in cut and place is not None and offset is not None:
                self._add(op, own, place, [offset, offset + self.shapes.dims(source)[own]])
        self.walk(source, within)

    def _add(self, op: ir.Operation, own: int, place: _Place, ends: Sequence[Expr]) -> None:
        """An op that is reached at different places chooses at each element."""
        border = None if place is None else Border(op, own, place[0], tuple(place[1] + e for e in ends))
        key = (op, own)
        self.found[key] = border if self.found.get(key, border) == border else None

    def _number(self, value: int | ir.Value) -> Expr | None:
        return Expr.of(value) if isinstance(value, int) else self.shapes.expr(value)


def borders(shapes: SymbolicShapes, results: Sequence[ir.Value]) -> tuple[Border, ...]:
    """Of results of equal extents that are computed in one loop nest, outermost first; not more than give MOST_PARTS loops,
    or MOST_JOINED of a lone concatenation."""
    finder = _Finder(shapes)
    for value in results:
        finder.walk(value, [(a, Expr.of(0)) for a in range(len(shapes.dims(value)))])
    kept, parts = list[Border](), 1
    for border in finder.found.values():
        if border is None or border.op in finder.barred:
            continue
        if parts * border.parts <= (MOST_JOINED if _joins_arguments(border.op, results) else MOST_PARTS):
            kept.append(border)
            parts *= border.parts
    return tuple(sorted(kept, key=lambda b: b.axis))


def _joins_arguments(op: ir.Operation, results: Sequence[ir.Value]) -> bool:
    return op.name == "tensor.concat" and list(results) == [op.results[0]] and all(owner(v) is None for v in op.operands)
