"""hoist-from-loops: what a loop's body computes of nothing that it carries is computed once, in front of the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tilewright.passes.analysis.contraction import Contraction, is_contraction
from tilewright.passes.analysis.counted_loop import STEP, CountedLoop, KeptLoopError
from tilewright.passes.analysis.loop_starts import call_of
from tilewright.passes.analysis.op_kinds import expensive
from tilewright.passes.base import Pass
from tilewright.passes.linalg.clone import captured, clone, erase_dead, producers_first
from tilewright.passes.linalg.reshape import Reshaper, product
from tilewright.passes.linalg.shape_values import tensor_type
from tilewright.passes.linalg.stacked import Stacked
from tilewright.passes.linalg.strides import VIEW_OPS
from tilewright.passes.linalg.structured import CHEAP_OPS, FRAME, iterator_kinds
from tilewright.passes.linalg.symbolic import DIMS, write_dims
from tilewright.passes.mlir import functions, ir, operations, owner, replace_all_uses, tensor
from tilewright.passes.transforms.stack_steps import StackSteps
from tilewright.runtime.shape import Expr

# Vectors of 32 bytes, weights of 256 x 1024 and 512 x 2048: products of 16 rows take 86 and 334 us, 16 rows of a product of 1,024
# 88 and 361 (Zen 3). With 64 bytes 16 rows wait for their weights: an LSTM of that batch, 512 wide, is 1.11 to 1.26 times as fast
# with the product of all steps at once, 256 wide 1.07 to 1.15 times on one thread and .95 to .99 on two (Xeon, model 207).
ROWS_OF_A_STEP = 16  # for each 32 bytes of a vector
_COPIED = (*VIEW_OPS, *CHEAP_OPS)


@dataclass(frozen=True)
class HoistFromLoops(Pass):
    """What is the same at each step, and products and functions of elements of what is read at each step, such as x[t] @ w. Those
    are computed for all steps at once where it is known in front of the loop how many there are, and the body reads its own.

    most_bytes: of a tensor that is then computed for all steps. rows: of a step from which its product stays where it is: one of
    so many rows is as fast as one of all steps, and what it gives is read while it is near; 0: none stays. work: multiplications
    of a step that this takes as well.
    """

    name: ClassVar[str] = "hoist-from-loops"
    most_bytes: int = 1 << 28
    rows: int = 0
    work: int = 1 << 20

    def run(self, module: ir.Module) -> None:
        for frame in [f for f in functions(module) if FRAME in f.attributes]:  # inner loops first
            block = frame.regions[0].blocks[0]
            if not any(o.name == "scf.while" for o in operations(block)):
                continue
            try:
                loop = CountedLoop.of(frame)
            except KeptLoopError:
                continue
            with ir.InsertionPoint(loop.op), loop.op.location:
                found = _Hoisted(loop, frame, self)
                found.find()
            found.pass_on(frame, list(functions(module)))
            erase_dead(loop.body)
            erase_dead(block)


class _Hoisted:
    """Values of the body of one loop that are computed in front of it. found: what they are at all steps."""

    def __init__(self, loop: CountedLoop, frame: ir.Operation, limits: HoistFromLoops) -> None:
        self.loop, self.steps, self.depends = loop, StackSteps(loop, frame, limits.most_bytes), loop.depends()
        self.limits = limits
        self.found: dict[ir.Value, Stacked] = {}
        self.seen: set[ir.Value] = set()
        self.dear: dict[ir.Value, bool] = {}

    def find(self) -> None:
        """Build, at the insertion point, the last values that depend on nothing that is carried."""
        for op in operations(self.loop.body):
            if op.name == "func.return" or any(self.depends[r] for r in op.results):
                for value in captured(op):
                    self._visit(value)

    def _visit(self, value: ir.Value) -> None:
        op = owner(value)
        if op is None or value in self.seen or not isinstance(value.type, ir.RankedTensorType) or self.depends[value]:
            return
        self.seen.add(value)
        if not self._built(op, value):
            for source in captured(op):
                self._visit(source)

    def _built(self, op: ir.Operation, value: ir.Value) -> bool:
        """Was it worth computing all of a value at once, and could it be?"""
        if not op.name.startswith("linalg.") or op.name in _COPIED or self._grows(op, value):
            return False
        try:
            stacked = self.steps.tensor(value)
        except KeptLoopError:
            return False
        if stacked.axis is not None and (not self._is_dear(value) or self._stays(value)):
            return False
        self.found[value] = stacked
        return True

    def _grows(self, op: ir.Operation, value: ir.Value) -> bool:
        """Has a value more elements than all that it is computed from? Its reader computes it from those just as well."""
        if is_contraction(op) or op.name == "linalg.softmax" or "reduction" in iterator_kinds(op):
            return False
        read = sum(self._elements(v) for v in _read(op))
        return self._elements(value) > max(read, 1)

    def _elements(self, value: ir.Value) -> float:
        inner = self.steps.inner
        return inner.bounds(product(inner.dims(value)))[1]

    def _is_dear(self, value: ir.Value) -> bool:
        """Is there more to it than elements that its reader could compute as it reads?"""
        op = owner(value)
        if op is None:
            return False
        if value not in self.dear:
            self.dear[value] = (is_contraction(op) or (op.name == "linalg.generic" and ("reduction" in iterator_kinds(op)
                                                                                        or expensive(op)))
                                or any(self._is_dear(v) for v in _read(op)))
        return self.dear[value]

    def _stays(self, value: ir.Value) -> bool:
        """Is a value computed from a product that is large enough at each step?"""
        op = owner(value)
        if op is None or not op.name.startswith("linalg.") or not self.limits.rows:
            return False
        return self._large(op) if is_contraction(op) else any(self._stays(v) for v in _read(op))

    def _large(self, op: ir.Operation) -> bool:
        """Has a product rows enough of what is another one at each step, and work enough?"""
        try:
            view = Contraction.of(op, self.steps.inner)
        except ValueError:
            return False
        least = [max(1.0, self.steps.inner.bounds(e)[0]) for e in view.extents]
        moving = [self.steps.tensor(v).axis is not None for v in list(op.operands)[:2]]
        rows = view.m if moving == [True, False] else view.n if moving == [False, True] else ()
        return prod(least[d] for d in rows) >= self.limits.rows and prod(least) >= self.limits.work

    # -- the body

    def pass_on(self, frame: ir.Operation, among: Sequence[ir.Operation]) -> None:
        """What was built moves to where the frame is called, in one of `among`; the body gets the values as arguments."""
        if not self.found:
            return
        body = self.loop.function
        built = list(dict.fromkeys(s.value for s in self.found.values()))
        dims = [self.steps.tensors.shapes.dims(v) for v in built]
        call = call_of(frame, among)
        known: dict[ir.Value, ir.Value] = dict(zip(frame.regions[0].blocks[0].arguments, call.operands, strict=True))
        with ir.InsertionPoint(call):
            for op in producers_first(made for v in built if (made := owner(v)) is not None):
                known.update(zip(op.results, clone(op, known.__getitem__).results, strict=True))
        given = _with_arguments(frame, call, [known[v] for v in built], dims)
        inner = next(o for o in operations(self.loop.op.regions[1].blocks[0]) if o.name == "func.call")
        inside = dict(zip(built, _with_arguments(body, inner, given, dims), strict=True))
        tensors, step = Reshaper(body), self._step()
        for value, stacked in self.found.items():
            made = owner(value)
            assert made is not None
            with ir.InsertionPoint(made), made.location:
                own = _at(inside[stacked.value], stacked, step, self.steps.dims(value), tensors)
                replace_all_uses(value, tensors.as_type(own, value.type))

    def _step(self) -> Expr:
        """The number of the step over the dims of the body."""
        for name, value in self.loop.counters.items():
            start = value.substitute({STEP: Expr.of(0)})
            grows = (value.substitute({STEP: Expr.of(1)}) - start).constant
            if grows:
                return (Expr.dim(name) - start) // grows if grows > 0 else (start - Expr.dim(name)) // -grows
        return Expr.of(0)  # no value moves with the steps of a loop that counts nothing


def _at(whole: ir.Value, stacked: Stacked, step: Expr, dims: Sequence[Expr], tensors: Reshaper) -> ir.Value:
    """The tensor of one step."""
    if stacked.axis is None:
        return whole
    element = ir.RankedTensorType(whole.type).element_type
    starts: list[Expr] = [Expr.of(0)] * len(dims)
    starts.insert(stacked.axis, step)
    sizes = list(dims)
    sizes.insert(stacked.axis, Expr.of(1))
    lists = [tensors.values.mixed(starts), tensors.values.mixed(sizes), [1] * len(sizes)]
    absent = ir.ShapedType.get_dynamic_size()
    static = [ir.DenseI64ArrayAttr.get([absent if isinstance(v, ir.Value) else v for v in x]) for x in lists]
    dynamic = [[v for v in x if isinstance(v, ir.Value)] for x in lists]
    window = tensor.ExtractSliceOp(tensor_type(sizes, element), whole, *dynamic, *static).result
    return tensors.reshape(window, dims)


def _with_arguments(fn: ir.Operation, call: ir.Operation, values: Sequence[ir.Value], dims: Sequence[Sequence[Expr]]
                    ) -> list[ir.Value]:
    """`fn` and its call take these tensors too, of extents `dims`; its arguments for them."""
    kind, block = ir.FunctionType(ir.TypeAttr(fn.attributes["function_type"]).value), fn.regions[0].blocks[0]
    types = [v.type for v in values]
    fn.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([*kind.inputs, *types], kind.results))
    fn.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [*ir.ArrayAttr(fn.attributes["arg_attrs"]), *(ir.DictAttr.get({DIMS: write_dims(d)}) for d in dims)])
    with ir.InsertionPoint(call), call.location as location:
        made = ir.Operation.create("func.call", results=[r.type for r in call.results], operands=[*call.operands, *values],
                                   attributes={n: call.attributes[n] for n in call.attributes})
        arguments: list[ir.Value] = [block.add_argument(t, location) for t in types]
    for old, new in zip(call.results, made.results, strict=True):
        replace_all_uses(old, new)
    call.erase()
    return arguments


def _read(op: ir.Operation) -> Iterator[ir.Value]:
    """The tensors that an operation reads values of."""
    return (v for v in captured(op) if isinstance(v.type, ir.RankedTensorType)
            and ((made := owner(v)) is None or made.name not in CHEAP_OPS))
