"""drop-dead-results: unused results of a linalg.generic go, with what only they need (an exporter's argmax)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.structured import (
    covers_loops,
    erase_unused,
    inits,
    inputs,
    iterator_kinds,
    main_of,
    rebuild,
    use_count,
)
from tilewright.passes.mlir import ir, maps_of, operations, replace_all_uses, walk


@dataclass(frozen=True)
class DropDeadResults(Pass):
    """A result goes when its accumulator feeds no other result of the op."""

    name: ClassVar[str] = "drop-dead-results"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            for op in walk(fn, "linalg.generic"):
                if len(op.results) > 1:
                    _shrink(op)
            erase_unused(fn)


def _shrink(op: ir.Operation) -> None:
    live = [i for i, r in enumerate(op.results) if use_count(r)]
    block = op.regions[0].blocks[0]
    accumulators = list(block.arguments)[len(op.operands) - len(op.results) :]
    yielded = list(operations(block)[-1].operands)
    for i in range(len(op.results)):
        if i not in live and accumulators[i] in _needed([yielded[j] for j in live], block):
            live = sorted([*live, i])
    maps, count = maps_of(op), len(inputs(op))
    kept = [*maps[:count], *(maps[count + i] for i in live)]
    if not live or len(live) == len(op.results) or not covers_loops(kept):
        return
    new = rebuild(
        op,
        inputs(op),
        [inits(op)[i] for i in live],
        kept,
        iterator_kinds(op),
        lambda b: _shrink_body(b, count, live, len(op.results)),
    )
    for i, result in zip(live, new.results, strict=True):
        replace_all_uses(op.results[i], result)


def _needed(values: Sequence[ir.Value], block: ir.Block) -> set[ir.Value]:
    """Values and block arguments that these values are computed from."""
    found: set[ir.Value] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if value in found:
            continue
        found.add(value)
        if not isinstance(value.owner, ir.Block) and value.owner.operation.block == block:
            todo += list(value.owner.operation.operands)
    return found


def _shrink_body(block: ir.Block, first: int, live: Sequence[int], count: int) -> None:
    last = operations(block)[-1]
    yielded = [last.operands[i] for i in live]
    with ir.InsertionPoint(last):
        ir.Operation.create("linalg.yield", [], yielded, loc=last.location)
    last.erase()
    for op in reversed(operations(block)[:-1]):
        if all(use_count(r) == 0 for r in op.results):
            op.erase()
    for i in reversed(range(count)):
        if i not in live:
            block.erase_argument(first + i)
