"""Copying operations between functions: what an operation captures, and a clone with its operands replaced."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.passes.mlir import ir, operations, walk


def captured(op: ir.Operation) -> list[ir.Value]:
    """Values used by `op` and by the operations inside it that are defined outside it, each once, in order."""
    inside: set[ir.Value] = set()
    for inner in (op, *walk(op)):
        if inner != op:
            inside.update(inner.results)
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.arguments)
    found: dict[ir.Value, None] = {}
    for inner in (op, *walk(op)):
        found.update((v, None) for v in inner.operands if v not in inside)
    return list(found)


def clone(op: ir.Operation, value: Callable[[ir.Value], ir.Value]) -> ir.Operation:
    """A copy of `op` at the current insertion point; each captured value v becomes value(v)."""
    wanted = {v: value(v) for v in captured(op)}
    new = op.clone().operation
    for inner in (new, *walk(new)):
        for i, operand in enumerate(inner.operands):
            if operand in wanted:
                inner.operands[i] = wanted[operand]
    return new


def users(value: ir.Value) -> list[ir.Operation]:
    """Operations of the value's own block that use it, directly or inside their regions, each once."""
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    found: dict[ir.Operation, None] = {}
    for use in value.uses:
        op = use.owner.operation
        while op.block != block:
            op = op.parent.operation
        found[op] = None
    return list(found)


def erase_dead(block: ir.Block, pure: tuple[str, ...] = ("tensor.", "arith.", "linalg.", "affine.", "math.")) -> None:
    """Erase operations of `block` without users, last first."""
    for op in reversed(operations(block)):
        if op.name.startswith(pure) and not any(list(r.uses) for r in op.results):
            op.erase()
