"""What is known of extents while a graph is built: bounds over the dims' ranges, and order that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm

from tilewright.runtime.shape import Atom, Expr

Ranges = Mapping[str, tuple[float, float]]


def bounds(expr: Expr, ranges: Ranges) -> tuple[float, float]:
    """An interval that holds every value of the expression.

    Where it has quotients by integers, floordiv(e, k) is taken as (e - r) / k with 0 <= r < k, so that S - S // 2 is known not to
    be negative.
    """
    lo, hi = expr.bounds(ranges)
    exact, scale, rests = _without_quotients(expr)
    if rests:
        a, b = exact.bounds({**ranges, **rests})
        lo, hi = max(lo, a / scale), min(hi, b / scale)
    return lo, hi


def _without_quotients(expr: Expr) -> tuple[Expr, int, dict[str, tuple[float, float]]]:
    """The expression times an integer as one without linear quotients, that integer, and the ranges of the remainders it
    names."""
    quotients = [(f[0], c) for f, c in expr.terms if len(f) == 1 and (f[0].op == "floordiv" and _divisor(f[0]) > 0)]
    scale = lcm(*(_divisor(atom) for atom, _ in quotients)) if quotients else 1
    total, rests = expr * scale, dict[str, tuple[float, float]]()
    for number, (atom, coefficient) in enumerate(quotients):
        name, by = f" remainder {number}", _divisor(atom)
        rests[name] = (0.0, float(by - 1))
        whole = Expr((((atom,), 1),))
        total = total - whole * (coefficient * scale) + (atom.args[0] - Expr.dim(name)) * (coefficient * scale // by)
    return total, scale, rests


def _divisor(atom: Atom) -> int:
    return atom.args[1].constant or 0
