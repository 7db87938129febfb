"""Counters of loops: which carried integers are dims inside their loop, and how far they count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.compiler.dims.op_location import where
from tilewright.passes.linalg.symbolic import COUNTERS, SymbolicShapes, integer
from tilewright.passes.mlir import ir, operations, owner
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Expr

LOOPS = "tw.loops"  # of an scf.while or scf.for: {name = [lo, hi]} for counters whose end does not follow from the condition
_STRICT = {2: 1, 6: 1, 3: 0, 7: 0}  # a < b and a <= b, by what a is below b at least
_UNSIGNED = 6  # predicates from here on
_SWAPPED = {4: 1, 8: 1, 5: 0, 9: 0}
_SHAPED = ("tensor.empty", "tensor.extract_slice", "tensor.insert_slice", "tensor.pad", "tensor.expand_shape", "tensor.generate",
           "tensor.splat")


@dataclass(frozen=True)
class LoopCounter:
    """The carried value of this number counts: its dim, first value, step, and largest value inside the loop, over the dims
    outside. lo, hi: numbers that it stays between, the last one included that ends the loop."""

    number: int
    name: str
    start: Expr
    step: Expr
    largest: Expr
    lo: int
    hi: int


def counters_of(loop: ir.Operation, fn: ir.Operation, names: Sequence[str]) -> list[LoopCounter]:
    """The counters of an scf.while; `names` are free names of dims, one a carried value.

    Raises:
        IngestError: an extent depends on a carried integer that counts, but has no bound.
    """
    before, after = (region.blocks[0] for region in loop.regions)
    candidates = [n for n, v in enumerate(loop.operands) if isinstance(v.type, ir.IndexType | ir.IntegerType)
                  and str(v.type) != "i1"]
    given = _given(loop)
    found = []
    for number in candidates:
        trial = [names[n] if n == number else "" for n, _ in enumerate(loop.operands)]
        _mark(loop, trial)
        shapes = SymbolicShapes(fn)
        name = names[number]
        start = shapes.expr(loop.operands[number])
        step = _step(before, after, number, shapes, name)
        largest = None if start is None or step is None else _largest(before, shapes, name, step, start)
        del loop.attributes[COUNTERS]
        if start is None or step is None:
            continue
        lo, hi = shapes.bounds(start)[0], math.inf if largest is None else shapes.bounds(largest)[1]
        if largest is None and given:
            name, (_, hi) = given.pop(0)
            largest = Expr.of(int(hi))
        if largest is None or math.isinf(hi + shapes.bounds(step)[1]) or lo < 0:
            _want_bound(loop, number)
            continue
        _want_no_extent(loop, before, number)
        end = int(hi + shapes.bounds(step)[1])
        found.append(LoopCounter(number, name, start, step, largest, int(lo), max(int(lo), end)))
    return found


def _mark(loop: ir.Operation, names: Sequence[str]) -> None:
    loop.attributes[COUNTERS] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in names])


def _given(loop: ir.Operation) -> list[tuple[str, tuple[int, int]]]:
    """What the model says of counters itself."""
    if LOOPS not in loop.attributes:
        return []
    attribute = loop.attributes[LOOPS]
    try:
        pairs = [(n.name, [integer(a) for a in ir.ArrayAttr(n.attr)]) for n in ir.DictAttr(attribute)]
        return [(name, (lo, hi)) for name, (lo, hi) in pairs]
    except (ValueError, TypeError) as error:
        raise IngestError(f"{LOOPS} = {attribute} at {where(loop)}: wanted the least and largest value of each counter; write it "
                          "as {i = [0, 1023]}") from error


def _forwarded(before: ir.Block, number: int) -> list[int]:
    """Where the loop's body gets a carried value: the positions that the condition passes it on in."""
    last = operations(before)[-1]
    return [n for n, v in enumerate(list(last.operands)[1:]) if v == before.arguments[number]]


