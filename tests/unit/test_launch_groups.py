"""Calls that are launched together: which, in what order, and that each is done once on any number of threads."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.host import host_program, strided_inputs
from tilewright.compiler.host.launch_groups import LARGEST, launches_of, phase_numbers
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
def test_a_step_over_many_parameters_is_one_launch_with_the_same_bits_on_any_number_of_threads(
        alone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """alone: calls of a program up to which equal ones do not share their code."""
    monkeypatch.setattr(host_program, "ALONE", alone)
    monkeypatch.setattr(strided_inputs, "ALONE", alone)
    fn = tw.compile(lamb(), options={"builder": LocalBuilder(Target.parse("host"))})
    assert len({call.launch for call in fn.program.calls}) == 1 < len(fn.program.calls)
    generator = np.random.default_rng(0)
    given = [generator.standard_normal([int(d) for d in a.dims or ()]).astype(np.float32) for a in fn.inputs]
    one, two, several = (fn(*given, threads=threads) for threads in (1, 2, 5))
    for number in range(len(SIZES)):
        p, u = (a.astype(np.float64) for a in given[2 * number : 2 * number + 2])
        np.testing.assert_allclose(one[number], p - u * (np.linalg.norm(p) / (np.linalg.norm(u) + 1)), rtol=1e-5, atol=1e-6)
        assert one[number].tobytes() == two[number].tobytes() == several[number].tobytes()
    assert "calls in 1 launch" in str(fn.explain())


def test_phases_wait_for_each_other_on_any_number_of_threads() -> None:
    """A chain of reductions and of work on all elements, each of which reads all of what was before, while other threads call the
    same function: the same bits in every call."""
    g = ops.Graph()
    x = g.input("x", ["T", 512])
    total = x
    for _ in range(4):
        along = ops.sum(total, [0], keepdims=True)
        total = total - along * 0.001 + ops.exp(total * 0.01) / (1.0 + ops.sum(total * total, [0, 1]))
    g.output(total, name="y")
    fn = tw.compile(g, {"T": (1, 4096)})
    assert len({call.launch for call in fn.program.calls}) == 1 and len(fn.program.calls) > 8
    generator, wrong = np.random.default_rng(1), []
    for rows in (1, 3, 300, 1500):
        given = generator.standard_normal((rows, 512)).astype(np.float32)
        want = np.asarray(fn(given, threads=1))
        exact = given.astype(np.float64)
        for _ in range(4):
            exact = exact - exact.sum(0, keepdims=True) * 0.001 + np.exp(exact * 0.01) / (1 + (exact * exact).sum())
        np.testing.assert_allclose(want, exact, rtol=1e-4, atol=1e-4)

        def call(threads: int, given: np.ndarray = given, want: np.ndarray = want) -> None:
            for _ in range(10):
                if fn(given, threads=threads).tobytes() != want.tobytes():
                    wrong.append((given.shape, threads))

        callers = [threading.Thread(target=call, args=(threads,)) for threads in (2, 5)]
        for caller in callers:
            caller.start()
        for threads in (2, 3, 8):
            call(threads)
        for caller in callers:
            caller.join()
    assert not wrong


def test_launches_follow_what_their_calls_read() -> None:
    """Random programs: behind all producers, none moved in front of a product, products alone."""
    chosen = random.Random(0)
    for _ in range(200):
        kinds = [chosen.choice((Kind.ROWS, Kind.POINTWISE, Kind.POINTWISE, Kind.CONTRACTION)) for _ in range(20)]
        producers = [chosen.sample(range(n), min(n, chosen.randrange(3))) for n in range(20)]
        launch = phase_numbers(kinds, producers)
        assert sorted(set(launch)) == list(range(max(launch) + 1))
        for number, kind in enumerate(kinds):
            assert all(launch[p] < launch[number] for p in producers[number])
            if kind is Kind.CONTRACTION:
                assert launch.count(launch[number]) == 1
                assert all(launch[n] < launch[number] for n in range(number)) and all(
                    launch[n] > launch[number] for n in range(number + 1, 20))


def test_phases_between_two_products_are_one_launch() -> None:
    rows, product = Kind.ROWS, Kind.CONTRACTION
    made = launches_of([2, 1, 3, 1, 1, 1], [rows, rows, rows, product, product, rows], 5)
    assert [(launch.calls, launch.counts) for launch in made] == [
        ((5, 6, 7, 8, 9, 10), (2, 1, 3)), ((11,), ()), ((12,), ()), ((13,), ())]
    assert list(made[0].phases()) == [(5, 6), (7,), (8, 9, 10)] and list(made[1].phases()) == [(11,)]
    full = launches_of([LARGEST - 1, 1, 1], [rows] * 3, 0)
    assert [len(launch.calls) for launch in full] == [LARGEST, 1]


def test_a_phase_has_room_for_so_many_calls() -> None:
    launch = phase_numbers([Kind.POINTWISE] * (LARGEST + 1), [[]] * (LARGEST + 1))
    assert launch == [0] * LARGEST + [1]
