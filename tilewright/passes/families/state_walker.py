"""Emission of walks over states (analysis/state_walk.py): at each step all states of a place go on, are summed, and what follows
from the sums is stored. Where the states are kept is the target's: `Room`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tilewright.passes.analysis.gates import FirstStep, first_step
from tilewright.passes.analysis.signs import HALF_PRODUCT, NONPOSITIVE
from tilewright.passes.analysis.state_walk import StateWalk
from tilewright.passes.codegen.affine_index import evaluate, invert
from tilewright.passes.codegen.emit import Memory, constant, integer_type, loop, when
from tilewright.passes.codegen.index import Index, delinearize, splat_to
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.linalg.collapse import e_uses
from tilewright.passes.linalg.structured import inits, inputs, iterator_kinds
from tilewright.passes.lowering.expansions import half_log2
from tilewright.passes.mlir import ir, maps_of, math, operations, owner

Body = Callable[..., Sequence[ir.Value] | None]  # column, what is carried from column to column -> that for the next one


class Room(Protocol):
    """Values for each column: rows of them by number, states and what each column reads at every step alike."""

    def each(self, body: Body, carried: Sequence[ir.Value] = ()) -> list[ir.Value]:
        """The columns one after the other."""

    def get(self, number: int, column: Index) -> ir.Value:
        """The value of a column."""

    def put(self, number: int, column: Index, value: ir.Value) -> None:
        """A new value of a column."""

    def carried(self) -> list[ir.Value]:
        """What a loop around has to carry from step to step: the states, where they are no memory."""

    def take(self, values: Sequence[ir.Value]) -> None:
        """The states are these from here on."""


_CONTRACTED = ("arith.mulf", "arith.addf", "arith.subf")


def contract(w: StateWalk) -> None:
    """Lets a product and a sum in the bodies of a walk be one operation, which is rounded once. Where the states go on by the sum
    of two products, that is the one of a state, for which the other need not wait."""
    for op in {owner(v) for v in w.places}:
        for inner in operations(op.regions[0].blocks[0]) if op is not None and op.name == "linalg.generic" else ():
            if inner.name in _CONTRACTED:
                inner.attributes["fastmath"] = ir.Attribute.parse("#arith.fastmath<contract>")
    block = w.running.op.regions[0].blocks[0]
    late = _following(block, list(block.arguments)[len(inputs(w.running.op)):])
    for inner in operations(block):
        if inner.name == "arith.addf" and inner.results[0] in late:
            _contract(inner, late)


def _contract(sum_: ir.Operation, late: set[ir.Value]) -> None:
    """A sum and a product of what is in `late`, which nothing else reads, in one operation."""
    for value, other in (tuple(sum_.operands), tuple(sum_.operands)[::-1]):
        product = owner(value)
        if value in late and product is not None and product.name == "arith.mulf" and len(list(value.uses)) == 1:
            with ir.InsertionPoint(sum_), sum_.location:
                made = math.fma(*product.operands, other)
            late.add(made)
            sum_.results[0].replace_all_uses_with(made)
            sum_.erase()
            product.erase()
            return


def _following(block: ir.Block, values: Sequence[ir.Value]) -> set[ir.Value]:
    """The values of a block that are computed from some of it."""
    found = set(values)
    for op in operations(block):
        if not found.isdisjoint(op.operands):
            found.update(op.results)
    return found


def halve_rates(w: StateWalk) -> frozenset[int]:
    """Makes e^(d a) of a rate `a` that a walk keeps, and that nothing else reads, 2^(2 d r) of r = a log2(e) / 2, and gives the
    numbers of these operands. As d a was rounded before, r is now, once a walk: no error grows."""
    op, found = w.running.op, set[int]()
    block = op.regions[0].blocks[0]
    for number in kept_of(w):
        readers = [use.owner for use in block.arguments[number].uses]
        product = readers[0].operation if len(readers) == 1 else None
        if product is None or product.name != "arith.mulf" or not isinstance(product.results[0].type, ir.F32Type):
            continue
        powers = [use.owner.operation for use in product.results[0].uses]
        if len(powers) == 1 and powers[0].name == "math.exp" and NONPOSITIVE in powers[0].attributes:
            with ir.InsertionPoint(powers[0]), powers[0].location:
                made = math.exp2(product.results[0])
            made.owner.attributes[HALF_PRODUCT] = ir.UnitAttr.get()
            powers[0].results[0].replace_all_uses_with(made)
            powers[0].erase()
            found.add(number)
        elif len(powers) == 1 and HALF_PRODUCT in powers[0].attributes:
            found.add(number)
    return frozenset(found)


def kept_of(w: StateWalk) -> list[int]:
    """Operands of the running reduction that are the same at all steps and another one at each column."""
    op = w.running.op
    return [n for n in _read(w) if not _moves(op, n, [w.running.over]) and _moves(op, n, _column_loops(w))]


def slots_of(w: StateWalk) -> list[ir.Type]:
    """Element types of the rows of a room: the states, then what is kept for them."""
    op = w.running.op
    values = [*op.results, *(op.operands[n] for n in kept_of(w))]
    return [ir.RankedTensorType(v.type).element_type for v in values]


def columns_of(w: StateWalk, frame: KernelFrame) -> list[int]:
    """Extents of the columns."""
    dims = frame.shapes.dims(w.running.op.results[0])
    return [dims[a].constant or 1 for a in w.columns]


def _read(w: StateWalk) -> list[int]:
    op, block = w.running.op, w.running.op.regions[0].blocks[0]
    return [n for n, v in enumerate(inputs(op)) if isinstance(v.type, ir.RankedTensorType)
            and next(iter(block.arguments[n].uses), None) is not None]


def _column_loops(w: StateWalk) -> list[int]:
    loops = list(invert_positions(maps_of(w.running.op)[-1]))
    return [loops[a] for a in w.columns]


def invert_positions(m: ir.AffineMap) -> list[int]:
    """The loop of each axis of a result whose axes are loops."""
    return [int(ir.AffineDimExpr(e).position) for e in m.results]


def _moves(op: ir.Operation, number: int, loops: Sequence[int]) -> bool:
    return any(e_uses(e, d) for e in maps_of(op)[number].results for d in loops)


@dataclass(frozen=True)
class StateWalker:
    """Emits the walk at one place, or at the place of each lane. members: numbers of the results. halved: what `halve_rates`
    found."""

    kernel: KernelFrame
    walk: StateWalk
    members: tuple[int, ...]
    room: Room
    lanes: int = 1
    halved: frozenset[int] = frozenset()

    def emit(self, where: Sequence[Index], mask: ir.Value | None = None) -> None:
        """where: a coordinate for each axis of the states; those of the steps and the columns are not read."""
        walk_abreast([self], [where], mask)

    def begin(self, where: Sequence[Index], mask: ir.Value | None) -> None:
        """What the states begin with, and what is the same at all steps, put into the room."""
        ev, op, room = self.kernel.evaluator, self.walk.running.op, self.room

        def each(column: Index) -> None:
            at = self._at(where, column)
            with ev.kept():
                for number, value in enumerate(inits(op)):
                    start = None if self._first is None else self._first.starts[number]
                    held = ev.element(value, at, mask) if start is None else self._start(start, at, mask)
                    room.put(number, column, splat_to(held, self.lanes))
                for row, number in enumerate(self._kept, len(op.results)):
                    value = splat_to(self._operand(number, at, mask), self.lanes)
                    room.put(row, column, half_log2(value) if number in self.halved else value)

        room.each(each)

    def once(self, where: Sequence[Index], mask: ir.Value | None) -> dict[int, ir.Value]:
        """The operands that are the same at all steps and columns, by number."""
        w = self.walk
        return {n: self._operand(n, where, mask) for n in _read(w)
                if n not in self._kept and not _moves(w.running.op, n, [w.running.over])}

    def moving(self) -> list[int]:
        """The operands that are another one at each step and the same at all columns, by number."""
        w, columns = self.walk, _column_loops(self.walk)
        return [n for n in _read(w) if _moves(w.running.op, n, [w.running.over]) and not _moves(w.running.op, n, columns)]

    def computed(self) -> list[int]:
        """Those of them that lie in no memory."""
        return [n for n in self.moving() if self.walk.running.op.operands[n] not in self.kernel.evaluator.memories]

    def read(self, i: Index, where: Sequence[Index], numbers: Sequence[int], mask: ir.Value | None) -> dict[int, ir.Value]:
        """These operands at the i-th step, by number."""
        at = self.at_step(i, where)
        return {n: self._operand(n, at, mask) for n in numbers}

    def step(self, i: Index, where: Sequence[Index], given: dict[int, ir.Value], mask: ir.Value | None) -> None:
        """The i-th step. given: the operands that are the same at all columns."""
        self._step(self.at_step(i, where), given, mask)

    @cached_property
    def _first(self) -> FirstStep | None:
        """Where the states begin with what the body takes at its first step; None where the body has to look at every step."""
        op, over = self.walk.running.op, self.walk.running.over
        first, block = first_step(self.walk.running), op.regions[0].blocks[0]
        if first is None:
            return None
        arguments = list(block.arguments)
        for start in first.starts.values():
            made = owner(start)
            if start in arguments[:len(inputs(op))]:
                if _moves(op, arguments.index(start), [over]):
                    return None
            elif made is None or made.operation.block == block:
                return None
        return first

    def _start(self, value: ir.Value, at: Sequence[Index], mask: ir.Value | None) -> ir.Value:
        """What the states begin with, a value that is the same at all steps."""
        arguments = list(self.walk.running.op.regions[0].blocks[0].arguments)
        return self._operand(arguments.index(value), at, mask) if value in arguments else self.kernel.evaluator.scalar(value)

    @cached_property
    def _kept(self) -> list[int]:
        return kept_of(self.walk)

    @property
    def extent(self) -> Index:
        """How many steps there are."""
        return self.kernel.evaluator.extent(self.walk.running.op.results[0], self.walk.axis)

    def read_ahead(self, i: Index, where: Sequence[Index]) -> list[tuple[Memory, list[Index]]]:
        """What the i-th step reads alike for all columns, and where."""
        at = self.at_step(i, where)
        return [found for n in self.moving() for found in self._memories(self.walk.running.op.operands[n], self._coords(n, at))]

    def _memories(self, value: ir.Value, coords: Sequence[Index]) -> Iterator[tuple[Memory, list[Index]]]:
        """The memory that an element is computed from, and where."""
        memory, op = self.kernel.evaluator.memories.get(value), owner(value)
        if memory is not None:
            yield memory, list(coords)
        elif op is not None and op.name == "linalg.generic" and "reduction" not in iterator_kinds(op):
            loops = invert(maps_of(op)[len(inputs(op)) + list(op.results).index(value)], coords)
            for operand, m in zip(inputs(op), maps_of(op), strict=False):
                yield from self._memories(operand, [evaluate(e, loops) for e in m.results])

    def at_step(self, i: Index, where: Sequence[Index]) -> list[Index]:
        """A place at the i-th step."""
        place = self.extent - 1 - i if self.walk.running.backward else i
        return [place if a == self.walk.axis else x for a, x in enumerate(where)]

    def _at(self, where: Sequence[Index], column: Index) -> list[Index]:
        """The place of a column."""
        inner = delinearize(column, [Index(n) for n in columns_of(self.walk, self.kernel)]) if self.walk.columns else []
        found = list(where)
        for a, x in zip(self.walk.columns, inner, strict=True):
            found[a] = x
        return found

    def _loops(self, at: Sequence[Index]) -> list[Index]:
        """The loops of the running reduction at a place, which is the step as well."""
        running = self.walk.running
        loops = invert(maps_of(running.op)[-1], at)
        loops[running.over] = loops[running.along]
        return [x or Index(0) for x in loops]

    def _operand(self, number: int, at: Sequence[Index], mask: ir.Value | None) -> ir.Value:
        return self.kernel.evaluator.element(self.walk.running.op.operands[number], self._coords(number, at), mask)

    def _coords(self, number: int, at: Sequence[Index]) -> list[Index]:
        """Where an operand of the running reduction is read at a place."""
        return [evaluate(e, self._loops(at)) for e in maps_of(self.walk.running.op)[number].results]

    def _step(self, where: Sequence[Index], given: dict[int, ir.Value], mask: ir.Value | None) -> None:
        w, ev, op, room = self.walk, self.kernel.evaluator, self.walk.running.op, self.room
        with ev.kept():
            def advance(column: Index, at: Sequence[Index]) -> None:
                known = {**given, **{n: room.get(row, column) for row, n in enumerate(self._kept, len(op.results))},
                         **{len(inputs(op)) + n: room.get(n, column) for n in range(len(op.results))}}
                true = {w.running.gate: constant(integer_type(1), 1)}
                if self._first is not None:
                    true[self._first.condition] = constant(integer_type(1), 0)
                for n, value in enumerate(ev.region(op, self._loops(at), known, mask, true)):
                    room.put(n, column, splat_to(value, self.lanes))

            def each(body: Callable[..., Sequence[ir.Value] | None], moves: bool,
                     carried: Sequence[ir.Value] = ()) -> list[ir.Value]:
                """moves: do the states go on first?"""
                def column(n: Index, *values: ir.Value) -> Sequence[ir.Value] | None:
                    at = self._at(where, n)
                    with ev.kept():
                        if moves:
                            advance(n, at)
                        with self._known({r: room.get(i, n) for i, r in enumerate(op.results)}):
                            return body(at, *values)

                return room.each(column, carried)

            sums: dict[ir.Value, ir.Value] = {}
            for number, stage in enumerate(w.stages or ((),)):
                with self._known(sums):
                    starts = [splat_to(ev.element(inits(s)[0], [where[a] for a in w.places[s.results[0]]], mask), self.lanes)
                              for s in stage]
                    made = each(lambda at, *sofar, stage=stage: self._summed(stage, at, sofar, mask),
                                number == 0 and not w.running.exclusive, starts)
                sums.update((s.results[0], value) for s, value in zip(stage, made, strict=True))
            with self._known(sums):
                for n in self.members:
                    if not set(w.places[self.kernel.results[n]]) & set(w.columns):
                        self._store(n, where, mask)
                inner = [n for n in self.members if set(w.places[self.kernel.results[n]]) & set(w.columns)]

                def stored(at: Sequence[Index]) -> None:
                    for n in inner:
                        self._store(n, at, mask)

                if inner:
                    each(stored, False)
            if w.running.exclusive:
                each(lambda _: None, True)

    def _summed(self, stage: Sequence[ir.Operation], at: Sequence[Index], sofar: Sequence[ir.Value],
                mask: ir.Value | None) -> list[ir.Value]:
        """The sums of a stage with one more column."""
        found = []
        for s, value in zip(stage, sofar, strict=True):
            loops = [at[a] for a in self.walk.loops[s]]
            found.append(self.kernel.evaluator.region(s, loops, {len(inputs(s)): value}, mask)[0])
        return [splat_to(v, self.lanes) for v in found]

    def _store(self, number: int, at: Sequence[Index], mask: ir.Value | None) -> None:
        value = self.kernel.results[number]
        coords = [at[a] for a in self.walk.places[value]]
        self.kernel.outputs[number].store(self.kernel.evaluator.element(value, coords, mask), coords, mask)

    @contextmanager
    def _known(self, values: dict[ir.Value, ir.Value]) -> Iterator[None]:
        ev = self.kernel.evaluator
        for value, made in values.items():
            ev.known[value] = lambda _, made=made: made  # type: ignore[misc]
        try:
            yield
        finally:
            for value in values:
                del ev.known[value]


def walk_abreast(walkers: Sequence[StateWalker], places: Sequence[Sequence[Index]], mask: ir.Value | None = None,
                 ahead: Callable[[Index], None] = lambda _: None) -> None:
    """Walkers of one walk, each with a room and a place of its own, take each step one after the other. ahead: is called with
    each step first. What a step has to compute of what it reads is computed at the step before, so that no state waits for it."""
    kernel, rooms, extent = walkers[0].kernel, [w.room for w in walkers], walkers[0].extent
    each = list(zip(walkers, places, strict=True))

    def walk() -> None:
        with kernel.evaluator.kept():
            once = [w.once(at, mask) for w, at in each]
            for walker, at in each:
                walker.begin(at, mask)
            counts = [len(room.carried()) for room in rooms]
            early = walkers[0].computed()

            def computed(i: Index) -> list[ir.Value]:
                return [splat_to(v, w.lanes) for w, at in each for v in w.read(i, at, early, mask).values()]

            def step(i: Index, *carried: ir.Value) -> list[ir.Value]:
                left = list(carried)
                ahead(i)
                for room, count in zip(rooms, counts, strict=True):
                    room.take(left[:count])
                    del left[:count]
                with kernel.evaluator.kept():
                    following = computed((i + 1).min(extent - 1))
                    given = [{**known, **w.read(i, at, [m for m in w.moving() if m not in early], mask),
                              **dict(zip(early, left[n * len(early):], strict=False))}
                             for n, ((w, at), known) in enumerate(zip(each, once, strict=True))]
                    for (walker, at), values in zip(each, given, strict=True):
                        walker.step(i, at, values, mask)
                return [*(value for room in rooms for value in room.carried()), *following]

            loop(0, extent, 1, step, [*(value for room in rooms for value in room.carried()), *computed(Index(0))], kernel.index)

    when(Index(0).lt(extent) if walkers[0].computed() else True, walk)
