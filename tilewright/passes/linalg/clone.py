"""Copying operations between functions: what an operation captures, and a clone with its operands replaced."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator

from tilewright.passes.mlir import ir, operations, owner, walk


def captured(op: ir.Operation) -> list[ir.Value]:
    """Values used by `op` and by the operations inside it that are defined outside it, each once, in order."""
    return list(dict.fromkeys((*op.operands, *captured_inside(op))))


def captured_inside(op: ir.Operation) -> list[ir.Value]:
    """Values used by the operations inside `op` that are defined outside it, each once, in order."""
    inner = [o for o in walk(op) if o != op]
    inside = {v for o in inner for v in o.results}
    inside |= {v for o in (op, *inner) for region in o.regions for block in region.blocks for v in block.arguments}
    return list(dict.fromkeys(v for o in inner for v in o.operands if v not in inside))


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
        found[enclosing(use.owner.operation, block)] = None
    return list(found)


def enclosing(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """The operation of `block` that `op` is or lies in."""
    while op.block != block:
        op = op.parent.operation
    return op


def producers_first(ops: Iterable[ir.Operation], among: Container[ir.Operation] | None = None) -> list[ir.Operation]:
    """`ops`, and those of `among` (None: all) whose values they need, each after its producers, else in the given order."""
    order: dict[ir.Operation, None] = {}
    for first in ops:
        path = [(first, _sources(first))]
        while path:
            op, left = path[-1]
            step = None if op in order else next(left, None)
            if step is None:
                order[op] = None
                path.pop()
            elif step not in order and (among is None or step in among):
                path.append((step, _sources(step)))
    return list(order)


def _sources(op: ir.Operation) -> Iterator[ir.Operation]:
    return (source for v in captured(op) if (source := owner(v)) is not None)


_PURE = ("tensor.", "arith.", "linalg.", "affine.", "math.")


def erase_dead(block: ir.Block, pure: tuple[str, ...] = _PURE) -> None:
    """Erase operations of `block` without users, last first."""
    for op in reversed(operations(block)):
        if op.name.startswith(pure) and not _used(op):
            op.erase()


def erase_with_sources(ops: Iterable[ir.Operation], kept: str) -> None:
    """Erase operations without users, readers first, and then what nobody else used; ops with the attribute `kept` stay."""
    unused: dict[ir.Operation, None] = {}
    for op in ops:
        unused.update(dict.fromkeys(_sources(op)))
        unused.pop(op, None)
        op.erase()
    while unused:
        op, _ = unused.popitem()
        if op.name.startswith(_PURE) and kept not in op.attributes and not _used(op):
            unused.update(dict.fromkeys(_sources(op)))
            op.erase()


def _used(op: ir.Operation) -> bool:
    return any(next(iter(r.uses), None) is not None for r in op.results)