def _step(before: ir.Block, after: ir.Block, number: int, shapes: SymbolicShapes, name: str) -> Expr | None:
    """What is added each time around: the same every time, and at least 1."""
    makes = operations(after)[-1].operands[number]
    for position in _forwarded(before, number):
        op = owner(makes)
        while op is not None and op.name.startswith("arith.index_cast"):
            op = owner(op.operands[0])
        if op is None or op.name != "arith.addi":
            continue
        sides = [_uncast(v) for v in op.operands]
        if after.arguments[position] in sides:
            other = op.operands[1 - sides.index(after.arguments[position])]
            step = shapes.expr(other)
            if step is not None and name not in step.symbols and shapes.bounds(step)[0] >= 1:
                return step
    return None


def _uncast(value: ir.Value) -> ir.Value:
    op = owner(value)
    while op is not None and op.name.startswith("arith.index_cast"):
        value, op = op.operands[0], owner(op.operands[0])
    return value


def _largest(before: ir.Block, shapes: SymbolicShapes, name: str, step: Expr, start: Expr) -> Expr | None:
    """The largest value of a counter for which the loop's condition may hold."""
    found: Expr | None = None
    for test in _conjuncts(operations(before)[-1].operands[0]):
        if test.name != "arith.cmpi":
            continue
        predicate = integer(test.attributes["predicate"])
        a, b = (shapes.expr(v) for v in test.operands)
        if a is None or b is None:
            continue
        if predicate >= _UNSIGNED and min(shapes.bounds(e.substitute({name: start}))[0] for e in (a, b)) < 0:
            continue  # a negative number is a large one here
        if predicate in _SWAPPED:
            a, b, predicate = b, a, {4: 2, 8: 6, 5: 3, 9: 7}[predicate]
        below = b - a + Expr.dim(name)  # of a counter plus something that is below something: the end
        if predicate == 1 and step == Expr.of(1) and name not in below.symbols and shapes.bounds(below - start)[0] >= 0:
            end: Expr | None = below - 1
        elif predicate in _STRICT and name not in below.symbols:
            end = below - _STRICT[predicate]
        else:
            continue
        found = end if found is None or end is None else found.minimum(end)
    return found


def _conjuncts(condition: ir.Value) -> Iterator[ir.Operation]:
    op = owner(condition)
    if op is None:
        return
    if op.name == "arith.andi":
        for part in op.operands:
            yield from _conjuncts(part)
    else:
        yield op


def _want_bound(loop: ir.Operation, number: int) -> None:
    """IngestError where an extent or a place of a slice depends on a carried value that is no dim."""
    blocks = [region.blocks[0] for region in loop.regions]
    last = operations(blocks[0])[-1]
    at = [blocks[0].arguments[number]]
    at += [blocks[1].arguments[n] for n, v in enumerate(list(last.operands)[1:]) if v == at[0]]
    shaped = next((op for value in at for op in _readers(value) if op.name in _SHAPED), None)
    if shaped is not None:
        raise IngestError(
            f"{loop.name} at {where(loop)}: {shaped.name} at {where(shaped)} depends on carried value {number}, a counter "
            "without a bound: compare it with a size or a constant in the loop's condition, or give the loop "
            f"{LOOPS} = {{i = [0, 99]}}")


def _want_no_extent(loop: ir.Operation, before: ir.Block, number: int) -> None:
    """IngestError where an extent in the loop's condition depends on the counter, which is beyond its bound there at the end."""
    shaped = next((op for op in _readers(before.arguments[number]) if op.name in _SHAPED), None)
    if shaped is not None:
        raise IngestError(f"{loop.name} at {where(loop)}: {shaped.name} at {where(shaped)}, in the loop's condition, depends on "
                          "its counter: compute it in the body, and carry what the condition needs")


def _readers(value: ir.Value) -> Iterable[ir.Operation]:
    """What reads a value, also by way of index arithmetic, in nested loops and branches too."""
    seen: dict[ir.Operation, None] = {}
    todo = [value]
    while todo:
        for use in todo.pop().uses:
            op = use.owner.operation
            if op not in seen:
                seen[op] = None
                todo += list(op.results) if op.name.startswith("arith.") else []
    return list(seen)


