"""Solving the equations between extents: which places of the arguments are one dimension, and what the rest equal.

Unknowns are places (axis 1 of argument 0 is the symbol `arg0_1`) and names that the user declared. Each equation
removes one place by substitution; what is left are the free dimensions. Names are never removed: an equation between
names alone is a contradiction when it could be solved for one of them, else a condition to check at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilewright.compiler.dims.dim_equations import Equation
from tilewright.compiler.dims.places import Places
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Expr


@dataclass
class Solution:
    """`places` gives each place's extent over the free symbols; `open` holds the equations that nothing solves.

    known: how places are written.
    """

    known: Places
    names: frozenset[str]
    places: dict[str, Expr]
    order: dict[str, int]
    origin: dict[str, str] = field(default_factory=dict)
    open: list[Equation] = field(default_factory=list)
    _holders: dict[str, set[str]] = field(default_factory=dict)  # symbol -> the places whose extents mention it

    def __post_init__(self) -> None:
        for place, expr in self.places.items():
            self._hold(place, expr)

    def _hold(self, place: str, expr: Expr) -> None:
        for symbol in expr.symbols:
            self._holders.setdefault(symbol, set()).add(place)

    def reduce(self, expr: Expr) -> Expr:
        return expr.substitute(self.places) if expr.symbols & self.places.keys() else expr

    def add(self, equation: Equation) -> None:
        """Use one equation; IngestError when it contradicts the earlier ones."""
        a, b = self.reduce(equation.left), self.reduce(equation.right)
        difference = a - b
        if difference.constant == 0:
            return
        if difference.constant is not None:
            raise IngestError(self._contradiction(equation, a, b))
        solvable = [s for s in difference.symbols if _linear(difference, s)]
        removable = [s for s in solvable if s not in self.names]
        if removable:
            alone = [s for s in removable if s in (a.symbol, b.symbol)]
            chosen = max(alone or removable, key=lambda s: self.order[s])
            coefficient = dict(difference.terms)[_factor(difference, chosen)]
            value = Expr.dim(chosen) - difference * coefficient
            for place in self._holders.pop(chosen, ()):
                self.places[place] = self.places[place].substitute({chosen: value})
                self._hold(place, self.places[place])
            self.origin[chosen] = equation.reason
        elif solvable and difference.symbols <= self.names:
            raise IngestError(self._contradiction(equation, a, b))
        else:
            self.open.append(Equation(a, b, equation.reason))

    def _contradiction(self, equation: Equation, a: Expr, b: Expr) -> str:
        sides = " and ".join(f"{self.shown(e)} ({', '.join(self.places_of(e)) or 'an extent of the model'})" for e in (a, b))
        earlier = sorted({self.origin[p] for p in (equation.left.symbols | equation.right.symbols) if p in self.origin})
        return (
            f"{equation.reason} needs {sides} to be equal, and they are declared as different sizes. Use one name for "
            "both places, or correct the model" + (f" (they follow from {'; '.join(earlier)})" if earlier else "")
        )

    def places_of(self, expr: Expr) -> list[str]:
        """Places, such as "arg0.1", whose extent is exactly this expression."""
        return [self.known.text(p) for p, e in self.places.items() if e == expr]

    def shown(self, expr: Expr) -> Expr:
        """An expression with the names that dims get by their places."""
        return expr.substitute({s: Expr.dim(self.known.dim_name(s)) for s in expr.symbols})


def solve(
    names: Iterable[str], places: Places, declared: Mapping[str, Expr], facts: Iterable[Equation]
) -> Solution:
    """Places under the declarations (place -> Expr over names), then the facts of the model."""
    listed = places.dynamic
    start, order = {p: Expr.dim(p) for p in listed}, {p: i for i, p in enumerate(listed)}
    solution = Solution(places, frozenset(names), start, order)
    for place, expr in declared.items():
        solution.add(Equation(Expr.dim(place), expr, f"the declaration of {places.text(place)}"))
    for fact in facts:
        solution.add(fact)
    again, solution.open = solution.open, []
    for fact in again:
        solution.add(fact)
    return solution


def _factor(expr: Expr, symbol: str) -> tuple:  # type: ignore[type-arg]
    return next(f for f, _ in expr.terms if len(f) == 1 and f[0].op == "dim" and f[0].name == symbol)


def _linear(expr: Expr, symbol: str) -> bool:
    """Does the symbol occur once, alone, with coefficient 1 or -1?"""
    holding = [
        (f, c) for f, c in expr.terms if any(a.name == symbol or any(symbol in x.symbols for x in a.args) for a in f)
    ]
    return len(holding) == 1 and len(holding[0][0]) == 1 and holding[0][0][0].op == "dim" and abs(holding[0][1]) == 1
