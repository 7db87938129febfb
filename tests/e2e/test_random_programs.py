"""Random linalg programs at random shapes, compiled and compared with the float64 reference.

tools/bench/random_cases.py runs thousands of them, each in a process that may crash.
"""

from __future__ import annotations

import random

import pytest
from e2e.random_check import compiled, wrong_at
from e2e.random_operators import OPERATORS
from e2e.random_order import ALL, ORDER, UNSIGNED
from e2e.random_places import EVERY, PLACES
from e2e.random_programs import DTYPES, Operators, draw
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st

from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.target import Target

BUILDER = LocalBuilder(Target.parse("host"))
QUICK = settings(deadline=None, derandomize=True, database=None,
                 suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("operators", "group", "dtypes", "programs"), [
    *((OPERATORS, group, DTYPES, 3) for group in OPERATORS), (ALL, "order", DTYPES, 3), (UNSIGNED, "order", ("ui8",), 2),
    (EVERY, "places", DTYPES, 3)])
def test_programs_match_the_reference(operators: Operators, group: str, dtypes: tuple[str, ...], programs: int) -> None:
    """Chains that begin with an operator of the group."""

    @settings(QUICK, max_examples=programs)
    @given(rng=st.randoms(use_true_random=False), seed=st.integers(0, 2**16))
    def run(rng: random.Random, seed: int) -> None:
        program = draw(rng, operators, longest=4, first=group, dtypes=dtypes)
        target(float(len(program.operators)))
        fn = compiled(program, BUILDER, seed)
        for dims in program.shapes(rng, 3):
            wrong = wrong_at(fn, program, dims, seed)
            assert wrong is None, f"{program.operators} at {wrong.shape}: {wrong.reason}\n{program.text}"

    run()


def test_every_operator_is_drawn() -> None:
    programs = [draw(random.Random(seed), OPERATORS) for seed in range(1500)]
    drawn = {name for p in programs for name in p.operators}
    assert drawn == {name for group in OPERATORS.values() for name in group}
    assert {d for p in programs for d in p.dtypes} >= {"i1", "i8", "i32", "i64", "f16", "bf16", "f32", "f64"}
    assert {name for seed in range(300) for name in draw(random.Random(seed), ALL).operators} >= {*ORDER}
    assert {name for seed in range(300) for name in draw(random.Random(seed), EVERY, first="places").operators} >= {*PLACES}
    assert any(p.bound for p in programs) and any(how.fill == "dim" for p in programs for how in p.inputs)
