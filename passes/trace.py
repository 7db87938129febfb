"""Which memory a tensor value is a view of: what an asynchronous copy may fetch without computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from passes.emit import Memory
from passes.evaluator import MOVEMENTS, Evaluator
from passes.index import Index
from passes.mlir import ir, operations, owner


@dataclass(frozen=True)
class Source:
    """Where an element lies, and the conditions under which it does; elsewhere the element is zero."""

    memory: Memory
    coords: tuple[Index, ...]
    inside: tuple[ir.Value | bool, ...]


def trace(ev: Evaluator, value: ir.Value, coords: Sequence[Index]) -> Source | None:
    """The source of an element of an argument behind casts, slices, reshapes and zero pads; None when it is computed."""
    at, inside = list(coords), list[ir.Value | bool]()
    while value not in ev.memories:
        op = owner(value)
        if op is None or value in ev.known:
            return None
        if op.name in MOVEMENTS:
            at = ev.moved(op, at)
        elif op.name == "tensor.pad" and is_zero(operations(op.regions[0].blocks[0])[-1].operands[0]):
            at, checks = ev.inside_pad(op, at)
            inside += checks
        else:
            return None
        value = op.operands[0]
    return Source(ev.memories[value], tuple(at), tuple(inside))


def is_zero(scalar: ir.Value) -> bool:
    """Is it the constant 0?"""
    op = owner(scalar)
    if op is None or op.name != "arith.constant":
        return False
    number = op.attributes["value"]
    if isinstance(number, ir.FloatAttr):
        return float(ir.FloatAttr(number).value) == 0.0
    return isinstance(number, ir.IntegerAttr) and int(ir.IntegerAttr(number).value) == 0


def is_zero_tensor(value: ir.Value) -> bool:
    """A tensor filled with zero, or one that nothing has been written to."""
    op = owner(value)
    if op is None:
        return False
    return op.name == "tensor.empty" or (op.name == "linalg.fill" and is_zero(op.operands[0]))
