"""What a loop begins with: where a carried tensor comes from, and whether its steps write all of it before anybody reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.counted_loop import STEP, CountedLoop, KeptLoopError
from tilewright.passes.linalg.stacked import at_step
from tilewright.passes.linalg.structured import uncast, use_count, users
from tilewright.passes.linalg.symbolic import SymbolicShapes, mixed
from tilewright.passes.mlir import ir, operations, owner
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class WrittenRow:
    """A carried tensor that each step writes `part` to, at `place` along `axis`, and nobody reads."""

    part: ir.Value
    axis: int
    place: Expr

    @staticmethod
    def of(loop: CountedLoop, number: int, inner: SymbolicShapes) -> WrittenRow | None:
        """Of carried tensor `number`; inner: the shapes of the body's function."""
        value = loop.following.get(number)
        op = None if value is None else owner(value)
        argument = next((v for v, n in loop.carried.items() if n == number), None)
        if value is None or op is None or op.name != "tensor.insert_slice" or argument is None \
                or op.operands[1] != argument or use_count(argument) != 1 or use_count(value) != 1:
            return None
        offsets, sizes, strides = (
            [Expr.of(x) if isinstance(x, int) else inner.required(x, op) for x in mixed(op, name, n)]
            for n, name in enumerate(("static_offsets", "static_sizes", "static_strides"), 2))
        whole = inner.dims(argument)
        moving = [a for a, e in enumerate(offsets) if (m := at_step(loop.counters, STEP, e)) is None or m[1]]
        if len(moving) != 1 or sizes[moving[0]] != Expr.of(1) or any(s != Expr.of(1) for s in strides):
            return None
        axis = moving[0]
        if any(a != axis and (offsets[a] != Expr.of(0) or sizes[a] != d) for a, d in enumerate(whole)):
            return None
        return WrittenRow(op.operands[0], axis, offsets[axis])

    def covers(self, loop: CountedLoop, dims: Sequence[Expr]) -> bool:
        """Do the steps write to all of a tensor of these extents?"""
        moved = at_step(loop.counters, STEP, self.place)
        if moved is None or abs(moved[1]) != 1 or loop.count != dims[self.axis]:
            return False
        first, grows = moved
        return first == (Expr.of(0) if grows > 0 else loop.count - 1)


def overwritten(loop: CountedLoop, number: int, inner: SymbolicShapes) -> bool:
    """Does a loop write to all of carried tensor `number` before anybody reads it?"""
    row = WrittenRow.of(loop, number, inner)
    try:
        return row is not None and row.covers(loop, inner.dims(loop.following[number]))
    except KeptLoopError:
        return False


def call_of(fn: ir.Operation, among: Sequence[ir.Operation]) -> ir.Operation:
    """The one call of a lifted function, in one of `among`."""
    name = ir.StringAttr(fn.attributes["sym_name"]).value
    return next(op for f in among for op in operations(f.regions[0].blocks[0])
                if op.name == "func.call" and ir.FlatSymbolRefAttr(op.attributes["callee"]).value == name)


def start_of(loop: CountedLoop, frame: ir.Operation, number: int) -> int | None:
    """Which argument of the frame carried tensor `number` begins with; None where it is none."""
    value, arguments = uncast(loop.op.operands[number]), list(frame.regions[0].blocks[0].arguments)
    return arguments.index(value) if value in arguments else None


def only_begins(loop: CountedLoop, frame: ir.Operation, argument: int) -> bool:
    """Is an argument of the frame read for its extents, and as what one carried tensor begins with, and by nobody else?"""
    value = frame.regions[0].blocks[0].arguments[argument]
    return all(u == loop.op or u.name == "tensor.dim" for u in users(value)) and list(loop.op.operands).count(value) == 1
