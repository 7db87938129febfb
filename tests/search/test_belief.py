from __future__ import annotations

import numpy as np
import pytest

from tilewright.search.task_scheduler.belief import (
    Belief,
    Chain,
    Data,
    EmceeSampler,
    Hyperprior,
    Jumps,
    expected_improvement,
    fit,
    posterior,
)
from tilewright.search.task_scheduler.belief_pool import BeliefOptions, BeliefPool, FitCache, fresh, pooled, weighed
from tilewright.search.task_scheduler.tuning_curve import HIGH, LOW, least_squares, log_power, segment_start, thinned

TRUE = np.array([[0.6, 2.0, -0.8]])
FLOOR = 0.1


def curve(count: int, noise: float = 0.004, seed: int = 0, parameters: np.ndarray = TRUE) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(1.0, count + 1)
    y = log_power(x - 1, parameters, FLOOR)[0] + noise * np.random.default_rng(seed).standard_normal(count)
    return x, np.maximum.accumulate(y)


def test_log_power_has_its_limits() -> None:
    start, half, end = log_power(np.array([0.0, np.exp(2.0), 1e12]), TRUE, FLOOR)[0]
    assert (start, half) == (pytest.approx(0.1), pytest.approx(0.35)) and end == pytest.approx(0.6, rel=1e-3)


@pytest.mark.parametrize(("y", "start"), [([0.1, 0.11, 0.12], 0), ([0.1, 0.125, 0.13], 1), ([0.1, 0.2, 0.21, 0.4, 0.41], 3)])
def test_a_jump_of_more_than_a_fifth_starts_a_segment(y: list[float], start: int) -> None:
    assert segment_start(np.array(y)) == start


def test_thinning_keeps_the_ends_and_every_rise() -> None:
    x = np.arange(1.0, 301)
    y = np.where(x < 137, 0.1, np.where(x < 211, 0.11, 0.115))
    kept, values = thinned(x, y, 20)
    assert {1.0, 137.0, 211.0, 300.0} <= set(kept.tolist()) and len(kept) <= 40 and len(values) == len(kept)


def test_least_squares_recovers_a_clean_curve() -> None:
    x, y = curve(40, noise=0.0)
    assert least_squares(x - 1, y, FLOOR)[:3] == pytest.approx(TRUE[0], rel=0.02)


def test_the_posterior_covers_the_future_of_a_known_curve() -> None:
    x, y = curve(30)
    data = Data.of(x, y, 15.0, segments=False)
    found = fit(data)
    p = found.predict(data.best, 45.0)
    truth = log_power(np.array([44.0]), TRUE, FLOOR)[0, 0]
    assert abs(p.mean - truth) < 4 * p.deviation and p.deviation < 0.03
    assert data.best <= p.low <= p.high and 0 < p.gain < 0.3
    assert 0.2 < found.acceptance < 0.8 and found.autocorrelation > 1
    assert found.samples.shape == (200, 4)


def test_intervals_hold_what_they_say_over_many_curves() -> None:
    inside = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        parameters = np.array([[rng.uniform(0.3, 0.9), rng.uniform(1, 3), rng.uniform(-1.2, -0.5)]])
        x, y = curve(40, 0.01, seed, parameters)
        data = Data.of(x[:24], y[:24], 12.0, segments=False)
        p = fit(data, sampler=EmceeSampler(200, 100, 5), seed=seed).predict(data.best, 36.0)
        inside.append(p.low <= y[35] <= p.high)
    assert 6 <= sum(inside) <= 12


def test_samples_never_fall_below_what_is_known_and_keep_to_the_bounds() -> None:
    x, y = curve(20, 0.03)
    data = Data.of(x, y, 4.0)
    found = fit(data, sampler=EmceeSampler(100, 50, 5))
    assert np.all(found.curves(np.array([24.0]))[:, 0] >= data.best * (1 - 1e-8))
    assert np.all((found.samples >= LOW) & (found.samples <= HIGH))


def test_the_density_takes_many_points_and_refuses_falling_curves() -> None:
    x, y = curve(10)
    density = posterior(Data.of(x, y, 4.0))
    rows = np.array([[0.6, 2.0, -0.8, -4.0], [0.05, 2.0, -0.8, -4.0], [2.0, 2.0, -0.8, -4.0]])
    values = density(rows)
    assert np.isfinite(values[0]) and not np.isfinite(values[1]) and not np.isfinite(values[2])


