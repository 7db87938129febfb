"""AttentionMask: which keys a query does not see because its logits are -inf there, and the logits without that mask.

Recognised is a comparison of coordinates along the way from the scores to the logits, in a select with -inf or in one that is
added: keys up to the query's own place plus a reach are seen (causal attention), or as many as a tensor says for the point of
the shared loops (lengths of sequences), or both. A family skips keys that no query of a block sees, and compares only where some
query sees some of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.analysis.index_terms import Element, Elements, compared, read
from tilewright.passes.codegen.emit import constant, integer_type, resized
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index
from tilewright.passes.linalg.structured import FLOAT_CASTS
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import arith, ir, maps_of, operations, owner, position
from tilewright.runtime.shape import Expr

_MOST_OPS = 8
_FARTHEST = 1 << 30
_BITS = 32


@dataclass(frozen=True)
class AttentionMask:
    """plain: the logits of keys that are seen. scale: plain is scale times the scores, both f32; None where it is more.

    reach: the last key that is seen, behind the place of the row where there is one (`row`, a loop of the scores); None where all
    keys are seen. lengths: elements of tensors that are in the reach, by their symbols there.
    """

    plain: ir.Value
    scale: float | None
    row: int | None = None
    reach: Expr | None = None
    lengths: Mapping[str, Element] = field(default_factory=dict)

    def seen(self, evaluator: Evaluator, point: Mapping[int, Index]) -> Index:
        """How many keys the query at a point sees, if there are so many: 0 or less for none."""
        assert self.reach is not None
        if self.lengths:
            known = {name: _element(evaluator, found, point) for name, found in self.lengths.items()}
            evaluator.dims.update(known)
        place = Index(0) if self.row is None else point[self.row]
        return place + evaluator.emit(self.reach) + 1

    @staticmethod
    def of(view: Attention, shapes: SymbolicShapes) -> AttentionMask:
        """Adds to the region, before its second contraction, the operations that compute `plain`."""
        chain = elementwise_chain(view)
        places = places_of(view, chain)
        for number, op in enumerate(chain):
            found = _mask(view, shapes, op, places[number])
            if found is not None:
                plain = _without(view, chain[number:], found.hidden)
                return AttentionMask(plain, _scale(plain, view), found.row, found.reach, found.lengths)
        return AttentionMask(view.logits, _scale(view.logits, view))


def elementwise_chain(view: Attention) -> list[ir.Operation]:
    """The elementwise operations from the scores to the logits, each of which reads the one before; empty where they branch."""
    source, found, value = view.scores.op.results[0], list[ir.Operation](), view.logits
    while value != source:
        op = owner(value)
        if op is None or op.name != "linalg.generic" or len(op.results) != 1 or len(found) == _MOST_OPS:
            return []
        found.insert(0, op)
        before = [v for v in op.operands if v == source or _follows(v, source)]
        if len(before) != 1:
            return []
        value = before[0]
    return found


def _follows(value: ir.Value, source: ir.Value) -> bool:
    op = owner(value)
    if op is None or not op.name.startswith("linalg."):
        return False
    return any(v == source or _follows(v, source) for v in list(op.operands)[: len(op.operands) - len(op.results)])


def places_of(view: Attention, chain: Sequence[ir.Operation]) -> list[dict[int, int]]:
    """The loop of the scores that each loop of the operations runs with."""
    value = view.scores.op.results[0]
    place = [position(e) for e in view.scores.maps[-1].results]
    found = []
    for op in chain:
        maps = maps_of(op)
        number = list(op.operands).index(value)
        bound = {position(e): d for e, d in zip(maps[number].results, place, strict=True)}
        found.append({loop: d for loop, d in bound.items() if loop is not None and d is not None})
        place = [bound.get(position(e)) for e in maps[-1].results]
        value = op.results[0]
    return found


@dataclass(frozen=True)
class _Found:
    """hidden: which operation of a body stands for which operand of it where the key is seen."""

    row: int | None
    reach: Expr
    lengths: Mapping[str, Element]
    hidden: tuple[int, int] = (0, 0)


def _mask(view: Attention, shapes: SymbolicShapes, op: ir.Operation, loops: dict[int, int]) -> _Found | None:
    """The mask that an operation of the chain applies last."""
    body = operations(op.regions[0].blocks[0])
    made = _uncast(body[-1].operands[0])
    if made is None:
        return None
    number = body.index(made)
    if made.name == "arith.select":
        bound = _seen(view, shapes, made, loops)
        return None if bound is None else replace(bound, hidden=(number, 1))
    if made.name == "arith.addf":
        for which, added in enumerate(made.operands):
            select = owner(added)
            if select is not None and select.name == "arith.select" and number_of(select.operands[1]) == 0.0:
                bound = _seen(view, shapes, select, loops)
                if bound is not None:
                    return replace(bound, hidden=(number, 1 - which))
    return None


def _uncast(value: ir.Value) -> ir.Operation | None:
    op = owner(value)
    while op is not None and op.name in FLOAT_CASTS:
        op = owner(op.operands[0])
    return op


def _seen(view: Attention, shapes: SymbolicShapes, select: ir.Operation, loops: dict[int, int]) -> _Found | None:
    """Of a select that is -inf where key > row + reach, with a row or lengths or both."""
    compare = _made(select.operands[0], loops)
    if number_of(select.operands[2]) != -inf or compare is None or compare[0].name != "arith.cmpi":
        return None
    elements = Elements()
    found = compared(shapes, *compare, elements)
    if found is None:
        return None
    slopes, rest = found
    reach, rows = rest * -1, [d for d, s in slopes.items() if s == -1 and d in view.rows]
    lengths = {name: e for name, e in elements.found.items() if name in reach.symbols}
    if slopes.get(view.key) != 1 or len(slopes) != 1 + len(rows) or not len(rows) + len(lengths) >= 1 or len(rows) > 1:
        return None
    if any(name in (reach - Expr.dim(name)).symbols or not {*e.place} <= {*view.shared} for name, e in lengths.items()):
        return None
    return _Found(next(iter(rows), None), reach, lengths)


def _made(condition: ir.Value, loops: dict[int, int]) -> tuple[ir.Operation, dict[int, int]] | None:
    """The operation that makes a condition, in this body or in that of the operation before, with the loops there."""
    made = owner(condition)
    if made is not None:
        return made, loops
    before = read(condition, loops)
    return None if before is None else _made(*before)


def _element(evaluator: Evaluator, element: Element, point: Mapping[int, Index]) -> Index:
    """The element at a point, at most _FARTHEST from 0: no extent is larger, and sums with it stay in 32 bits."""
    value = evaluator.element(element.tensor, [point[d] for d in element.place])
    narrow = value.type.width < _BITS
    value = arith.extsi(integer_type(_BITS), value) if narrow else value
    low, high = (constant(value.type, n) for n in (-_FARTHEST, _FARTHEST))
    return Index(resized(arith.minsi(arith.maxsi(value, low), high), evaluator.index_type))


def _without(view: Attention, chain: Sequence[ir.Operation], hidden: tuple[int, int]) -> ir.Value:
    """The end of the chain, computed again without the mask of its first operation."""
    again: dict[ir.Value, ir.Value] = {}
    for op in chain:
        made = op.clone(ip=ir.InsertionPoint(view.mixed.op)).operation
        for i, v in enumerate(op.operands):
            if v in again:
                made.operands[i] = again[v]
        if not again:
            number, kept = hidden
            masked = operations(made.regions[0].blocks[0])[number]
            masked.results[0].replace_all_uses_with(masked.operands[kept])
        again[op.results[0]] = made.results[0]
    return again[chain[-1].results[0]]


def _scale(value: ir.Value, view: Attention) -> float | None:
    """The positive number that the scores are multiplied by."""
    if value == view.scores.op.results[0]:
        return 1.0 if str(ir.RankedTensorType(value.type).element_type) == "f32" else None
    op = owner(value)
    if op is None or op.name != "linalg.generic" or len(op.results) != 1 or str(view.scores.product.element) != "f32":
        return None
    block = op.regions[0].blocks[0]
    factor, scalar = 1.0, operations(block)[-1].operands[0]
    made = owner(scalar)
    if made is not None and made.name == "arith.mulf":
        numbers = [number_of(v) for v in made.operands]
        which = next((i for i, n in enumerate(numbers) if n is not None), None)
        if which is None:
            return None
        factor, scalar = numbers[which] or 0.0, made.operands[1 - which]
    elif made is not None:
        return None
    arguments = list(block.arguments)
    if scalar not in arguments or str(scalar.type) != "f32" or not isfinite(factor) or factor <= 0:
        return None
    before = _scale(op.operands[arguments.index(scalar)], view)
    return None if before is None else before * factor


def number_of(value: ir.Value) -> float | None:
    """A constant float."""
    op = owner(value)
    if op is None or op.name != "arith.constant" or not isinstance(op.attributes["value"], ir.FloatAttr):
        return None
    return float(ir.FloatAttr(op.attributes["value"]).value)
