"""tools.bench.search: which choices of a replay are timed again, and from when on a choice was good."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.search.database.records import TuningRecord
from tools.bench.search.oracle import FEWEST, GROUPS, RETIMED, confirmed, paired, rounds
from tools.bench.search.per_shape import least, times, usual
from tools.bench.search.replay import Reached, lasting, levelled
from tools.bench.search.settle import DOUBT, ENOUGH, Again, doubts

SHAPES = ((("T", 1),), (("T", 2),), (("T", 3),))


class Measured:
    """A replay of two kernels whose times are known; a choice is the name of one."""

    def __init__(self, **seconds: tuple[float, ...]) -> None:
        self.times = seconds
        self.best = np.min(list(seconds.values()), axis=0)
        self.problem = SimpleNamespace(task=SimpleNamespace(points=SimpleNamespace(shapes=SHAPES)))

    def seconds(self, tuned: str) -> np.ndarray:
        return np.array(self.times[tuned])

    def variants(self, tuned: str) -> list[tuple[str, int]]:
        return [(tuned, 1)] * len(SHAPES)

    def fastest(self, shape: Any, count: int) -> list[tuple[str, int]]:
        place = SHAPES.index(shape)
        return [(name, 1) for name in sorted(self.times, key=lambda n: self.times[n][place])][:count]


def at(measurements: int) -> Reached:
    return Reached(measurements, measurements / 10)


def test_choices_that_seem_slow_are_doubted_with_what_seemed_faster() -> None:
    slower = 1 + 2 * DOUBT
    replay: Any = Measured(a=(1.0, slower, 1.0), b=(slower, 1.0, 1.0 + DOUBT / 2), c=(3.0, 3.0, 3.0))
    made: Any = [(at(1), "a"), (at(2), "b")]
    assert doubts(replay, made) == {SHAPES[0]: [("b", 1), ("a", 1), ("c", 1)], SHAPES[1]: [("a", 1), ("b", 1), ("c", 1)]}
    assert doubts(replay, made[:1]) == {SHAPES[1]: [("a", 1), ("b", 1), ("c", 1)]}


def test_a_choice_is_good_from_where_no_worse_one_follows() -> None:
    curve = [(at(n), np.array([s])) for n, s in ((1, 1.0), (2, 2.0), (3, 1.0), (4, 1.0))]
    assert lasting(curve, lambda s: bool(s[0] <= 1.0)) == at(3)
    assert lasting(curve[:2], lambda s: bool(s[0] <= 1.0)) is None


def test_what_is_paired_does_not_depend_on_when_the_machine_was_slow() -> None:
    slow = np.where(np.arange(30) % 7 < 3, 2.0, 1.0)[:, None]
    times = np.array([[1.0, 1.1, 3.0]]) * slow
    times[::4, 0] *= 5  # a turn that was disturbed by itself
    found = paired(times)
    np.testing.assert_allclose(found / found[0], [1.0, 1.1, 3.0])
    np.testing.assert_allclose(paired(times[:, :1] * 0 + 2.5), [2.5])


def test_each_call_has_a_turn_in_every_round() -> None:
    order: list[str] = []
    times = rounds([partial(order.append, name) for name in "abc"], 0.0)
    turns = "".join(name for name, _ in groupby(order))
    assert times.shape == (FEWEST, 3) and (times > 0).all()
    assert turns == "abcbcacab" * (FEWEST // 3)


def test_times_of_all_passes_are_at_the_speed_of_the_first() -> None:
    again, usual, other, third = Again(), ("u", 1), ("v", 2), ("w", 1)
    again.take(SHAPES[0], usual, 3.0, {usual: np.full(5, 1.0), other: np.full(5, 0.9)})
    again.take(SHAPES[0], usual, 99.0, {usual: np.full(5, 7.0), third: np.full(5, 14.0)})
    assert again.seconds(SHAPES[0]) == {usual: 3.0, other: 3.0 * 0.9, third: 6.0}
    assert not again.settled(SHAPES[0], [other]) and not again.settled(SHAPES[1], [usual])
    for _ in range(ENOUGH):
        again.take(SHAPES[1], usual, 1.0, {usual: np.ones(2), other: np.ones(2)})
    assert again.settled(SHAPES[1], [usual, other]) and not again.settled(SHAPES[1], [third])


def test_a_log_is_taken_at_the_speed_of_the_oracle() -> None:
    def record(config: str, t: int, seconds: float) -> TuningRecord:
        return TuningRecord("key", "matmul", "host_matmul", config, {"T": t}, 1, (seconds,))

    log = [record("u", 1, 2.0), record("v", 1, 3.0), record("v", 2, 3.0), record("u", 3, 5.0)]
    found = levelled(log, {SHAPES[0]: (("u", 1), 1.0), SHAPES[1]: (("u", 1), 1.0), SHAPES[2]: (("u", 2), 1.0)})
    assert [r.seconds for r in found] == [(1.0,), (1.5,), (3.0,), (5.0,)]


def test_times_of_a_search_by_shape_are_at_the_speed_of_the_oracle() -> None:
    def record(*seconds: float) -> TuningRecord:
        return TuningRecord("key", "matmul", "host_matmul", "host_matmul", {"T": 1}, 1, seconds)

    assert times([record(), record(2.0), record(1.0, 1.0)], 5.0) == [float("inf"), 5.0, 2.5]
    assert least(times([], 5.0)) == float("inf")


def test_the_time_of_the_joint_search_is_the_median_of_its_beginnings() -> None:
    begun = [[1.0, 2.0, 9.0], [1.5, 4.0], [0.5]]
    assert usual(Reached(2, 8.0), begun) == Reached(2, 4.0)
    assert usual(Reached(5, 8.0), begun) == Reached(5, 8.0)


def test_lucky_glances_do_not_keep_the_best_kernel_from_its_turn() -> None:
    true = {("best", 1): 0.8, ("default", 1): 1.0} | {(f"lucky {n}", 1): 1.2 for n in range(RETIMED + 2)}
    glances = {v: 0.5 if v[0].startswith("lucky") else seconds for v, seconds in true.items()}
    asked: list[list[tuple[str, int]]] = []

    def time_all(variants: list[tuple[str, int]]) -> dict[tuple[str, int], float]:
        asked.append(variants)
        return {v: true[v] * len(asked) for v in variants}  # the machine becomes slower

    turns = confirmed(glances, ("default", 1), ("default", 1), time_all)
    assert min(turns, key=turns.__getitem__) == ("best", 1) and turns["best", 1] == pytest.approx(0.8)
    assert len(asked) == 2 <= GROUPS
    assert confirmed(true, ("default", 1), ("default", 1), lambda vs: {v: true[v] for v in vs}).keys() == set(sorted(
        true, key=true.__getitem__)[:RETIMED])
