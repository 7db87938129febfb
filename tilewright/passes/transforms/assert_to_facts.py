"""assert-to-facts: cf.assert ops that hold for every shape of the range are removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.assert_facts import assert_facts
from tilewright.passes.base import Pass
from tilewright.passes.linalg.structured import erase_unused, main_of
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import PassError
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class AssertToFacts(Pass):
    """Ingest turns what the ranges do not settle into run-time checks; an assert that is left stays, or is an error.

    keep_unknown: leave the asserts that are neither true nor false for the whole range.
    """

    name: ClassVar[str] = "assert-to-facts"
    keep_unknown: bool = True

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            for fact in assert_facts(fn, SymbolicShapes(fn)):
                if fact.violation == Expr.of(0):
                    fact.op.erase()
                elif not self.keep_unknown or (fact.violation is not None and fact.violation.constant is not None):
                    raise PassError(f'the assert "{fact.message}" at {fact.op.location} does not hold over the range')
            erase_unused(fn)
