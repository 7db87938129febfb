"""RowEmitter: what both ways of walking rows share: one column step, the end of a reduction, values kept between sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from tilewright.passes.analysis.row_program import Place, RowProgram
from tilewright.passes.codegen.emit import Memory, lanes_of
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.families.row_reduction import Combiner, combiners, pick, values_of
from tilewright.passes.mlir import ir, owner

Key = tuple[object, ...]
At = Sequence[Index]  # a coordinate per frame axis
Accumulators = list[ir.Value] | None
Store = tuple[Memory, list[Index], ir.Value, ir.Value | None]  # where, the element, the lanes


@dataclass(frozen=True)
class Kept:
    """A full value between sweeps: the sweep that stores it, where it lies, and its coordinates there. Scratch memory holds
    whole vectors, so no access to it is masked."""

    first: int
    memory: Memory
    coords: Callable[[At], list[Index]]
    scratch: bool = False

    def load(self, at: At, mask: ir.Value | None) -> ir.Value:
        return self.memory.load(self.coords(at), None if self.scratch else mask)


class RowEmitter:
    """Registers with the evaluator what is known at the current row; a read at other coordinates is a ValueError.

    part: the number of the part that a kernel of reductions in parts is at.
    """

    part = Index(0)

    def __init__(self, kernel: KernelFrame, program: RowProgram, lanes: int) -> None:
        self.kernel, self.program = kernel, program
        self.ev, self.index, self.lanes = kernel.evaluator, kernel.index, lanes
        self.sizes = [self.ev.emit(e) for e in program.frame]
        self.kept: dict[ir.Value, Kept] = {}
        self._known: dict[ir.Value, dict[tuple[Key, ...], ir.Value]] = {}

    # -- what is known

    def publish(self, value: ir.Value, at: At, number: ir.Value) -> None:
        """At frame coordinates `at` the tensor `value` has the element `number`."""
        coords = self.coords(self.program.places[value], at)
        self._known.setdefault(value, {})[tuple(_key(c, self.index) for c in coords)] = number
        self.ev.known[value] = lambda coords: self._look_up(value, coords)

    def forget(self) -> None:
        for value in self._known:
            self.ev.known.pop(value, None)
        self._known.clear()

    def _look_up(self, value: ir.Value, coords: Sequence[Index]) -> ir.Value:
        found = self._known[value].get(tuple(_key(c, self.index) for c in coords))
        if found is None:
            op = owner(value)
            where = f"{op.name} at {op.location}" if op is not None else str(value)
            raise ValueError(f"the result of {where} is read at another row than the one being computed")
        return found

    def coords(self, place: Place, at: At) -> list[Index]:
        return [Index(0) if a is None else at[a] for a in place]

    # -- one column

    def step(self, number: int, at: At, mask: ir.Value | None, accumulators: Accumulators, held: bool = False) -> list[ir.Value]:
        """Sweep `number` at one column of one row (a coordinate of `at` is a ramp): the next accumulators, one per result of
        each reduction; None starts them."""
        program, sweep = self.program, self.program.sweeps[number]
        with nullcontext() if held else self.ev.kept():
            for value, kept in self.kept.items():
                if kept.first < number:
                    self.publish(value, at, kept.load(at, mask))
            joins, values = [], []
            for op in sweep.reductions:
                loops = [at[a] for a in program.loops[op]]
                joins += combiners(op)
                values += values_of(self.ev, op, combiners(op), loops, self.lanes, mask)
            stores = self.part_stores(number, at, mask)
            for n in sweep.results:
                coords = self.coords(program.result_places[n], at)
                stores.append((self.kernel.outputs[n], coords, self.ev.element(program.results[n], coords, mask), mask))
            for value in sweep.kept:
                if value in self.kept and self.kept[value].scratch:
                    element = self.ev.element(value, self.coords(program.places[value], at), mask)
                    stores.append((self.kept[value].memory, self.kept[value].coords(at), element, None))
            for memory, coords, element, lanes in stores:
                self.store(memory, element, coords, lanes)
        if accumulators is None:
            return [v if mask is None else pick(mask, v, c.neutral(self.lanes)) for c, v in zip(joins, values, strict=True)]
        return [pick(mask, c(v, a), a) for c, v, a in zip(joins, values, accumulators, strict=True)]

    def part_memory(self, op: ir.Operation) -> tuple[Memory, Combiner]:
        """Where the parts of an operation lie, and how it joins values."""
        return self.kernel.outputs[self.program.results.index(op.results[0])], combiners(op)[0]

    def part_coords(self, op: ir.Operation, at: At) -> list[Index]:
        """Where the part that a kernel is at has what belongs to columns."""
        return [self.part, *self.coords(self.program.places[op.results[0]][1:], at)]

    def part_values(self, number: int, at: At,
                    mask: ir.Value | None) -> Iterator[tuple[ir.Operation, Memory, Combiner, ir.Value]]:
        """What a column step has for each reduction in parts of a sweep, with its memory and how it is joined."""
        for op in self.program.sweeps[number].parts:
            memory, joined = self.part_memory(op)
            [value] = values_of(self.ev, op, [joined], [at[a] for a in self.program.loops[op]], self.lanes, mask)
            yield op, memory, joined, value

    def part_stores(self, number: int, at: At, mask: ir.Value | None) -> list[Store]:
        """What a column step adds to the parts of the sweep."""
        if self.program.sweeps[number].parts:
            raise ValueError("reductions in parts are not done by this kernel")
        return []

    def joins(self, number: int) -> list[Combiner]:
        """The combiner of each accumulator of a sweep."""
        return [c for op in self.program.sweeps[number].reductions for c in combiners(op)]

    # -- the end of a sweep

    def finish(self, number: int, at: At, totals: Sequence[ir.Value],
               mask: ir.Value | None = None) -> list[tuple[ir.Value, ir.Value]]:
        """Joins totals with the initial values, computes the row scalars that follow and stores row results.
        Returns (tensor value, its element), all published at `at`."""
        program, sweep = self.program, self.program.sweeps[number]
        made: list[tuple[ir.Value, ir.Value]] = []
        left = iter(totals)
        for op in sweep.reductions:
            if op in program.parts:
                self.add_total(op, at, next(left))
                continue
            for c, result in zip(combiners(op), op.results, strict=True):
                total = next(left)
                start = self.ev.element(op.operands[c.number], self.coords(program.places[result], at), mask)
                if not _is_neutral(start, c):
                    total = c(splat_to(c.widen(start), lanes_of(total)), total)
                made.append((result, c.narrow(total)))
                self.publish(result, at, made[-1][1])
        for value in sweep.scalars:
            self.ev.known.pop(value, None)  # it is known at other rows only
            made.append((value, self.ev.element(value, self.coords(program.places[value], at), mask)))
            self.publish(value, at, made[-1][1])
        stores: list[Store] = []
        for n in sweep.row_results:  # all of them are made before one is stored: it may lie where others read
            coords = self.coords(program.result_places[n], at)
            stores.append((self.kernel.outputs[n], coords, self.ev.element(program.results[n], coords, mask), mask))
        for memory, coords, element, lanes in stores:
            self.store_once(memory, element, coords, lanes)
        return made

    def add_total(self, op: ir.Operation, at: At, total: ir.Value) -> None:
        """A row's share of the part that it lies in."""
        raise ValueError("reductions in parts are not done by this kernel")

    # -- stores

    def store(self, memory: Memory, element: ir.Value, coords: Sequence[Index], mask: ir.Value | None) -> None:
        """Stores elements of a column step."""
        memory.store(element, coords, mask)

    def store_once(self, memory: Memory, element: ir.Value, coords: Sequence[Index], mask: ir.Value | None) -> None:
        """Stores an element of a row, which all that work on the row have."""
        memory.store(element, coords, mask)


def _key(c: Index, type_: ir.Type) -> Key:
    """Equal for coordinates that are the same constant, SSA value or ramp."""
    base = c.base
    number = base.const if base.const is not None else base.value(type_)
    return (number, c.lanes, None if c.step is None else _key(c.step, type_))


def _is_neutral(start: ir.Value, c: Combiner) -> bool:
    """Is `start` a constant that changes nothing?"""
    op = owner(start)
    if op is None or op.name != "arith.constant" or lanes_of(start) > 1:
        return False
    neutral = c.neutral()
    made = owner(neutral)
    assert made is not None
    same: bool = c.type == c.wide and op.attributes["value"] == made.attributes["value"]
    made.erase()
    return same
