"""Windows over narrow images: vectors of results that run on from one row into the next, as they lie in memory.

Where a window goes on by one place along both axes and its padding keeps the length of rows, each tap of a run of results is a
run of the image, so many places before it or behind. Of lanes whose tap lies beside the image, in front of its first row or
behind its last, the padding takes the place. Nothing is copied, and all lanes but those of the last vector are results. Where the
rows of an operand lie apart in memory, vectors end with each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.passes.analysis.loop_axes import LoopAxes
from tilewright.passes.codegen.affine_index import evaluate
from tilewright.passes.codegen.emit import all_of, byte_width, constant, integer_type, loop, picked, vector_type, when
from tilewright.passes.codegen.evaluator import Coords
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index, select, splat_to
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.families.host.host_matmul_store import store_placed
from tilewright.passes.families.host.host_window_plan import WindowPlan
from tilewright.passes.families.host.host_window_rows import known
from tilewright.passes.families.row_reduction import Combiner, values_of
from tilewright.passes.linalg.structured import uses_index
from tilewright.passes.mlir import arith, ir, maps_of
from tilewright.passes.spaces.workload import Window

_WORD, _LINE = 32, 64  # bits of the column of a lane; bytes


@dataclass(frozen=True)
class PlaneVectors:
    """join: how the reduction joins values."""

    kernel: HostKernel
    plan: WindowPlan
    join: Combiner
    lanes: int

    def unit(self, loops: Loops, low: Index, high: Index) -> None:
        """The results of the rows [low, high), in one run or in one of each row."""
        dense = self._dense()
        rows = select(dense, high - low, Index(1), type_=self.kernel.index).max(1)
        columns = self._lane_columns(_word(self._width))

        def run(row: Index) -> None:
            self._run([row if d == self.plan.across else x for d, x in enumerate(loops)], rows * self._width, columns, dense)

        loop(low, high, rows, run, index=self.kernel.index)

    @property
    def _width(self) -> Index:
        return self.kernel.evaluator.emit(self.plan.extents[self.plan.along])

    @property
    def _windows(self) -> tuple[Window, Window]:
        assert self.plan.window_across is not None and self.plan.window_along is not None
        return self.plan.window_across, self.plan.window_along

    def _dense(self) -> ir.Value | bool:
        """Do rows follow upon one another in all operands that have them, and does nothing ask for the number of one?"""
        plan, found = self.plan, list[ir.Value | bool | None]()
        axes = LoopAxes(self.kernel.ops(), self.kernel.shapes)
        axes.seed_root(plan.root)
        axes.spread()
        inputs = [slot.value for slot in self.kernel.operands if not slot.result]
        memories = [*map(self.kernel.evaluator.memories.__getitem__, inputs), *self.kernel.outputs]
        for slot, memory in zip(self.kernel.operands, memories, strict=True):
            if any(plan.across in axis.loops for axis in axes.axes(slot.value)):
                found.append(memory.strides[-2].eq(self._width))
        if any(op.name.startswith("linalg.") and len(op.regions) and uses_index(op) for op in self.kernel.ops()):
            return False
        return all_of(found)

    def _lane_columns(self, width: ir.Value) -> ir.Value:
        """lane % width of every lane, by floats, which hold numbers of so few lanes exactly."""
        single, kind = ir.F32Type.get(), vector_type(integer_type(_WORD), self.lanes)
        lane = Index.ramp(0, self.lanes).value(integer_type(_WORD))
        middle = arith.addf(arith.sitofp(vector_type(single, self.lanes), lane), constant(single, 0.5, self.lanes))
        rows = arith.fptosi(kind, arith.divf(middle, splat_to(arith.sitofp(single, width), self.lanes)))
        return arith.subi(lane, arith.muli(rows, splat_to(width, self.lanes)))

    def _run(self, loops: Loops, count: Index, columns: ir.Value, dense: ir.Value | bool) -> None:
        """`count` results from the first of a row on. columns: of the lanes of the first vector."""
        lanes, width = self.lanes, splat_to(_word(self._width), self.lanes)
        further = splat_to(_word(Index(Index(lanes).value(integer_type(64))) % self._width), lanes)
        down, along = self._windows
        before, extent = self.plan.place_of(self.kernel.evaluator, down)
        left, _ = self.plan.place_of(self.kernel.evaluator, along)
        reach = [(len(self.plan.unrolled(w.tap)) - 1) * w.dilation for w in (down, along)]
        first = (known(loops[down.row]) - before) * self._width

        def some(at: Index, here: ir.Value) -> list[ir.Value]:
            last = first + at + (reach[1] - left) + (lanes - 1) + self._width * reach[0]
            whole = all_of([dense, (first + at - left).ge(0), last.lt(extent * self._width), (at + lanes).le(count)])
            when(whole, lambda: self._vector(loops, at, here, None), lambda: self._vector(loops, at, here, count))
            there = arith.addi(here, further)
            beyond = arith.cmpi(arith.CmpIPredicate.sge, there, width)
            return [arith.select(beyond, arith.subi(there, width), there)]

        loop(0, count, lanes, some, [columns], self.kernel.index)

    def _vector(self, loops: Loops, at: Index, columns: ir.Value, count: Index | None) -> None:
        """The results from place `at` of a run on. count: of results of the run; None where all lanes are results and all places
        that they read, beside the image or not, lie between its first and its last."""
        ev, plan, lanes = self.kernel.evaluator, self.plan, self.lanes
        mask = None if count is None else self._lanes_below(count - at)
        point = [Index.ramp(at, lanes) if d == plan.along else x for d, x in enumerate(loops)]
        written = [evaluate(e, point) for e in maps_of(plan.root)[-1].results]
        down, along = self._windows
        image, taps = plan.root.operands[plan.reduction.image], range(len(plan.unrolled(along.tap)))
        with ev.kept():
            total = splat_to(self.join.widen(ev.element(plan.root.operands[self.join.number], written, mask)), lanes)
            beside = [all_of([self._beside(columns, along, b), mask]) for b in taps]
            for a in range(len(plan.unrolled(down.tap))):
                between = None if count is None else self._between(point, at, a)
                inside = [all_of([some, between], lanes) for some in beside]
                points = [[Index({down.tap: a, along.tap: b}[d]) if d in (down.tap, along.tap) else x
                           for d, x in enumerate(point)] for b in taps]
                for here, lies, value in zip(points, inside, self._row(points, inside, count is None), strict=True):
                    ev.known[image] = partial(_given, self._filled(value, lies))
                    full = [x for x in here if x is not None]
                    total = self.join(values_of(ev, plan.root, [self.join], full, lanes, mask)[0], total)
                    del ev.known[image]
            store_placed(self.kernel, plan.root, plan.reduction.places, (written, self.join.narrow(total), mask))

    def _row(self, points: Sequence[Loops], inside: Sequence[ir.Value | bool], whole: bool) -> list[ir.Value]:
        """The taps of a row of the window. Whole vectors of a line each, which would lie in two lines nearly always, come out of
        the first and the last of them."""
        along = self._windows[1]
        reach, element = (len(points) - 1) * along.dilation, ir.RankedTensorType(self.plan.reduction.source.type).element_type
        if not whole or self.lanes * byte_width(element) < _LINE or not 1 < reach <= self.lanes:
            return [self._image(p, None if whole else m) for p, m in zip(points, inside, strict=True)]
        ends, found = [self._image(points[n], None) for n in (0, -1)], list[ir.Value]()
        for b in range(len(points)):
            places = [b * along.dilation + i for i in range(self.lanes)]
            found.append(picked(ends, [(0, x) if x < self.lanes else (1, x - reach) for x in places]))
        return [ends[0], *found[1:-1], ends[1]]

    def _image(self, point: Loops, read: ir.Value | bool | None) -> ir.Value:
        """A tap of the image. read: the lanes to read."""
        ev, plan = self.kernel.evaluator, self.plan
        at = plan.image_place(ev, [Index(0) if x is None else x for x in point])
        return splat_to(ev.element(plan.reduction.source, at, None if isinstance(read, bool) else read), self.lanes)

    def _filled(self, found: ir.Value, inside: ir.Value | bool) -> ir.Value:
        """A tap with the padding in place of lanes that lie outside of the image."""
        pad = self.plan.reduction.pad
        if isinstance(inside, bool) or pad is None:
            return found
        filled = splat_to(self.kernel.evaluator.clone(pad.regions[0].blocks[0], {}, [])[0], self.lanes)
        return arith.select(splat_to(inside, self.lanes), found, filled)

    def _beside(self, columns: ir.Value, along: Window, tap: int) -> ir.Value | bool:
        """The lanes whose tap lies within their row of the image."""
        left, width = self.plan.place_of(self.kernel.evaluator, along)
        if left.const is None:
            raise ValueError(f"{self.plan.root.name} at {self.plan.root.location}: wanted known padding along rows")
        shift, predicate = left.const - tap * along.dilation, arith.CmpIPredicate  # places that the tap lies before the result
        if shift > 0:
            return arith.cmpi(predicate.sge, columns, constant(integer_type(_WORD), shift, self.lanes))
        return True if shift == 0 else arith.cmpi(predicate.slt, columns, splat_to(_word(width + shift), self.lanes))

    def _between(self, point: Loops, at: Index, tap: int) -> ir.Value:
        """The lanes whose tap lies between the first place of the image and its last, in its row or beside it."""
        down, _ = self._windows
        before, extent = self.plan.place_of(self.kernel.evaluator, down)
        first = (known(point[down.row]) + tap * down.dilation - before) * self._width + at
        low = arith.xori(self._lanes_below(Index(0) - first), constant(integer_type(1), 1, self.lanes))
        return arith.andi(low, self._lanes_below(extent * self._width - first))

    def _lanes_below(self, count: Index) -> ir.Value:
        """The first `count` lanes, none of less than one, all of more."""
        lane = Index.ramp(0, self.lanes).value(integer_type(_WORD))
        return arith.cmpi(arith.CmpIPredicate.slt, lane, splat_to(_word(count.max(0).min(self.lanes)), self.lanes))


def _given(value: ir.Value, _: Coords) -> ir.Value:
    return value


def _word(x: Index) -> ir.Value:
    return arith.trunci(integer_type(_WORD), x.value(integer_type(64)))
