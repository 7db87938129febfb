"""Walks over states on the host: some vectors of places abreast, whose states lie in the workspace of the thread, in its nearest
cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.state_walk import StateWalk
from tilewright.passes.codegen.emit import Memory, byte_width, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.units import Unit
from tilewright.passes.families.state_walker import Body, StateWalker, columns_of, contract, halve_rates, slots_of, walk_abreast
from tilewright.passes.mlir import ir, llvm
from tilewright.runtime.limits import LINE
from tilewright.runtime.shape import Expr

_ABREAST = 4  # vectors of a work unit, so that what a step reads of a row is whole cache lines
_AHEAD = 4  # steps from which rows are fetched: they lie too far apart for the CPU to see what is read next
_FEW_UNITS = 8  # below which a unit has fewer vectors, for the threads


@dataclass(frozen=True)
class SummedWalk:
    """members: the results that follow from the states; lane: the axis of the states whose places are the lanes; places: how many
    walks there are, None where that is not known.
    """

    walk: StateWalk
    members: tuple[int, ...]
    lane: int
    places: int | None

    @staticmethod
    def of(frame: KernelFrame) -> SummedWalk | None:
        """None where the region is not a walk whose states are summed at each step."""
        walk = StateWalk.of(frame.ops(), frame.shapes)
        if walk is None or not walk.columns or not walk.rows:
            return None
        members = tuple(n for n, v in enumerate(frame.results) if v in walk.places)
        units = [place[unit] for n in members if (unit := frame.result_slot(n).unit) is not None
                 for place in [walk.places[frame.results[n]]]]
        lane = next((a for a in units if a in walk.rows), walk.rows[-1])
        places: int | None = 1
        for a in walk.rows:
            extent = frame.shapes.dims(walk.running.op.results[0])[a].constant
            places = None if places is None or extent is None else places * extent
        return SummedWalk(walk, members, lane, places)

    def abreast(self, lanes: int) -> int:
        """Vectors of a unit."""
        found = _ABREAST
        while found > 1 and self.places is not None and self.places < _FEW_UNITS * found * lanes:
            found //= 2
        return found

    def cuts(self, lanes: int) -> dict[int, int | None]:
        """The axes of the states that units are cut along, with the size of a piece; None: of one place."""
        return {**dict.fromkeys(a for a in self.walk.rows if a != self.lane), self.lane: self.abreast(lanes) * lanes}

    def axes(self, value: ir.Value) -> dict[str, tuple[int, ...]]:
        """The axes of a result that the parts of a unit run along."""
        place = self.walk.places[value]
        return {f"d{a}": (place.index(a),) for a in self.walk.rows}

    def workspace(self, frame: KernelFrame, lanes: int) -> int:
        """Bytes of a thread."""
        return self.abreast(lanes) * _Vectors.bytes(self.walk, frame, lanes)


@dataclass(frozen=True)
class SummedEmitter:
    """Emits the walks of work units."""

    kernel: HostKernel
    walk: SummedWalk
    lanes: int
    workspace: ir.Value

    def emit(self, unit: Unit) -> None:
        """The walks of a unit: all its vectors abreast, else one after the other, the last one masked."""
        contract(self.walk.walk)
        halved = halve_rates(self.walk.walk)
        w, index, lanes = self.walk, self.kernel.index, self.lanes
        where = [unit.first(f"d{a}") for a in range(w.walk.rank)]
        lo, hi = unit.span(f"d{w.lane}")
        walkers = [StateWalker(self.kernel, w.walk, w.members, _Vectors(self.kernel, w.walk, lanes, self.workspace, n), lanes,
                               halved)
                   for n in range(w.abreast(lanes))]

        def at(c: Index) -> list[Index]:
            place = Index.ramp(c, lanes) if lanes > 1 else c
            return [place if a == w.lane else x for a, x in enumerate(where)]

        def alone() -> None:
            whole = hi - (hi - lo) % lanes
            loop(lo, whole, lanes, lambda c: walkers[0].emit(at(c)), index=index)
            if lanes > 1:
                left = hi - whole
                when(Index(0).lt(left), lambda: walkers[0].emit(at(whole), lane_mask(left, lanes, index)))

        if len(walkers) == 1:
            alone()
        else:
            when((hi - lo).ge(len(walkers) * lanes),
                 lambda: self._abreast(walkers, [at(lo + n * lanes) for n in range(len(walkers))]), alone)

    def _abreast(self, walkers: Sequence[StateWalker], places: Sequence[Sequence[Index]]) -> None:
        """All vectors of a unit; the lines that a later step reads and writes are asked for."""
        walk, kernel = self.walk.walk, self.kernel
        rows = [n for n in self.walk.members if not set(walk.places[kernel.results[n]]) & set(walk.columns)]

        def ahead(i: Index) -> None:
            for number, (walker, place) in enumerate(zip(walkers, places, strict=True)):
                found = [(memory, at, 0) for memory, at in walker.read_ahead(i + _AHEAD, place)]
                later = walker.at_step(i + _AHEAD, place)
                found += [(kernel.outputs[n], [later[a] for a in walk.places[kernel.results[n]]], 1) for n in rows]
                for memory, at, writes in found:
                    if number * self.lanes * byte_width(memory.stored) % LINE == 0:
                        llvm.intr_prefetch(memory.address([x.base for x in at]), writes, 3, 1)

        walk_abreast(walkers, places, ahead=ahead)


@dataclass(frozen=True)
class _Vectors:
    """The room of a walk, the n-th in the workspace: a vector for each row and column, one behind the other."""

    kernel: HostKernel
    walk: StateWalk
    lanes: int
    workspace: ir.Value
    number: int

    @staticmethod
    def bytes(walk: StateWalk, frame: KernelFrame, lanes: int) -> int:
        return sum(_row_bytes(t, walk, frame, lanes) for t in slots_of(walk))

    def each(self, body: Body, carried: Sequence[ir.Value] = ()) -> list[ir.Value]:
        return loop(0, self._count, 1, body, carried, self.kernel.index)

    def get(self, number: int, column: Index) -> ir.Value:
        memory, at = self._at(number, column)
        return memory.load([at])

    def put(self, number: int, column: Index, value: ir.Value) -> None:
        memory, at = self._at(number, column)
        memory.store(value, [at])

    def carried(self) -> list[ir.Value]:
        """Memory needs none."""
        return []

    def take(self, values: Sequence[ir.Value]) -> None:
        """The states lie where they did."""

    @property
    def _count(self) -> int:
        return _count(self.walk, self.kernel)

    def _at(self, number: int, column: Index) -> tuple[Memory, Index]:
        types = slots_of(self.walk)
        first = sum(_row_bytes(t, self.walk, self.kernel, self.lanes) for t in types[:number])
        first += self.number * self.bytes(self.walk, self.kernel, self.lanes)
        pointer = self.kernel.offset_pointer(self.workspace, Index(first), 1)
        size = Index(self._count * self.lanes)
        place = column * self.lanes
        return (Memory(pointer, types[number], (size,), (Index(1),), self.kernel.index),
                Index.ramp(place, self.lanes) if self.lanes > 1 else place)


def _count(walk: StateWalk, frame: KernelFrame) -> int:
    total = 1
    for n in columns_of(walk, frame):
        total *= n
    return total


def _row_bytes(element: ir.Type, walk: StateWalk, frame: KernelFrame, lanes: int) -> int:
    size = Expr.of(_count(walk, frame) * lanes * byte_width(element)).ceildiv(LINE) * LINE
    assert size.constant is not None
    return size.constant
