"""The cost models that ship with the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest
from search_surfaces import LIMITS, Clock, dense, dense_task, matmul_seconds

import tilewright.search.prior
from tilewright.passes.spaces.family_registry import family_names
from tilewright.search.cost_model.forms import feature_space
from tilewright.search.cost_model.model import CostModel
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.prior.shipped import SUFFIX, shipped
from tilewright.search.runner.replay import SurfaceRunner
from tilewright.search.search_strategy.tune_options import Budget
from tilewright.search.search_strategy.tuner import tune
from tilewright.search.space.lattice import Lattice

FAMILIES = sorted(f.name.removesuffix(SUFFIX) for f in files(tilewright.search.prior).iterdir() if f.name.endswith(SUFFIX))


def test_they_are_small_and_there_is_one_for_each_family_of_the_host_and_what_a_gpu_measured() -> None:
    gpu = {"gemv", "gpu_attention", "gpu_pointwise", "gpu_rows", "mma", "simt", "wgmma", "wgmma_attention"}
    assert set(FAMILIES) == {*family_names(gpu=False), *gpu}
    assert sum(len(files(tilewright.search.prior).joinpath(f + SUFFIX).read_bytes()) for f in FAMILIES) < 600_000
    assert shipped("gpu_codes") is None


@pytest.mark.parametrize("family", FAMILIES)
def test_they_can_be_read(family: str) -> None:
    model = shipped(family)
    assert isinstance(model, CostModel) and model.trained and model.samples > 100


def test_larger_products_are_expected_to_take_longer() -> None:
    model = shipped("host_matmul")
    assert model is not None
    space = feature_space(Lattice.of(dense(), LIMITS, ("host_matmul",)), [(("d0", n),) for n in (1, 16, 128)])
    pairs = Pairs.product(range(0, len(space.lattice), 97), range(3), [1])
    mean, deviation = model.predict(space, pairs)
    seconds = np.exp(mean).reshape(-1, 3)
    assert np.all(deviation > 0) and np.all(seconds > 1e-7) and np.all(seconds < 1)
    assert np.mean(seconds[:, 0] < seconds[:, 1]) > 0.9 and np.mean(seconds[:, 1] < seconds[:, 2]) > 0.9


def test_a_search_takes_one_as_its_start() -> None:
    clock = Clock()
    tuned = tune(dense_task(), clock.context(SurfaceRunner(matmul_seconds, clock.advance)), Budget(trials=40),
                 prior=shipped("host_matmul"))
    assert tuned.configs and tuned.certificate.trials >= 40
