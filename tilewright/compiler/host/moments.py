"""When the calls, branches and loops of an outlined @main are run, and what they name."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.analysis.control_flow import CONTROL, condition_of
from tilewright.passes.linalg.structured import UPDATE
from tilewright.passes.mlir import ir, operations, owner


@dataclass(frozen=True)
class Moment:
    """When an operation is run: its number, the number of the last operation inside it, and the loops around it, as moments."""

    first: int
    last: int
    loops: tuple[Moment, ...]


def callee_of(call: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def runs_inside(region: ir.Region) -> int:
    """Moments inside a region, at most."""
    total = 0
    for block in region.blocks:
        for op in operations(block):
            total += 1 if op.name == "func.call" or UPDATE in op.attributes else 0
            total += 2 + sum(map(runs_inside, op.regions)) if op.name in CONTROL else 0
    return total


def tested_by(op: ir.Operation) -> ir.Value | None:
    """The tensor of rank 0 that a branch or loop goes by; None where shapes decide."""
    source = owner(condition_of(op))
    return source.operands[0] if source is not None and source.name == "tensor.extract" else None
