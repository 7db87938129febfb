"""Ranks: a reduction that counts, for every element along an axis, how many come before it, up to a limit.

    yield min(out + (its < own or (its == own and loop < place)), count)

over integers `own` at the place and `its` at the loop. It says all of a stable order, so that the first `count` can be found by
any algorithm that sorts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.passes.analysis.gates import loop_of
from tilewright.passes.linalg.structured import body, inits, inputs, is_zero, iterator_kinds
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, operations, owner, position

_EQUAL, _LESS, _MORE = 0, 2, 4  # arith.cmpi's predicates


@dataclass(frozen=True)
class Ranks:
    """keys: the number of the operand that is read at the loop `over`, whose elements are ordered along the loop `along`.
    count: a value of the body or of the function."""

    op: ir.Operation
    keys: int
    over: int
    along: int
    count: ir.Value


def ranks_of(op: ir.Operation | None) -> Ranks | None:
    """The reduction as ranks; None of any other operation."""
    if op is None or op.name != "linalg.generic" or len(op.results) != 1 or len(inputs(op)) != 2:
        return None
    over = [d for d, kind in enumerate(iterator_kinds(op)) if kind == "reduction"]
    start = owner(inits(op)[0])
    if len(over) != 1 or start is None or start.name != "linalg.fill" or not is_zero(start.operands[0]):
        return None
    block = body(op)
    first, second, out = block.arguments
    least = owner(operations(block)[-1].operands[0])
    parts = _pair(least, "arith.minsi", lambda v: _named(v, "arith.addi"))
    added = None if parts is None else _pair(owner(parts[0]), "arith.addi", lambda v: v == out)
    wide = None if added is None else owner(added[1])
    if parts is None or wide is None or wide.name != "arith.extui":
        return None
    either = _pair(owner(wide.operands[0]), "arith.ori", lambda v: _named(v, "arith.cmpi"))
    both = None if either is None else _pair(owner(either[1]), "arith.andi", lambda v: _loops(v) is not None)
    if either is None or both is None:
        return None
    smaller, places = _ordered(either[0]), _loops(both[0])
    tie = owner(both[1])
    equal = tie is not None and tie.name == "arith.cmpi" and integer(tie.attributes["predicate"]) == _EQUAL \
        and {*tie.operands} == {first, second}
    if smaller is None or {*smaller} != {first, second} or not equal or places is None or places[0] != over[0]:
        return None
    keys, along = list(block.arguments).index(smaller[0]), places[1]
    maps = maps_of(op)
    own, its = (list(map(position, maps[n].results)) for n in (1 - keys, keys))
    same = inputs(op)[0] == inputs(op)[1] and its == [over[0] if d == along else d for d in own] and own == _positions(maps[-1])
    return Ranks(op, keys, over[0], along, parts[1]) if same else None


def _positions(m: ir.AffineMap) -> list[int | None]:
    return [position(e) for e in m.results]


def _named(value: ir.Value, name: str) -> bool:
    made = owner(value)
    return made is not None and made.name == name


def _pair(op: ir.Operation | None, name: str, first: Callable[[ir.Value], bool]) -> tuple[ir.Value, ir.Value] | None:
    """The operands of a commutative operation, the one that `first` describes in front."""
    if op is None or op.name != name:
        return None
    a, b = op.operands
    return (a, b) if first(a) else (b, a) if first(b) else None


def _ordered(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The smaller and the larger side of a comparison."""
    made = owner(value)
    predicate = None if made is None or made.name != "arith.cmpi" else integer(made.attributes["predicate"])
    if made is None or predicate not in (_LESS, _MORE):
        return None
    a, b = made.operands
    return (a, b) if predicate == _LESS else (b, a)


def _loops(value: ir.Value) -> tuple[int, int] | None:
    """The loops whose indices a comparison orders, the smaller one in front."""
    pair = _ordered(value)
    if pair is None:
        return None
    a, b = map(loop_of, pair)
    return None if a is None or b is None else (a, b)
