"""Expressions over the counters of loops: what they are at most, over the dims outside of the loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tilewright.runtime.extent_bounds import highest
from tilewright.runtime.shape import Expr

_CHOICES = 6  # minima and maxima that are split into their cases


class Counted(Protocol):
    """A dim that a loop counts, from `start` to `largest`, both over the dims outside."""

    @property
    def name(self) -> str: ...

    @property
    def start(self) -> Expr: ...

    @property
    def largest(self) -> Expr: ...


def at_most(expr: Expr, counters: Sequence[Counted], bounds: Mapping[str, tuple[float, float]]) -> Expr:
    """The largest value of an expression over counters, those of outer loops first.

    bounds: of all dims and counters; they serve where the expression neither grows nor falls along with a counter, and is no
        minimum or maximum of such ones. What comes back may be larger than any value then.
    """
    for c in reversed(counters):
        expr = _settled(expr, c, bounds)
    return expr


def at_ends(expr: Expr, counters: Sequence[Counted]) -> tuple[Expr, Expr]:
    """An expression where all counters have their first value, and where all have their largest."""
    first = last = expr
    for c in reversed(counters):
        first, last = first.substitute({c.name: c.start}), last.substitute({c.name: c.largest})
    return first, last


def _settled(expr: Expr, c: Counted, bounds: Mapping[str, tuple[float, float]], choices: int = _CHOICES) -> Expr:
    """What an expression is at most while one counter counts."""
    if c.name not in expr.symbols:
        return expr
    if _is_linear(expr, c.name):
        first, last = (expr.substitute({c.name: at}) for at in (c.start, c.largest))
        least, most = (expr.substitute({c.name: Expr.dim(c.name) + 1}) - expr).bounds(bounds)
        return last if least >= 0 else first if most <= 0 else first.maximum(last)
    chosen = next(((f[0], n) for f, n in expr.terms if len(f) == 1 and f[0].op in ("min", "max")
                   and any(c.name in e.symbols for e in f[0].args)), None)
    if chosen is not None and choices:
        atom, coefficient = chosen
        rest = expr - Expr((((atom,), coefficient),))
        a, b = (_settled(rest + case * coefficient, c, bounds, choices - 1) for case in atom.args)
        return a.maximum(b) if (atom.op == "max") == (coefficient > 0) else a.minimum(b)
    found = highest(expr, dict(bounds))
    if found == float("inf"):
        raise ValueError(f"{expr} has no largest value while {c.name} counts")
    return Expr.of(int(found))


def _is_linear(expr: Expr, name: str) -> bool:
    """Does the expression change by the same with each step of a dim?"""
    for factors, _ in expr.terms:
        holding = [a for a in factors if (a.name == name if a.op == "dim" else any(name in e.symbols for e in a.args))]
        if len(holding) > 1 or any(a.op != "dim" for a in holding):
            return False
    return True
