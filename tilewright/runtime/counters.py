"""Expressions over the counters of loops: what they are at most, over the dims outside of the loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tilewright.runtime.extent_bounds import highest
from tilewright.runtime.shape import Expr


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

    bounds: of all dims and counters; they serve where the expression neither grows nor falls along with a counter.
    """
    for c in reversed(counters):
        if c.name not in expr.symbols:
            continue
        if _is_linear(expr, c.name):
            first, last = (expr.substitute({c.name: at}) for at in (c.start, c.largest))
            least, most = (expr.substitute({c.name: Expr.dim(c.name) + 1}) - expr).bounds(bounds)
            expr = last if least >= 0 else first if most <= 0 else first.maximum(last)
        else:
            found = highest(expr, dict(bounds))
            if found == float("inf"):
                raise ValueError(f"{expr} has no largest value while {c.name} counts")
            expr = Expr.of(int(found))
    return expr


def _is_linear(expr: Expr, name: str) -> bool:
    """Does the expression change by the same with each step of a dim?"""
    for factors, _ in expr.terms:
        holding = [a for a in factors if (a.name == name if a.op == "dim" else any(name in e.symbols for e in a.args))]
        if len(holding) > 1 or any(a.op != "dim" for a in holding):
            return False
    return True
