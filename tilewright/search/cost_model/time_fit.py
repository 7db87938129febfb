"""Times of one measured kernel at shapes where it was not measured: the model's curve, bent through the measured points.

What a kernel takes beyond the model's prediction is a Gaussian process over the logarithms of the extents, one per kernel: a
constant, a smooth part that far from any measured shape falls back to the model, and a rough part. How rough it is, how far its
ups and downs reach and how noisy a measurement is are the values under which the measurements predict each other best. What
all kernels take beyond the prediction at one shape is that shape's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.model import CostModel
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.space.array_types import Floats, Ints

_OCTAVES = 1.0  # distance of extents over which the correction is alike
_LEAST = 0.06  # deviation of the logarithm that the model is not trusted beyond
_SHARED = 0.35  # deviation of a kernel's error that is the same at all shapes
_OTHERS = 2.0  # kernels that must agree on what a shape adds before half of it is believed
_JUDGES = 24  # kernels, of those measured most, by which the noise is judged
_POINTS = 32  # measurements of each of them
_ENOUGH = 24  # measurements in all, below which the noise is guessed
_HEAVY = 4.0  # degrees of freedom of the tails of an error


@dataclass(frozen=True)
class Scatter:
    """Deviations of the logarithm: rough, over `near` of the distance that the smooth part reaches; noise, of a measurement."""

    rough: float = 0.04
    near: float = 0.05
    noise: float = 0.015


_SCATTERS = tuple(Scatter(*values) for values in product((0.025, 0.05, 0.1), (0.03, 0.12), (0.005, 0.01, 0.02, 0.04)))


@dataclass(frozen=True)
class Curve:
    """Mean and deviation of the logarithm of the seconds: [shape, thread choice]."""

    mean: Floats
    deviation: Floats


@dataclass(frozen=True)
class _Points:
    """Places of one kernel, what the model says there and how little it is trusted."""

    at: Floats
    mean: Floats
    local: Floats

    @staticmethod
    def of(at: Floats, mean: Floats, deviation: Floats) -> _Points:
        return _Points(at, mean, np.maximum(deviation, _LEAST))

    def only(self, which: np.ndarray) -> _Points:
        return _Points(self.at[which], self.mean[which], self.local[which])


def fit_kernels(space: FeatureSpace, model: CostModel, threads: tuple[int, ...], measured: Pairs, seconds: Floats,
                turns: Ints | None = None, also: Iterable[int] = ()) -> dict[int, Curve]:
    """The curve of each measured configuration over all shapes of the space.

    measured: pairs whose shapes are numbers of the same space. seconds: what each took, over so many turns. also: configurations
    that have a curve by the model alone when they were not measured.
    """
    configs = np.unique(np.concatenate([measured.configs, np.array(list(also), np.int64)]))
    targets = Pairs.product(configs, range(len(space.shapes)), threads)
    at, to = (_Points.of(_place(space, p), *model.predict(space, p)) for p in (measured, targets))
    shifts = space.form.kernel_shifts(space, measured, np.log(seconds) - at.mean, targets)
    at, to = (replace(p, mean=p.mean + shift) for p, shift in zip((at, to), shifts, strict=True))
    beyond = np.log(seconds) - at.mean
    added = _of_shape(measured, beyond, len(space.shapes))
    beyond = beyond - added[measured.shapes]
    repeats = np.ones(len(seconds)) if turns is None else turns.astype(np.float64)
    scatter = judge([(at.only(m), beyond[m], repeats[m]) for m in _most(measured.configs)])
    shape = (len(space.shapes), len(threads))
    found = {}
    for config in configs.tolist():
        m, t = measured.configs == config, targets.configs == config
        if m.any():
            mean, variance = _bend(at.only(m), beyond[m], repeats[m], to.only(t), scatter)
        else:
            mean, variance = to.mean[t], to.local[t] ** 2
        found[config] = Curve(mean.reshape(shape) + added[:, None], np.sqrt(variance).reshape(shape))
    return found


def judge(kernels: list[tuple[_Points, Floats, Floats]]) -> Scatter:
    """The scatter under which each measurement is predicted best from the others of its kernel."""
    if sum(len(beyond) for _, beyond, _ in kernels) < _ENOUGH:
        return Scatter()
    score = np.zeros(len(_SCATTERS))
    for points, beyond, repeats in kernels:
        inverse = np.linalg.inv(np.stack([_noisy(points, repeats, s) for s in _SCATTERS]))
        precision = np.diagonal(inverse, axis1=1, axis2=2)
        error = (inverse @ beyond) ** 2 / precision
        score += (0.5 * np.log(precision) - 0.5 * (_HEAVY + 1) * np.log1p(error / _HEAVY)).sum(axis=1)
    return _SCATTERS[int(np.argmax(score))]


def _most(configs: Ints) -> list[Ints]:
    """Indices of the measurements of the kernels measured most, some of each."""
    values, counts = np.unique(configs, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_JUDGES]
    every = [np.flatnonzero(configs == values[i]) for i in order if counts[i] > 2]
    return [e[np.unique(np.linspace(0, len(e) - 1, _POINTS).astype(int))] for e in every]


def _of_shape(measured: Pairs, beyond: Floats, count: int) -> Floats:
    """[shape]: what all kernels that were measured there take beyond their usual, as far as enough of them agree."""
    _, kernel = np.unique(measured.configs, return_inverse=True)
    usual = np.array([np.median(beyond[kernel == k]) for k in range(kernel.max() + 1)])
    left = beyond - usual[kernel]
    found = np.zeros(count)
    for shape in np.unique(measured.shapes):
        here = measured.shapes == shape
        kernels = len(np.unique(kernel[here]))
        if kernels > 1:
            found[shape] = np.median(left[here]) * kernels / (kernels + _OTHERS)
    return found


def _place(space: FeatureSpace, pairs: Pairs) -> Floats:
    return np.column_stack([np.log2(np.maximum(space.extents[pairs.shapes], 1)), 2.0 * np.log2(pairs.threads)]) / _OCTAVES


def _bend(at: _Points, beyond: Floats, repeats: Floats, to: _Points, scatter: Scatter) -> tuple[Floats, Floats]:
    """Mean and variance at `to` of the process, given what was seen at `at`."""
    across = _alike(to, at, scatter)
    solved = np.linalg.solve(_noisy(at, repeats, scatter), np.column_stack([beyond, across.T]))
    variance = _SHARED**2 + scatter.rough**2 + to.local**2 - np.einsum("ij,ji->i", across, solved[:, 1:])
    return to.mean + across @ solved[:, 0], np.maximum(variance, 1e-6)


def _noisy(at: _Points, repeats: Floats, scatter: Scatter) -> Floats:
    return _alike(at, at, scatter) + np.diag(scatter.noise**2 / repeats)


def _alike(a: _Points, b: _Points, scatter: Scatter) -> Floats:
    distance = ((a.at[:, None, :] - b.at[None, :, :]) ** 2).sum(axis=2)
    rough = scatter.rough**2 * np.exp(-0.5 * distance / scatter.near**2)
    return np.asarray(_SHARED**2 + rough + np.outer(a.local, b.local) * np.exp(-0.5 * distance))
