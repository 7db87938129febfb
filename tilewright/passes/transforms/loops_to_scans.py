"""loops-to-scans: a loop whose body works element by element on what it carries becomes operations over all steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.counted_loop import STEP, CountedLoop, KeptLoopError
from tilewright.passes.analysis.loop_starts import WrittenRow, call_of
from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise
from tilewright.passes.linalg.clone import captured, erase_dead
from tilewright.passes.linalg.shape_values import tensor_type
from tilewright.passes.linalg.stacked import Stacked, at_step
from tilewright.passes.linalg.structured import FRAME, use_count
from tilewright.passes.mlir import functions, ir, operations, owner, tensor
from tilewright.passes.transforms.recurrence import Recurrence
from tilewright.passes.transforms.stack_steps import StackSteps
from tilewright.passes.transforms.sums_of_states import split_sums
from tilewright.runtime.shape import Expr

KEPT = "tw.kept"  # of an scf.while: why it stays a loop


@dataclass(frozen=True)
class LoopsToScans(Pass):
    """What a counted loop carries element by element (h = a[t] * h + b[t]) becomes a running reduction over its steps, one kernel
    that holds it in registers; what else the body does is done for all steps at once. Products that sum what is carried become
    sums, which the kernel takes in as it goes. A loop that stays says why in `tw.kept`.

    most_bytes: of a tensor that is then computed for all steps.
    """

    name: ClassVar[str] = "loops-to-scans"
    most_bytes: int = 1 << 28

    def run(self, module: ir.Module) -> None:
        for frame in [f for f in functions(module) if FRAME in f.attributes]:  # inner loops first
            loop = next((o for o in operations(frame.regions[0].blocks[0]) if o.name == "scf.while"), None)
            if loop is None:
                continue
            try:
                found = CountedLoop.of(frame)
                _ = found.count
                with ir.InsertionPoint(loop), loop.location:
                    results = _Scan(found, frame, self.most_bytes).results()
            except KeptLoopError as why:
                loop.attributes[KEPT] = ir.StringAttr.get(str(why))
                erase_dead(frame.regions[0].blocks[0])
                continue
            for old, new in results:
                old.replace_all_uses_with(new)
            loop.erase()
            found.function.erase()
            erase_dead(frame.regions[0].blocks[0])
            del frame.attributes[FRAME]
            _inline(module, frame)
        for fn in functions(module):
            split_sums(fn)


def _inline(module: ir.Module, fn: ir.Operation) -> None:
    """The one call of a function becomes what the function does."""
    call = call_of(fn, list(functions(module)))
    block = fn.regions[0].blocks[0]
    with ir.InsertionPoint(call):
        for argument, operand in zip(block.arguments, call.operands, strict=True):
            argument.replace_all_uses_with(_as_type(operand, argument.type))
    *ops, last = operations(block)
    for op in ops:
        op.move_before(call)
    with ir.InsertionPoint(call):
        for old, new in zip(call.results, last.operands, strict=True):
            old.replace_all_uses_with(_as_type(new, old.type))
    call.erase()
    fn.erase()


def _as_type(value: ir.Value, kind: ir.Type) -> ir.Value:
    return value if value.type == kind else tensor.CastOp(kind, value).result


class _Scan:
    """One loop."""

    def __init__(self, loop: CountedLoop, frame: ir.Operation, most_bytes: int) -> None:
        self.loop, self.steps = loop, StackSteps(loop, frame, most_bytes)
        self.number_of = loop.carried
        self.argument_of = {n: v for v, n in loop.carried.items()}
        self.rows: dict[int, WrittenRow] = {}
        self.depends = loop.depends()

    def results(self) -> list[tuple[ir.Value, ir.Value]]:
        """Results of the loop, each with what takes its place."""
        loop = self.loop
        for number in loop.following:
            if (row := WrittenRow.of(loop, number, self.steps.inner)) is not None:
                self.rows[number] = row
        states = []
        for number, start in enumerate(loop.op.operands):
            argument = self.argument_of.get(number)
            if not isinstance(start.type, ir.RankedTensorType) or number in self.rows:
                continue
            if argument is None:
                continue
            if self._stays(number):
                self.steps.give(argument, Stacked(start))
            else:
                states.append(argument)
        lasts = self._states(states)
        found = []
        for number, (start, result) in enumerate(zip(loop.op.operands, loop.op.results, strict=True)):
            if use_count(result) == 0:
                continue
            if number in self.rows:
                found.append((result, self._written(self.rows[number], start)))
            elif self._stays(number):
                found.append((result, start))
            elif number in lasts:
                found.append((result, lasts[number]))
            else:
                raise KeptLoopError(f"states: nobody reads carried value {number} but behind the loop")
        return [(old, _as_type(new, old.type)) for old, new in found]

    def _stays(self, number: int) -> bool:
        """Is a carried tensor the same all along?"""
        argument, following = self.argument_of.get(number), self.loop.following.get(number)
        return following is None or (argument is not None and following == argument)

    # -- carried tensors

    def _states(self, states: Sequence[ir.Value]) -> dict[int, ir.Value]:
        """The last states by number, where somebody reads them; all of them are known at all steps where somebody needs that."""
        wanted = [row.part for row in self.rows.values()]
        lasts: dict[int, ir.Value] = {}
        for group in self._groups(states):
            numbers = [self.number_of[v] for v in group]
            following = [self.loop.following[n] for n in numbers]
            found = Recurrence(self.steps, tuple(group), tuple(self.loop.op.operands[n] for n in numbers), tuple(following),
                               self.depends)
            others = [self.loop.following[self.number_of[v]] for v in states if v not in group]
            read = self._read([*wanted, *others], {*group, *following})
            results = [use_count(self.loop.op.results[n]) > 0 for n in numbers]
            sure = self.steps.tensors.shapes.bounds(self.loop.count)[0] >= 1
            if read:
                after, before = found.all_steps([v for v in group if v in read])
                for value, stacked in [*zip(following, after, strict=True),
                                       *zip((v for v in group if v in read), before, strict=True)]:
                    self.steps.give(value, stacked)
                if sure:
                    lasts.update((n, self._last(s)) for n, s, u in zip(numbers, after, results, strict=True) if u)
            if any(results) and not (read and sure):
                lasts.update(zip(numbers, found.last(), strict=True))
        return lasts

    def _last(self, stacked: Stacked) -> ir.Value:
        tensors = self.steps.tensors
        count, *dims = tensors.shapes.dims(stacked.value)
        starts = tensors.values.mixed([count - 1, *[Expr.of(0)] * len(dims)])
        lists = [starts, tensors.values.mixed([Expr.of(1), *dims]), [1] * (len(dims) + 1)]
        absent = ir.ShapedType.get_dynamic_size()
        static = [ir.DenseI64ArrayAttr.get([absent if isinstance(v, ir.Value) else v for v in x]) for x in lists]
        dynamic = [[v for v in x if isinstance(v, ir.Value)] for x in lists]
        kind = tensor_type([Expr.of(1), *dims], ir.RankedTensorType(stacked.value.type).element_type)
        return tensors.reshape(tensor.ExtractSliceOp(kind, stacked.value, *dynamic, *static).result, dims)

    def _read(self, wanted: Sequence[ir.Value], ends: set[ir.Value]) -> set[ir.Value]:
        """Which of `ends` the wanted values need, themselves or through others."""
        found, seen, todo = set[ir.Value](), set[ir.Value](), list(wanted)
        while todo:
            value = todo.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in ends:
                found.add(value)
            elif (op := owner(value)) is not None:
                todo += captured(op)
        return found

    def _groups(self, states: Sequence[ir.Value]) -> list[list[ir.Value]]:
        """Carried tensors that need each other together, each group behind those that it needs."""
        needs = {v: {w for w in self.depends[self.loop.following[self.number_of[v]]] if w in states} | {v} for v in states}
        for _ in states:
            for v in states:
                needs[v] = needs[v].union(*(needs[w] for w in needs[v]))
        found: list[list[ir.Value]] = []
        for v in sorted(states, key=lambda v: len(needs[v])):
            if not any(v in group for group in found):
                found.append([w for w in states if w in needs[v] and v in needs[w]])
        return found

    # -- rows

    def _written(self, row: WrittenRow, start: ir.Value) -> ir.Value:
        """The rows of all steps, in the tensor that they were written to one by one."""
        tensors, count = self.steps.tensors, self.loop.count
        dims, element = list(tensors.shapes.dims(start)), ir.RankedTensorType(start.type).element_type
        stacked = self.steps.tensor(row.part)
        rest = [d for a, d in enumerate(dims) if a != row.axis]
        if stacked.axis is None:
            same = tensors.reshape(stacked.value, rest)
            maps = [ir.AffineMap.get(len(dims), 0, [ir.AffineExpr.get_dim(a) for a in range(1, len(dims))])]
            stacked = Stacked(elementwise([same], self.steps.empty([count, *rest], element), lambda v: v[0], maps), 0)
        value = stacked.reshaped(rest, tensors)
        value = _at_axis(value, row.axis, self.steps)
        moved = at_step(self.loop.counters, STEP, row.place)
        assert moved is not None
        place, grows = moved
        if abs(grows) != 1:
            raise KeptLoopError("rows: they are not written one beside the other")
        if grows < 0:
            value, place = self.steps.backwards(value, row.axis), place - (count - 1)
        if place == Expr.of(0) and count == dims[row.axis]:
            return value
        raise KeptLoopError("rows: they are not written to the whole of a tensor")


def _at_axis(stacked: Stacked, axis: int, steps: StackSteps) -> ir.Value:
    """The tensor with the steps along this axis."""
    if stacked.axis == axis:
        return stacked.value
    first = stacked.first(steps.tensors).value
    dims = list(steps.tensors.shapes.dims(first))
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(dims))]
    places = ir.AffineMap.get(len(dims), 0, [ir.AffineExpr.get_dim(order.index(a)) for a in range(len(dims))])
    into = steps.empty([dims[a] for a in order], ir.RankedTensorType(first.type).element_type)
    return elementwise([first], into, lambda v: v[0], [places])
