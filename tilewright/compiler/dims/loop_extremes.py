"""The least and the greatest value of an index over the loops that it counts, as expressions of the dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.runtime.extent_bounds import Ranges, bounds
from tilewright.runtime.shape import Atom, Expr

_POINTS = 1 << 14  # of a space that is walked where the terms of an index share a loop


@dataclass(frozen=True)
class Extreme:
    """A bound of an index. exact: some iteration reaches it, wherever every loop runs at all."""

    value: Expr
    exact: bool


@dataclass(frozen=True)
class LoopBox:
    """Loops by symbol -> their extent; each counts from 0. ranges: of the dims in the extents."""

    extents: Mapping[str, Expr]
    ranges: Ranges

    def extreme(self, index: Expr, top: bool) -> Extreme | None:
        """The greatest value (`top`) or the least; None where the index is no sum of loops and of their quotients."""
        parts = self._parts(index)
        if parts is None:
            return None
        total, exact, seen = Expr.of(0), True, set[str]()
        for atom, factor in parts.items():
            found = Extreme(factor, True) if atom is None else self._part(atom, factor, top)
            if found is None:
                return None
            loops = frozenset() if atom is None else self._loops(_alone(atom))
            exact = exact and found.exact and not loops & seen
            seen |= loops
            total = total + found.value
        return Extreme(total, True) if exact else self._walked(index, parts, top) or Extreme(total, False)

    def _loops(self, expr: Expr) -> frozenset[str]:
        return expr.symbols & self.extents.keys()

    def _parts(self, index: Expr) -> dict[Atom | None, Expr] | None:
        """Factor without loops of each atom that has loops; under None what has none. None where loops are multiplied."""
        parts: dict[Atom | None, Expr] = {None: Expr.of(0)}
        for factors, coefficient in index.terms:
            moving = [f for f in factors if self._loops(_alone(f))]
            if len(moving) > 1:
                return None
            atom = moving[0] if moving else None
            rest = Expr(((tuple(f for f in factors if f is not atom), coefficient),))
            parts[atom] = parts.get(atom, Expr.of(0)) + rest
        return parts

    def _part(self, atom: Atom, factor: Expr, top: bool) -> Extreme | None:
        """The extreme of factor * atom."""
        lo, hi = bounds(factor, self.ranges)
        if atom.op == "dim":
            reached = factor * (self.extents[atom.name] - 1)
            if lo >= 0 or hi <= 0:
                return Extreme(reached if (lo >= 0) == top else Expr.of(0), True)
            return Extreme(reached.maximum(0) if top else reached.minimum(0), True)
        if lo < 0 < hi:
            return None
        found = self._atom(atom, top == (lo >= 0))
        return None if found is None else Extreme(factor * found.value, found.exact)

    def _atom(self, atom: Atom, top: bool) -> Extreme | None:
        """The extreme of a quotient, remainder, minimum or maximum."""
        a, b = atom.args
        if atom.op in ("min", "max"):
            first, second = self.extreme(a, top), self.extreme(b, top)
            if first is None or second is None:
                return None
            chosen = first.value.minimum(second.value) if atom.op == "min" else first.value.maximum(second.value)
            return Extreme(chosen, False)
        if self._loops(b) or bounds(b, self.ranges)[0] < 1:
            return None
        if atom.op == "floordiv":
            found = self.extreme(a, top)
            return None if found is None else Extreme(found.value // b, found.exact)
        return self._remainder(a, b, top)

    def _remainder(self, a: Expr, b: Expr, top: bool) -> Extreme | None:
        least, most = self.extreme(a, False), self.extreme(a, True)
        if least is None or most is None or bounds(least.value, self.ranges)[0] < 0:
            return Extreme(b - 1 if top else Expr.of(0), False)
        if bounds(most.value - b, self.ranges)[1] < 0:
            return most if top else least
        every = least.value == Expr.of(0) and a.symbol is not None  # a counts 0, 1, 2, ...
        return Extreme(most.value.minimum(b - 1) if top else Expr.of(0), every)

    def _walked(self, index: Expr, parts: Mapping[Atom | None, Expr], top: bool) -> Extreme | None:
        """The extreme among all iterations, where they are few and the dims take no part but in a summand."""
        loops = sorted(self._loops(index))
        counts = [n for name in loops if (n := self.extents[name].constant) is not None]
        moving = index - parts[None]
        if len(counts) < len(loops) or moving.symbols != set(loops) or not 0 < prod(counts) <= _POINTS:
            return None
        grid = dict(zip(loops, np.ogrid[tuple(slice(0, n) for n in counts)], strict=True))
        values: Any = moving.fold(int, grid.__getitem__, lambda op, x, y: _APPLY[op](x, y))
        return Extreme(parts[None] + int(values.max() if top else values.min()), True)


_APPLY = {"floordiv": np.floor_divide, "mod": np.remainder, "min": np.minimum, "max": np.maximum}


def _alone(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))
