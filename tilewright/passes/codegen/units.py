"""Units: the loops over work units of a tiled region, read back from the IR for the code that runs them.

The emitters see the region as it was: the values that a loop cuts, not what it puts together. How many units there are and what
the tile of each one holds is in the loop (tiler.py): its upper bounds, and the offsets and sizes of its first slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tilewright.passes.codegen.emit import loop
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, delinearize, select
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer, mixed
from tilewright.passes.mlir import ir, operations, owner, replace_all_uses
from tilewright.runtime.shape import Expr

AXES, BLOCK = "tw.axes", "tw.block"  # of an scf.forall: name of each axis of its first slice; units that are launched as one
_ARITHMETIC: Mapping[str, Callable[[Index, Index], Index]] = MappingProxyType({
    "arith.addi": Index.__add__, "arith.subi": Index.__sub__, "arith.muli": Index.__mul__, "arith.divui": Index.__floordiv__,
    "arith.remui": Index.__mod__, "arith.minsi": Index.min, "arith.maxsi": Index.max,
})


@dataclass(frozen=True)
class Units:
    """counts: iterations along each axis of the loop, slowest first. block: iterations that are launched as one; both are asked
    for when the region, and with it the loop, is erased."""

    loop: ir.Operation
    counts: tuple[Expr, ...]
    block: int

    @staticmethod
    def of(loop: ir.Operation, shapes: SymbolicShapes) -> Units:
        bounds = mixed(loop, "staticUpperBound", 1)
        block = integer(loop.attributes[BLOCK]) if BLOCK in loop.attributes else 1
        return Units(loop, tuple(Expr.of(b) if isinstance(b, int) else shapes.required(b) for b in bounds), block)

    @property
    def total(self) -> Expr:
        """Iterations."""
        total = Expr.of(1)
        for count in self.counts:
            total = total * count
        return total

    def numbers(self, evaluator: Evaluator) -> Callable[[Index], Unit]:
        """The unit of a number from 0 on; what does not depend on the number is emitted at once."""
        sizes, known = [evaluator.emit(count) for count in self.counts], self._invariants(evaluator)
        return lambda number: self.at(evaluator, delinearize(number, sizes), known)

    def walk(self, evaluator: Evaluator, begin: Index, end: Index, body: Callable[[Unit], None]) -> None:
        """The units [begin, end) in order. Their coordinates are counted on, which costs no division."""
        sizes, known = [evaluator.emit(count) for count in self.counts], self._invariants(evaluator)
        index = evaluator.index_type

        def unit(_: Index, *place: ir.Value) -> list[ir.Value]:
            at = [Index(p) for p in place]
            body(self.at(evaluator, at, known))
            return _following(at, sizes, index)

        loop(begin, end, 1, unit, [x.value(index) for x in delinearize(begin, sizes)], index)

    def walk_runs(self, evaluator: Evaluator, begin: Index, end: Index, body: Callable[[Unit, Unit], None]) -> None:
        """As `walk`, but the units that follow one another along the last axis at once: the first of a run and its last one."""
        sizes, known = [evaluator.emit(count) for count in self.counts], self._invariants(evaluator)
        outer, each, index = sizes[:-1], sizes[-1].max(1), evaluator.index_type
        first = begin // each

        def run(number: Index, *place: ir.Value) -> list[ir.Value]:
            at, passed = [Index(p) for p in place], number * each
            low, high = (begin - passed).max(0), (end - passed).min(each)
            body(self.at(evaluator, [*at, low], known), self.at(evaluator, [*at, high - 1], known))
            return _following(at, outer, index)

        loop(first, end.max(begin).ceildiv(each), 1, run, [x.value(index) for x in delinearize(first, outer)], index)

    def _invariants(self, evaluator: Evaluator) -> dict[ir.Value, Index]:
        """The numbers of the body that are the same in every iteration."""
        known = dict[ir.Value, Index]()
        every = self.at(evaluator, ())
        varying = set(every.block.arguments)
        for op in operations(every.block):
            if op.name in _ARITHMETIC:
                known |= {v: evaluator.size(v) for v in op.operands if v not in known and every.outside(v)}
            if varying.isdisjoint(op.operands) and op.name in _ARITHMETIC:
                known[op.results[0]] = replace(every, known=known).number(op.results[0])
            elif op.name != "arith.constant":
                varying.update(op.results)
        return known

    def at(self, evaluator: Evaluator, place: Sequence[Index], known: Mapping[ir.Value, Index] = MappingProxyType({})) -> Unit:
        """The unit at coordinates of the loop. known: numbers of its body that are emitted."""
        block = self.loop.regions[0].blocks[0]
        slice_ = next(op for op in operations(block) if op.name == "tensor.extract_slice")
        names = [ir.StringAttr(a).value for a in ir.ArrayAttr(self.loop.attributes[AXES])]
        parts = zip(names, mixed(slice_, "static_offsets", 1), mixed(slice_, "static_sizes", 2), strict=True)
        values = {**known, **dict(zip(block.arguments, place, strict=False))}
        return Unit(evaluator, block, values, {name: (first, size) for name, first, size in parts if name}, tuple(place))


def _following(place: Sequence[Index], sizes: Sequence[Index], index: ir.Type) -> list[ir.Value]:
    """The coordinates behind these, of which the last ones move fastest."""
    following, carry = list[Index](), Index(1)
    for x, size in zip(reversed(place), reversed(sizes), strict=True):
        moved = x + carry
        over = moved.ge(size)
        following.insert(0, select(over, Index(0), moved, type_=index))
        carry = select(over, Index(1), Index(0), type_=index)
    return [x.value(index) for x in following]


@dataclass(frozen=True)
class Unit:
    """One iteration. parts: offset and size of its tile, by name; place: its coordinates in the loop."""

    evaluator: Evaluator
    block: ir.Block
    known: Mapping[ir.Value, Index]
    parts: Mapping[str, tuple[int | ir.Value, int | ir.Value]]
    place: tuple[Index, ...]

    def first(self, name: str) -> Index:
        """Where the tile begins; 0 where no loop runs along it."""
        return self.number(self.parts[name][0]) if name in self.parts else Index(0)

    def span(self, name: str) -> tuple[Index, Index]:
        """Where it begins and where it ends."""
        begin = self.first(name)
        if name not in self.parts:
            return begin, Index(1)
        first, size = self.parts[name]
        at = self if isinstance(first, int) else replace(self, known={**self.known, first: begin})
        op = None if isinstance(size, int) else owner(size)
        if op is not None and op.name == "arith.subi" and op.operands[1] == first:
            return begin, at.number(op.operands[0])
        return begin, begin + at.number(size)

    def outside(self, value: ir.Value) -> bool:
        """Does a number come from in front of the loop?"""
        op = owner(value)
        return value not in self.block.arguments if op is None else op.block != self.block

    def number(self, value: int | ir.Value) -> Index:
        """A number of the loop's body, as the kernel computes it."""
        if isinstance(value, int):
            return Index(value)
        if value in self.known:
            return self.known[value]
        if self.outside(value):
            return self.evaluator.size(value)
        op = owner(value)
        assert op is not None
        if op.name == "arith.constant":
            return Index(integer(op.attributes["value"]))
        if op.name not in _ARITHMETIC:
            raise ValueError(f"{op.name} at {op.location}: a unit's numbers are sums, products, quotients and extremes")
        a, b = op.operands
        return _ARITHMETIC[op.name](self.number(a), self.number(b))


def launched(loops: Sequence[Units]) -> Expr:
    """How many units one launch of these loops has."""
    total = Expr.of(0)
    for units in loops:
        total = total + units.total
    return total.ceildiv(loops[0].block)


def take_units(block: ir.Block, shapes: SymbolicShapes) -> tuple[Units, ...]:
    """The loops over units of a region, in order; what reads their results reads the values that they cut instead."""
    found = []
    for units in [op for op in operations(block) if op.name == "scf.forall"]:
        found.append(Units.of(units, shapes))
        slices = [op for op in operations(units.regions[0].blocks[0]) if op.name == "tensor.extract_slice"]
        for result, tile in zip(units.results, slices, strict=True):
            source, whole, views = tile.operands[0], result, list[ir.Operation]()
            while (view := owner(source)) is not None and view.block != block:  # undone behind the loop, in as many steps
                source = view.operands[0]
                views.insert(0, next(iter(whole.uses)).owner.operation)
                whole = views[0].results[0]
            replace_all_uses(whole, source)
            for op in views:
                op.erase()
    return tuple(found)
