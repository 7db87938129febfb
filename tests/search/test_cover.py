from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.runtime.errors import OptionError
from tilewright.search.search_strategy.cover import cover


def matrix(seed: int, kernels: int, points: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    times = 1 + rng.exponential(0.1, (kernels, points))
    times[rng.random(times.shape) < 0.1] = np.inf
    times[0] = 1.5  # serves every point
    return times


def brute_force(times: np.ndarray, max_regret: float, weights: np.ndarray) -> tuple[int, float]:
    """Fewest rows within the regret everywhere, and the least mean regret of so many."""
    regret = times / times.min(axis=0) - 1
    for size in range(1, len(times) + 1):
        found = []
        for rows in combinations(range(len(times)), size):
            left = regret[list(rows)].min(axis=0)
            if np.all(left <= max_regret + 1e-12):
                found.append(float(left @ weights / weights.sum()))
        if found:
            return size, min(found)
    raise AssertionError


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 7), st.integers(1, 9), st.sampled_from([0.0, 0.03, 0.1, 0.6]))
def test_the_cover_is_the_smallest_and_the_best_of_its_size(seed: int, kernels: int, points: int, max_regret: float) -> None:
    times = matrix(seed, kernels, points)
    weights = np.random.default_rng(seed + 1).random(points) + 0.1
    found = cover(times, weights, max_regret)
    size, mean = brute_force(times, max_regret, weights)
    assert len(found.kernels) == size
    assert found.mean == pytest.approx(mean, abs=1e-6)
    assert found.worst <= max_regret + 1e-9


def test_max_kernels_gives_the_least_excess() -> None:
    times = np.array([[1.0, 1.0, 2.0, 2.0], [2.0, 2.0, 1.0, 1.0], [1.2, 1.2, 1.2, 1.2]])
    weights = np.ones(4)
    assert cover(times, weights, 0.05).kernels == (0, 1)
    assert cover(times, weights, 0.05, max_kernels=1).kernels == (2,)
    assert cover(times, np.array([9.0, 9, 0.1, 0.1]), 0.05, max_kernels=1).kernels == (0,)


def test_a_shape_that_no_kernel_serves_is_an_error() -> None:
    with pytest.raises(OptionError, match="no legal kernel"):
        cover(np.array([[1.0, np.inf]]), np.ones(2), 0.1)
    with pytest.raises(OptionError, match="raise max_kernels"):
        cover(np.array([[1.0, np.inf], [np.inf, 1.0]]), np.ones(2), 0.1, max_kernels=1)
