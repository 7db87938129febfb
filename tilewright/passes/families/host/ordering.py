"""Order along an axis: the ranks of the first elements of each row, by counting in short rows, where few are wanted in rounds or
by selection, by merging else.

Counting compares each element with every other one, a vector at a time. A round finds the first of the elements that are left,
the best of each lane and then of these. Selection keeps the best so far in order: a vector of keys is compared with the last of
them, and seldom one comes in. Merging orders pieces of one vector by counting, then merges them in pairs. All are stable, so that
every rank has one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from tilewright.passes.analysis.ranks import Ranks, ranks_of
from tilewright.passes.codegen.emit import (
    Memory,
    all_of,
    byte_width,
    constant,
    integer_type,
    lane_mask,
    loop,
    resized,
    vector_type,
    when,
)
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index, select, splat_to
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.units import Unit
from tilewright.passes.linalg.structured import inputs
from tilewright.passes.mlir import arith, ir, maps_of, owner, position, vector
from tilewright.runtime.limits import LINE
from tilewright.runtime.shape import Expr

_SELECTED = 64  # ranks that are found in rounds or by selection; more by merging
_COUNTED_WHOLE = 512  # elements of a row that are counted, or whose first ones are found in rounds
_COUNTED = 64  # the same where few ranks of long keys are wanted
_SHORT_KEY = 32  # bits of a key that is joined with its place
_FRACTION, _DOUBLE = 52, 1075 << 52  # bits of a double's fraction; those of 2^52
_GROUP = 4  # vectors that each element is compared with together
_DOUBLINGS = 48  # of merged pieces: more than any row has


@dataclass(frozen=True)
class RankWalk:
    """axis: along which the elements of the result `number` are ordered."""

    ranks: Ranks
    number: int
    axis: int

    @staticmethod
    def of(frame: KernelFrame, number: int) -> RankWalk | None:
        """None where a result is not ranks."""
        found = ranks_of(owner(frame.results[number]))
        if found is None:
            return None
        return RankWalk(found, number, [position(e) for e in maps_of(found.op)[-1].results].index(found.along))

    def cuts(self) -> dict[int, int | None]:
        """A unit is a row."""
        return dict.fromkeys(a for a in range(len(maps_of(self.ranks.op)[-1].results)) if a != self.axis)

    def workspace(self, frame: KernelFrame, lanes: int) -> Expr:
        """Bytes: keys and places, twice each."""
        length = _room(frame.shapes.dims(frame.results[self.number])[self.axis], lanes)
        key = ir.RankedTensorType(inputs(self.ranks.op)[0].type).element_type
        return (length * (2 * (byte_width(key) + byte_width(integer_type(64))))).ceildiv(LINE) * LINE


def _room(extent: Expr, lanes: int) -> Expr:
    """Elements of an array that holds a row or the selected ones: an element in front and whole vectors, and one behind."""
    return (extent.maximum(_SELECTED).ceildiv(lanes) + 2) * lanes


@dataclass(frozen=True)
class _Array:
    """Keys and the places that they come from."""

    keys: Memory
    places: Memory

    def load(self, at: Index) -> tuple[ir.Value, ir.Value]:
        return self.keys.load([at]), self.places.load([at])

    def store(self, at: Index, key: ir.Value, place: ir.Value) -> None:
        self.keys.store(key, [at])
        self.places.store(place, [at])


@dataclass(frozen=True)
class RankEmitter:
    """Emits the ranks of rows."""

    kernel: HostKernel
    walk: RankWalk
    lanes: int
    workspace: ir.Value

    def emit(self, unit: Unit) -> None:
        """The ranks of one row."""
        w, ev, index = self.walk, self.kernel.evaluator, self.kernel.index
        memory = self.kernel.outputs[w.number]
        extent, count = memory.sizes[w.axis], ev.runtime_index(ev.scalar(w.ranks.count))
        where = [unit.first(f"d{a}") for a in range(len(memory.sizes))]
        first, second = self._arrays()
        few = all_of([count.le(_SELECTED), Index(0).lt(count)])
        joined = self._key_type().width <= _SHORT_KEY
        counted = Index(_COUNTED_WHOLE)
        short = counted if joined else select(count.le(_SELECTED), Index(_COUNTED), counted, type_=index)
        limit = arith.index_cast(memory.element, count.value(index)) if memory.element != index else count.value(index)

        def ranks(found: _Array, begin: Index) -> None:
            def rank(i: Index) -> None:
                place = ev.runtime_index(found.places.load([begin + i]))
                value = i.value(index)
                memory.store(value if memory.element == index else arith.trunci(memory.element, value), self._with(where, place))

            loop(0, count.min(extent), 1, rank, index=index)

        def selected() -> None:
            self._select(where, extent, count, first)
            ranks(first, Index(1))

        def merged() -> None:
            self._pieces(where, extent, first)
            self._merge(extent, first, second, ranks)

        def ordered() -> None:
            self._vectors(extent, lambda at, mask: memory.store(limit, self._with(where, at), mask))
            when(few, selected, merged)

        if self.lanes == 1:
            ordered()
            return

        def counted_or_ordered() -> None:
            when(extent.le(short), lambda: self._count(where, extent, count, first.keys), ordered)

        rounds = all_of([few, self._rounds_gain(extent, count)]) if joined else False
        when(rounds, lambda: self._in_rounds(where, extent, count, limit, first.places), counted_or_ordered)

    def _with(self, where: Sequence[Index], at: Index) -> list[Index]:
        return [at if a == self.walk.axis else x for a, x in enumerate(where)]

    def _arrays(self) -> tuple[_Array, _Array]:
        key, whole, index = self._key_type(), integer_type(64), self.kernel.index
        extent = self.kernel.shapes.dims(self.kernel.results[self.walk.number])[self.walk.axis]
        room = self.kernel.evaluator.emit(_room(extent, self.lanes))
        made, offset = list[Memory](), Index(0)
        for t in (whole, whole, key, key):
            pointer = self.kernel.offset_pointer(self.workspace, offset, 1)
            made.append(Memory(pointer, t, (room,), (Index(1),), index))
            offset = offset + room * byte_width(t)
        return _Array(made[2], made[0]), _Array(made[3], made[1])

    def _key_type(self) -> ir.Type:
        return ir.RankedTensorType(inputs(self.walk.ranks.op)[0].type).element_type

    def _limit(self, largest: bool, lanes: int = 1) -> ir.Value:
        t = self._key_type()
        most = int(np.iinfo(f"i{t.width // 8}").max)
        return constant(t, most if largest else -most - 1, lanes)

    def _key(self, where: Sequence[Index], at: Index, mask: ir.Value | None = None) -> ir.Value:
        """Keys of a row; the largest where the mask is off."""
        ev, op = self.kernel.evaluator, self.walk.ranks.op
        with ev.kept():
            found = splat_to(ev.element(inputs(op)[self.walk.ranks.keys], self._with(where, at), mask), at.lanes)
        return found if mask is None else arith.select(mask, found, self._limit(True, at.lanes))

    def _vectors(self, extent: Index, each: Callable[[Index, ir.Value | None], None], lanes: int = 0) -> None:
        lanes = lanes or self.lanes
        whole = extent - extent % lanes
        loop(0, whole, lanes, lambda i: each(Index.ramp(i, lanes), None), index=self.kernel.index)
        left = extent - whole
        when(Index(0).lt(left), lambda: each(Index.ramp(whole, lanes), lane_mask(left, lanes, self.kernel.index)))

    # -- counting

    def _count(self, where: Sequence[Index], extent: Index, count: Index, keys: Memory) -> None:
        """How many elements come before each, or `count` where these are more; `keys`: room for a row."""
        lanes, index = self._keys_at_once(), self.kernel.index
        self._vectors(extent, lambda at, mask: keys.store(self._key(where, at, mask), [at]), lanes)
        whole = extent - extent % (_GROUP * lanes)
        loop(0, whole, _GROUP * lanes, lambda p: self._count_group(where, p, _GROUP, (extent, count), keys), index=index)
        loop(whole, extent, lanes, lambda p: self._count_group(where, p, 1, (extent, count), keys), index=index)

    def _keys_at_once(self) -> int:
        """Of a register that holds as many ranks as there are lanes."""
        rank: int = self.kernel.outputs[self.walk.number].element.width
        return self.lanes * max(1, rank // int(self._key_type().width))

    def _count_group(self, where: Sequence[Index], first: Index, vectors: int, sizes: tuple[Index, Index], keys: Memory) -> None:
        """Of so many vectors from the element `first` on. Of equal elements the earlier one comes before."""
        lanes, index, (extent, count) = self._keys_at_once(), self.kernel.index, sizes
        key, memory, predicate = self._key_type(), self.kernel.outputs[self.walk.number], arith.CmpIPredicate
        at = [Index.ramp(first + v * lanes, lanes) for v in range(vectors)]
        own = [keys.load([x]) for x in at]

        def step(vector_of: int, i: Index, found: Sequence[ir.Value]) -> list[ir.Value]:
            """With the element i, which lies in one of the vectors, or in front of all (-1) or behind them (`vectors`)."""
            other, sums = splat_to(keys.load([i]), lanes), list[ir.Value]()
            for v, (mine, total) in enumerate(zip(own, found, strict=True)):
                before = arith.cmpi(predicate.sle if vector_of < v else predicate.slt, other, mine)
                if vector_of == v:
                    later = Index.ramp(first + v * lanes - i, lanes).compare(predicate.sgt, 0)
                    before = arith.ori(before, arith.andi(later, arith.cmpi(predicate.eq, other, mine)))
                sums.append(arith.addi(total, arith.extui(vector_type(key, lanes), before)))
            return sums

        found = [constant(key, 0, lanes)] * vectors
        bounds = [Index(0), *(first + v * lanes for v in range(vectors + 1)), extent]
        for number, (low, high) in enumerate(pairwise(bounds)):
            each = partial(step, number - 1)
            found = loop(low.min(extent), high.min(extent), 1, lambda i, *sums, each=each: each(i, sums), found, index)
        most = splat_to(resized(count.value(index), key), lanes)
        for x, total in zip(at, found, strict=True):
            rank = arith.minsi(total, most)
            wide = rank if memory.element == key else arith.extsi(vector_type(memory.element, lanes), rank)
            memory.store(wide, self._with(where, x), lane_mask(extent - x.base, lanes, index) if vectors == 1 else None)

    # -- rounds

    def _rounds_gain(self, extent: Index, count: Index) -> ir.Value | bool:
        """Are rounds predicted to be faster than counting? On Zen 5 one takes 8 + .06 n ns for n elements, and counting 2 n ns of
        up to 64 of them and n^2 / 32 ns of more."""
        counting = select(extent.le(_COUNTED), extent * 18, extent * extent * 9 // 32, type_=self.kernel.index)
        return all_of([(count * (extent * 5 // 9 + 72) + 72).le(counting), extent.le(_COUNTED_WHOLE)])

    def _in_rounds(self, where: Sequence[Index], extent: Index, count: Index, limit: ir.Value, keys: Memory) -> None:
        """The first of the elements `count` times, each time of those behind the last one. Each is a key and, in the bits below,
        its place, so that no two are equal, as the fraction of a double: AVX2 compares and picks doubles in one instruction each,
        and has none for integers of 64 bits. keys: room for a row."""
        lanes, index, memory, wide = self.lanes, self.kernel.index, self.kernel.outputs[self.walk.number], keys.element
        key, last = self._key_type(), constant(wide, _DOUBLE + (1 << _FRACTION) - 1, lanes)
        sign = constant(key, -(1 << key.width - 1), lanes)
        number, double = ir.F64Type.get(), vector_type(ir.F64Type.get(), lanes)
        most = arith.bitcast(double, last)

        def join(at: Index, mask: ir.Value | None) -> None:
            high = arith.extui(vector_type(wide, lanes), arith.xori(self._key(where, at, mask), sign))
            found = arith.ori(arith.shli(high, constant(wide, _FRACTION - _SHORT_KEY, lanes)), at.value(wide))
            found = arith.ori(found, constant(wide, _DOUBLE, lanes))
            keys.store(found if mask is None else arith.select(mask, found, last), [at])
            memory.store(limit, self._with(where, at), mask)

        def find(r: Index, least: ir.Value) -> list[ir.Value]:
            behind = splat_to(arith.bitcast(number, least), lanes)

            def smaller(a: ir.Value, b: ir.Value) -> ir.Value:
                return arith.select(arith.cmpf(arith.CmpFPredicate.OLT, a, b), a, b)

            def vectors_of(i: Index, *best: ir.Value) -> list[ir.Value]:
                mine = [arith.bitcast(double, keys.load([Index.ramp(i + v * lanes, lanes)])) for v in range(len(best))]
                left = [arith.select(arith.cmpf(arith.CmpFPredicate.OGE, x, behind), x, most) for x in mine]
                return [smaller(x, b) for x, b in zip(left, best, strict=True)]

            whole = extent - extent % (_GROUP * lanes)
            best = loop(0, whole, _GROUP * lanes, vectors_of, [most] * _GROUP, index)
            joined = smaller(smaller(best[0], best[1]), smaller(best[2], best[3]))
            (joined,) = loop(whole, extent, lanes, vectors_of, [joined], index)
            first = vector.reduction(wide, vector.CombiningKind.MINSI, arith.bitcast(vector_type(wide, lanes), joined))
            place = arith.andi(first, constant(wide, _COUNTED_WHOLE - 1))
            memory.store(resized(r.value(index), memory.element), self._with(where, Index(resized(place, index))))
            return [arith.addi(first, constant(wide, 1))]

        self._vectors(extent, join)
        loop(0, count.min(extent), 1, find, [constant(wide, _DOUBLE)], index)

    # -- selection

    def _select(self, where: Sequence[Index], extent: Index, count: Index, best: _Array) -> None:
        """The first `count` in order, from element 1 of the array on; element 0 is below all keys."""
        best.keys.store(self._limit(False), [Index(0)])

        def one(i: Index) -> None:
            key = self._key(where, i)
            better = arith.cmpi(arith.CmpIPredicate.slt, key, best.keys.load([count]))
            filling = i.lt(count)
            comes = arith.ori(better, filling) if not isinstance(filling, bool) else better
            when(comes, lambda: self._insert(best, key, i, count))

        def some(at: Index, mask: ir.Value | None) -> None:
            keys = self._key(where, at, mask)
            last = splat_to(best.keys.load([count]), self.lanes)
            better = arith.cmpi(arith.CmpIPredicate.slt, keys, last)
            some_better = better if self.lanes == 1 else vector.reduction(integer_type(1), vector.CombiningKind.OR, better)
            filling = at.base.lt(count)
            comes = arith.ori(some_better, filling) if not isinstance(filling, bool) else some_better

            def each() -> None:
                loop(at.base, (at.base + self.lanes).min(extent), 1, one, index=self.kernel.index)

            when(comes, each)

        self._vectors(extent, some)

    def _insert(self, best: _Array, key: ir.Value, place: Index, count: Index) -> None:
        """Behind those that are not larger; what is behind moves on by one. There are `place` elements before, or `count`."""
        lanes, index = self.lanes, self.kernel.index
        blocks = count.ceildiv(lanes)
        wide, own = splat_to(key, lanes), splat_to(place.value(index), lanes)

        def block(i: Index) -> None:
            begin = (blocks - 1 - i) * lanes
            here, before = Index.ramp(begin + 1, lanes), Index.ramp(begin, lanes)
            old, old_place = best.load(here)
            previous, previous_place = best.load(before)
            at, at_before = self._comes_before(wide, old, here - 1, place), self._comes_before(wide, previous, before - 1, place)
            best.store(here, arith.select(at_before, previous, arith.select(at, wide, old)),
                       arith.select(at_before, previous_place, arith.select(at, own, old_place)))

        loop(0, blocks, 1, block, index=index)

    def _comes_before(self, key: ir.Value, old: ir.Value, number: Index, filled: Index) -> ir.Value:
        """Does a key come before the one of a number, of which `filled` are there?"""
        free = number.ge(filled)
        assert not isinstance(free, bool)
        return arith.ori(arith.cmpi(arith.CmpIPredicate.slt, key, old), free)

    # -- merging

    def _pieces(self, where: Sequence[Index], extent: Index, into: _Array) -> None:
        """Pieces of one vector, each in order; behind the row the largest keys."""
        lanes, index = self.lanes, self.kernel.index

        def piece(at: Index, mask: ir.Value | None) -> None:
            keys = self._key(where, at, mask)
            if lanes == 1:
                into.store(at, keys, at.value(index))
                return
            whole = vector_type(index, lanes)
            rank = constant(index, 0, lanes)
            for j in range(lanes):
                other = splat_to(vector.extract(keys, [], [j]), lanes)
                later = arith.constant(vector_type(integer_type(1), lanes), _flags([i > j for i in range(lanes)]))
                before = arith.ori(arith.cmpi(arith.CmpIPredicate.slt, other, keys),
                                   arith.andi(later, arith.cmpi(arith.CmpIPredicate.eq, other, keys)))
                rank = arith.addi(rank, arith.extui(whole, before))
            into.store(at.base + Index(rank), keys, at.value(index))

        self._vectors(extent, piece)

    def _merge(self, extent: Index, first: _Array, second: _Array, ranks: Callable[[_Array, Index], None]) -> None:
        """Merges pieces in pairs until one is left, from one array into the other in turn, and takes the ranks from the last."""
        index = self.kernel.index
        pointers = [first.keys.pointer, first.places.pointer, second.keys.pointer, second.places.pointer]

        def array(keys: ir.Value, places: ir.Value) -> _Array:
            return _Array(_at(first.keys, keys), _at(first.places, places))

        def double(i: Index, width: ir.Value, *found: ir.Value) -> list[ir.Value]:
            size = Index(width)
            more = size.lt(extent)
            assert not isinstance(more, bool)
            source, target = array(*found[:2]), array(*found[2:])
            when(more, lambda: self._merge_pairs(extent, size, source, target))
            swapped = [*found[2:], *found[:2]]
            return [select(more, size * 2, size).value(index),
                    *(arith.select(more, a, b) for a, b in zip(swapped, found, strict=True))]

        ends = loop(0, _DOUBLINGS, 1, double, [Index(self.lanes).value(index), *pointers], index)
        ranks(array(*ends[1:3]), Index(0))

    def _merge_pairs(self, extent: Index, width: Index, source: _Array, target: _Array) -> None:
        index = self.kernel.index

        def pair(begin: Index) -> None:
            middle, end = (begin + width).min(extent), (begin + width * 2).min(extent)

            def step(t: Index, *places: ir.Value) -> list[ir.Value]:
                i, j = map(Index, places)
                (a, own), (b, other) = source.load(i), source.load(j)
                inside, over = i.lt(middle), j.ge(end)
                assert not isinstance(inside, bool)
                assert not isinstance(over, bool)
                first = arith.andi(inside, arith.ori(over, arith.cmpi(arith.CmpIPredicate.sle, a, b)))
                target.store(t, arith.select(first, a, b), arith.select(first, own, other))
                moved = arith.extui(index, first)
                return [arith.addi(i.value(index), moved), arith.addi(j.value(index), arith.subi(constant(index, 1), moved))]

            loop(begin, end, 1, step, [begin.value(index), middle.value(index)], index)

        loop(0, extent, width * 2, pair, index=index)


def _at(memory: Memory, pointer: ir.Value) -> Memory:
    return Memory(pointer, memory.element, memory.sizes, memory.strides, memory.index)


def _flags(values: Sequence[bool]) -> ir.Attribute:
    t = ir.VectorType.get([len(values)], integer_type(1))
    return ir.DenseElementsAttr.get([ir.BoolAttr.get(v) for v in values], t)
