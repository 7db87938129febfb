"""Reductions in parts whose parts nobody else needs: the call that makes them may add them up itself.

Where there is one part, or where a work unit has all parts of its columns, a kernel of sums in parts can give the sum itself
(`joins` of runtime/program/kernel.py): its parts get the memory of the sum, with a stride of 0 from one to the next. Which of
its kernels runs, and how many parts there are, is known at the call, so the call that joins them is skipped there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.compiler.host.moments import callee_of
from tilewright.passes.analysis.op_kinds import combiner
from tilewright.passes.analysis.parts import neutral, parts_of
from tilewright.passes.codegen.emit import integer_type
from tilewright.passes.codegen.index import Index
from tilewright.passes.linalg.structured import defined_by, inits, inputs, iterator_kinds, uncast
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import arith, ir, llvm, maps_of, operations, owner, position
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr

_ASIDE = ("tensor.empty", "linalg.fill", "arith.constant", "tensor.dim", "func.return")


@dataclass(frozen=True)
class JoinedParts:
    """Numbers of a call that makes parts and of the one that joins them, of the operand that the parts are to the first, and of
    the one that the sum is to the second. parts: how many, over the dims."""

    made: int
    at: int
    joined: int
    into: int
    parts: Expr


@dataclass(frozen=True)
class PartJoins:
    """What may be joined where it is made, each with a word of memory at run time, by number: calls of one launch.

    joined: of a plan. launches: the calls of each. apart: numbers of calls that are launched in other ways.
    """

    joined: Sequence[JoinedParts]
    launches: Sequence[tuple[int, ...]]
    apart: Collection[int]

    @cached_property
    def found(self) -> list[JoinedParts]:
        """All of them."""
        launches = list(map(set, self.launches))
        return [j for j in self.joined if j.made not in self.apart and any({j.made, j.joined} <= calls for calls in launches)]

    @cached_property
    def alone(self) -> set[int]:
        """Calls whose launch has nothing but them and those that join what they make: one kernel where these are skipped."""
        pairs = {(j.made, j.joined) for j in self.found}
        return {calls[0] for calls in self.launches if len(calls) > 1 and all((calls[0], other) in pairs for other in calls[1:])}

    def word_of(self, number: int) -> int | None:
        """The word of what a call joins; None where it joins no parts."""
        return next((word for word, j in enumerate(self.found) if j.joined == number), None)

    def made_by(self, number: int) -> Iterator[tuple[int, JoinedParts]]:
        """What a call makes, with its word."""
        return ((word, j) for word, j in enumerate(self.found) if j.made == number)


@dataclass(frozen=True)
class Joining:
    """Of parts that a launch may join at once: where their sum lies, how many they are, and the word that says whether it did."""

    sum: ir.Value
    parts: Index
    word: ir.Value

    def at_once(self, kernel: MicroKernel) -> ir.Value:
        """Does this kernel join them? No parts are joined by the call that does that always."""
        known = {"": False, "one": self.parts.eq(1), "all": self.parts.ge(1)}[kernel.joins]
        return arith.constant(integer_type(1), int(known)) if isinstance(known, bool) else known

    def choose(self, kernel: MicroKernel, once: ir.Value, apart: ir.Value) -> ir.Value:
        """The first where it joins them, else the second."""
        return arith.select(self.at_once(kernel), once, apart)

    def tell(self, kernel: MicroKernel) -> None:
        """Keeps it for the call that joins."""
        i64 = integer_type(64)
        llvm.StoreOp(arith.extui(i64, self.at_once(kernel)), self.word)


@dataclass(frozen=True)
class Maker:
    """The call that makes parts, which are its result `at`."""

    made: ir.Operation
    at: int


def joins_of(named: Mapping[str, ir.Operation], ops: Sequence[ir.Operation]) -> dict[ir.Operation, Maker]:
    """Of the calls among the operations of a block those that join parts that nobody else reads, and who makes these.

    named: functions by name.
    """
    found = {}
    for call in ops:
        if call.name != "func.call" or len(call.results) != 1:
            continue
        tensors = [v for v in call.operands if isinstance(v.type, ir.RankedTensorType)]
        made = owner(tensors[0]) if len(tensors) == 1 else None
        if made is None or made.name != "func.call" or made.block != call.block or [u.owner for u in tensors[0].uses] != [call]:
            continue
        [parts] = tensors
        at = list(made.results).index(parts)
        if _joins_parts(named[callee_of(call)], named[callee_of(made)], at):
            found[call] = Maker(made, at)
    return found


def joined_parts(joins: Mapping[ir.Operation, Maker], numbers: Mapping[ir.Operation, int], given: Collection[ir.Value],
                 shapes: SymbolicShapes) -> Iterator[JoinedParts]:
    """The same by numbers of calls. given: results that lie where arguments do, which may still be read while parts are made."""
    for call, maker in joins.items():
        if call.results[0] not in given:
            at = sum(isinstance(v.type, ir.RankedTensorType) for v in maker.made.operands) + maker.at
            parts = shapes.dims(maker.made.results[maker.at])[0]
            yield JoinedParts(numbers[maker.made], at, numbers[call], 1, parts)


def _joins_parts(callee: ir.Operation, made: ir.Operation, number: int) -> bool:
    """Does a function nothing but add up the parts that are result `number` of another, from what a kernel of parts begins with
    where it adds them up itself: 0, or what changes nothing?"""
    parts = owner(uncast(operations(made.regions[0].blocks[0])[-1].operands[number]))
    found = parts_of(parts)
    ops = [op for op in operations(callee.regions[0].blocks[0]) if op.name not in _ASIDE]
    if parts is None or found is None or found.whole or [op.name for op in ops] != ["linalg.generic"] or len(ops[0].results) != 1:
        return False
    [op] = ops
    last, start = combiner(op), defined_by(inits(op)[0], "linalg.fill")
    theirs = combiner(parts)
    if last is None or theirs is None or start is None or last.name != theirs.name or len(inputs(op)) != 1:
        return False
    read, result = maps_of(op)
    kinds, along = iterator_kinds(op), [position(e) for e in read.results]
    down = [d for d, kind in enumerate(kinds) if kind == "reduction"]
    whole = along[:1] == down and sorted(map(str, along)) == sorted(map(str, range(len(kinds)))) and \
        [position(e) for e in result.results] == along[1:]
    return whole and inputs(op)[0] == callee.regions[0].blocks[0].arguments[0] and _begins(start, last)


def _begins(fill: ir.Operation, last: ir.Operation) -> bool:
    number = defined_by(fill.operands[0], "arith.constant")
    if number is None:
        return False
    value, type_ = number.attributes["value"], last.results[0].type
    if isinstance(value, ir.FloatAttr):
        wanted = 0.0 if last.name == "arith.addf" else float(neutral(last.name, type_))
        return str(ir.FloatAttr(value).value) == str(wanted)
    return bool(ir.IntegerAttr(value).value == neutral(last.name, type_))
