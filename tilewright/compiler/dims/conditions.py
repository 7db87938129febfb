"""Conditions collected at compile time: each is proven over the ranges, refused, or left to be checked at every call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.passes.analysis.control_flow import CarriedCounter
from tilewright.runtime.counters import at_ends, at_most
from tilewright.runtime.errors import IngestError
from tilewright.runtime.extent_bounds import highest
from tilewright.runtime.program.program import Check
from tilewright.runtime.shape import Expr, ShapeRange


@dataclass
class Conditions:
    """What must hold at run time. A condition that is noted may be taken for granted by those noted after it: all are checked
    before any kernel runs.

    counters: of loops; what must hold inside one must hold for every value of its counters.
    """

    ranges: ShapeRange
    counters: Sequence[CarriedCounter] = ()
    _found: dict[str, str] = field(default_factory=dict)
    _facts: list[tuple[frozenset[Expr], Expr]] = field(default_factory=list)  # where, and what is not positive there
    _inside: tuple[Expr, ...] = ()

    def __post_init__(self) -> None:
        self.bounds = self.ranges.bounds()
        self._steps = {n: Expr.dim(n) * d.multiple_of for n, d in self.ranges.dims if d.multiple_of > 1}
        self._divided = {n: (-(-d.lo // d.multiple_of), d.hi // d.multiple_of) for n, d in self.ranges.dims}

    @contextmanager
    def inside(self, facts: Sequence[Expr]) -> Iterator[None]:
        """What is noted here counts where none of `facts` is positive: in a branch, or in the body of a loop."""
        before, self._inside = self._inside, tuple(facts)
        try:
            yield
        finally:
            self._inside = before

    def proves(self, excess: Expr, given: Sequence[Expr] = ()) -> bool:
        """Is the expression positive for no shape of the range that the conditions noted so far allow?

        given: what is not positive besides.
        """
        if self._highest(excess) <= 0:
            return True
        if (settled := self._settled(excess)) is not excess:
            return self.proves(settled, given)
        held = [fact for where, fact in self._facts if where <= {*self._inside}]
        return any(self._highest(excess - f) <= 0 for f in (*held, *self._inside, *given) if f.symbols & excess.symbols)

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
        settled, counted = self._settled(excess), sorted(excess.symbols & {c.name for c in self.counters})
        always = self._runs() if runs is None else self._runs() * runs
        if -self._highest(-settled) > 0 and -self._highest(-always) > 0:
            self._refuse(excess, message, counted)
        violation = settled.maximum(0)
        self._found.setdefault(str(violation * always), message + self._counting(counted))
        if runs is None:
            self._facts += [(frozenset(self._inside), f) for f in _facts(violation, self.bounds)]

    def _refuse(self, excess: Expr, message: str, counted: Sequence[str]) -> None:
        shown = ", ".join(f"{n} in {d}" for n, d in self.ranges.dims if n not in counted)
        if counted and not any(-self._highest(-e) > 0 for e in at_ends(excess, self.counters)):
            raise IngestError(f"{message}{self._counting(counted)}, as far as can be told for any shape of the range ({shown}); "
                              "give sizes and places that are sums of counters and dims")
        raise IngestError(f"{message}{self._counting(counted)} for any shape of the range ({shown})")

    def _counting(self, counted: Sequence[str]) -> str:
        """How far the counters of a condition go, for its message."""
        spans = [f"{c.name} counts from {c.start} to {c.largest}" for c in self.counters if c.name in counted]
        return f" while {' and '.join(spans)}" if spans else ""

    def _runs(self) -> Expr:
        """0 where what is inside a branch or loop is not run, else 1."""
        runs = Expr.of(1)
        for fact in self._inside:
            if not self._highest(fact) <= 0:
                runs = runs * self._settled(1 - fact.maximum(0).minimum(1))
        return runs

    def _settled(self, excess: Expr) -> Expr:
        """What an expression is at most, over the dims alone."""
        return at_most(excess, self.counters, self.bounds) if self.counters else excess

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
