"""skip-zero-products: the first step of a loop does without the products of what begins as zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tilewright.passes.analysis.contraction import Contraction, is_contraction
from tilewright.passes.analysis.counted_loop import STEP, CountedLoop, KeptLoopError
from tilewright.passes.analysis.loop_starts import call_of, start_of
from tilewright.passes.base import Pass
from tilewright.passes.linalg.clone import clone
from tilewright.passes.linalg.reshape import RESHAPES
from tilewright.passes.linalg.shape_values import ShapeValues
from tilewright.passes.linalg.structured import FRAME, is_zero, iterator_kinds, uncast, use_count, users
from tilewright.passes.linalg.symbolic import CONSTANT, SymbolicShapes, argument_attributes
from tilewright.passes.mlir import arith, functions, ir, operations, owner, replace_all_uses
from tilewright.passes.transforms.lift_control_flow import lift
from tilewright.runtime.shape import Expr

_VIEWS = (*RESHAPES, "tensor.cast")


@dataclass(frozen=True)
class SkipZeroProducts(Pass):
    """A product of a carried tensor that a counted loop begins with as zeros and of a constant is computed from the second step
    on; with it, in a branch on the counter, go the functions of elements that follow it alone. The hidden state of recurrent
    layers begins so. What infinities and NaN among the constants would make of the zeros is not computed.

    steps: that a loop has at least, from which one product less is no gain. work: multiplications of a product that are worth a
    branch.
    """

    name: ClassVar[str] = "skip-zero-products"
    steps: int = 32
    work: int = 1 << 12

    def run(self, module: ir.Module) -> None:
        for frame in [f for f in functions(module) if FRAME in f.attributes]:
            if not any(o.name == "scf.while" for o in operations(frame.regions[0].blocks[0])):
                continue
            try:
                loop = CountedLoop.of(frame)
                least = SymbolicShapes(frame).bounds(loop.count)[0]
            except KeptLoopError:
                continue
            counter = _counter(loop)
            zeros = {v for v, number in loop.carried.items() if _starts_as_zeros(module, frame, loop, number)}
            if least >= self.steps or counter is None or not zeros:
                continue
            found = [op for op in operations(loop.body) if self._skipped(op, loop, zeros)]
            for product in found:
                _branch(product, loop, counter)
            if found:
                lift(module, loop.function)

    def _skipped(self, op: ir.Operation, loop: CountedLoop, zeros: set[ir.Value]) -> bool:
        """Is it a product, worth a branch, of one of these tensors and a constant?"""
        if not op.name.startswith("linalg.") or not is_contraction(op) or use_count(op.results[0]) == 0:
            return False
        factors = [_argument(v) for v in list(op.operands)[:2]]
        named, arguments = argument_attributes(loop.function), list(loop.body.arguments)
        constants = {v for v, a in zip(arguments, named, strict=True) if CONSTANT in a}
        if not any(a in zeros and b in constants for a, b in (factors, factors[::-1])):
            return False
        shapes = SymbolicShapes(loop.function)
        try:
            extents = Contraction.of(op, shapes).extents
        except ValueError:
            return False
        return prod(max(1.0, shapes.bounds(e)[0]) for e in extents) >= self.work


def _argument(value: ir.Value) -> ir.Value:
    """A tensor behind reshapes and casts."""
    while (op := owner(value)) is not None and op.name in _VIEWS:
        value = op.operands[0]
    return value


def _starts_as_zeros(module: ir.Module, frame: ir.Operation, loop: CountedLoop, number: int) -> bool:
    argument = start_of(loop, frame, number)
    if argument is None:
        return False
    made = owner(uncast(call_of(frame, list(functions(module))).operands[argument]))
    return made is not None and made.name == "linalg.fill" and is_zero(made.operands[0])


def _counter(loop: CountedLoop) -> Expr | None:
    """Over the dims of the body what is 0 at the first step and positive at the others."""
    for name, value in loop.counters.items():
        start = value.substitute({STEP: Expr.of(0)})
        grows = (value.substitute({STEP: Expr.of(1)}) - start).constant
        if grows:
            return Expr.dim(name) - start if grows > 0 else start - Expr.dim(name)
    return None


def _branch(product: ir.Operation, loop: CountedLoop, counter: Expr) -> None:
    """The product, and what follows it alone, in a branch that is taken from the second step on."""
    chain = [product]
    while (following := _follows(chain[-1].results[0])) is not None:
        chain.append(following)
    while chain[-1].name in _VIEWS:
        chain.pop()
    last, kind = chain[-1], chain[-1].results[0].type
    with ir.InsertionPoint(last), last.location:
        values = ShapeValues(loop.function)
        test = arith.CmpIOp(arith.CmpIPredicate.sgt, values.value(counter), values.value(Expr.of(0))).result
        made = ir.Operation.create("scf.if", results=[kind], operands=[test], regions=2)
        for region, ops in zip(made.regions, (chain, chain[1:]), strict=True):
            block = region.blocks.append()
            known = {} if ops is chain else {product.results[0]: list(product.operands)[2]}
            with ir.InsertionPoint(block):
                _cloned(ops, known)
                ir.Operation.create("scf.yield", operands=[known.get(last.results[0], last.results[0])])
    replace_all_uses(last.results[0], made.results[0])
    for op in reversed(chain):
        op.erase()


def _cloned(ops: Sequence[ir.Operation], known: dict[ir.Value, ir.Value]) -> None:
    """Copies at the insertion point, which read what is known in place of what they read."""
    for op in ops:
        known.update(zip(op.results, clone(op, lambda v: known.get(v, v)).results, strict=True))


def _follows(value: ir.Value) -> ir.Operation | None:
    """The function of elements that alone reads a tensor, of as many elements, or the reshape that does."""
    if use_count(value) != 1:
        return None
    [op] = users(value)
    if op.name in _VIEWS:
        return op
    parallel = op.name == "linalg.generic" and len(op.results) == 1 and set(iterator_kinds(op)) <= {"parallel"}
    return op if parallel and op.results[0].type == value.type else None