def test_equal_seeds_give_equal_beliefs() -> None:
    data = Data.of(*curve(12), 4.0)
    sampler = EmceeSampler(60, 30, 5)
    one, two, other = fit(data, None, sampler, 3), fit(data, None, sampler, 3), fit(data, None, sampler, 4)
    assert np.array_equal(one.samples, two.samples) and not np.array_equal(one.samples, other.samples)


def test_the_sampler_is_injected() -> None:
    seen = []

    def still(density, start, seed):  # type: ignore[no-untyped-def]
        seen.append(start.shape)
        return Chain(start, 0.5, 1.0)

    assert len(fit(Data.of(*curve(8), 2.0), sampler=still).samples) == 10 and seen == [(10, 4)]


def test_expected_improvement_of_a_normal() -> None:
    drawn = 0.5 + 0.1 * np.random.default_rng(0).standard_normal(200_000)
    assert expected_improvement(0.5, 0.1, 0.55) == pytest.approx(np.maximum(drawn - 0.55, 0).mean(), rel=0.02)
    assert expected_improvement(0.5, 0.0, 0.4) == pytest.approx(0.1)


def test_the_direct_draw_of_a_fresh_arm_agrees_with_the_ensemble() -> None:
    prior = Hyperprior((-0.9, 1.0, -1.0, -3.0), (0.3, 0.5, 0.2, 0.3))
    data = Data.of(np.array([1.0]), np.array([0.2]), 10.0)
    drawn = fresh(data, prior, 0).predict(0.2, 11.0)
    chained = fit(data, prior, EmceeSampler(2000, 500, 5)).predict(0.2, 11.0)
    assert drawn.gain == pytest.approx(chained.gain, rel=0.15)
    assert drawn.gain_deviation == pytest.approx(chained.gain_deviation, rel=0.35)


def test_reweighting_follows_the_prior_and_the_best() -> None:
    data = Data.of(*curve(6, 0.02), 6.0, segments=False)
    found = fit(data, sampler=EmceeSampler(400, 100, 3))
    low = Hyperprior((float(np.log(0.45)), 2.0, -0.8, -3.0), (0.05, 9.0, 9.0, 9.0))
    moved = found.reweighted(data, None, low)
    assert moved.weights @ moved.samples[:, 0] < found.weights @ found.samples[:, 0]
    assert moved.effective < found.effective
    bettered = Data(data.x, np.append(data.y[:-1], 0.42), data.ahead, data.origin)
    kept = found.reweighted(bettered, None, None)
    assert np.all(found.curves(np.array([12.0]))[kept.weights > 0, 0] >= 0.42 * (1 - 1e-8)) and kept.effective > 0


def histories(*gains: float, fresh_arm: bool = True) -> dict[str, tuple[str, np.ndarray, np.ndarray, float]]:
    found = {}
    for i, gain in enumerate(gains):
        x = np.arange(1.0, 13)
        found[f"arm{i}"] = ("alike", x, 0.1 * (1 + (gain - 1) * (1 - x**-1.0)), 6.0)
    if fresh_arm:
        found["fresh"] = ("alike", np.array([1.0]), np.array([0.1]), 6.0)
    return found


def test_a_fresh_arm_expects_what_similar_arms_did() -> None:
    expected = []
    for gains in ((1.05, 1.06, 1.04), (2.4, 2.6, 2.5)):
        pool = BeliefPool(BeliefOptions(segments=False), EmceeSampler(120, 60, 5))
        pool.update(histories(*gains))
        pool.update(histories(*gains))
        expected.append(pool.predict("fresh", 0.1, 7.0).gain)
    assert expected[0] < 0.2 < 0.45 < expected[1]


def test_only_arms_with_new_trials_are_sampled_again() -> None:
    pool = BeliefPool(BeliefOptions(segments=False), EmceeSampler(60, 30, 5))
    given = histories(1.5, 1.6, 1.4)
    pool.update(given)
    assert pool.fits == 3
    pool.update(given)
    more = np.arange(1.0, 17)
    pool.update({**given, "arm1": ("alike", more, 0.1 * (1 + 0.6 * (1 - 1 / more)), 6.0)})
    assert pool.fits <= 5
    x, y = given["arm0"][1:3]
    before = pool.fits
    pool.update({**given, "arm0": ("alike", x, np.append(y[:-1], y[-1] * 1.0005), 6.0)})  # bettered by a trial of another arm
    assert pool.fits == before or pool.fits == before + 1


