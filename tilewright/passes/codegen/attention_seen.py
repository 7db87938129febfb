"""SeenKeys: which keys a query sees by a mask whose values are known at run time only, so that a kernel leaves out the others.

Read are the bodies between the scores and the logits, from their end on: a select with -inf, or with a number as low as the least
float, and what is added to a score, as long as all that follows keeps what is that low. Nothing is taken out of the logits: a
kernel asks where the keys that some query sees begin and end, and computes within.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.codegen.attention_mask import elementwise_chain, number_of, places_of
from tilewright.passes.codegen.emit import all_of, constant, element_type, lanes_of
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.linalg.structured import FLOAT_CASTS
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import arith, ir, maps_of, operations, owner, position

_HIDDEN = -1e30  # a logit this low has no weight beside one of a key that is seen
_LEAST_FACTOR = 1e-6  # of what is hidden, that leaves it hidden


class _Says(Enum):
    """What a value of a body says of a key."""

    SEEN, HIDDEN, ADDED = range(3)


@dataclass(frozen=True)
class _Mask:
    """A body's part of the mask: its operation, the number of the operand with the score, for each of its loops that of the
    scores, and values of the body with what they say."""

    op: ir.Operation
    score: int
    loops: dict[int, int]
    tests: tuple[tuple[ir.Value, _Says], ...]

    def varies(self, loops: Sequence[int]) -> bool:
        """Does it depend on one of these loops of the scores?"""
        own = {d for d, s in self.loops.items() if s in loops}
        read = {position(e) for number, m in enumerate(maps_of(self.op)) for e in m.results if number != self.score}
        named = {integer(o.attributes["dim"]) for o in operations(self.op.regions[0].blocks[0]) if o.name == "linalg.index"}
        return bool(own & (read | named)) or None in read


@dataclass(frozen=True)
class SeenKeys:
    """masks: a key is seen where all say so. lenient: the logit of a key that is not seen may be finite, so that it has no weight
    beside a key that is seen, but counts where none is. by_row: does the mask depend on the query?"""

    view: Attention
    masks: tuple[_Mask, ...]
    lenient: bool
    by_row: bool

    @staticmethod
    def of(view: Attention) -> SeenKeys | None:
        """None where no mask is found."""
        chain = elementwise_chain(view)
        places = places_of(view, chain)
        found, lenient, value = list[_Mask](), False, view.logits
        for op, loops in zip(reversed(chain), reversed(places), strict=True):
            number = next(i for i, v in enumerate(op.operands) if v == view.scores.op.results[0] or v in _results(chain))
            walk = _Walk(op.regions[0].blocks[0].arguments[number])
            through = walk.down(operations(op.regions[0].blocks[0])[-1].operands[list(op.results).index(value)])
            if walk.tests:
                found.append(_Mask(op, number, loops, tuple(walk.tests)))
                lenient |= walk.lenient
            if not through:
                break
            value = op.operands[number]
        if not found:
            return None
        return SeenKeys(view, tuple(found), lenient, any(m.varies(view.rows) for m in found))

    def at(self, evaluator: Evaluator, point: Sequence[Index | None], keys: Index) -> ir.Value:
        """Lane by lane, does the query at the point see the keys?"""
        place = list(point)
        place[self.view.key] = keys
        seen: list[ir.Value | bool | None] = []
        with evaluator.kept():
            for mask in self.masks:
                loops = [place[mask.loops[d]] if d in mask.loops else Index(0) for d in range(maps_of(mask.op)[0].n_dims)]
                score = constant(element_type(mask.op.operands[mask.score].type.element_type), 0)
                values = evaluator.region(mask.op, [x for x in loops if x is not None], {mask.score: score}, None,
                                          wanted=[v for v, _ in mask.tests])
                seen += [_seen(v, says) for v, (_, says) in zip(values, mask.tests, strict=True)]
        found = all_of(seen, keys.lanes)
        assert not isinstance(found, bool)
        return splat_to(found, keys.lanes)


def _results(chain: Sequence[ir.Operation]) -> list[ir.Value]:
    return [r for op in chain for r in op.results]


def _seen(value: ir.Value, says: _Says) -> ir.Value:
    if says is _Says.SEEN:
        return value
    if says is _Says.HIDDEN:
        return arith.xori(value, constant(value.type if lanes_of(value) == 1 else element_type(value.type), 1, lanes_of(value)))
    element = element_type(value.type)
    low = constant(element, -inf if str(element) == "f16" else _HIDDEN, lanes_of(value))
    return arith.cmpf(arith.CmpFPredicate.UGT, value, low)


class _Walk:
    """From what a body yields to the score, through operations that keep what is hidden so."""

    def __init__(self, score: ir.Value) -> None:
        self.score, self.tests, self.lenient = score, list[tuple[ir.Value, _Says]](), False

    def down(self, value: ir.Value) -> bool:
        """Collects what is said on the way; is the score itself reached so?"""
        op = owner(value)
        if op is None:
            return bool(value == self.score)
        if op.name in FLOAT_CASTS:
            return self.down(op.operands[0])
        sides = [self._from_score(v) for v in op.operands]
        if op.name == "arith.select" and sides in ([False, True, False], [False, False, True]):
            low = number_of(op.operands[2 if sides[1] else 1])
            if low is None or low > _HIDDEN:
                return False
            self.tests.append((op.operands[0], _Says.SEEN if sides[1] else _Says.HIDDEN))
            self.lenient |= low != -inf
            return self.down(op.operands[1 if sides[1] else 2])
        if sides.count(True) != 1:
            return False
        other = op.operands[1 - sides.index(True)] if len(sides) == 2 else None
        if op.name == "arith.addf" and other is not None:
            if number_of(other) is None:
                self.tests.append((other, _Says.ADDED))
                self.lenient = True
            return self.down(op.operands[sides.index(True)])
        factor = number_of(other) if other is not None and op.name in ("arith.mulf", "arith.divf") else None
        if factor is None or (op.name == "arith.divf" and sides[1]):
            return False
        factor = factor if op.name == "arith.mulf" else 1 / factor if factor else 0.0
        return _LEAST_FACTOR <= factor < inf and self.down(op.operands[sides.index(True)])

    def _from_score(self, value: ir.Value) -> bool:
        op = owner(value)
        return any(self._from_score(v) for v in op.operands) if op is not None else bool(value == self.score)
