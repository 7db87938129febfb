"""Updates of places that tensors name: the initial elements are written first, then each step updates its place in memory.

A unit holds all places that a step may name, at one place of the other axes or, along the axis of the vectors, at a piece of it:
steps follow each other in their order, and no two units write one element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.gates import Updates, gated
from tilewright.passes.codegen.affine_index import invert
from tilewright.passes.codegen.emit import all_of, constant, integer_type, lane_mask, lanes_of, loop, when
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.units import Unit
from tilewright.passes.linalg.structured import inits, inputs
from tilewright.passes.mlir import ir, maps_of, owner, position


@dataclass(frozen=True)
class UpdateWalk:
    """named: the axes of the result along which steps name places. unit: that of the vectors."""

    updates: Updates
    number: int
    named: frozenset[int]
    unit: int

    @staticmethod
    def of(frame: KernelFrame, number: int, unit: int) -> UpdateWalk | None:
        """None where a result is not what updates leave."""
        op = owner(frame.results[number])
        found = gated(op)
        if op is None or not isinstance(found, Updates) or len(op.results) != 1:
            return None
        axes = [position(e) for e in maps_of(op)[-1].results]
        return UpdateWalk(found, number, frozenset(axes.index(d) for d in found.places), unit)

    def cuts(self, chunk: int) -> dict[int, int | None]:
        """The axes that units are cut along, with the size of a piece; None: of one place."""
        free = [a for a in range(len(maps_of(self.updates.op)[-1].results)) if a not in self.named]
        return {a: chunk if a == self.unit else None for a in free}


@dataclass(frozen=True)
class UpdateEmitter:
    """Emits the updates of work units."""

    kernel: HostKernel
    walk: UpdateWalk
    lanes: int

    def emit(self, unit: Unit) -> None:
        """All elements of a work unit."""
        w, ev, index = self.walk, self.kernel.evaluator, self.kernel.index
        memory = self.kernel.outputs[w.number]
        where = [unit.first(f"d{a}") for a in range(len(memory.sizes))]
        piece = unit.span(f"d{w.unit}")
        (start,) = inits(w.updates.op)

        def copy(at: list[Index], axes: Sequence[int]) -> None:
            if axes:
                loop(0, memory.sizes[axes[0]], 1, lambda i: copy(_with(at, axes[0], i), axes[1:]), index=index)
                return
            self._along((Index(0), memory.sizes[w.unit]) if w.unit in w.named else piece, at, element)

        def element(at: list[Index], mask: ir.Value | None) -> None:
            with ev.kept():
                memory.store(ev.element(start, at, mask), at, mask)

        copy(where, sorted(w.named - {w.unit}))
        steps = ev.loop_extent(w.updates.op, w.updates.over)
        if w.unit in w.named:
            loop(0, steps, 1, lambda r: self._update(where, r, None), index=index)
        else:
            loop(0, steps, 1, lambda r: self._along(piece, where, lambda at, mask: self._update(at, r, mask)), index=index)

    def _along(self, span: tuple[Index, Index], where: list[Index], each: Callable[[list[Index], ir.Value | None], None]) -> None:
        """Vectors along the axis of the vectors, the last one with a mask."""
        (lo, hi), lanes, index, unit = span, self.lanes, self.kernel.index, self.walk.unit
        whole = hi - (hi - lo) % lanes
        loop(lo, whole, lanes, lambda c: each(_with(where, unit, Index.ramp(c, lanes)), None), index=index)
        left = hi - whole
        when(Index(0).lt(left), lambda: each(_with(where, unit, Index.ramp(whole, lanes)), lane_mask(left, lanes, index)))

    def _update(self, where: Sequence[Index], step: Index, mask: ir.Value | None) -> None:
        """The place that a step names, or each lane's."""
        updates, ev = self.walk.updates, self.kernel.evaluator
        op, memory = updates.op, self.kernel.outputs[self.walk.number]
        axes, old = [position(e) for e in maps_of(op)[-1].results], len(inputs(op))
        loops = [x or Index(0) for x in invert(maps_of(op)[-1], where)]
        for d in (updates.over, *updates.places):
            loops[d] = step if d == updates.over else Index(0)
        with ev.kept():
            nothing = {old: constant(memory.element, 0)}
            places = [ev.runtime_index(v) for v in ev.region(op, loops, nothing, mask, wanted=list(updates.places.values()))]
        at = list(where)
        for d, at_place in zip(updates.places, places, strict=True):
            loops[d] = at[axes.index(d)] = at_place
        inside = [c for a in sorted(self.walk.named) for c in (at[a].ge(0), at[a].lt(memory.sizes[a]))]
        lanes = max(x.lanes for x in at)

        def write(mask: ir.Value | None) -> None:
            with ev.kept():
                true = constant(integer_type(1), 1)
                given = {old: memory.load(at, mask)}
                memory.store(ev.region(op, loops, given, mask, dict.fromkeys(updates.gates, true))[0], at, mask)

        scalar = all_of([c for c in inside if isinstance(c, bool) or lanes_of(c) == 1])
        lane = all_of([c for c in inside if not isinstance(c, bool) and lanes_of(c) > 1])
        narrowed = mask if isinstance(lane, bool) else all_of([lane, mask], lanes)
        assert not isinstance(narrowed, bool)
        when(scalar, lambda: write(narrowed))


def _with(at: Sequence[Index], axis: int, coordinate: Index) -> list[Index]:
    return [coordinate if a == axis else x for a, x in enumerate(at)]
