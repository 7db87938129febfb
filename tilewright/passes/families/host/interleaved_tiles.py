"""Copies to few elements along the result: vectors along the source's unit axis, interleaved in registers.

These are transpositions, of which square tiles would store a piece of a vector at a time (transpose_tiles.py), elements that are
repeated (nearest resampling by whole factors), and tensors joined element by element (pairs of complex numbers). Results are
stored as whole vectors, since the result's last two axes are one run in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from tilewright.passes.codegen.emit import Memory, all_of, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.units import Unit
from tilewright.passes.families.host.transpose_tiles import TransposeTiles
from tilewright.passes.linalg.structured import body, inputs, iterator_kinds
from tilewright.passes.mlir import ir, maps_of, operations, owner, position, vector
from tilewright.runtime.shape import Expr

_LARGEST_ODD = 7  # sequences that are interleaved all at once, each by a shuffle of its own


@dataclass(frozen=True)
class InterleavedTiles:
    """tiles: the transposition, or which axes elements are repeated along; count: elements along the result, fewer than there are
    lanes. copies: axes of the result along which all elements are the same, each stored as often as that.
    """

    tiles: TransposeTiles
    count: int
    copies: tuple[int, ...] = ()

    @staticmethod
    def of(tiles: TransposeTiles, length: Expr, lanes: int) -> InterleavedTiles | None:
        """None where the result is longer, or another axis lies between the two.

        length: of the result along its unit axis.
        """
        count = length.constant
        if count is None or not 0 < count < lanes or tiles.along != tiles.across + 1:
            return None
        return InterleavedTiles(tiles, count) if count // (count & -count) <= _LARGEST_ODD else None

    @staticmethod
    def of_repeated(frame: KernelFrame, number: int, along: int, lanes: int) -> InterleavedTiles | None:
        """Of a result whose elements are computed one by one from operands that lie along its last axis but one, or along
        neither; None of others."""
        result = frame.results[number]
        root, reads, units = owner(result), _reads(result), frame.input_units()
        axes = tuple(range(ir.RankedTensorType(result.type).rank))
        if root is None or reads is None or len(axes) < 2 or along != axes[-1]:
            return None
        runs = {read[unit] for value, read in reads if (unit := units.get(value)) is not None}
        if along in runs or along - 1 not in runs:
            return None
        dims, used = frame.shapes.dims(result), {a for _, read in reads for a in read}
        found = InterleavedTiles.of(TransposeTiles(number, len(axes), along - 1, along), dims[along], lanes)
        copies = tuple(a for a in axes[:-1] if a not in used and (dims[a].constant or lanes) < lanes)
        return None if found is None else replace(found, copies=copies)

    def outer(self) -> list[int]:
        """The axes of which a unit has one place."""
        return [a for a in self.tiles.outer() if a not in self.copies]

    def cuts(self, lanes: int, chunk: int) -> dict[int, int | None]:
        """The axes that units are cut along: `chunk` elements of the result in each, in whole vectors across it."""
        return {**dict.fromkeys(self.outer()), self.tiles.across: max(1, chunk // self.count // lanes) * lanes}


@dataclass(frozen=True)
class InterleavedEmitter:
    """Emits work units: a run across the result, at one point of the outer axes."""

    kernel: HostKernel
    walk: InterleavedTiles
    lanes: int

    @property
    def _result(self) -> ir.Value:
        return self.kernel.results[self.walk.tiles.number]

    @property
    def _memory(self) -> Memory:
        return self.kernel.outputs[self.walk.tiles.number]

    def emit(self, unit: Unit) -> None:
        """All elements of a work unit, one by one where the result's last two axes are no run in memory."""
        tiles, index, strides = self.walk.tiles, self.kernel.index, self._memory.strides
        coords = [unit.first(f"d{a}") if a in self.walk.outer() else Index(0) for a in range(tiles.rank)]
        first, end = unit.span(f"d{tiles.across}")
        run = all_of([strides[tiles.across].eq(self.walk.count), strides[tiles.along].eq(1)])

        def vectors() -> None:
            whole = end - (end - first) % self.lanes
            loop(first, whole, self.lanes, lambda c: self._tile(coords, c, None), index=index)
            when(whole.lt(end), lambda: self._tile(coords, whole, end - whole))

        def elements() -> None:
            loop(first, end, 1, lambda c: self._elements(coords, c), index=index)

        when(run, vectors, elements)

    def _elements(self, coords: list[Index], across: Index) -> None:
        """The elements along the result at one place across it."""

        def element(i: Index) -> None:
            with self.kernel.evaluator.kept():
                value = self.kernel.evaluator.element(self._result, self._at(coords, across, i))
                for copy in self._copies(coords):
                    self._memory.store(value, self._at(copy, across, i))

        loop(0, self.walk.count, 1, element, index=self.kernel.index)

    def _copies(self, coords: list[Index]) -> list[list[Index]]:
        """The places of a unit that elements are stored at."""
        dims = self.kernel.shapes.dims(self._result)
        places = [[Index(i) for i in range(dims[a].constant or 1)] if a in self.walk.copies else [x]
                  for a, x in enumerate(coords)]
        return [list(p) for p in product(*places)]

    def _at(self, coords: list[Index], across: Index, along: Index) -> list[Index]:
        """The coordinates of elements of a unit."""
        place = {self.walk.tiles.across: across, self.walk.tiles.along: along}
        return [place.get(a, x) for a, x in enumerate(coords)]

    def _tile(self, coords: list[Index], first: Index, left: Index | None) -> None:
        """A vector across the result. left: how many of its elements there are, None for all."""
        ev, index, lanes, memory = self.kernel.evaluator, self.kernel.index, self.lanes, self._memory
        mask = None if left is None else lane_mask(left, lanes, index)
        with ev.kept():
            rows = [ev.element(self._result, self._at(coords, Index.ramp(first, lanes), Index(i)), mask)
                    for i in range(self.walk.count)]
        begins = [memory.offset(self._at(copy, first, Index(0))) for copy in self._copies(coords)]
        flat = replace(memory, sizes=(Index(0),), strides=(Index(1),))
        values = interleaved(rows)
        for begin, (k, value) in product(begins, enumerate(values)):
            place = [Index.ramp(begin + k * lanes, lanes)]
            rest = Index(lanes) if left is None else left * self.walk.count - k * lanes
            kept = lane_mask(rest, lanes, index)
            when(Index(0).lt(rest), partial(flat.store, value, place, kept))


