"""update-in-place: what a loop only puts a part into is no kernel that makes all of it anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.counted_loop import CountedLoop, KeptLoopError
from tilewright.passes.base import Pass
from tilewright.passes.linalg.structured import FRAME, UPDATE, uncast
from tilewright.passes.linalg.symbolic import mixed
from tilewright.passes.mlir import functions, ir, operations, owner


@dataclass(frozen=True)
class UpdateInPlace(Pass):
    """A carried tensor that goes on as itself with parts put into it, a cache say: `tensor.insert_slice` operations get
    `tw.update`. Fusion leaves these alone, and the host program copies the part to its place. Where somebody still reads the
    tensor as it was, the host program copies it first (compiler/host/host_plan.py).
    """

    name: ClassVar[str] = "update-in-place"

    def run(self, module: ir.Module) -> None:
        for frame in [f for f in functions(module) if FRAME in f.attributes]:
            if not any(op.name == "scf.while" for op in operations(frame.regions[0].blocks[0])):
                continue
            try:
                loop = CountedLoop.of(frame)
            except KeptLoopError:
                continue
            argument_of = {number: value for value, number in loop.carried.items()}
            for number, value in loop.following.items():
                for op in _updates(value, argument_of[number]) if number in argument_of else ():
                    op.attributes[UPDATE] = ir.UnitAttr.get()


def _updates(value: ir.Value, argument: ir.Value) -> list[ir.Operation]:
    """The operations that put parts into the argument to make the value, if nothing else does."""
    found: list[ir.Operation] = []
    while (value := uncast(value)) != argument:
        op = owner(value)
        if op is None or op.name != "tensor.insert_slice" or any(not isinstance(s, int) for s in mixed(op, "static_strides", 4)):
            return []
        found.append(op)
        value = op.operands[1]
    return found
