"""Certificates: what is told of shapes that the search did not look at, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from tilewright.runtime.program.certificate import Expected
from tilewright.runtime.program.dispatch import Leaf
from tilewright.search.search_strategy.certify import Entry, Rounds, certify, errors, intervals, measure_entry, one_by_one
from tilewright.search.search_strategy.evidence import Seen
from tilewright.search.search_strategy.final_choice import _least_known, _once
from tilewright.search.search_strategy.neighbours import neighbour_regrets


def test_the_nearest_shape_answers_for_one_that_was_not_looked_at() -> None:
    empty = certify((), np.zeros(3), np.ones(3), 0)
    assert empty.near({"d0": 5}) is None
    found = msgspec.structs.replace(empty, expected=tuple(Expected((n, 2 * n), n * 1e-6) for n in (1, 10, 100)))
    near = [found.near({"d0": n, "d1": 2 * n}) for n in (1, 2, 5, 30, 90, 5000)]
    assert [e.dims[0] for e in near if e] == [1, 1, 10, 10, 100, 100]
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def entries(regrets: Sequence[float], noise: float, rng: np.random.Generator, turns: int = 3) -> list[Entry]:
    """Held-out shapes whose best rival of three is faster by each regret, measured with noise."""
    found = []
    for number, regret in enumerate(regrets):
        true = [1.0, 1.0 / (1 + regret), 1.02, 1.0]
        drawn = iter(float(t * np.exp(noise * rng.standard_normal())) for _ in range(turns) for t in true)
        leaves = [Leaf(n) for n in range(4)]
        entry = measure_entry((("d0", number),), leaves[0], leaves[1:], lambda leaf, shape, d=drawn: next(d), turns)  # type: ignore[misc]
        assert entry is not None
        found.append(entry)
    return found


def test_intervals_hold_the_true_regret_in_nine_cases_of_ten() -> None:
    rng = np.random.default_rng(3)
    for noise in (0.003, 0.02):
        held = {"mean": 0, "worst": 0}
        widths = []
        for _ in range(200):
            regrets = rng.choice([0.0, 0.0, 0.0, 0.03, 0.08], 12)
            made = entries(regrets, noise, rng)
            mean, worst = intervals(made)
            held["mean"] += mean[0] <= regrets.mean() <= mean[1]
            held["worst"] += worst[0] <= regrets.max() <= worst[1]
            widths.append(mean[1] - mean[0])
        assert min(held.values()) >= 180, held
        assert np.mean(widths) < 0.011 + 2 * noise


def taken(regret: float, number: int, apart: float, times: int, rng: np.random.Generator) -> Entry:
    """Three kernels at a shape, at so many times: a kernel's speed differs from one time to another, hardly within one."""
    found = Rounds((("d0", number),), Leaf(0), [Leaf(1), Leaf(2)])
    for _ in range(times):
        speeds = np.array([1 + regret, 1.0, 1.02]) * np.exp(apart * rng.standard_normal(3))
        found.take(lambda leaves, shape, turns, s=speeds: s * np.exp(0.002 * rng.standard_normal((turns, 3))), 12)  # type: ignore[misc]
    entry = found.entry
    assert entry is not None and entry.times == times
    return entry


def test_the_worst_of_many_shapes_is_less_sure_than_of_one() -> None:
    """None of them was found slower than its rivals, yet one of them may be the next time."""
    made = [Entry((("d0", n),), (1.0, 1.0), 0.01, 3, times=2) for n in range(16)]
    _, (low, high) = intervals(made)
    _, (alone, highest) = intervals(made[:1])
    assert low == alone == 0.0 < highest < high < 2 * highest


