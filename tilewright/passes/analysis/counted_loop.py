"""A loop that counts, whose body lift-control-flow put into a function: how often it goes around, and what its body reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.passes.analysis.control_flow import carried_counters, condition_of, positive_where
from tilewright.passes.linalg.clone import captured
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, operations
from tilewright.runtime.shape import Expr

STEP = "scan.step"  # the dim that counts the steps of a loop from 0 on


class KeptLoopError(ValueError):
    """The rule by which a loop stays one."""


@dataclass(frozen=True)
class CountedLoop:
    """op: the scf.while. steps: how many it has, over the dims outside, or why they do not follow from those. counters: each one
    over those and STEP.

    body: the block of the body's function, `function`. outside: what an argument of it is in the frame of the loop; carried: the
    number of the carried tensor that it is. following: the value of the body that each carried tensor goes on with.
    """

    op: ir.Operation
    steps: Expr | KeptLoopError
    counters: Mapping[str, Expr]
    function: ir.Operation
    outside: Mapping[ir.Value, ir.Value]
    carried: Mapping[ir.Value, int]
    following: Mapping[int, ir.Value]

    @property
    def body(self) -> ir.Block:
        return self.function.regions[0].blocks[0]

    @property
    def count(self) -> Expr:
        """Its steps; KeptLoopError where they do not follow from the dims."""
        if isinstance(self.steps, KeptLoopError):
            raise self.steps
        return self.steps

    def depends(self) -> dict[ir.Value, frozenset[ir.Value]]:
        """Values of the body, each with the carried tensors that it is computed from."""
        found = {v: frozenset([v]) if v in self.carried else frozenset[ir.Value]() for v in self.body.arguments}
        for op in operations(self.body)[:-1]:
            whole = frozenset[ir.Value]().union(*(found[v] for v in captured(op)))
            found.update((r, whole) for r in op.results)
        return found

    @staticmethod
    def of(frame: ir.Operation) -> CountedLoop:
        """The loop of a frame.

        Raises:
            KeptLoopError: it holds no loop, or one whose body is not that of one function.
        """
        loops = [op for op in operations(frame.regions[0].blocks[0]) if op.name == "scf.while"]
        if len(loops) != 1:
            raise KeptLoopError("a branch: it is no loop")
        op, shapes = loops[0], SymbolicShapes(frame)
        counters = {c.name: c.start + c.step * Expr.dim(STEP) for c in carried_counters(op, shapes)}
        steps = _steps(op, shapes, counters)
        after = op.regions[1].blocks[0]
        *inner, last = operations(after)
        calls = [o for o in inner if o.name == "func.call"]
        if len(calls) != 1:
            raise KeptLoopError("body: it is not that of one function")
        call = calls[0]
        function = ir.SymbolTable(frame.parent)[ir.FlatSymbolRefAttr(call.attributes["callee"]).value].operation
        block, arguments = function.regions[0].blocks[0], list(after.arguments)
        outside, carried, following = {}, {}, {}
        computed = {r for o in inner for r in o.results}
        for inside, value in zip(block.arguments, call.operands, strict=True):
            if value in arguments and isinstance(value.type, ir.RankedTensorType):
                carried[inside] = arguments.index(value)
            elif value not in arguments and value not in computed:
                outside[inside] = value
        given = dict(zip(call.results, operations(block)[-1].operands, strict=True))
        for number, value in enumerate(last.operands):
            if isinstance(value.type, ir.RankedTensorType) and value != arguments[number]:
                if value not in given:
                    raise KeptLoopError(f"body: carried value {number} goes on with another one")
                following[number] = given[value]
        return CountedLoop(op, steps, counters, function, outside, carried, following)


def _steps(op: ir.Operation, shapes: SymbolicShapes, counters: Mapping[str, Expr]) -> Expr | KeptLoopError:
    """How often a loop goes around, or why that is not known."""
    holds = positive_where(condition_of(op), shapes)
    if holds is None:
        return KeptLoopError("count: its condition depends on data")
    left = _unclamped(holds).substitute(counters)
    lost = (left - left.substitute({STEP: Expr.dim(STEP) + 1})).constant
    if lost is None or lost <= 0:
        return KeptLoopError(f"count: it goes on where {holds} is positive, which does not fall by the same at each step")
    found = left.substitute({STEP: Expr.of(0)}).ceildiv(lost)
    return found if shapes.bounds(found)[0] >= 0 else found.maximum(0)


def _unclamped(holds: Expr) -> Expr:
    """1 - max(0, x), which is positive just where 1 - x is, without the maximum."""
    fails = 1 - holds
    if len(fails.terms) == 1 and fails.terms[0][1] == 1 and len(fails.terms[0][0]) == 1:
        atom = fails.terms[0][0][0]
        if atom.op == "max" and Expr.of(0) in atom.args:
            return 1 - next((x for x in atom.args if x != Expr.of(0)), Expr.of(0))
    return holds
