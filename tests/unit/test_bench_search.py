"""tools.bench.search: which choices of a replay are timed again, and from when on a choice was good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tools.bench.search_replay import Reached, lasting
from tools.bench.search_settle import DOUBT, doubts

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
