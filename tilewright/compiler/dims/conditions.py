"""Conditions collected at compile time: each is proven over the ranges, refused, or left to be checked at every call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.runtime.errors import IngestError
from tilewright.runtime.extent_bounds import highest
from tilewright.runtime.program.program import Check
from tilewright.runtime.shape import Expr, ShapeRange


@dataclass
class Conditions:
    """What must hold at run time. A condition that is noted may be taken for granted by those noted after it: all are checked
    before any kernel runs."""

    ranges: ShapeRange
    _found: dict[str, str] = field(default_factory=dict)
    _facts: list[Expr] = field(default_factory=list)  # none is positive where the conditions noted so far hold

    def __post_init__(self) -> None:
        self.bounds = self.ranges.bounds()
        self._steps = {n: Expr.dim(n) * d.multiple_of for n, d in self.ranges.dims if d.multiple_of > 1}
        self._divided = {n: (-(-d.lo // d.multiple_of), d.hi // d.multiple_of) for n, d in self.ranges.dims}

    def proves(self, excess: Expr, given: Sequence[Expr] = ()) -> bool:
        """Is the expression positive for no shape of the range that the conditions noted so far allow?

        given: what is not positive besides.
        """
        if self._highest(excess) <= 0:
            return True
        return any(self._highest(excess - f) <= 0 for f in (*self._facts, *given) if f.symbols & excess.symbols)

    def note(self, excess: Expr, message: str, runs: Expr | None = None) -> None:
        """Record a condition unless it always holds.

        Args:
            excess: positive where the condition does not hold.
            message: what is wrong there.
            runs: 1 where the condition counts, 0 elsewhere; None: it always counts.
        Raises:
            IngestError: it holds for no shape of the range.
        """
        if self.proves(excess):
            return
        if -self._highest(-excess) > 0 and (runs is None or -self._highest(-runs) > 0):
            shown = ", ".join(f"{n} in {d}" for n, d in self.ranges.dims)
            raise IngestError(f"{message} for any shape of the range ({shown})")
        violation = excess.maximum(0)
        self._found.setdefault(str(violation if runs is None else violation * runs), message)
        if runs is None:
            self._facts += _facts(violation, self.bounds)

    def checks(self) -> tuple[Check, ...]:
        """The conditions that were not proven."""
        return tuple(Check(expr, message) for expr, message in self._found.items())

    def _highest(self, expr: Expr) -> float:
        found = highest(expr, self.bounds)
        return highest(expr.substitute(self._steps), self._divided) if found > 0 and self._steps else found


def _facts(violation: Expr, ranges: Mapping[str, tuple[float, float]]) -> Iterator[Expr]:
    """What is not positive where a violation, which is never negative, is 0."""
    if all(Expr((term,)).bounds(ranges)[0] >= 0 for term in violation.terms):
        for factors, _ in violation.terms:
            if len(factors) == 1 and factors[0].op == "max":
                yield from factors[0].args
