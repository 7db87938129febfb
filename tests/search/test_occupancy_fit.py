from __future__ import annotations

import numpy as np
import pytest
from gpu_surfaces import GpuSurface, simt_task
from search_surfaces import Clock

from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.gpu.gpu_grid import Occupancy
from tilewright.runtime.program.dispatch import select
from tilewright.search.cost_model.forms import feature_space
from tilewright.search.cost_model.gpu_form import GpuForm
from tilewright.search.cost_model.measured import refit_device
from tilewright.search.cost_model.model import CostModel
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.database.records import TuningLog
from tilewright.search.prior.transfer import prior_from_log
from tilewright.search.runner.gpu_environment import limits_of_name
from tilewright.search.runner.measurer import Environment, MeasureContext, Measurer
from tilewright.search.runner.replay import ReplayBuilder, SurfaceRunner
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner

FIRST, SECOND = "cuda:sm_90a First, 132 multiprocessors", "cuda:sm_90a Second, 66 multiprocessors"


def test_a_kernels_terms_are_found_from_three_grids_and_tell_the_others() -> None:
    task = simt_task()
    truth = GpuSurface(task, Occupancy(9000.0, 0.25), 1.8e9, spread=0.0)
    lattice = task.lattice()
    shapes = tuple((("d0", m),) for m in (64, 640, 1900, 300, 1200, 2048))
    space = feature_space(lattice, shapes)
    seconds = np.array([truth.all(lattice.configs, dict(s)) for s in shapes]).T
    every = range(len(lattice))
    pairs, others = Pairs.product(every, range(3), [1]), Pairs.product(every, range(3, 6), [1])
    beyond = np.log(seconds[:, :3]) - space.log_base(pairs).reshape(-1, 3)
    shifts = space.form.kernel_shifts(space, pairs, beyond.ravel(), others)
    left = np.log(seconds[:, 3:]) - space.log_base(others).reshape(-1, 3)
    constant = (beyond - shifts[0].reshape(-1, 3)).mean(axis=1, keepdims=True)
    with_fit = np.abs(left - shifts[1].reshape(-1, 3) - constant).mean()
    without = np.abs(left - beyond.mean(axis=1, keepdims=True)).mean()
    assert with_fit < 0.5 * without and with_fit < 0.1, (with_fit, without)


def test_one_grid_says_nothing_of_the_terms() -> None:
    task = simt_task()
    space = feature_space(task.lattice(), ((("d0", 64),), (("d0", 2048),)))
    shifts = space.form.kernel_shifts(space, Pairs.product([0], [0], [1]), np.array([0.7]), Pairs.product([0], [1], [1]))
    assert not shifts[0].any() and not shifts[1].any()


@pytest.fixture(scope="module")
def first_log() -> TuningLog:
    """What a search measured on the first GPU."""
    task = simt_task()
    surface = GpuSurface(task, Occupancy(3000.0, 1.0), 1.8e9)
    log = TuningLog()
    context = MeasureContext(ReplayBuilder(), SurfaceRunner(surface), Environment(FIRST, lambda: 0.0), log)
    tuner = Tuner(task, context, Budget(trials=115))
    while not tuner.done:
        tuner.step()
    return log


def test_a_log_moves_to_another_gpu_by_its_occupancy_terms_alone(first_log: TuningLog) -> None:
    other = limits_of_name(SECOND)
    task = simt_task(other)
    truth = GpuSurface(task, Occupancy(7500.0, 0.5), 1.2e9)
    prior = prior_from_log(first_log, ("simt",), SECOND)
    assert prior is not None
    lattice = task.lattice()
    defaults = [config_text(c) for c in task.defaults()]
    log = TuningLog()
    measurer = Measurer(task.workload, Clock(device=SECOND).context(SurfaceRunner(truth), log))
    for number in [lattice.number(t) for t in defaults]:
        assert number is not None
        for m in (32, 512, 2048):
            measurer.measure(lattice.configs[number], (("d0", m),), 1)
    shapes = tuple((("d0", m),) for m in (16, 200, 700, 1500))
    space = feature_space(lattice, shapes)
    every = Pairs.product(range(len(lattice)), range(len(shapes)), [1])
    wanted = np.log([truth.all(lattice.configs, dict(s)) for s in shapes]).T.ravel()
    as_it_is = np.abs(prior.predict(space, every)[0] - wanted).mean()
    refit_device(space.form, log.records, prior)
    assert isinstance(space.form, GpuForm)
    after = np.abs(prior.predict(space, every)[0] - wanted).mean()
    nothing = CostModel().predict(space, every)[0]
    assert len(log) == 3 * len(set(defaults))
    assert space.form.occupancy.slower > 0.2
    assert after < 0.5 * as_it_is and after < np.abs(nothing - wanted).mean()


def test_a_search_starts_from_another_gpus_log(first_log: TuningLog) -> None:
    task = simt_task(limits_of_name(SECOND))
    truth = GpuSurface(task, Occupancy(7500.0, 0.5), 1.2e9)

    def regret(prior: CostModel | None) -> float:
        context = MeasureContext(ReplayBuilder(), SurfaceRunner(truth), Environment(SECOND, lambda: 0.0))
        tuner = Tuner(task, context, Budget(trials=90), TuneOptions(first=0), prior)  # a start is for the beginning
        while not tuner.done:
            tuner.step()
        best = tuner.certified()
        shapes = task.points.thin(12).shapes
        found = []
        for s in shapes:
            least = truth.all(task.lattice().configs, dict(s)).min()
            found.append(truth(best.configs[select(best.root, dict(s)).kernel], dict(s)) / least)
        return float(np.exp(np.log(found).mean()))

    assert regret(prior_from_log(first_log, ("simt",), SECOND)) <= regret(None) < 1.3


def test_records_of_the_device_itself_or_of_the_host_are_no_prior(first_log: TuningLog) -> None:
    assert prior_from_log(first_log, ("simt",), FIRST) is None
    assert prior_from_log(first_log, ("host_matmul",), SECOND) is None
