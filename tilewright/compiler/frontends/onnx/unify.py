"""Dims that an operator needs to be equal: solved for one of them, after which the import starts again with what was found."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.runtime.shape import Expr


class DimsEqual(Exception):  # noqa: N818 - no error: it says how to go on
    """Raised while a graph is built: `name` has to be replaced by `value` everywhere, because of `reason`."""

    def __init__(self, name: str, value: Expr, reason: str) -> None:
        super().__init__(f"{reason} needs {name} = {value}")
        self.name, self.value, self.reason = name, value, reason


def solved(a: Expr, b: Expr, prefer: frozenset[str]) -> tuple[str, Expr] | None:
    """A dim that a = b gives as an expression of the others, first one of `prefer`; None when there is no such dim."""
    difference = a - b
    linear: dict[str, int] = {}
    for factors, coefficient in difference.terms:
        if len(factors) == 1 and factors[0].op == "dim" and abs(coefficient) == 1:
            linear[factors[0].name] = coefficient
    candidates = [n for n in linear if _only_linear(difference, n)]
    if not candidates:
        return None
    alone = [n for n in candidates if n in (a.symbol, b.symbol)]
    chosen = max(alone or candidates, key=lambda n: (n in prefer, n))
    return chosen, Expr.dim(chosen) - difference * linear[chosen]


def _only_linear(expr: Expr, name: str) -> bool:
    return sum(name in Expr(((factors, 1),)).symbols for factors, _ in expr.terms) == 1


def closed(found: Mapping[str, Expr], name: str, value: Expr) -> dict[str, Expr]:
    """`found` with one more replacement, none of which mentions a replaced dim."""
    return {**{n: e.substitute({name: value}) for n, e in found.items()}, name: value}
