from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_surfaces import H100, simt_task
from search_surfaces import dense, rows_up_to

from tilewright.passes.spaces.family_registry import config_text
from tilewright.search.search_strategy.candidates import candidates, ranked
from tilewright.search.space.task import Task


@pytest.fixture(scope="module")
def task() -> Task:
    """Of one in eight kernels of a space of thousands."""
    whole = Task.of(dense(256, 256), H100, ("simt",), rows_up_to(2048))
    return replace(whole, configs=(*whole.lattice().configs[::8], *whole.defaults()))


def test_candidates_hold_the_defaults_and_repeat_by_seed() -> None:
    few = simt_task()
    first = candidates(few, 24, seed=1)
    assert len(first) == len(set(first)) == 24
    assert set(few.defaults()) <= set(first)
    assert candidates(few, 24, seed=1) == first != candidates(few, 24, seed=2)


def test_what_arithmetic_ranks_first_is_among_them(task: Task) -> None:
    lattice, few = task.lattice(), candidates(task, 24)
    numbers, defaults = [lattice.number(config_text(c)) for c in few], task.defaults()
    for m in (8, 2048):
        every = ranked(task, (("d0", m),), lattice.configs)
        kept = np.array([every[n] for n in numbers])
        drawn = [t for t, c in zip(kept, few, strict=True) if c not in defaults]  # of those, some serve few rows alone
        assert kept.min() <= 1.1 * every.min()
        assert np.median(drawn) < np.median(every)


def test_a_small_space_is_taken_whole() -> None:
    small = simt_task()
    found = candidates(small, 10_000)
    assert set(map(config_text, found)) == set(small.lattice().texts)
