"""What is known of expressions over dims: bounds over the dims' ranges, sharper than those of each term by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import lcm

from tilewright.runtime.shape import Atom, Expr, product

Ranges = Mapping[str, tuple[float, float]]

_CHOICES = 6  # minima and maxima that are split into their cases: at most 2 ** 6 bounds of one expression


def bounds(expr: Expr, ranges: Ranges) -> tuple[float, float]:
    """An interval that holds every value of the expression.

    Where it has quotients by integers, floordiv(e, k) is taken as (e - r) / k with 0 <= r < k, and mod(e, k) as r, so that
    S - S // 2 is known not to be negative. A factor of all terms counts once: B*S - 2*S is S times B - 2.
    """
    lo, hi = expr.bounds(ranges)
    if (shared := _shared(expr)) is not None:
        a, b = product(shared.bounds(ranges), (expr // shared).bounds(ranges))
        lo, hi = max(lo, a), min(hi, b)
    exact, scale, rests = _without_quotients(expr)
    if rests:
        a, b = exact.bounds({**ranges, **rests})
        lo, hi = max(lo, a if math.isinf(a) else -(-a // scale)), min(hi, b if math.isinf(b) else b // scale)
    return lo, hi


def highest(expr: Expr, ranges: Ranges, choices: int = _CHOICES) -> float:
    """No value of the expression is larger: `bounds`, with every minimum and maximum split into its two cases."""
    whole = bounds(expr, ranges)[1]
    chosen = next(((f[0], c) for f, c in expr.terms if len(f) == 1 and f[0].op in ("min", "max")), None)
    if whole <= 0 or chosen is None or not choices:
        return whole
    atom, coefficient = chosen
    rest = expr - Expr((((atom,), coefficient),))
    cases = [highest(rest + case * coefficient, ranges, choices - 1) for case in atom.args]
    return min(whole, max(cases) if (atom.op == "max") == (coefficient > 0) else min(cases))


def _shared(expr: Expr) -> Expr | None:
    """A dim, or other atom, in every one of two or more terms; None without one."""
    if len(expr.terms) < 2:
        return None
    common = [atom for atom in expr.terms[0][0] if all(atom in factors for factors, _ in expr.terms)]
    return Expr(((tuple(common[:1]), 1),)) if common else None


def _without_quotients(expr: Expr) -> tuple[Expr, int, dict[str, tuple[float, float]]]:
    """The expression times an integer as one without linear quotients, that integer, and the ranges of the remainders it
    names."""
    quotients = [(f[0], c) for f, c in expr.terms if len(f) == 1 and f[0].op in ("floordiv", "mod") and _divisor(f[0]) > 0]
    scale = lcm(*(_divisor(atom) for atom, _ in quotients if atom.op == "floordiv")) if quotients else 1
    total, rests, names = expr * scale, dict[str, tuple[float, float]](), dict[tuple[Expr, ...], str]()
    for atom, coefficient in quotients:
        name, by = names.setdefault(atom.args, f" remainder {len(names)}"), _divisor(atom)
        rests[name] = (0, by - 1)
        total = total - Expr((((atom,), coefficient * scale),))
        if atom.op == "mod":
            total = total + Expr.dim(name) * (coefficient * scale)
        else:
            total = total + (atom.args[0] - Expr.dim(name)) * (coefficient * scale // by)
    return total, scale, rests


def _divisor(atom: Atom) -> int:
    return atom.args[1].constant or 0
