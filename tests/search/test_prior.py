"""The cost models that ship with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from search_surfaces import LIMITS, Clock, dense, dense_task, matmul_seconds

import tilewright.search.prior
from tilewright.passes.spaces.family_registry import family_names
from tilewright.runtime.limits import GpuLimits
from tilewright.search.cost_model.forms import feature_space
from tilewright.search.cost_model.model import CostModel, FamilyModels
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.prior.shipped import SUFFIX, shipped, start_of
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


def test_kernels_of_gpus_are_predicted_by_their_own_familys_model(tmp_path: Path) -> None:
    families = ("gemv", "simt")
    lattice = Lattice.of(dense(), GpuLimits.of("sm_90a"), families)
    space = feature_space(lattice, [(("d0", n),) for n in (1, 64)])
    some = np.array([i for f in families for i in [n for n, c in enumerate(lattice.configs) if c.family == f][::211]])
    of_family = np.array([lattice.configs[i].family for i in some])
    assert set(of_family) == set(families)
    start = start_of(families, None)
    assert isinstance(start, FamilyModels) and start.trained and start.samples > 200
    start.save(tmp_path / "both.model")
    for model in (start, CostModel.load(tmp_path / "both.model")):
        for family in families:
            own, mine = shipped(family), some[of_family == family]
            assert own is not None
            for found, wanted in zip(model.predict_rates(space, some), own.predict_rates(space, mine), strict=True):
                np.testing.assert_array_equal(found[of_family == family], wanted)
            both, pairs = model.predict(space, Pairs.product(some, [0, 1], [1])), Pairs.product(mine, [0, 1], [1])
            for found, wanted in zip(both, own.predict(space, pairs), strict=True):
                np.testing.assert_array_equal(found[np.repeat(of_family == family, 2)], wanted)


def test_a_family_without_a_model_is_predicted_by_the_first() -> None:
    lattice = Lattice.of(dense(), GpuLimits.of("sm_90a"), ("gemv", "simt"))
    space, first = feature_space(lattice, [(("d0", 8),)]), shipped("gemv")
    assert first is not None
    pairs = Pairs.product(range(0, len(lattice), 311), [0], [1])
    np.testing.assert_array_equal(FamilyModels({"gemv": first}).predict(space, pairs)[0], first.predict(space, pairs)[0])


def test_where_the_first_family_has_none_or_is_a_hosts_there_is_one_model_or_none(tmp_path: Path) -> None:
    assert start_of(("gpu_codes", "simt"), None) is None
    host = start_of(("host_matmul", "generic"), None)
    assert host is not None and not isinstance(host, FamilyModels)
    own = shipped("simt")
    assert own is not None
    own.save(tmp_path / "gemv.model")  # a folder's goes before the package's
    found = start_of(("gemv", "simt"), tmp_path)
    assert isinstance(found, FamilyModels) and found.models["gemv"].samples == own.samples
