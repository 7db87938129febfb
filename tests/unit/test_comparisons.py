"""Comparisons that take a negative number for a large one, as expressions over the dims."""

from __future__ import annotations

from itertools import product
from operator import ge, gt, le, lt

import pytest

from tilewright.passes.analysis.assert_facts import unsigned
from tilewright.runtime.shape import Expr


@pytest.mark.parametrize("compare", [lt, le, gt, ge])
def test_violation_is_zero_just_where_the_unsigned_comparison_holds(compare: object) -> None:
    found = unsigned(compare.__name__, Expr.dim("a"), Expr.dim("b"))  # type: ignore[attr-defined]
    for a, b in product(range(-3, 4), repeat=2):
        violation = found.evaluate({"a": a, "b": b})
        assert violation >= 0
        assert (violation == 0) == compare(a % 2**64, b % 2**64)  # type: ignore[operator]
