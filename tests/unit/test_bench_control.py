"""The suite `control`: what ours is given computes what the formulas say, and every system knows every kind."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.reference import evaluate
from tools.bench import ours
from tools.bench.control.cases import SUITE, cases
from tools.bench.control.formulas import FORMULAS
from tools.bench.harness.worker import catalog
from tools.bench.operator_spec import Operator, relative_error
from tools.bench.references import reference

SMALL = [o for o in cases() if o.name in ("running_sum", "selective_scan", "lstm_1x256", "gru_1x256", "branch")]


@pytest.mark.parametrize("case", SMALL, ids=lambda o: o.name)
def test_graphs_compute_what_the_formulas_say(case: Operator) -> None:
    arrays = {**case.constants(), **case.arguments({"T": 2})}
    given = [arrays[n] for n in case.inputs]
    found = evaluate(ours.graph(case).module_text(), given)[0]
    assert relative_error(np.asarray(found), reference(case, arrays)) < 1e-5


def test_decoding_compiles_and_is_right() -> None:
    case = next(o for o in cases() if o.name == "gpt2_greedy")
    constants, given = case.constants(), case.arguments({"T": 5})
    fn = ours.compiled(case, constants, tw.CompileOptions())
    wanted = reference(case, {**constants, **given})
    assert relative_error(np.asarray(fn(*given.values())), wanted) < 1e-4


def test_the_suite_is_in_the_catalog_with_a_formula_for_each_kind() -> None:
    listed = {o.kind for o in catalog().values() if o.suite == SUITE}
    assert listed == set(FORMULAS)