@pytest.mark.parametrize("apart", [0.0, 0.02, 0.04])
def test_intervals_hold_what_another_time_shows(apart: float) -> None:
    """Kernels that have another speed another time are as steady as others within one."""
    rng, held, widths = np.random.default_rng(5), {"mean": 0, "worst": 0}, []
    for _ in range(100):
        regrets = rng.choice([0.0, 0.03, 0.1], 10)
        mean, worst = intervals([taken(r, n, apart, 2, rng) for n, r in enumerate(regrets)])
        again = [taken(r, n, apart, 1, rng).regret for n, r in enumerate(regrets)]
        held["mean"] += mean[0] <= np.mean(again) <= mean[1]
        held["worst"] += worst[0] <= max(again) <= worst[1]
        widths.append(mean[1] - mean[0])
    assert min(held.values()) >= 90, held
    assert np.mean(widths) < 0.012 + 2.5 * apart


def test_a_shape_whose_times_are_far_apart_is_less_sure_than_others() -> None:
    rng = np.random.default_rng(2)
    made = [taken(0.1, n, 0.06 if n == 3 else 0.0, 3, rng) for n in range(8)]
    error = errors(made)
    assert error[3] > 1.5 * max(np.delete(error, 3)) and np.ptp(np.delete(error, 3)) < 0.1 * error[3]


def test_each_shape_is_measured_at_two_times_before_the_worst_is() -> None:
    first, second = (Rounds((("d0", n),), Leaf(0), [Leaf(1)]) for n in (1, 2))
    assert _once([first, second], True) is None
    for rounds in (first, second):
        rounds.take(one_by_one(lambda leaf, shape: 1.0), 3)
    assert _once([first, second], True) is first and _once([first, second], False) is None
    first.take(one_by_one(lambda leaf, shape: 1.0), 3)
    assert _once([first, second], True) is second


def test_a_certificate_states_its_intervals() -> None:
    made = entries([0.0, 0.05], 0.0, np.random.default_rng(0))
    found = certify(made, np.zeros(3), np.ones(3), 3)
    assert found.measured_worst == pytest.approx(0.05) and found.worst_within[0] < 0.05 < found.worst_within[1]
    assert "worst 5.0% (" in str(found) and "2 shapes held out" in str(found)
    assert intervals([]) == ((0.0, 0.0), (0.0, 0.0))


def test_shapes_whose_regret_is_open_are_measured_again() -> None:
    steady, noisy = (Rounds((("d0", n),), Leaf(0), [Leaf(1)]) for n in (1, 2))
    steady.take(one_by_one(lambda leaf, shape: 1.0), 3)
    drawn = iter([1.0, 0.8, 1.0, 0.9, 1.0, 1.1])
    noisy.take(one_by_one(lambda leaf, shape: next(drawn)), 3)
    assert _least_known([steady]) is None and _least_known([steady, noisy]) is noisy
    rounds = 0
    while (again := _least_known([steady, noisy])) is not None:
        again.take(one_by_one(lambda leaf, shape: (1.0, 0.9)[leaf.kernel if shape == noisy.shape else 0]), 1)
        rounds += 1
    made = [r.entry for r in (steady, noisy)]
    assert 0 < rounds < 25 and all(e is not None and e.turns <= 28 for e in made)
    assert made[1] is not None and made[1].turns > 3 and made[1].regret == pytest.approx(1 / 0.9 - 1)


def test_regrets_come_from_the_nearest_shape_where_others_were_measured_too() -> None:
    apart = np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0)))
    measured = {(0, 0, 1): Seen(2, 1.0), (1, 0, 1): Seen(2, 1.0), (0, 4, 1): Seen(2, 1.2), (1, 4, 1): Seen(2, 1.0),
                (1, 5, 1): Seen(2, 0.5), (1, 9, 1): Seen(1, 0.1), (0, 9, 1): Seen(1, 9.0)}  # fmt: skip
    found = neighbour_regrets(measured, apart, [(0, 1)] * 6)
    assert found == pytest.approx([0, 0, 0, 0.2, 0.2, 0.2])
    assert np.isinf(neighbour_regrets(measured, apart, [(7, 1)] * 6)).all()
    assert neighbour_regrets(measured, apart, [(1, 1)] * 6) == pytest.approx(np.zeros(6))