def test_fits_are_cached_by_what_decides_them() -> None:
    cache = FitCache()
    for seed, fits in ((0, 2), (0, 0), (1, 2)):
        pool = BeliefPool(BeliefOptions(shared=False, seed=seed), EmceeSampler(60, 30, 5), cache)
        pool.update(histories(1.5, 1.6, fresh_arm=False))
        assert (pool.fits, pool.reused) == (fits, 2 - fits)


def test_a_prior_needs_two_arms() -> None:
    one = (np.array([0.5, 1.0, -1.0, -3.0]), np.full(4, 0.01))
    assert pooled([one]) is None
    found = pooled([one, one])
    assert found is not None and found.centre == pytest.approx((0.5, 1.0, -1.0, -3.0))
    assert isinstance(fresh(Data.of(np.array([1.0]), np.array([0.3]), 4.0), found, 0), Belief)


def test_a_jump_may_come_and_comes_less_likely_the_longer_there_was_none() -> None:
    data = Data.of(*curve(6, 0.02), 6.0, segments=False)
    found = fit(data, sampler=EmceeSampler(400, 100, 3))
    plain = found.predict(data.best, 7.0)
    jumped = found.predict(data.best, 7.0, Jumps(0.3, np.full(10, 2 * data.best)))
    assert jumped.gain > plain.gain + 0.05 and jumped.high > plain.high
    np.testing.assert_allclose(jumped.weights.sum(), 1.0)

    def gain(trials: int) -> float:
        pool = BeliefPool(sampler=EmceeSampler(200, 100, 4))
        x = np.arange(1.0, trials + 1)
        pool.update({"a": ("g", x, np.full(trials, 0.4), 6.0), "b": ("g", x, np.linspace(0.3, 0.8, trials), 6.0)})
        return pool.predict("a", 0.4, trials + 6.0).gain

    assert gain(8) > 2 * gain(400) > 0


SHARED = Hyperprior((-0.5, 2.0, -0.8, -3.0), (0.3, 0.5, 0.3, 1.0))


@pytest.mark.parametrize(("count", "hyperprior"), [(12, None), (40, None), (3, SHARED), (12, SHARED)])
def test_weighed_draws_say_what_a_chain_says(count: int, hyperprior: Hyperprior | None) -> None:
    x, y = curve(count)
    data = Data.of(x, y, 8.0, segments=False)
    drawn, chain = weighed(data, hyperprior, 2048, 0), fit(data, hyperprior, EmceeSampler(600, 300, 5))
    assert drawn is not None and len(drawn.samples) == len(drawn.weights)
    one, other = (b.predict(data.best, count + 8.0) for b in (drawn, chain))
    assert one.mean == pytest.approx(other.mean, abs=0.6 * max(other.deviation, 0.004))
    assert one.gain == pytest.approx(other.gain, abs=0.5 * max(other.gain_deviation, 0.01))
    assert one.gain_deviation < 2 * other.gain_deviation + 0.01


def test_new_trials_re_weight_and_chains_are_the_last_resort() -> None:
    x, y = curve(60)
    pool = BeliefPool(BeliefOptions(draws=2048), EmceeSampler(120, 72, 2))
    for count in range(2, 61, 2):
        pool.update({"a": ("g", x[:count], y[:count], 8.0)})
        p = pool.predict("a", float(y[count - 1]), count + 8.0)
        assert np.isfinite(p.gain) and 0 <= p.gain < 1
    assert pool.fits <= 3
    truth = log_power(np.array([67.0]), TRUE, FLOOR)[0, 0]
    assert abs(p.mean - truth) < 5 * p.deviation + 0.005


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("stuck", [0, 3, 10])
def test_walkers_that_stand_still_say_nothing_of_the_autocorrelation(stuck: int) -> None:
    start = np.random.default_rng(0).standard_normal((10, 2))
    start[:stuck] += 1e6  # every step from there ends where the density is zero
    known = {tuple(p) for p in start[:stuck]}

    def density(points: np.ndarray) -> np.ndarray:
        return np.array([0.0 if tuple(p) in known else -0.5 * p @ p if np.abs(p).max() < 100 else -np.inf for p in points])

    chain = EmceeSampler(200, 50, 5)(density, start, 1)
    assert np.isnan(chain.autocorrelation) == (stuck == 10)
    assert chain.samples.shape == (300, 2)
