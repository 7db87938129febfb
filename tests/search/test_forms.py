"""What the forms of host and GPU kernels must both give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gpu_surfaces import simt_task
from search_surfaces import LIMITS, dense_task

from tilewright.passes.spaces.gpu.gpu_grid import Occupancy
from tilewright.runtime.limits import HostLimits
from tilewright.search.cost_model.forms import feature_space, form_of
from tilewright.search.cost_model.gpu_form import GpuForm
from tilewright.search.cost_model.host_form import HostForm
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.space.kernel_facts import KernelFacts
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.task import Task

SHAPES = tuple((("d0", m),) for m in (1, 17, 128))


def test_the_limits_of_a_lattice_tell_its_form() -> None:
    host, gpu = form_of(dense_task().lattice()), form_of(simt_task().lattice())
    assert isinstance(host, HostForm) and isinstance(gpu, GpuForm)
    assert (host.drifts, host.whole_vectors, gpu.drifts, gpu.whole_vectors) == (True, False, False, True)


@pytest.mark.parametrize("task", [dense_task, simt_task])
def test_a_form_gives_a_number_for_each_pair_and_each_feature(task: Callable[[], Task]) -> None:
    lattice = task().lattice()
    space = feature_space(lattice, SHAPES)
    pairs = Pairs.product(range(len(lattice)), range(len(SHAPES)), [1])
    assert np.isfinite(space.log_base(pairs)).all()
    for columns, count in ((space.form.config_columns(), len(lattice)), (space.form.shape_columns(space), len(SHAPES)),
                           (space.form.pair_columns(space, pairs), len(pairs))):
        assert all(len(values) == count and np.isfinite(values).all() for values in columns.values())
    assert space.pair_rows(pairs).names[-len(space.shape_rows.names):] == space.shape_rows.names


def test_no_term_of_the_host_moves() -> None:
    space = feature_space(dense_task().lattice(), SHAPES)
    some, others = Pairs.product([0, 1], [0, 1], [1]), Pairs.product([0], [2], [1, 2])
    at, to = space.form.kernel_shifts(space, some, np.ones(len(some)), others)
    assert (at.shape, to.shape) == ((4,), (2,)) and not at.any() and not to.any()
    before = space.log_base(some)

    def beyond() -> np.ndarray:
        raise AssertionError("nothing is fitted, so nothing is predicted")

    space.form.refit(space, some, beyond)
    assert (space.log_base(some) == before).all()


def test_the_terms_of_a_gpu_start_anew_at_each_fit() -> None:
    space = feature_space(simt_task().lattice(), SHAPES)
    assert isinstance(space.form, GpuForm)
    pairs = Pairs.product(range(len(space.lattice)), range(len(SHAPES)), [1])
    expected = space.form.occupancy
    seen: list[Occupancy] = []

    def beyond() -> np.ndarray:
        assert isinstance(space.form, GpuForm)
        seen.append(space.form.occupancy)
        return np.full(len(pairs), 0.4)

    for _ in range(2):
        space.form.refit(space, pairs, beyond)
        assert space.form.occupancy.slower == pytest.approx(0.4)
    assert seen == [expected, expected]


def test_a_form_tells_its_lattice_what_was_built() -> None:
    lattice = dense_task().lattice()
    form, facts = form_of(lattice), KernelFacts(guards=("floordiv(d0, 999)",))
    form.note(lattice.texts[2], facts)
    form.note("no configuration of it", facts)
    assert lattice.facts == {2: facts}


def test_wider_vectors_need_fewer_cycles() -> None:
    task = dense_task()
    narrow = HostLimits(LIMITS.vector_bytes // 2, LIMITS.vector_registers, LIMITS.l1, LIMITS.l2, LIMITS.l3, LIMITS.cores)
    pairs = Pairs.product([0], [2], [1])
    wide, half = (feature_space(Lattice(task.workload, limits, task.lattice().configs[:1]), SHAPES).log_base(pairs)
                  for limits in (LIMITS, narrow))
    assert wide[0] < half[0]
