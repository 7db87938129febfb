"""The suite `control`: what ours is given computes what the formulas say, and every system knows every kind."""

from __future__ import annotations

import os

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


def test_what_is_loaded_keeps_to_the_threads_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker loads before it keeps to its cores, the function would be one of all of them."""
    cores, seen = os.sched_getaffinity(0), []
    monkeypatch.setattr(tw, "load", lambda path: seen.append(len(os.sched_getaffinity(0))))
    for threads in (1, len(cores), len(cores) + 1):
        ours.Tilewright(threads).load(next(cases()), "model.tw")
    assert seen == [1, len(cores), len(cores)] and os.sched_getaffinity(0) == cores
