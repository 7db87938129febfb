"""Spans: the values of k that rows or columns of a host matmul are summed over, where a factor is triangular."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.passes.analysis.triangle import Triangle
from tilewright.passes.codegen.affine_index import invert
from tilewright.passes.codegen.emit import constant
from tilewright.passes.codegen.evaluator import Coords, Evaluator
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import opaque
from tilewright.passes.mlir import ir, maps_of, owner

Span = tuple[Index, Index]  # first value of k, and the one beyond the last


@dataclass(frozen=True)
class Spans:
    """Of one plan. triangle: which of its factors has zeros, and where."""

    evaluator: Evaluator
    plan: Plan
    triangle: Triangle

    @staticmethod
    def of(evaluator: Evaluator, plan: Plan) -> Spans | None:
        return None if plan.triangle is None else Spans(evaluator, plan, plan.triangle)

    @property
    def of_rows(self) -> bool:
        """Does it differ from row to row? Else from column to column."""
        return self.triangle.which == self.plan.narrow

    def whole(self, low: Index, high: Index, within: Span | None = None) -> Span:
        """Where rows or columns [low, high), one at least, have factors other than 0; in order, though both ends may agree."""
        first, beyond = within or (Index(0), self.evaluator.emit(self.plan.depth))
        begin, end = first, beyond
        if self.triangle.low is not None:
            begin = (low + self.evaluator.emit(self.triangle.low)).max(first).min(beyond)
        if self.triangle.high is not None:
            end = (high + self.evaluator.emit(self.triangle.high)).max(begin).min(beyond)
        return opaque(begin, self.evaluator.index_type), opaque(end, self.evaluator.index_type)

    def parts(self, low: Index, high: Index, within: Span) -> tuple[tuple[Span, bool], ...]:
        """The values of k that rows [low, high) are summed over, in order; is no factor 0 by construction there?"""
        begin, end = self.whole(low, high, within)
        if self.triangle.condition is None:
            return (((begin, end), False),)
        full, over = begin, end
        if self.triangle.low is not None:
            full = (high - 1 + self.evaluator.emit(self.triangle.low)).max(begin).min(end)
        if self.triangle.high is not None:
            over = (low + 1 + self.evaluator.emit(self.triangle.high)).max(full).min(end)
        full, over = opaque(full, self.evaluator.index_type), opaque(over, self.evaluator.index_type)
        found: list[tuple[Span, bool]] = [((full, over), True)]
        if self.triangle.low is not None:
            found.insert(0, ((begin, full), False))
        if self.triangle.high is not None:
            found.append(((over, end), False))
        return tuple(found)

    @contextmanager
    def unmasked(self) -> Iterator[None]:
        """Within this block the factor is read without asking whether it is 0 by construction."""
        assert self.triangle.condition is not None
        operand = self.plan.view.operand(self.triangle.which)
        op = owner(operand)
        assert op is not None
        asked, holds = self.triangle.condition

        def element(coords: Coords) -> ir.Value:
            loops = [Index(0) if x is None else x for x in invert(maps_of(op)[-1], coords)]
            known = {asked: constant(ir.IntegerType.get_signless(1), int(holds))}
            number = next((i for i, a in enumerate(op.regions[0].blocks[0].arguments) if a == asked), None)
            given = {} if number is None else {number: known[asked]}
            return self.evaluator.region(op, loops, given, None, {} if given else known)[0]

        self.evaluator.known[operand] = element
        try:
            yield
        finally:
            del self.evaluator.known[operand]