def interleaved(rows: list[ir.Value]) -> list[ir.Value]:
    """n vectors as the n vectors of all first elements, then all second ones and so on: halves are zipped while there are two,
    an odd number of what they make is taken together by a shuffle for each."""
    sequences, lanes = [[row] for row in rows], ir.VectorType(rows[0].type).shape[0]
    while len(sequences) % 2 == 0:
        half = len(sequences) // 2
        sequences = [_zipped(a, b, lanes) for a, b in zip(sequences[:half], sequences[half:], strict=True)]
    count, found = len(sequences), list[ir.Value]()
    for first in range(0, count * len(sequences[0]) * lanes, lanes):
        found.append(_gathered(sequences, [(f % count, f // count) for f in range(first, first + lanes)], lanes))
    return found


def _zipped(a: list[ir.Value], b: list[ir.Value], lanes: int) -> list[ir.Value]:
    """The elements of two sequences in turns."""
    found = []
    for x, y in zip(a, b, strict=True):
        for begin in (0, lanes // 2):
            found.append(vector.shuffle(x, y, [begin + lane // 2 + lanes * (lane % 2) for lane in range(lanes)]))
    return found


def _gathered(sequences: list[list[ir.Value]], places: list[tuple[int, int]], lanes: int) -> ir.Value:
    """A vector of elements: (number of the sequence, place in it) of each."""
    sources = list(dict.fromkeys((j, q // lanes) for j, q in places))
    found = sequences[sources[0][0]][sources[0][1]]
    found = found if len(sequences) == 1 else vector.shuffle(found, found, [q % lanes for _, q in places])
    for j, number in sources[1:]:
        lane_of = {lane: lanes + q % lanes for lane, (a, q) in enumerate(places) if (a, q // lanes) == (j, number)}
        found = vector.shuffle(found, sequences[j][number], [lane_of.get(lane, lane) for lane in range(lanes)])
    return found


_Read = tuple[ir.Value, tuple[int | None, ...]]


def _reads(value: ir.Value, known: dict[ir.Value, tuple[_Read, ...] | None] | None = None) -> tuple[_Read, ...] | None:
    """The arguments that an element is computed from, with the axis of the value at each axis of theirs (None: the first place);
    None where something else than elementwise operations makes it. known: of values that were looked at."""
    known = {} if known is None else known
    if value not in known:
        known[value] = _reads_of(value, known)
    return known[value]


def _reads_of(value: ir.Value, known: dict[ir.Value, tuple[_Read, ...] | None]) -> tuple[_Read, ...] | None:
    op = owner(value)
    if op is None:
        return ((value, tuple(range(ir.RankedTensorType(value.type).rank))),)
    if op.name == "tensor.empty":
        return ()
    found: dict[_Read, None] = {}
    if op.name == "tensor.concat":
        for operand in op.operands:
            part = _reads(operand, known)
            if part is None:
                return None
            found |= dict.fromkeys(part)
        return tuple(found)
    if op.name != "linalg.generic" or "reduction" in iterator_kinds(op) or len(op.results) != 1:
        return None
    if any(inner.name in ("linalg.index", "tensor.extract") for inner in operations(body(op))):
        return None
    *maps, written = maps_of(op)
    if not written.is_permutation:
        return None
    axis_of = {position(e): a for a, e in enumerate(written.results)}
    for operand, m in zip(inputs(op), maps, strict=True):
        behind = _reads(operand, known)
        at = [position(e) for e in m.results]
        if behind is None or any(p is None and str(e) != "0" for p, e in zip(at, m.results, strict=True)):
            return None
        to = [None if d is None else axis_of[d] for d in at]
        found |= dict.fromkeys((v, tuple(None if a is None else to[a] for a in read)) for v, read in behind)
    return tuple(found)
