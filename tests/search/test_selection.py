from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest
from search_surfaces import Clock, dense_task, matmul_seconds

from tilewright.passes.spaces.family_registry import config_text, heuristics_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.program.dispatch import Node, select
from tilewright.search.cost_model.forms import feature_space
from tilewright.search.cost_model.measured import training_samples
from tilewright.search.cost_model.model import CostModel
from tilewright.search.database.records import TuningRecord
from tilewright.search.runner.replay import SurfaceRunner
from tilewright.search.search_strategy.evidence import Evidence
from tilewright.search.search_strategy.selection import Selection, select_kernels
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import tune
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.task import Task


@functools.cache
def surface() -> tuple[Task, Lattice]:
    """What every test here looks at: describing a thousand configurations takes longer than choosing among them."""
    task = dense_task(96)
    return task, task.lattice()


def chosen(share: float, at: range, hopeful: bool = False, turns: int = 2, slow: int = 97) -> tuple[Task, Selection, str]:
    """What is chosen when one kernel takes this share of the untuned one's time, measured so often at some shapes, the untuned
    one at all; the machine is slower while shapes from `slow` on are measured."""
    task, lattice = surface()
    w = task.workload
    configs, root = heuristics_of("host_matmul").default(w, task.limits)
    other = next(t for t in lattice.texts if t not in set(map(config_text, configs)) and "stream" not in t)
    records = []
    for shape in task.points.shapes:
        m = shape[0][1]
        plain = 1e-6 * (m + 4) * (1.5 if m >= slow else 1.0)
        pairs = [(config_text(configs[select(root, dict(shape)).kernel]), plain)]
        pairs += [(other, plain * share)] if m in at else []
        records += [TuningRecord(w.key, w.name, "host_matmul", text, dict(shape), 1, (s,)) for text, s in pairs * turns]
    model = CostModel()
    space = feature_space(lattice, task.points.shapes)
    samples = training_samples(space.form, records)
    assert samples is not None
    model.fit([samples])
    evidence = Evidence.of(space, task.points, model, records, (1,))
    return task, select_kernels(task, task.untuned(), space, evidence, TuneOptions(), hopeful), other


def share_of(task: Task, found: Selection, text: str) -> float:
    """Share of the points that a kernel is chosen at."""
    texts = surface()[1].texts
    picked = [texts[found.configs[found.leaf(dict(s)).kernel]] for s in task.points.shapes]
    return picked.count(text) / len(picked)


def test_a_faster_kernel_takes_the_place_of_the_untuned_one() -> None:
    task, found, other = chosen(0.8, range(1, 97))
    assert share_of(task, found, other) == 1.0


@pytest.mark.parametrize(("share", "turns", "wanted"), [(0.93, 1, 0.0), (0.93, 2, 1.0), (0.8, 1, 1.0)])
def test_what_was_measured_once_must_be_much_faster(share: float, turns: int, wanted: float) -> None:
    task, found, other = chosen(share, range(1, 97), turns=turns)
    assert share_of(task, found, other) == wanted


def test_a_machine_that_became_slower_makes_no_kernel_faster() -> None:
    task, found, other = chosen(1.05, range(30, 49), slow=49)
    assert share_of(task, found, other) == 0.0


@pytest.mark.parametrize("share", [1.0, 1.01, 1.1])
def test_a_near_tie_keeps_the_untuned_kernel(share: float) -> None:
    task, found, other = chosen(share, range(1, 97))
    assert share_of(task, found, other) == 0.0


def test_a_kernel_is_not_chosen_far_from_where_it_was_measured_but_hoped_for() -> None:
    task, found, other = chosen(0.85, range(32, 97))
    assert not any(found.leaf({"d0": m}) == found.leaf({"d0": 64}) for m in range(2, 24))
    assert share_of(task, found, other) > 0.5
    assert share_of(*chosen(0.85, range(32, 97), hopeful=True)) >= share_of(task, found, other)


@pytest.mark.parametrize(("trials", "threads"), [(30, 1), (100, 1), (100, 2)])
def test_hardly_a_shape_is_slower_than_untuned_whatever_the_budget(trials: int, threads: int) -> None:
    """Where nothing is timed beside it: at a shape that was not measured the default may be better than at its neighbours."""
    task, clock = dense_task(), Clock()
    runner = SurfaceRunner(matmul_seconds)
    tuned = tune(task, clock.context(runner), Budget(trials=trials), TuneOptions(threads=threads))
    untuned = heuristics_of("host_matmul").default(task.workload, task.limits)
    shapes = [dict(s) for s in task.points.shapes]
    ratios = [seconds(*untuned, s, threads) / seconds(tuned.configs, tuned.root, s, threads) for s in shapes]
    assert sum(ratio <= 0.97 for ratio in ratios) <= 1 and min(ratios) > 0.9
    assert len(tuned.configs) <= 8


def seconds(configs: tuple[TileConfig, ...], root: Node, dims: Mapping[str, int], threads: int) -> float:
    leaf = select(root, dims)
    return matmul_seconds(configs[leaf.kernel], dims, leaf.threads or threads)


@pytest.mark.parametrize("share", [0.8, 0.97, 1.01, 1.1])
def test_nothing_is_dispatched_that_is_expected_to_be_slower_than_untuned(share: float) -> None:
    for at in (range(1, 97), range(32, 97), range(1, 12)):
        _, found, _ = chosen(share, at)
        assert (found.seconds <= found.untuned * (1 + 1e-9)).all()
