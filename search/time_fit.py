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

_OCTAVES = 3.0  # distance of extents over which the correction is alike
_NOISE = 0.015  # deviation of the logarithm of one measurement
_LEAST = 0.12  # deviation of the logarithm that the model is not trusted beyond
_SHARED = 0.35  # deviation of a kernel's error that is the same at all shapes


@dataclass(frozen=True)
class Curve:
    """Mean and deviation of the logarithm of the seconds: [shape, thread choice]."""

    mean: Floats
    deviation: Floats


def fit_kernel(space: FeatureSpace, model: CostModel, config: int, threads: tuple[int, ...], measured: Pairs,
               seconds: Floats) -> Curve:
    """The curve of configuration number `config` over all shapes of the space.

    measured, seconds: what was measured of this kernel, at least one.
    """
    targets = Pairs.product([config], range(len(space.shapes)), threads)
    both = Pairs(*(np.concatenate([a, b]) for a, b in ((measured.configs, targets.configs), (measured.shapes, targets.shapes),
                                                       (measured.threads, targets.threads))))
    mean, deviation = model.predict(space, both)
    n = len(measured)
    place = np.column_stack([np.log2(np.maximum(space.extents[both.shapes], 1)), 2.0 * np.log2(both.threads)]) / _OCTAVES
    distance = ((place[:, None, :] - place[None, :n, :]) ** 2).sum(axis=2)
    local = np.maximum(deviation, _LEAST)
    cover = _SHARED**2 + local[:, None] * local[None, :n] * np.exp(-0.5 * distance)
    noise = cover[:n] + _NOISE**2 * np.eye(n)
    solved = np.linalg.solve(noise, np.column_stack([np.log(seconds) - mean[:n], cover[n:].T]))
    bent = mean[n:] + cover[n:] @ solved[:, 0]
    left = _SHARED**2 + local[n:] ** 2 - np.einsum("ij,ji->i", cover[n:], solved[:, 1:])
    shape = (len(space.shapes), len(threads))
    return Curve(bent.reshape(shape), np.sqrt(np.maximum(left, 1e-6)).reshape(shape))
