"""Discrete Fourier transforms: a reduction that says each result as the sum of its definition.

    out[.., p, k] += re[.., n] cos(s 2 pi n k / N - p pi / 2) - im[.., n] sin(s 2 pi n k / N - p pi / 2)

p is 0 of the real part and 1 of the imaginary one, s = -1 or, of an inverse transform, 1; without the factors the definition
leaves nothing open, so that any fast algorithm may find them. The operand im, and the loop p, may be missing. Elements from the
extent of n to N are 0, and only the first results may be asked for.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.passes.analysis.signs import number_of
from tilewright.passes.linalg.structured import body, inits, inputs, is_zero, iterator_kinds
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, operations, owner, position

_TRIALS = 12  # places at which a body is computed; one that differs agrees at none of them but by chance
_NEAR = 1e-4
_Number = float | int
_ARITHMETIC: Mapping[str, Callable[[Any, Any], _Number]] = {
    "arith.addf": operator.add, "arith.subf": operator.sub, "arith.mulf": operator.mul, "arith.addi": operator.add,
    "arith.subi": operator.sub, "arith.muli": operator.mul, "arith.remui": operator.mod, "arith.remsi": operator.mod,
}  # fmt: skip
_SAME = frozenset(("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp",
                   "arith.extf"))
_EXACT = 32  # bits of a number, from which on it holds all turns


@dataclass(frozen=True)
class Fourier:
    """size: N. sign: s. over, along: the loops n and k; part: the loop p, None where there is the real part alone. read: the loop
    of each axis of the operands.
    """

    op: ir.Operation
    size: int
    sign: int
    over: int
    along: int
    part: int | None
    read: tuple[int, ...]


def fourier_of(op: ir.Operation | None) -> Fourier | None:
    """The reduction as a transform; None of any other operation."""
    if op is None or op.name != "linalg.generic" or len(op.results) != 1 or len(inputs(op)) not in (1, 2):
        return None
    over = [d for d, kind in enumerate(iterator_kinds(op)) if kind == "reduction"]
    start, maps = owner(inits(op)[0]), maps_of(op)
    if len(over) != 1 or start is None or start.name != "linalg.fill" or not is_zero(start.operands[0]):
        return None
    read = [[position(e) for e in m.results] for m in maps]
    if any(r != read[0] for r in read[:-1]) or over[0] not in read[0]:
        return None
    given = tuple(d for d in read[0] if d is not None)
    own = [d for d in read[-1] if d is not None and d not in given]
    sizes = {int(c) // 4 for o in operations(body(op)) if o.name in ("arith.remui", "arith.remsi")
             for c in [number_of(o.operands[1])] if c and c % 4 == 0}
    if None in read[0] or None in read[-1] or len(own) not in (1, 2) or len(sizes) != 1:
        return None
    forms = [Fourier(op, size, sign, over[0], along, next((d for d in own if d != along), None), given)
             for size in sizes for along in own for sign in (-1, 1)]
    return next(filter(_says, forms), None)


def _says(found: Fourier) -> bool:
    """Is what the body adds at some places what the definition says?"""
    chance = random.Random(found.size)
    for _ in range(_TRIALS):
        places = {d: chance.randrange(2 if d == found.part else found.size) for d in range(len(iterator_kinds(found.op)))}
        given = [chance.uniform(-2, 2) for _ in body(found.op).arguments]
        turn = found.sign * 2 * math.pi * (places[found.over] * places[found.along] % found.size) / found.size
        turn -= math.pi / 2 * (0 if found.part is None else places[found.part])
        wanted = given[-1] + given[0] * math.cos(turn) - (given[1] * math.sin(turn) if len(given) == 3 else 0.0)
        got = _computed(found.op, places, given)
        if got is None or abs(got - wanted) > _NEAR:
            return False
    return True


def _computed(op: ir.Operation, places: Mapping[int, int], given: list[float]) -> float | None:
    """What a body yields at places of its loops for elements of its operands; None where it does what no transform does."""
    block = body(op)
    values: dict[ir.Value, _Number] = dict(zip(block.arguments, given, strict=True))
    for inner in operations(block):
        found = [values.get(v, number_of(v)) for v in inner.operands]
        operands = [v for v in found if v is not None]
        if len(operands) < len(found):
            return None
        if inner.name == "linalg.yield":
            return float(operands[0])
        if len(inner.results) != 1 or not _is_exact(inner.results[0].type):
            return None
        if inner.name == "linalg.index":
            values[inner.results[0]] = places[integer(inner.attributes["dim"])]
        elif inner.name == "math.cos":
            values[inner.results[0]] = math.cos(operands[0])
        elif inner.name in _SAME:
            values[inner.results[0]] = operands[0]
        elif inner.name in _ARITHMETIC and not (inner.name.startswith("arith.rem") and operands[1] == 0):
            values[inner.results[0]] = _ARITHMETIC[inner.name](*operands)
        elif inner.name != "arith.constant":
            return None
    return None


def _is_exact(t: ir.Type) -> bool:
    return isinstance(t, ir.IndexType) or int(getattr(t, "width", 0)) >= _EXACT
