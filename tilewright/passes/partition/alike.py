"""Equal parts of a graph that have nothing to do with each other: as one of them is cut, so are all.

A step of an optimizer has one for each parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.op_kinds import OpKind
from tilewright.passes.linalg.clone import captured
from tilewright.passes.mlir import ir, owner
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.structure import Structure

_REPEATED = (OpKind.CHEAP, OpKind.SCALAR)  # what whoever reads it may compute again


@dataclass(frozen=True)
class Twin:
    """A part that is equal to another one: its operation for each operation of that one, and its value for each value."""

    ops: dict[ir.Operation, ir.Operation]
    values: dict[ir.Value, ir.Value]


def twins(graph: Graph, apart: Collection[tuple[int, int]] = ()) -> list[Twin]:
    """All parts but the first of each kind. apart: pairs of operations, by number, that stay apart, in equal parts equal ones."""
    numbers = list(graph.order)
    found: list[Twin] = []
    first: dict[Hashable, Structure] = {}
    for ops in _parts(graph):
        structure = Structure(ops, graph.views, graph.bound)
        place = {op: n for n, op in enumerate(ops)}
        cuts = frozenset((place[numbers[a]], place[numbers[b]]) for a, b in apart if numbers[a] in place and numbers[b] in place)
        like = first.setdefault((structure.key, cuts), structure)
        if like is not structure:
            found.append(Twin(dict(zip(like.ops, ops, strict=True)), like.image(structure)))
    return found


def _parts(graph: Graph) -> list[list[ir.Operation]]:
    return connected([op for op in graph.order if op.results and (graph.computes(op) or graph.kinds[op] not in _REPEATED)])


def connected(members: Sequence[ir.Operation]) -> list[list[ir.Operation]]:
    """Operations that read each other's results, or the same tensor, together and in order."""
    parent: dict[object, object] = {}

    def find(node: object) -> object:
        while (up := parent.setdefault(node, node)) is not node:
            parent[node] = parent[up]
            node = up
        return node

    inside = set(members)
    for op in members:
        single = all(_rank(r) == 0 for r in op.results)
        for value in captured(op):
            made = owner(value)
            if made is not None and made in inside:
                parent[find(op)] = find(made)
            elif made is None and (_rank(value) or (single and _rank(value) == 0)):
                parent[find(op)] = find(value)
    found: dict[object, list[ir.Operation]] = {}
    for op in members:
        found.setdefault(find(op), []).append(op)
    return list(found.values())


def _rank(value: ir.Value) -> int | None:
    """Of a tensor; None of anything else."""
    return ir.RankedTensorType(value.type).rank if isinstance(value.type, ir.RankedTensorType) else None
