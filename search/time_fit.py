"""Times of one measured kernel at shapes where it was not measured: the model's curve, bent through the measured points.

What a kernel takes beyond the model's prediction varies slowly with the logarithms of the extents, so it is a Gaussian process
over them, one per kernel; far from any measured shape it falls back to the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from search.cost_model import CostModel
from search.features import FeatureSpace, Pairs
from search.space import Floats

_OCTAVES = 2.0  # distance of extents over which the correction is alike
_NEAR = 0.25  # of that distance: what rises and falls from shape to shape is alike
_ROUGH = 0.04  # deviation of the logarithm that it has
_NOISE = 0.015  # deviation of the logarithm of one measurement
_LEAST = 0.12  # deviation of the logarithm that the model is not trusted beyond
_SHARED = 0.35  # deviation of a kernel's error that is the same at all shapes


@dataclass(frozen=True)
class Curve:
    """Mean and deviation of the logarithm of the seconds: [shape, thread choice]."""

    mean: Floats
    deviation: Floats


def fit_kernels(space: FeatureSpace, model: CostModel, threads: tuple[int, ...], measured: Pairs,
                seconds: Floats) -> dict[int, Curve]:
    """The curve of each measured configuration over all shapes of the space.

    measured: pairs whose shapes are numbers of the same space. seconds: what each took.
    """
    configs = np.unique(measured.configs)
    targets = Pairs.product(configs, range(len(space.shapes)), threads)
    at_measured, at_targets = model.predict(space, measured), model.predict(space, targets)
    where_measured, where_targets = _place(space, measured), _place(space, targets)
    log_seconds = np.log(seconds)
    found = {}
    for config in configs.tolist():
        m, t = measured.configs == config, targets.configs == config
        mean, variance = _bend(where_measured[m], at_measured[0][m], at_measured[1][m], log_seconds[m],
                               where_targets[t], at_targets[0][t], at_targets[1][t])
        shape = (len(space.shapes), len(threads))
        found[config] = Curve(mean.reshape(shape), np.sqrt(variance).reshape(shape))
    return found


def _place(space: FeatureSpace, pairs: Pairs) -> Floats:
    return np.column_stack([np.log2(np.maximum(space.extents[pairs.shapes], 1)), 2.0 * np.log2(pairs.threads)]) / _OCTAVES


def _bend(at: Floats, mean: Floats, deviation: Floats, seen: Floats, to: Floats, mean_to: Floats,
          deviation_to: Floats) -> tuple[Floats, Floats]:
    """Mean and variance at `to` of the process with this prior, given what was seen at `at`."""
    local, local_to = np.maximum(deviation, _LEAST), np.maximum(deviation_to, _LEAST)
    noise = _cover(at, at, local, local) + _NOISE**2 * np.eye(len(at))
    across = _cover(to, at, local_to, local)
    solved = np.linalg.solve(noise, np.column_stack([seen - mean, across.T]))
    variance = _SHARED**2 + _ROUGH**2 + local_to**2 - np.einsum("ij,ji->i", across, solved[:, 1:])
    return mean_to + across @ solved[:, 0], np.maximum(variance, 1e-6)


def _cover(a: Floats, b: Floats, local_a: Floats, local_b: Floats) -> Floats:
    distance = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    rough = _ROUGH**2 * np.exp(-0.5 * distance / _NEAR**2)
    return np.asarray(_SHARED**2 + rough + np.outer(local_a, local_b) * np.exp(-0.5 * distance))
