"""Which neighbouring axes of a region can be walked as one: the same pair, in order, in every value and loop nest.

So [B, S, 768] and [S, 768] share kernels: both become [rows, 768].
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.passes.linalg.clone import captured
from tilewright.passes.linalg.data_movement import constant_pad
from tilewright.passes.linalg.strides import Views, collapsed_stride
from tilewright.passes.linalg.structured import CHEAP_OPS, iterator_kinds
from tilewright.passes.linalg.symbolic import integer, mixed
from tilewright.passes.mlir import ir, maps_of, owner, position, walk
from tilewright.runtime.shape import Expr

Groups = tuple[tuple[int, ...], ...]
Held = TypeVar("Held", ir.Value, ir.Operation)


@dataclass(frozen=True)
class Collapse:
    """Groups of axes of each value and of loops of each linalg.generic; what is not listed stays as it is."""

    axes: dict[ir.Value, Groups]
    loops: dict[ir.Operation, Groups]

    def of(self, value: ir.Value) -> Groups:
        return self.axes.get(value) or tuple((a,) for a in range(ir.RankedTensorType(value.type).rank))


class _Classes:
    """Axes and loops that are walked together (union-find), and those that have to stay alone."""

    def __init__(self) -> None:
        self.parent: dict[object, object] = {}
        self.pinned: set[object] = set()

    def find(self, node: object) -> object:
        while (up := self.parent.setdefault(node, node)) != node:
            self.parent[node] = self.parent[up]  # the way gets shorter each time it is gone
            node = up
        return node

    def join(self, a: object, b: object) -> None:
        self.parent[self.find(a)] = self.find(b)


def collapse(ops: Sequence[ir.Operation], views: Views) -> Collapse:
    """Groups for a region made of `ops`; operands from outside are collapsed where their strides nest."""
    inside = {r for op in ops for r in op.results}
    classes, kin = _Classes(), _Classes()
    values: dict[ir.Value, list[object]] = {}
    nests: dict[ir.Operation, list[object]] = {}

    def nodes(value: ir.Value) -> list[object]:
        rank = ir.RankedTensorType(value.type).rank
        values[value] = [("value", value, a) for a in range(rank)]
        return values[value]

    for op in ops:
        tensors = [
            v for v in [*captured(op), *op.results] if isinstance(v.type, ir.RankedTensorType) and not is_cheap(v)
        ]
        for value in captured(op):
            source = owner(value)
            if source is not None and source.name == "tensor.extract":
                classes.pinned.update(nodes(source.operands[0]))
        if moves_along(op) and not any(map(is_cheap, op.operands)):
            _place_along(op, nodes, classes, kin)
            continue
        if op.name != "linalg.generic":
            classes.pinned.update(n for v in tensors for n in nodes(v))
            continue
        nests[op] = [("loop", op, d) for d in range(len(iterator_kinds(op)))]
        maps = maps_of(op)
        operands = list(op.operands)
        classes.pinned.update(n for v in tensors if v not in operands and v not in list(op.results) for n in nodes(v))
        for inner in walk(op):
            if inner.name == "linalg.index":
                classes.pinned.add(nests[op][integer(inner.attributes["dim"])])
        outs = maps[len(maps) - len(op.results) :]
        for value, m in [*zip(operands, maps, strict=True), *zip(op.results, outs, strict=True)]:
            axes: list[object] = list(nodes(value)) if not is_cheap(value) else [None] * len(m.results)
            for axis, e in zip(axes, m.results, strict=True):
                loop = position(e)
                if loop is None:
                    classes.pinned.update(n for d, n in enumerate(nests[op]) if e_uses(e, d))
                    classes.pinned.update([axis] if axis else [])
                elif axis is not None:
                    classes.join(axis, nests[op][loop])
            if is_cheap(value):
                _pin_partial(classes, nests[op], m)
    return _groups((classes, kin), values, nests, inside, views)


def moves_along(op: ir.Operation) -> bool:
    """Does an op place elements along some axes and keep the others: a concatenation, or a pad with one value?"""
    if op.name != "tensor.pad":
        return bool(op.name == "tensor.concat")
    used = any(next(iter(a.uses), None) is not None for a in op.regions[0].blocks[0].arguments)
    return constant_pad(op) and not used


def _place_along(op: ir.Operation, nodes: Callable[[ir.Value], list[object]], classes: _Classes, kin: _Classes) -> None:
    """The axes that a concatenation or pad keeps are walked together. That of a concatenation is kin to those of its operands:
    it takes in the axis behind it where all of them do. A padded one stays alone."""
    out = nodes(op.results[0])
    if op.name == "tensor.concat":
        along = [integer(op.attributes["dim"])]
    else:
        along = [a for a, ends in enumerate(zip(mixed(op, "static_low", 1), mixed(op, "static_high", 2), strict=True))
                 if ends != (0, 0)]
        classes.pinned.update(out[a] for a in along)
    for value in op.operands:
        if isinstance(value.type, ir.RankedTensorType):
            for axis, (own, whole) in enumerate(zip(nodes(value), out, strict=True)):
                if axis not in along:
                    classes.join(own, whole)
                elif op.name == "tensor.concat":
                    kin.join(own, whole)
                else:
                    classes.pinned.add(own)


def is_cheap(value: ir.Value) -> bool:
    """A fill, an empty tensor or a splat constant: made again, in any shape, where it is used."""
    op = owner(value)
    return op is not None and op.name in CHEAP_OPS and not is_dense_constant(op)


def is_dense_constant(op: ir.Operation) -> bool:
    if op.name != "arith.constant":
        return False
    value = op.attributes["value"]
    splat = isinstance(value, ir.DenseElementsAttr) and value.is_splat
    return isinstance(op.results[0].type, ir.RankedTensorType) and not splat


def e_uses(e: ir.AffineExpr, loop: int) -> bool:
    """Does loop `loop` occur in `e`?"""
    at = position(e)
    if at is not None:
        return at == loop
    if isinstance(e, ir.AffineBinaryExpr):
        binary = ir.AffineBinaryExpr(e)
        return e_uses(binary.lhs, loop) or e_uses(binary.rhs, loop)
    return False


def _pin_partial(classes: _Classes, nest: Sequence[object], m: ir.AffineMap) -> None:
    """A cheap operand follows any grouping of its loops; only computed coordinates pin them."""
    for e in m.results:
        if position(e) is None:
            classes.pinned.update(n for d, n in enumerate(nest) if e_uses(e, d))


def _groups(
    joined: tuple[_Classes, _Classes],
    values: dict[ir.Value, list[object]],
    nests: dict[ir.Operation, list[object]],
    inside: set[ir.Value],
    views: Views,
) -> Collapse:
    classes, kin = joined
    pinned = {classes.find(n) for n in classes.pinned}
    for node in list(kin.parent):
        kin.join(node, classes.find(node))
    related: dict[object, list[object]] = {}  # the classes that are kin, by any of them
    for node in list(kin.parent):
        related.setdefault(kin.find(node), []).append(classes.find(node))
    heads_of = {n: list(dict.fromkeys(found)) for found in related.values() for n in found}
    rows: dict[ir.Value, list[object]] = {v: [classes.find(n) for n in nodes] for v, nodes in values.items()}
    loops = {op: [classes.find(n) for n in nodes] for op, nodes in nests.items()}
    kinds = {op: iterator_kinds(op) for op in nests}
    merged: set[tuple[object, object]] = set()
    values_of, nests_of = _holders(rows), _holders(loops)
    refused: dict[tuple[object, object], int] = {}  # how many were merged when it was refused

    def allowed(heads: Sequence[object], b: object) -> bool:
        if b in heads or len(heads_of.get(b, ())) > 1 or not pinned.isdisjoint([*heads, b]):
            return False
        for value in dict.fromkeys(v for n in (*heads, b) for v in values_of[n]):
            row = rows[value]
            a = next((h for h in heads if _adjacent(row, h, b)), None)
            if a is None:
                return False
            if _is_empty(views.shapes.dims(value)[row.index(a) : row.index(a) + 2]):
                return False
            if value not in inside and not _nests(value, _run(row, row.index(a), merged), views):
                return False
        for op in dict.fromkeys(o for n in (*heads, b) for o in nests_of.get(n, ())):
            nest = loops[op]
            found = [h for h in heads if h in nest]
            if len(found) != 1 or not nest.count(found[0]) == nest.count(b) == 1:
                return False
            if kinds[op][nest.index(found[0])] != kinds[op][nest.index(b)]:
                return False
        return True

    for row in list(rows.values()):
        for a, b in itertools.pairwise(row):
            if (a, b) in merged or refused.get((a, b)) == len(merged):
                continue
            heads = heads_of.get(a, [a])
            if allowed(heads, b):
                merged.update((h, b) for h in heads)
            else:
                refused[a, b] = len(merged)
    return Collapse(
        {v: _runs(row, merged) for v, row in rows.items()},
        {op: _loop_groups(nest, merged, kinds[op]) for op, nest in loops.items()},
    )


def _holders(rows: Mapping[Held, Sequence[object]]) -> dict[object, list[Held]]:
    """The rows in which each class occurs."""
    found: dict[object, list[Held]] = {}
    for holder, row in rows.items():
        for node in dict.fromkeys(row):
            found.setdefault(node, []).append(holder)
    return found


def _is_empty(dims: Sequence[Expr]) -> bool:
    """An extent is 0 for every shape: a static 0 has no collapse of a dynamic type."""
    return any(d.constant == 0 for d in dims)


def _adjacent(row: list[object], a: object, b: object) -> bool:
    return row.count(a) == 1 and row.count(b) == 1 and row.index(b) == row.index(a) + 1


def _run(row: list[object], axis: int, merged: set[tuple[object, object]]) -> slice:
    """The axes around `axis` and `axis + 1` that are one group once these two are merged."""
    first, last = axis, axis + 1
    while first and (row[first - 1], row[first]) in merged:
        first -= 1
    while last + 1 < len(row) and (row[last], row[last + 1]) in merged:
        last += 1
    return slice(first, last + 1)


def _nests(value: ir.Value, axes: slice, views: Views) -> bool:
    """Can these axes of an operand be walked with one stride?"""
    return collapsed_stride(views.shapes.dims(value)[axes], views.view(value).strides[axes]) is not None


def _runs(row: list[object], merged: set[tuple[object, object]]) -> Groups:
    groups: list[list[int]] = []
    for axis, node in enumerate(row):
        if axis and (row[axis - 1], node) in merged:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return tuple(map(tuple, groups))


def _loop_groups(nest: list[object], merged: set[tuple[object, object]], kinds: Sequence[str]) -> Groups:
    """Groups of loops, outermost first inside a group; parallel ones come before reductions."""
    groups: list[list[int]] = []
    for loop, node in enumerate(nest):
        if any((before, node) in merged for before in nest):
            continue
        chain = [loop]
        while (after := next((d for d, n in enumerate(nest) if (nest[chain[-1]], n) in merged), None)) is not None:
            chain.append(after)
        groups.append(chain)
    return tuple(map(tuple, sorted(groups, key=lambda g: (kinds[g[0]] == "reduction", min(g)))))
