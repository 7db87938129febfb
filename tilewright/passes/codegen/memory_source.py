"""Which memory a tensor value is a view of: what an asynchronous copy may fetch without computing more than where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import Memory
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index
from tilewright.passes.linalg.strides import VIEW_OPS
from tilewright.passes.linalg.structured import is_zero, looked_up
from tilewright.passes.mlir import ir, operations, owner


@dataclass(frozen=True)
class MemorySource:
    """Where an element lies, and the conditions under which it does; elsewhere the element is zero. named: does a table say
    where?"""

    memory: Memory
    coords: tuple[Index, ...]
    inside: tuple[ir.Value | bool, ...]
    named: bool = False

    @staticmethod
    def of(ev: Evaluator, value: ir.Value, coords: Sequence[Index]) -> MemorySource | None:
        """The source of an element of an argument behind casts, slices, reshapes, zero pads and lookups; None when it is
        computed."""
        at, inside, named = list(coords), list[ir.Value | bool](), False
        while value not in ev.memories:
            op = owner(value)
            if op is None or value in ev.known:
                return None
            if op.name in VIEW_OPS:
                at = ev.moved(op, at)
            elif op.name == "tensor.pad" and is_zero(operations(op.regions[0].blocks[0])[-1].operands[0]):
                at, checks = ev.inside_pad(op, at)
                inside += checks
            elif (extract := looked_up(op)) is not None:
                at, checks = ev.places(op, at, extract)
                inside += checks
                named, op = True, extract
            else:
                return None
            value = op.operands[0]
        return MemorySource(ev.memories[value], tuple(at), tuple(inside), named)
