"""Walks of a running reduction whose states are read where they are: sums over some of their axes, and what follows element by
element. Such a walk keeps its states in registers or beside them, and writes what was read off alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.gates import Running, gated
from tilewright.passes.analysis.op_kinds import is_row_reduction
from tilewright.passes.linalg.structured import iterator_kinds, loop_extents
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, maps_of, position, walk

MOST_COLUMNS = 64  # states of a place: a GPU thread holds them in registers, and its code has each of them once

Place = tuple[int, ...]  # the axis of the states that each axis of a value, or loop of an operation, runs along


@dataclass(frozen=True)
class StateWalk:
    """Axes are those of the results of the running reduction.

    axis: that runs; columns: those that the sums of each step take in. stages: these sums, each behind those that it needs.
    places: of all values that follow from the states; loops: of the sums.
    """

    running: Running
    axis: int
    columns: tuple[int, ...]
    stages: tuple[tuple[ir.Operation, ...], ...]
    places: Mapping[ir.Value, Place]
    loops: Mapping[ir.Operation, Place]

    @property
    def rank(self) -> int:
        return len(maps_of(self.running.op)[-1].results)

    @property
    def rows(self) -> list[int]:
        """The axes with a walk at each place."""
        return [a for a in range(self.rank) if a != self.axis and a not in self.columns]

    @staticmethod
    def of(ops: Sequence[ir.Operation], shapes: SymbolicShapes) -> StateWalk | None:
        """None where operations do not hold one running reduction and what one walk can do with its states."""
        roots = [op for op in ops if isinstance(gated(op), Running)]
        running = gated(roots[0]) if len(roots) == 1 else None
        if not isinstance(running, Running):
            return None
        root = running.op
        found = _Follower(shapes, root)
        if not all(found.follow(op) for op in ops[ops.index(root) + 1 :]):
            return None
        axis = [position(e) for e in maps_of(root)[-1].results].index(running.along)
        extents = shapes.dims(root.results[0])
        count = 1
        for a in found.columns:
            count *= extents[a].constant or MOST_COLUMNS + 1
        if axis in found.columns or count > MOST_COLUMNS:
            return None
        stages = tuple(tuple(op for op in found.loops if found.stage[op.results[0]] == n + 1)
                       for n in range(max((found.stage[op.results[0]] for op in found.loops), default=0)))
        return StateWalk(running, axis, tuple(sorted(found.columns)), stages, found.places, found.loops)


class _Follower:
    """Follows values from the states on."""

    def __init__(self, shapes: SymbolicShapes, root: ir.Operation) -> None:
        self.shapes = shapes
        self.extents = shapes.dims(root.results[0])
        self.places: dict[ir.Value, Place] = {r: tuple(range(len(self.extents))) for r in root.results}
        self.stage: dict[ir.Value, int] = dict.fromkeys(root.results, 0)
        self.loops: dict[ir.Operation, Place] = {}
        self.columns: set[int] = set()

    def follow(self, op: ir.Operation) -> bool:
        """False where an operation reads what follows from the states in a way that a walk cannot serve."""
        reads = [v for v in op.operands if v in self.places]
        if any(v in self.places for inner in walk(op) if inner != op for v in inner.operands):
            return False  # at computed places
        if not reads or op.name == "tensor.dim":
            return True
        stage = max(self.stage[v] for v in reads)
        if op.name == "tensor.cast":
            self.places[op.results[0]], self.stage[op.results[0]] = self.places[op.operands[0]], stage
            return True
        loops = self._loops(op) if op.name == "linalg.generic" else None
        if loops is None:
            return False
        reduced = {loops[d] for d, kind in enumerate(iterator_kinds(op)) if kind == "reduction"}
        if reduced:
            if not is_row_reduction(op) or (self.columns and reduced != self.columns):
                return False
            self.columns, self.loops[op], stage = reduced, loops, stage + 1
        for result, m in zip(op.results, maps_of(op)[-len(op.results):], strict=True):
            at = [position(e) for e in m.results]
            self.places[result] = tuple(loops[d] for d in at if d is not None)
            if None in at or len(at) + len(reduced) != len(loops):
                return False
            self.stage[result] = stage
        return True

    def _loops(self, op: ir.Operation) -> Place | None:
        """The axis that each loop runs along."""
        found: dict[int, int] = {}
        for value, m in zip(op.operands, maps_of(op), strict=True):
            if value in self.places:
                for e, axis in zip(m.results, self.places[value], strict=True):
                    at = position(e)
                    if at is None or found.setdefault(at, axis) != axis:
                        return None
        extents = loop_extents(op, self.shapes)
        for loop in range(len(extents)):
            if loop not in found:  # read from other tensors alone
                free = [a for a, e in enumerate(self.extents) if a not in found.values() and e == extents[loop]]
                if len(free) != 1:
                    return None
                found[loop] = free[0]
        if len(set(found.values())) != len(found):
            return None
        return tuple(found[d] for d in range(len(extents)))
