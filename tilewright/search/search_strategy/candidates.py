"""Candidates: which kernels of a space to build when they can only be measured elsewhere, or to try first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.forms import feature_space
from tilewright.search.cost_model.model import CostModel
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.search_strategy.propose import Proposer
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Dims
from tilewright.search.space.task import Task

_POINTS = 40
_SIZES = 6  # of the range, at which the fastest are taken
_RANDOM = 0.2  # share that is drawn evenly, from which a model learns what the arithmetic leaves out


def candidates(task: Task, count: int, seed: int = 0, model: CostModel | None = None) -> list[TileConfig]:
    """The defaults, those expected to be fastest at sizes from small to large, those expected to save most over the range, and
    some drawn evenly: `count` in all, or the space.

    model: with none, analytic times rank.
    """
    lattice, points = task.lattice(), task.points.thin(_POINTS)
    rng = np.random.default_rng([seed, 0xCAFE])
    space = feature_space(lattice, points.shapes)
    proposer = Proposer(space, (1,), rng)
    chosen = [n for n in (lattice.number(config_text(c)) for c in task.defaults()) if n is not None]
    chosen = list(dict.fromkeys(chosen))
    drawn = round(_RANDOM * max(0, count - len(chosen)))
    model = model or CostModel()
    chosen += _fastest(model, space, chosen, max(0, count - drawn - len(chosen)) // 2)
    best = model.predict(space, Pairs.product(chosen, range(len(points)), [1]))[0].reshape(len(chosen), -1).min(axis=0)
    wanted = max(0, count - drawn - len(chosen))
    chosen += [p.config for p in proposer.propose(model, best, np.array(points.weights), chosen, wanted)]
    chosen += [p.config for p in proposer.random(chosen, count - len(chosen))]
    return [lattice.configs[n] for n in chosen]


def _fastest(model: CostModel, space: FeatureSpace, taken: Sequence[int], count: int) -> list[int]:
    """Configurations expected to be fastest, taken in turn from sizes spread over the range."""
    sizes = np.unique(np.round(np.linspace(0, len(space.shapes) - 1, _SIZES)).astype(int))
    pairs = Pairs.product(range(len(space.lattice)), sizes, [1])
    times = np.where(space.legal(pairs), model.predict(space, pairs)[0], np.inf).reshape(-1, len(sizes))
    found: dict[int, None] = {}
    for number in np.argsort(times, axis=0, kind="stable").ravel().tolist():
        if len(found) >= count:
            break
        if number not in taken:
            found[number] = None
    return list(found)


def ranked(task: Task, shape: Dims, configs: Sequence[TileConfig]) -> Floats:
    """Seconds that arithmetic alone expects of configurations at a shape: a prior that ranks where nothing was measured."""
    space = feature_space(task.lattice(), (shape,))
    numbers = [space.lattice.number(config_text(c)) for c in configs]
    assert all(n is not None for n in numbers), "the configurations are of the task's space"
    pairs = Pairs.product([n for n in numbers if n is not None], [0], [1])
    return np.asarray(np.exp(CostModel().predict(space, pairs)[0]))
