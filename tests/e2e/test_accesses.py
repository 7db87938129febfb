"""Reads and writes that extents do not bound: proven, checked at the call, or refused, and never outside a tensor.

tools/bench/random_cases.py runs thousands of them (`--accesses`).
"""

from __future__ import annotations

import random

import pytest
from e2e import random_accesses
from e2e.random_check import access_wrong_at, compiled_access

from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.target import Target


@pytest.mark.parametrize("target", ["host", "host:x86-64-v3"])
def test_random_maps_stay_inside_their_tensors(target: str) -> None:
    builder = LocalBuilder(Target.parse(target))
    seen = {True: 0, False: 0}
    for number in range(8):
        rng = random.Random(f"accesses/{target}/{number}")
        program = random_accesses.draw(rng)
        fn = compiled_access(program, builder, target)
        for dims in random_accesses.shapes(program, rng, 12):
            wrong, runs = access_wrong_at(fn, program, dims, number)
            assert wrong is None, f"{wrong.reason} at {wrong.shape}\n{program.text}"
            seen[runs] += 1
    assert min(seen.values()) >= 8, seen
