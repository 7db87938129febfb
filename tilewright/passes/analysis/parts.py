"""Reductions in parts: a reduction over the slowest loop of its operands that gives a partial result for every so many steps.

    out[r floordiv 32, c] += x[r, c]

It is an ordinary linalg.generic whose result map divides a loop; another reduction joins the parts. How many steps a part has is
fixed by the operation, so the bits of the result do not depend on who computes which part.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tilewright.passes.linalg.structured import body, defined_by, inits, iterator_kinds
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, owner, position

_FLOAT_NEUTRAL = {
    "arith.addf": -0.0,
    "arith.mulf": 1.0,
    "arith.maximumf": -inf,
    "arith.minimumf": inf,
    "arith.maxnumf": -inf,
    "arith.minnumf": inf,
}


@dataclass(frozen=True)
class Parts:
    """rows: the loops that are summed up, of which the first is cut in parts of `size` steps; columns: all others, in order.

    whole: are the columns summed up as well? The result has an axis for the parts, then one for each column unless it is whole.
    """

    size: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    whole: bool


def neutral(name: str, type_: ir.Type) -> float:
    """The number that changes nothing when the associative operation joins it to another."""
    if name in _FLOAT_NEUTRAL:
        return _FLOAT_NEUTRAL[name]
    bits = int(type_.width)
    top = 1 << (bits - 1)
    number = {"muli": 1, "andi": -1, "minui": -1, "maxsi": -top, "minsi": top - 1}.get(name.removeprefix("arith."), 0)
    return number & 1 if bits == 1 else number


def slow_to_fast(op: ir.Operation) -> list[int] | None:
    """The loops of a generic in the order of the axes of an operand that walks all of them; None without one."""
    loops = maps_of(op)[0].n_dims
    for m in maps_of(op)[: len(op.operands) - len(op.results)]:
        order = [position(e) for e in m.results]
        if sorted(d for d in order if d is not None) == list(range(loops)) and len(order) == loops:
            return [d for d in order if d is not None]
    return None


def parts_of(op: ir.Operation | None) -> Parts | None:
    """How an operation reduces in parts; None of any other."""
    if op is None or op.name != "linalg.generic" or len(op.results) != 1:
        return None
    *reads, result = maps_of(op)
    if not result.results or not isinstance(result.results[0], ir.AffineFloorDivExpr):
        return None
    cut = ir.AffineBinaryExpr(result.results[0])
    order = slow_to_fast(op)
    columns = tuple(position(e) for e in list(result.results)[1:])
    if order is None or position(cut.lhs) != order[0] or not all(m.is_projected_permutation for m in reads):
        return None
    whole = not columns
    kept = tuple(order[-1:]) if whole else tuple(d for d in columns if d is not None)
    rows = tuple(d for d in order if d not in kept)
    kinds = iterator_kinds(op)
    fits = set(kept) == set(order[len(rows):]) and all(kinds[d] == "reduction" for d in rows) \
        and all((kinds[d] == "reduction") == whole for d in kept)
    return Parts(ir.AffineConstantExpr(cut.rhs).value, rows, kept, whole) if fits and rows and _starts_neutral(op) else None


def _starts_neutral(op: ir.Operation) -> bool:
    """Does every part begin with the number that changes nothing?"""
    last = owner(body(op).operations[len(body(op).operations) - 1].operation.operands[0])
    filled = defined_by(inits(op)[0], "linalg.fill")
    number = defined_by(filled.operands[0], "arith.constant") if filled is not None else None
    if last is None or number is None:
        return False
    value, type_ = number.attributes["value"], last.results[0].type
    wanted = neutral(last.name, type_)
    if isinstance(value, ir.FloatAttr):
        return str(ir.FloatAttr(value).value) == str(float(wanted))
    return integer(value) == wanted
