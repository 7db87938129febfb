"""Reductions whose loop only matters at some of its steps: running ones, and updates of places that a tensor names.

Both are written as reductions over all steps, each of which an element either takes or leaves as it is:

    out[.., i, ..] = step r or not:  yield select(gate, new, out)

A running reduction takes the steps up to its own place: the gate compares the indices of two loops. An update takes those that
name its place: the gate is that indices of parallel loops equal numbers of the step. So one walk over the steps serves all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.passes.linalg.collapse import e_uses
from tilewright.passes.linalg.structured import body, inputs, iterator_kinds
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, operations, owner, position

_SWAPPED = {"slt": "sgt", "sle": "sge", "sgt": "slt", "sge": "sle"}
_ORDERS = {2: "slt", 3: "sle", 4: "sgt", 5: "sge"}  # of arith.cmpi's predicates
_EQUAL = 0


@dataclass(frozen=True)
class Running:
    """A running reduction: the place at loop `along` takes the steps of loop `over` that stand in `order` to it, which is what
    the condition `gate` says."""

    op: ir.Operation
    gate: ir.Value
    over: int
    along: int
    order: str

    @property
    def exclusive(self) -> bool:
        return self.order in ("slt", "sgt")

    @property
    def backward(self) -> bool:
        return self.order in ("sgt", "sge")


@dataclass(frozen=True)
class Updates:
    """A step of `over` updates the place whose coordinate along each loop of `places` is that value of the body. gates: the
    conditions that say so."""

    op: ir.Operation
    gates: tuple[ir.Value, ...]
    over: int
    places: Mapping[int, ir.Value]


@dataclass(frozen=True)
class FirstStep:
    """What a running reduction goes on from at its first step, where its body selects that: `condition` is that it is the first
    one, `starts` what it takes then in place of each result, by number."""

    condition: ir.Value
    starts: Mapping[int, ir.Value]


def first_step(running: Running) -> FirstStep | None:
    """None where the body starts in no such way, or all steps read what a result held before."""
    op, block = running.op, body(running.op)
    if running.backward:
        return None
    conditions = [o.results[0] for o in operations(block) if o.name == "arith.cmpi" and _is_first(o, running.over)]
    last = operations(block)[-1]
    for condition in conditions:
        starts = dict[int, ir.Value]()
        for number, argument in enumerate(list(block.arguments)[len(inputs(op)):]):
            kept = owner(last.operands[number])
            readers = [use.owner.operation for use in argument.uses]
            selects = [o for o in readers if o != kept]
            if not selects or any(o.name != "arith.select" or o.operands[0] != condition or o.operands[2] != argument
                                  for o in selects) or len({o.operands[1] for o in selects}) != 1:
                return None
            starts[number] = selects[0].operands[1]
        return FirstStep(condition, starts)
    return None


def _is_first(compare: ir.Operation, over: int) -> bool:
    """Is it that the index of a loop is 0?"""
    a, b = compare.operands
    return integer(compare.attributes["predicate"]) == _EQUAL and any(
        loop_of(x) == over and (made := owner(y)) is not None and made.name == "arith.constant"
        and integer(made.attributes["value"]) == 0 for x, y in ((a, b), (b, a)))


def gated(op: ir.Operation | None) -> Running | Updates | None:
    """What a generic is of the two; None of any other operation."""
    if op is None or op.name != "linalg.generic":
        return None
    over = [d for d, kind in enumerate(iterator_kinds(op)) if kind == "reduction"]
    gate = _gate(op)
    if len(over) != 1 or gate is None:
        return None
    return _running(op, gate, over[0]) or _updates(op, gate, over[0])


def _gate(op: ir.Operation) -> ir.Value | None:
    """The condition under which all results take a new value, else keep the old one."""
    block, first = body(op), len(inputs(op))
    found = None
    for number, value in enumerate(operations(block)[-1].operands, first):
        made = owner(value)
        if made is None or made.name != "arith.select" or made.operands[2] != block.arguments[number]:
            return None
        if found is not None and made.operands[0] != found:
            return None
        found = made.operands[0]
    maps = maps_of(op)[first:]
    return found if all(position(e) is not None for m in maps for e in m.results) and len({str(m) for m in maps}) == 1 else None


def _leaves(gate: ir.Value) -> list[ir.Operation]:
    """The conditions that a gate is the conjunction of."""
    made = owner(gate)
    if made is None:
        return []
    return [leaf for v in made.operands for leaf in _leaves(v)] if made.name == "arith.andi" else [made]


def _running(op: ir.Operation, gate: ir.Value, over: int) -> Running | None:
    for compare in _leaves(gate):
        if compare.name != "arith.cmpi":
            continue
        order = _ORDERS.get(integer(compare.attributes["predicate"]))
        first, second = (loop_of(v) for v in compare.operands)
        if order is None or first is None or second is None or over not in (first, second) or first == second:
            continue
        along = second if first == over else first
        if _depends(op, compare.results[0], along) or any(e_uses(e, along) for m in _read_maps(op) for e in m.results):
            return None
        return Running(op, compare.results[0], over, along, order if first == over else _SWAPPED[order])
    return None


def _updates(op: ir.Operation, gate: ir.Value, over: int) -> Updates | None:
    places: dict[int, ir.Value] = {}
    gates: list[ir.Value] = []
    for leaf in _leaves(gate):
        if leaf.name != "arith.cmpi" or integer(leaf.attributes["predicate"]) != _EQUAL:
            continue
        a, b = leaf.operands
        for at, value in ((loop_of(a), b), (loop_of(b), a)):
            if at is not None and at != over and at not in places:
                places[at] = value
                gates.append(leaf.results[0])
                break
    if not places or not all(_named(op, v, set(places)) for v in places.values()):
        return None
    return Updates(op, tuple(gates), over, places)


def loop_of(value: ir.Value) -> int | None:
    """The loop whose index a value is."""
    made = owner(value)
    while made is not None and made.name == "arith.index_cast":
        made = owner(made.operands[0])
    return integer(made.attributes["dim"]) if made is not None and made.name == "linalg.index" else None


def _read_maps(op: ir.Operation) -> list[ir.AffineMap]:
    return maps_of(op)[: len(inputs(op))]


def _depends(op: ir.Operation, but: ir.Value, loop: int) -> bool:
    """Does the body use the index of the loop for anything else than the value `but`?"""
    moved = set[ir.Value]()
    for inner in operations(body(op)):
        if inner.name == "linalg.index" and integer(inner.attributes["dim"]) == loop:
            moved.add(inner.results[0])
        elif not moved.isdisjoint(inner.operands):
            if inner.name == "arith.index_cast":
                moved.add(inner.results[0])
            elif but not in list(inner.results):
                return True
    return False


def _named(op: ir.Operation, value: ir.Value, places: set[int]) -> bool:
    """Is a value of the body the same at all places: made neither of results nor of what is read at their coordinates?"""
    block, maps, count = body(op), maps_of(op), len(inputs(op))
    arguments, todo, seen = list(block.arguments), [value], set[ir.Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        if v in arguments:
            number = arguments.index(v)
            if number >= count or any(e_uses(e, d) for e in maps[number].results for d in places):
                return False
            continue
        made = owner(v)
        if made is None or made.operation.block != block:
            continue  # a value of the function
        if made.name == "linalg.index" and integer(made.attributes["dim"]) in places:
            return False
        todo += list(made.operands)
    return True
