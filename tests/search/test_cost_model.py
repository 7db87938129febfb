from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from search_surfaces import LIMITS, dense, matmul_seconds

from tilewright.runtime.errors import ArtifactError
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.forms import feature_space
from tilewright.search.cost_model.model import CostModel, Samples
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.cost_model.time_fit import fit_kernels
from tilewright.search.space.lattice import Lattice

SHAPES = tuple((("d0", m),) for m in (1, 3, 8, 17, 40, 64, 100, 128))


@pytest.fixture(scope="module")
def space() -> FeatureSpace:
    return feature_space(Lattice.of(dense(), LIMITS, ("host_matmul",)), SHAPES)


def drawn(space: FeatureSpace, count: int, seed: int) -> tuple[Pairs, np.ndarray]:
    rng = np.random.default_rng(seed)
    streams = np.array([c.stream > 0 for c in space.lattice.configs])  # type: ignore[attr-defined]
    configs = rng.choice(np.flatnonzero(~streams), count)
    pairs = Pairs(configs, rng.integers(0, len(SHAPES), count), rng.integers(1, 3, count))
    return pairs, seconds(space, pairs)


def seconds(space: FeatureSpace, pairs: Pairs) -> np.ndarray:
    triples = zip(pairs.configs, pairs.shapes, pairs.threads, strict=True)
    return np.array([matmul_seconds(space.lattice.configs[c], dict(SHAPES[s]), int(t)) for c, s, t in triples])


def error(model: CostModel, space: FeatureSpace, seed: int = 99) -> float:
    pairs, truth = drawn(space, 400, seed)
    return float(np.sqrt(np.mean((model.predict(space, pairs)[0] - np.log(truth)) ** 2)))


def test_it_learns_a_planted_surface_from_few_measurements(space: FeatureSpace) -> None:
    few, many = CostModel(), CostModel()
    few.fit([Samples.of(space, *drawn(space, 20, 1))])
    many.fit([Samples.of(space, *drawn(space, 200, 1))])
    assert error(CostModel(), space) > 0.5
    assert error(few, space) < 0.6 * error(CostModel(), space)
    assert error(many, space) < 0.7 * error(few, space)


def test_it_repeats_with_its_seed_and_is_surer_where_it_has_seen_more(space: FeatureSpace) -> None:
    first, again = CostModel(), CostModel()
    samples = Samples.of(space, *drawn(space, 60, 2))
    first.fit([samples])
    again.fit([samples])
    pairs, _ = drawn(space, 50, 3)
    assert np.array_equal(first.predict(space, pairs)[0], again.predict(space, pairs)[0])
    assert first.predict(space, pairs)[1].mean() < CostModel().predict(space, pairs)[1].mean()


def test_saved_and_loaded_it_predicts_the_same_and_learns_on(space: FeatureSpace, tmp_path: Path) -> None:
    model = CostModel()
    model.fit([Samples.of(space, *drawn(space, 80, 4))])
    model.save(tmp_path / "model")
    loaded = CostModel.load(tmp_path / "model")
    pairs, _ = drawn(space, 50, 5)
    assert np.allclose(loaded.predict(space, pairs)[0], model.predict(space, pairs)[0])
    assert loaded.samples == 80
    (tmp_path / "model").write_bytes(b"\x00" + (tmp_path / "model").read_bytes())
    with pytest.raises(ArtifactError, match="no cost model"):
        CostModel.load(tmp_path / "model")


def test_update_adds_samples_in_place(space: FeatureSpace) -> None:
    model = CostModel()
    model.fit([Samples.of(space, *drawn(space, 20, 6))])
    before = error(model, space)
    model.update(Samples.of(space, *drawn(space, 200, 7)))
    assert model.samples == 220 and error(model, space) < before


def test_a_model_of_another_operator_is_a_head_start(space: FeatureSpace) -> None:
    other = feature_space(Lattice.of(dense(768, 3072), LIMITS, ("host_matmul",)), SHAPES)
    pairs, _ = drawn(other, 200, 8)
    triples = zip(pairs.configs, pairs.shapes, pairs.threads, strict=True)
    there = np.array([matmul_seconds(other.lattice.configs[c], dict(SHAPES[s]), int(t), 768, 3072) for c, s, t in triples])
    prior = CostModel()
    prior.fit([Samples.of(other, pairs, there)])
    cold, warm = CostModel(), CostModel(prior=prior)
    assert error(warm, space) < 0.35
    samples = Samples.of(space, *drawn(space, 12, 9))
    cold.fit([samples])
    warm.fit([samples])
    assert error(warm, space) < error(cold, space)


def test_a_kernel_is_known_between_the_shapes_it_was_measured_at(space: FeatureSpace) -> None:
    model = CostModel()
    model.fit([Samples.of(space, *drawn(space, 60, 10))])
    config = 5
    measured = Pairs(np.full(3, config), np.array([1, 4, 7]), np.ones(3, np.int64))
    curve = fit_kernels(space, model, (1,), measured, seconds(space, measured))[config]
    truth = np.log(seconds(space, Pairs(np.full(8, config), np.arange(8), np.ones(8, np.int64))))
    assert np.abs(curve.mean[[1, 4, 7], 0] - truth[[1, 4, 7]]).max() < 0.02
    plain = model.predict(space, Pairs(np.full(8, config), np.arange(8), np.ones(8, np.int64)))[0]
    assert np.abs(curve.mean[:, 0] - truth).mean() <= np.abs(plain - truth).mean() + 0.01
    assert curve.deviation[[1, 4, 7], 0].max() < curve.deviation[[0, 2, 5], 0].min()
