"""Mutants of MLIR text: none crashes, hangs, raises a raw error or gives a wrong result; `python -m tools.fuzz` runs more."""

from __future__ import annotations

import random

import pytest

from tools.fuzz.__main__ import BAD, Corpus, verdicts
from tools.fuzz.attempt import Mutant, attempt
from tools.fuzz.mutate import MUTATORS, mutant

BASE = """#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<?x4xf32> {tw.dims = ["T", 4]}) -> tensor<?x4xf32> {
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x4xf32>) outs(%x : tensor<?x4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %a : f32
    linalg.yield %r : f32
  } -> tensor<?x4xf32>
  return %y : tensor<?x4xf32>
}
"""


def test_mutants_of_models_are_answered() -> None:
    found = dict(verdicts(Corpus(seed=20), range(1, 60), workers=2))
    assert not {number: v for number, v in found.items() if v.kind in BAD}
    assert {"read", "refused"} <= {v.kind for v in found.values()}


@pytest.mark.parametrize(("text", "kind"), [(BASE, "right"), (BASE.replace("arith.addf", "arith.andi"), "refused")])
def test_a_model_is_judged(text: str, kind: str) -> None:
    assert attempt(Mutant(text, None, True, 0)).kind == kind


def test_a_wrong_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import tools.fuzz.attempt as judge

    monkeypatch.setattr(judge, "evaluate", lambda source, inputs: [inputs[0] * 3])
    assert attempt(Mutant(BASE, None, True, 0)).kind == "wrong"


def test_a_crash_is_a_verdict() -> None:
    """Of upstream's verifier, which the text bounds do not see."""
    crasher = ("#none = affine_map<(d0, d1, d2) -> ()>\nfunc.func @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {\n"
               "  %0 = linalg.matmul indexing_maps = [#none, #none, #none] ins(%a, %a : tensor<4x4xf32>, tensor<4x4xf32>) "
               "outs(%a : tensor<4x4xf32>) -> tensor<4x4xf32>\n  return %0 : tensor<4x4xf32>\n}")
    corpus = Corpus(0, [crasher])
    corpus.mutant = lambda number: Mutant(crasher, None, False, number)  # type: ignore[method-assign]
    assert [v.kind for _, v in verdicts(corpus, range(1), 1)] == ["crash"]


@pytest.mark.parametrize("one", MUTATORS, ids=lambda m: m.__name__)
def test_each_mutator_changes_text_and_survives_any(one: object) -> None:
    assert callable(one)
    assert any(one(BASE, random.Random(seed)) != BASE for seed in range(20))
    for text in ("", "\n", "x", '"', "%"):
        one(text, random.Random(0))


def test_mutants_depend_on_their_seed_alone() -> None:
    assert mutant(BASE, random.Random(3)) == mutant(BASE, random.Random(3)) != mutant(BASE, random.Random(4))
