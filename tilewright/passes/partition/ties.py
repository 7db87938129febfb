"""Parts of a graph that only single values tie together, as a global norm does all parameters of a step of an optimizer.

Cut at these, parts are alike again: what comes before a tie and what comes behind it are pieces of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.linalg.clone import captured
from tilewright.passes.linalg.structured import iterator_kinds
from tilewright.passes.mlir import ir, owner
from tilewright.passes.partition.alike import connected


@dataclass(frozen=True)
class Stage:
    """pieces: operations, each a part of what needs the same ties, none of which reads another. ties: single values of several
    parts, which need no piece of a later stage."""

    pieces: list[list[ir.Operation]]
    ties: list[ir.Operation]


def stages(ops: Sequence[ir.Operation]) -> list[Stage]:
    """Operations in an order in which they can be run: the pieces of a stage, then its ties, then the next stage."""
    members = set(ops)
    producers = {op: [p for v in captured(op) if (p := owner(v)) is not None and p in members] for op in ops}
    parts = connected([op for op in ops if not _single(op)])
    part_of = {op: number for number, part in enumerate(parts) for op in part}
    part_of |= _owned(ops, producers, part_of)
    level: dict[ir.Operation, int] = {}
    for op in ops:
        own = op in part_of
        level[op] = max((level[p] + (own and p not in part_of) for p in producers[op]), default=0)
    readers: dict[ir.Operation, list[ir.Operation]] = {op: [] for op in ops}
    for op in reversed(ops):
        if op in part_of and readers[op]:  # as late as what reads it: what no tie needs lies behind the ties
            level[op] = min(level[r] for r in readers[op])
        for producer in producers[op]:
            readers[producer].append(op)
    pieces: list[dict[int, list[ir.Operation]]] = [{} for _ in range(1 + max(level.values(), default=0))]
    ties: list[list[ir.Operation]] = [[] for _ in pieces]
    for op in ops:
        if op in part_of:
            pieces[level[op]].setdefault(part_of[op], []).append(op)
        else:
            ties[level[op]].append(op)
    return [Stage(list(found.values()), tied) for found, tied in zip(pieces, ties, strict=True)]


def _owned(ops: Sequence[ir.Operation], producers: dict[ir.Operation, list[ir.Operation]],
           part_of: dict[ir.Operation, int]) -> dict[ir.Operation, int]:
    """The part of each single value that only operations of one part lead to and read."""
    near: dict[ir.Operation, set[int]] = {op: set() for op in ops if op not in part_of}
    for op in ops:
        for producer in producers[op]:
            if op in near:
                near[op] |= near.get(producer) or ({part_of[producer]} if producer in part_of else set())
    for op in reversed(ops):
        for producer in producers[op]:
            if producer in near:
                near[producer] |= near.get(op) or ({part_of[op]} if op in part_of else set())
    return {op: next(iter(found)) for op, found in near.items() if len(found) == 1}


def _single(op: ir.Operation) -> bool:
    """Is it arithmetic on single values?"""
    types = [v.type for v in (*op.operands, *op.results)]
    return op.name == "linalg.generic" and not iterator_kinds(op) and not any(
        isinstance(t, ir.RankedTensorType) and ir.RankedTensorType(t).rank for t in types)
