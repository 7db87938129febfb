"""Calls that are launched together: which, in what order, and that each is done once on any number of threads."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.host import host_program
from tilewright.compiler.host.launch_groups import LARGEST, launch_numbers
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.target import Target

SIZES = ((300, 64), (40,), (0, 40), (300, 64), (70, 40))


def lamb() -> ops.Graph:
    """A step for parameters of several sizes: norms of a parameter and of its update, and the parameter after it."""
    g = ops.Graph()
    for number, size in enumerate(SIZES):
        p, u = (g.input(f"{name}{number}", list(size)) for name in "pu")
        norms = [ops.sqrt(ops.sum(v * v, list(range(len(size))))) for v in (p, u)]
        g.output(p - u * (norms[0] / (norms[1] + 1.0)))
    return g


@pytest.mark.parametrize("alone", [host_program.ALONE, 2])
def test_a_step_over_many_parameters_is_three_launches_with_the_same_bits_on_any_number_of_threads(
        alone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """alone: calls of a program up to which equal ones do not share their code."""
    monkeypatch.setattr(host_program, "ALONE", alone)
    fn = tw.compile(lamb(), options={"builder": LocalBuilder(Target.parse("host"))})
    assert len({call.launch for call in fn.program.calls}) == 3 < len(fn.program.calls)
    generator = np.random.default_rng(0)
    given = [generator.standard_normal([int(d) for d in a.dims or ()]).astype(np.float32) for a in fn.inputs]
    one, two, several = (fn(*given, threads=threads) for threads in (1, 2, 5))
    for number in range(len(SIZES)):
        p, u = (a.astype(np.float64) for a in given[2 * number : 2 * number + 2])
        np.testing.assert_allclose(one[number], p - u * (np.linalg.norm(p) / (np.linalg.norm(u) + 1)), rtol=1e-5, atol=1e-6)
        assert one[number].tobytes() == two[number].tobytes() == several[number].tobytes()
    assert "calls in 3 launches" in str(fn.explain())


def test_launches_follow_what_their_calls_read() -> None:
    """Random programs: behind all producers, none moved in front of a product, products alone."""
    chosen = random.Random(0)
    for _ in range(200):
        kinds = [chosen.choice((Kind.ROWS, Kind.POINTWISE, Kind.POINTWISE, Kind.CONTRACTION)) for _ in range(20)]
        producers = [chosen.sample(range(n), min(n, chosen.randrange(3))) for n in range(20)]
        launch = launch_numbers(kinds, producers)
        assert sorted(set(launch)) == list(range(max(launch) + 1))
        for number, kind in enumerate(kinds):
            assert all(launch[p] < launch[number] for p in producers[number])
            if kind is Kind.CONTRACTION:
                assert launch.count(launch[number]) == 1
                assert all(launch[n] < launch[number] for n in range(number)) and all(
                    launch[n] > launch[number] for n in range(number + 1, 20))


def test_a_launch_has_room_for_so_many_calls() -> None:
    launch = launch_numbers([Kind.POINTWISE] * (LARGEST + 1), [[]] * (LARGEST + 1))
    assert launch == [0] * LARGEST + [1]
