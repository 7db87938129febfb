"""Fourier transforms on the host: some rows side by side, one a lane, in the workspace of the thread.

Where one side is real and N even, a row is a transform of M = N / 2 elements z[n] = x[2n] + i x[2n + 1]: with Z that of z and
w = e^(s 2 pi i k / N),

    E = (Z[k] + conj Z[M - k]) / 2    O = (Z[k] - conj Z[M - k]) / 2i    X[k] = E + w O    X[M - k] = conj (E - w O)

and the other way round. Where the elements of one row lie side by side, squares of them are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from tilewright.passes.analysis.fourier import Fourier, fourier_of
from tilewright.passes.analysis.placement import axis_name, place
from tilewright.passes.codegen.emit import byte_width, constant, integer_type, lane_mask, loop, vector_type, when
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.units import Unit
from tilewright.passes.families.host.fourier_butterflies import Value
from tilewright.passes.families.host.fourier_planes import Planes, room
from tilewright.passes.families.host.host_matmul_panel import transpose
from tilewright.passes.linalg.structured import inputs
from tilewright.passes.mlir import arith, ir, maps_of, position
from tilewright.passes.spaces.host.fourier_steps import radices
from tilewright.runtime.shape import Expr

Where = dict[int, Index]  # loop -> place
_NARROWER = 4  # times fewer lanes, where there are no more rows


@dataclass(frozen=True)
class FourierWalk:
    """lane: the loop whose places are the lanes. loops: that of each axis of the result, which follows from the transform element
    by element. real: the side, "in" or "out", that is real, so that half as many elements are transformed; or "".
    """

    fourier: Fourier
    number: int
    lane: int
    loops: tuple[int, ...]
    real: str

    @staticmethod
    def of(frame: KernelFrame, number: int) -> FourierWalk | None:
        """None where a result is no transform, or there are no steps for its size, or no rows, or its ends are not known."""
        ops = frame.ops()
        transforms = [f for op in ops if (f := fourier_of(op)) is not None and radices(f.size) is not None]
        if len(transforms) != 1:
            return None
        f = transforms[0]
        loops = _loops(frame, f, ops[ops.index(f.op) + 1 :], frame.results[number])
        rows = [d for d in f.read if d != f.over]
        if loops is None or not rows or any(e is None or e > f.size for e in _ends(frame, f)):
            return None
        lane = _nearest(f.read, frame.unit_axis(inputs(f.op)[0]))
        return FourierWalk(f, number, max(rows) if lane == f.over else lane, loops, _real(frame, f))

    def cuts(self, lanes: int) -> dict[int, int | None]:
        """A unit is as many rows as there are lanes."""
        kept = (self.fourier.part, self.fourier.along)
        return {a: lanes if d == self.lane else None for a, d in enumerate(self.loops) if d not in kept}

    @property
    def size(self) -> int:
        """Elements of a transform."""
        return self.fourier.size // 2 if self.real else self.fourier.size

    @property
    def element(self) -> ir.Type:
        return ir.RankedTensorType(self.fourier.op.results[0].type).element_type

    def workspace(self, lanes: int) -> Expr:
        """Bytes of a thread."""
        return Expr.of(2 * room(self.size) * lanes * byte_width(self.element))


def _nearest(loops: Sequence[int], unit: int | None) -> int:
    """Of the loops of each axis, the one whose steps lie side by side in memory. unit: the axis of unit stride, if known."""
    return loops[len(loops) - 1 if unit is None else unit]


def _loops(frame: KernelFrame, f: Fourier, behind: Sequence[ir.Operation], result: ir.Value) -> tuple[int, ...] | None:
    """The loop of each axis of a result; None where it is not computed from one element of the transform each."""
    try:
        at = place(frame.shapes, f.op.results[0], behind, [result])[0]
    except ValueError:
        return None
    own = {axis_name(a): position(e) for a, e in enumerate(maps_of(f.op)[-1].results)}
    found = [own.get(str(c)) for c in at]
    return None if None in found or len(found) != len(own) else tuple(d for d in found if d is not None)


def _ends(frame: KernelFrame, f: Fourier) -> tuple[int | None, int | None]:
    """How many elements there are, and how many results."""
    given = frame.shapes.dims(inputs(f.op)[0])[f.read.index(f.over)]
    wanted = frame.shapes.dims(f.op.results[0])[[position(e) for e in maps_of(f.op)[-1].results].index(f.along)]
    return given.constant, wanted.constant


def _real(frame: KernelFrame, f: Fourier) -> str:
    (given, wanted), half = _ends(frame, f), f.size // 2 + 1
    if f.size < 4 or f.size % 2:
        return ""
    if len(inputs(f.op)) == 1:
        return "in" if wanted is not None and wanted <= half else ""
    return "out" if f.part is None and given == half else ""


@dataclass(frozen=True)
class FourierEmitter:
    """Emits the transforms of work units."""

    kernel: HostKernel
    walk: FourierWalk
    lanes: int
    workspace: ir.Value

    def emit(self, unit: Unit) -> None:
        """The transforms of the rows of a unit; of few rows, such as a single one, by narrower vectors."""
        axes = {d: a for a, d in enumerate(self.walk.loops)}
        where = {d: unit.first(f"d{a}") for d, a in axes.items()}
        low, high = unit.span(f"d{axes[self.walk.lane]}")
        narrow = self.lanes // _NARROWER
        if narrow < 2:
            self._rows(where, high - low)
        else:
            when((high - low).le(narrow), lambda: replace(self, lanes=narrow)._rows(where, high - low),
                 lambda: self._rows(where, high - low))

    def _rows(self, where: Where, count: Index) -> None:
        """As many rows as there are lanes, or fewer."""
        w = self.walk
        planes = Planes(self.kernel, self.workspace, w.element, self.lanes, w.size, w.fourier.sign, f"f{w.number}_{self.lanes}")
        ends = planes.table("ends", np.append(planes.places(), w.size), integer_type(64))

        def end(k: Index) -> Index:
            return Index(ends.load([k]))

        def result(part: int, first: Index, k: int) -> ir.Value:
            """At first + k, where `first` is even if w.real is "out"."""
            return planes.load(k % 2, end(first // 2 + k // 2)) if w.real == "out" else planes.load(part, end(first + k))

        whole = count.ge(self.lanes)
        when(whole, lambda: self._read(planes, where, None), lambda: self._read(planes, where, count))
        if w.real == "out":
            self._turn(planes, lambda k: k)
        planes.transform(real=not w.real and len(inputs(w.fourier.op)) == 1)
        if w.real == "in":
            self._turn(planes, end)
        when(whole, lambda: self._write(result, where, None), lambda: self._write(result, where, count))

    # -- elements in

    def _read(self, planes: Planes, where: Where, count: Index | None) -> None:
        """All elements of the rows; those behind the last one are 0. count: of the rows where they are fewer than lanes."""
        w, zero = self.walk, constant(self.walk.element, 0.0, self.lanes)
        halves = w.real == "in"

        def put(part: int, first: Index, n: int, value: ir.Value) -> None:
            if halves:
                planes.store(n % 2, first // 2 + n // 2, value)
            else:
                planes.store(part, first + n, value)

        self._load(2 if halves else 1, where, count, put)
        extent = self._extent()
        assert extent.const is not None
        begin = extent.const
        if halves and begin % 2:
            put(0, Index(begin - 1), 1, zero)
            begin += 1
        step = 2 if halves else 1

        def clear(n: Index) -> None:
            for part in range(2 if halves else len(inputs(w.fourier.op))):
                put(part, n, part if halves else 0, zero)

        if w.real != "out":
            loop(begin, w.fourier.size, step, clear, index=self.kernel.index)

    def _extent(self) -> Index:
        f = self.walk.fourier
        return self.kernel.evaluator.extent(inputs(f.op)[0], f.read.index(f.over))

    def _load(self, step: int, where: Where, count: Index | None, put: Callable[[int, Index, int, ir.Value], None]) -> None:
        """All elements: put(part, first, n, that of an operand at first + n), where `first` is a multiple of step."""
        f, lane, lanes, index = self.walk.fourier, self.walk.lane, self.lanes, self.kernel.index
        sources, whole = inputs(f.op), vector_type(self.walk.element, lanes)

        def read(part: int, at: Where, mask: ir.Value | None) -> ir.Value:
            value = splat_to(self.kernel.evaluator.element(sources[part], [at[d] for d in f.read], mask), lanes)
            return value if value.type == whole else arith.extf(whole, value)

        def straight(first: Index, left: int) -> None:
            mask = None if count is None else lane_mask(count, lanes, index)
            row = Index.ramp(where[lane], lanes) if lanes > 1 else where[lane]
            for n, part in product(range(left), range(len(sources))):
                put(part, first, n, read(part, {**where, f.over: first + n, lane: row}, mask))

        def square(first: Index, left: int) -> None:
            mask = lane_mask(Index(left), lanes, index)
            numbers = [where[lane] + (i if count is None else Index(i).min(count - 1)) for i in range(lanes)]
            for part in range(len(sources)):
                rows = [read(part, {**where, lane: row, f.over: Index.ramp(first, lanes)}, mask) for row in numbers]
                for i, column in enumerate(transpose(rows)[:left]):
                    put(part, first, i, column)

        turned = _nearest(f.read, self.kernel.unit_axis(sources[0])) == f.over and lanes > 1
        self._pieces(self._extent(), lanes if turned else step, square if turned else straight)

    def _pieces(self, extent: Index, size: int, piece: Callable[[Index, int], None]) -> None:
        """piece(first, size) of all whole pieces, and of what is left."""
        assert extent.const is not None
        whole = extent.const // size * size
        loop(0, whole, size, lambda n: piece(n, size), index=self.kernel.index)
        if whole < extent.const:
            piece(Index(whole), extent.const - whole)

    def _turn(self, planes: Planes, at: Callable[[Index], Index]) -> None:
        """From Z to X, whose last element comes behind the others, or back from half of a spectrum that x is the real part of the
        sum of. at: where each element lies.

        The imaginary parts of the first element and of the last count for nothing.
        """
        w, size, element = self.walk, planes.size, self.walk.element
        inverse = w.real == "out"
        turns = planes.turns("halves", np.arange(size // 2 + 1) * (w.fourier.sign * np.pi / size), 0.5)
        half = constant(element, 0.5, self.lanes)

        def pair(k: Index) -> None:
            here, there = at(k), at(size - k)
            (a, b), (c, d) = ((planes.load(0, i), planes.load(1, i)) for i in (here, there))
            even = Value(arith.mulf(arith.addf(a, c), half), arith.mulf(arith.subf(b, d), half))
            less, more = arith.subf(a, c), arith.addf(b, d)
            odd = Value(less, more) if inverse else Value(more, arith.negf(less))
            turned = odd.turned(*turns(k)).at_turn(int(inverse), 4)
            first, last = even + turned, even - turned
            assert first.imag is not None and last.imag is not None
            for i, (real, imaginary) in ((here, (first.real, first.imag)), (there, (last.real, arith.negf(last.imag)))):
                planes.store(0, i, real)
                planes.store(1, i, imaginary)

        first, last = at(Index(0)), at(Index(size))
        a, b = planes.load(0, first), planes.load(0, last) if inverse else planes.load(1, first)
        planes.store(0, first, arith.addf(a, b))
        if inverse:
            planes.store(1, first, arith.subf(a, b))
        else:
            zero = constant(element, 0.0, self.lanes)
            planes.store(1, first, zero)
            planes.store(0, last, arith.subf(a, b))
            planes.store(1, last, zero)
        loop(1, size // 2 + 1, 1, pair, index=self.kernel.index)

    # -- results out

    def _write(self, result: Callable[[int, Index, int], ir.Value], where: Where, count: Index | None) -> None:
        """result: real or imaginary part at the sum of two places, the first a multiple of two."""
        w, f, lanes, index, ev = self.walk, self.walk.fourier, self.lanes, self.kernel.index, self.kernel.evaluator
        memory = self.kernel.outputs[w.number]
        turned = _nearest(w.loops, self.kernel.result_slot(w.number).unit) == f.along and lanes > 1

        def put(value: ir.Value, at: Where, kept: ir.Value | None) -> None:
            coords = [at[d] for d in w.loops]
            ev.known[f.op.results[0]] = lambda _: value
            memory.store(ev.element(self.kernel.results[w.number], coords, kept), coords, kept)
            ev.known.pop(f.op.results[0])

        def straight(part: int, here: Where, first: Index, left: int) -> None:
            kept = None if count is None else lane_mask(count, lanes, index)
            row = Index.ramp(here[w.lane], lanes) if lanes > 1 else here[w.lane]
            for k in range(left):
                put(result(part, first, k), {**here, f.along: first + k, w.lane: row}, kept)

        def square(part: int, here: Where, first: Index, left: int) -> None:
            columns = [result(part, first, min(i, left - 1)) for i in range(lanes)]
            kept = lane_mask(Index(left), lanes, index)
            for i, row in enumerate(transpose(columns)):
                at = {**here, w.lane: here[w.lane] + i, f.along: Index.ramp(first, lanes)}
                when(True if count is None else Index(i).lt(count), partial(put, row, at, kept))

        for part in range(1 if f.part is None else 2):
            here = where if f.part is None else {**where, f.part: Index(part)}
            bins = memory.sizes[w.loops.index(f.along)]
            self._pieces(bins, lanes if turned else 2, partial(square if turned else straight, part, here))
