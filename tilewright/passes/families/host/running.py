"""Running reductions: one walk along the axis, with the state in registers.

Along another axis than that of the vectors each lane is a place of its own. Along the axis of the vectors the lanes are rows:
square tiles are read, transposed in registers, walked and transposed back; few rows are walked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.gates import Running, gated
from tilewright.passes.analysis.placement import axis_name, place
from tilewright.passes.codegen.affine_index import evaluate, invert
from tilewright.passes.codegen.emit import constant, integer_type, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.units import Unit
from tilewright.passes.families.host.host_matmul_panel import transpose
from tilewright.passes.linalg.clone import captured
from tilewright.passes.linalg.structured import inits, inputs
from tilewright.passes.mlir import ir, maps_of, owner, position

_FEW = 4  # rows that are walked one by one, below which most lanes of a tile are empty
# Elements that walk side by side, in vectors: a step of one alone waits for the one before it, and for each line by itself.
_ABREAST = 64


@dataclass(frozen=True)
class RunningWalk:
    """axis: that runs; unit: that of the vectors; row: whose places are the lanes where both are one, None where no axis is left.
    """

    running: Running
    members: tuple[int, ...]
    axis: int
    unit: int
    row: int | None

    @staticmethod
    def of(frame: KernelFrame, members: Sequence[int], unit: int) -> RunningWalk | None:
        """None where the results are not those of one running reduction, at its own places."""
        ops = frame.ops()
        for root in ops:
            found = gated(root)
            results = [frame.results[n] for n in members]
            if not isinstance(found, Running) or frame.shapes.dims(root.results[0]) != frame.shapes.dims(results[0]):
                continue
            m = maps_of(root)[-1]
            names, later = tuple(axis_name(a) for a in range(len(m.results))), ops[ops.index(root) + 1 :]
            for value in root.results:
                reached = [v for v in results if value in _sources(v)]
                try:
                    if any(tuple(map(str, at)) != names for at in place(frame.shapes, value, later, reached)):
                        return None
                except ValueError:  # a result is joined from several elements, or repeats one
                    return None
            axis = [position(e) for e in m.results].index(found.along)
            row = max((a for a in range(len(names)) if a != axis), default=None) if axis == unit else None
            return RunningWalk(found, tuple(members), axis, unit, row)
        return None

    def cuts(self, lanes: int, chunk: int) -> dict[int, int | None]:
        """The axes that units are cut along, with the size of a piece; None: of one place."""
        others: dict[int, int | None] = dict.fromkeys(a for a in range(self._rank) if a not in (self.axis, self.unit, self.row))
        if self.axis != self.unit:
            return {**others, self.unit: chunk}
        return others if self.row is None else {**others, self.row: lanes}

    @property
    def _rank(self) -> int:
        return len(maps_of(self.running.op)[-1].results)


def _sources(value: ir.Value) -> set[ir.Value]:
    """All that a value is computed from, itself too."""
    found, todo = set[ir.Value](), [value]
    while todo:
        v = todo.pop()
        if v not in found:
            found.add(v)
            made = owner(v)
            todo += [] if made is None else captured(made)
    return found


@dataclass(frozen=True)
class RunningEmitter:
    """Emits the walks of work units."""

    kernel: HostKernel
    walk: RunningWalk
    lanes: int

    def emit(self, unit: Unit) -> None:
        """All places of a work unit."""
        w, index = self.walk, self.kernel.index
        where = [unit.first(f"d{a}") for a in range(w._rank)]
        if w.axis != w.unit:
            lo, hi = unit.span(f"d{w.unit}")
            whole, abreast = hi - (hi - lo) % self.lanes, max(1, _ABREAST // self.lanes // len(w.running.op.results))

            def several(c: Index, count: int) -> None:
                firsts = [Index.ramp(c.displace(n * self.lanes), self.lanes) for n in range(count)]
                self._abreast([self._with(where, w.unit, first) for first in firsts])

            most = whole - (whole - lo) % (self.lanes * abreast)
            loop(lo, most, self.lanes * abreast, lambda c: several(c, abreast), index=index)
            if abreast > 1:
                loop(most, whole, self.lanes, lambda c: several(c, 1), index=index)
            left, tail = hi - whole, self._with(where, w.unit, Index.ramp(whole, self.lanes))
            when(Index(0).lt(left), lambda: self._steps(tail, lane_mask(left, self.lanes, index)))
        elif w.row is None:
            self._steps(where)
        else:
            first, last = unit.span(f"d{w.row}")
            row = w.row

            def each() -> None:
                loop(first, last, 1, lambda r: self._steps(self._with(where, row, r)), index=index)

            if self.lanes == 1:
                each()
            else:
                when((last - first).ge(_FEW), lambda: self._rows(self._with(where, row, first), last - first), each)

    def _with(self, at: Sequence[Index], axis: int, coordinate: Index) -> list[Index]:
        return [coordinate if a == axis else x for a, x in enumerate(at)]

    @property
    def _extent(self) -> Index:
        return self.kernel.evaluator.extent(self.walk.running.op.results[0], self.walk.axis)

    def _at_step(self, step: Index) -> Index:
        """The place of a step, in the order in which they are walked."""
        return self._extent - 1 - step if self.walk.running.backward else step

    def _start(self, at: Sequence[Index], mask: ir.Value | None, lanes: int) -> list[ir.Value]:
        op = self.walk.running.op
        with self.kernel.evaluator.kept():
            return [splat_to(self.kernel.evaluator.element(v, at, mask), lanes) for v in inits(op)]

    def _next(self, at: Sequence[Index], state: Sequence[ir.Value], mask: ir.Value | None,
              read: dict[int, ir.Value] | None = None) -> list[ir.Value]:
        """The state after the step at a place. read: operands whose values are in registers."""
        running, ev = self.walk.running, self.kernel.evaluator
        op = running.op
        loops = invert(maps_of(op)[-1], at)
        loops[running.over] = loops[running.along]
        lanes = max(x.lanes for x in at)
        given = {**(read or {}), **{len(inputs(op)) + n: v for n, v in enumerate(state)}}
        true = {running.gate: constant(integer_type(1), 1)}
        with ev.kept():
            return [splat_to(v, lanes) for v in ev.region(op, [x or Index(0) for x in loops], given, mask, true)]

    def _store(self, at: Sequence[Index], values: Sequence[ir.Value], mask: ir.Value | None) -> None:
        """What follows from the results of the reduction at a place."""
        ev, kernel = self.kernel.evaluator, self.kernel
        roots = list(self.walk.running.op.results)
        for root, value in zip(roots, values, strict=True):
            ev.known[root] = lambda _, value=value: value  # type: ignore[misc]
        with ev.kept():
            for n in self.walk.members:
                kernel.outputs[n].store(ev.element(kernel.results[n], at, mask), at, mask)
        for root in roots:
            del ev.known[root]

    def _steps(self, where: Sequence[Index], mask: ir.Value | None = None, begin: Index | None = None,
               state: Sequence[ir.Value] | None = None) -> None:
        """A walk from step `begin` on, at scalar places or with a place in each lane."""
        lanes = max(x.lanes for x in where)

        def step(i: Index, *state: ir.Value) -> list[ir.Value]:
            at = self._with(where, self.walk.axis, self._at_step(i))
            following = self._next(at, state, mask)
            self._store(at, state if self.walk.running.exclusive else following, mask)
            return following

        start = self._start(where, mask, lanes) if state is None else state
        loop(begin or 0, self._extent, 1, step, start, self.kernel.index)

    def _abreast(self, places: Sequence[Sequence[Index]]) -> None:
        """Walks with a place in each lane, of several vectors at once."""

        def step(i: Index, *state: ir.Value) -> list[ir.Value]:
            states, at_step = list(state), self._at_step(i)
            size, found = len(states) // len(places), list[ir.Value]()
            for n, place_ in enumerate(places):
                at, own = self._with(place_, self.walk.axis, at_step), states[n * size : (n + 1) * size]
                following = self._next(at, own, None)
                self._store(at, own if self.walk.running.exclusive else following, None)
                found += following
            return found

        start = [v for at in places for v in self._start(at, None, self.lanes)]
        loop(0, self._extent, 1, step, start, self.kernel.index)

    # -- rows in lanes, along the axis of the vectors

    def _rows(self, where: Sequence[Index], count: Index) -> None:
        """`count` rows: tiles of as many columns as lanes, then the last columns one by one."""
        row, lanes, extent = self.walk.row, self.lanes, self._extent
        assert row is not None
        down = self._with(where, row, Index.ramp(where[row], lanes))
        mask = lane_mask(count, lanes, self.kernel.index)
        whole = extent - extent % lanes
        start = self._start(down, mask, lanes)
        state = loop(0, whole, lanes, lambda i, *state: self._tile(where, count, i, state), start, self.kernel.index)
        self._steps(down, mask, whole, state)

    def _tile(self, where: Sequence[Index], count: Index, step: Index, state: Sequence[ir.Value]) -> list[ir.Value]:
        running, lanes, row = self.walk.running, self.lanes, self.walk.row
        assert row is not None
        backward = running.backward
        first = self._at_step(step + (lanes - 1)) if backward else step
        rows = [self._with(self._with(where, row, where[row] + i.min(count - 1)), self.walk.axis, Index.ramp(first, lanes))
                for i in map(Index, range(lanes))]
        read = self._read(rows)
        made: list[list[ir.Value]] = [[] for _ in range(lanes)]
        down = self._with(where, row, Index.ramp(where[row], lanes))
        for k in reversed(range(lanes)) if backward else range(lanes):
            at = self._with(down, self.walk.axis, first + k)
            following = self._next(at, state, None, {number: columns[k] for number, columns in read.items()})
            made[k] = list(state if running.exclusive else following)
            state = following
        out = [transpose([values[n] for values in made]) for n in range(len(state))]
        for i in range(lanes):
            when(Index(i).lt(count), self._storing(rows[i], [values[i] for values in out]))
        return list(state)

    def _storing(self, at: Sequence[Index], values: Sequence[ir.Value]) -> Callable[[], None]:
        return lambda: self._store(at, values, None)

    def _read(self, rows: Sequence[Sequence[Index]]) -> dict[int, list[ir.Value]]:
        """What the steps of a tile read, a vector of rows for each column, by number of the operand."""
        running, ev = self.walk.running, self.kernel.evaluator
        op = running.op
        found = {}
        for number, (value, m) in enumerate(zip(inputs(op), maps_of(op), strict=False)):
            if not isinstance(value.type, ir.RankedTensorType):
                continue
            vectors = []
            for at in rows:
                loops = invert(maps_of(op)[-1], at)
                loops[running.over] = loops[running.along]
                with ev.kept():
                    vectors.append(splat_to(ev.element(value, [evaluate(e, loops) for e in m.results]), self.lanes))
            found[number] = transpose(vectors)
        return found

