from __future__ import annotations

import numpy as np
import pytest
from search_surfaces import LIMITS, dense, matmul_seconds

from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.forms import feature_space
from tilewright.search.cost_model.model import CostModel, Samples
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.cost_model.time_fit import Scatter, fit_kernels
from tilewright.search.space.lattice import Lattice

SHAPES = tuple((("d0", m),) for m in range(1, 97))


@pytest.fixture(scope="module")
def space() -> FeatureSpace:
    w = dense(768, 768)
    return feature_space(Lattice.of(w, LIMITS, ("host_matmul",)), SHAPES)


def seconds(space: FeatureSpace, pairs: Pairs) -> np.ndarray:
    triples = zip(pairs.configs, pairs.shapes, pairs.threads, strict=True)
    return np.array([matmul_seconds(space.lattice.configs[c], dict(space.shapes[s]), int(t), 768, 768) for c, s, t in triples])


def trained(space: FeatureSpace, configs: list[int]) -> CostModel:
    pairs = Pairs.product(configs, range(0, 96, 7), [1])
    model = CostModel()
    model.fit([Samples.of(space, pairs, seconds(space, pairs))])
    return model


@pytest.mark.parametrize("noise", [0.005, 0.04])
def test_noise_is_judged_by_the_measurements(space: FeatureSpace, noise: float) -> None:
    configs = [10, 200, 400]
    rng = np.random.default_rng(3)
    pairs = Pairs.product(configs, range(40, 96, 2), [1])
    times = seconds(space, pairs) * np.exp(noise * rng.standard_normal(len(pairs)))
    curve = fit_kernels(space, trained(space, configs), (1,), pairs, times)[10]
    measured = curve.deviation[40:96:2, 0]
    assert (np.median(measured) < 0.01) == (noise == 0.005)


def test_more_turns_leave_less_doubt(space: FeatureSpace) -> None:
    pairs = Pairs.product([10], range(40, 96, 8), [1])
    model, turns = trained(space, [10]), np.ones(len(pairs), np.int64)
    once = fit_kernels(space, model, (1,), pairs, seconds(space, pairs), turns)[10]
    often = fit_kernels(space, model, (1,), pairs, seconds(space, pairs), 9 * turns)[10]
    assert (often.deviation[40:96:8] < once.deviation[40:96:8]).all()


def test_what_all_kernels_take_longer_at_a_shape_is_the_shape_s(space: FeatureSpace) -> None:
    configs, slow = [10, 100, 200, 300, 400], 60
    model = trained(space, [*configs, 500])
    pairs = Pairs.product(configs, range(40, 80, 4), [1])
    other = Pairs.product([500], [40, 52, 76], [1])
    both = Pairs(*(np.concatenate([a, b]) for a, b in zip(vars(pairs).values(), vars(other).values(), strict=True)))
    times = seconds(space, both) * np.where(both.shapes == slow, 1.3, 1.0)
    found = fit_kernels(space, model, (1,), both, times)[500].mean[:, 0]
    truth = np.log(seconds(space, Pairs.product([500], range(96), [1])))
    assert 0.1 < found[slow] - truth[slow] < 0.3
    assert abs(found[slow + 1] - truth[slow + 1]) < 0.08


def test_a_kernel_that_was_never_measured_has_the_models_curve(space: FeatureSpace) -> None:
    model = trained(space, [10])
    pairs = Pairs.product([10], [50], [1])
    found = fit_kernels(space, model, (1,), pairs, seconds(space, pairs), also=[11])
    mean, _ = model.predict(space, Pairs.product([11], range(96), [1]))
    assert set(found) == {10, 11}
    assert np.allclose(found[11].mean[:, 0], mean)
    assert found[11].deviation.min() > Scatter().noise
