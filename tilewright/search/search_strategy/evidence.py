"""Evidence: what all measurements of a workload say of each measured kernel at each shape, measured there or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.measured import MeasuredPairs
from tilewright.search.cost_model.model import CostModel
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.cost_model.time_fit import Curve, fit_kernels
from tilewright.search.database.records import TuningRecord
from tilewright.search.search_strategy.propose import expected_improvement
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Points


class Seen(NamedTuple):
    """How often something was measured, and the seconds that it took."""

    turns: int
    seconds: float


@dataclass(frozen=True)
class Evidence:
    """curves: configuration number -> logarithm of its seconds [shape, thread choice], infinite where it is not legal.

    measured: (configuration, shape, threads) that were. importance: of the shapes, sums to 1.
    """

    threads: tuple[int, ...]
    curves: dict[int, Curve]
    measured: Mapping[tuple[int, int, int], Seen]
    importance: Floats
    weights: Floats

    @staticmethod
    def of(space: FeatureSpace, points: Points | None, model: CostModel, records: Sequence[TuningRecord],
           threads: tuple[int, ...], also: Iterable[int] = ()) -> Evidence:
        """From the good records of configurations of the lattice; shapes outside the space count too.

        also: configurations that have a curve by the model alone when they were not measured.
        """
        weights = np.array(points.weights) if points else np.full(len(space.shapes), 1 / len(space.shapes))
        found = MeasuredPairs.of(space, records)
        if not len(found):
            return Evidence(threads, {}, {}, weights, weights)
        count, pairs = len(space.shapes), found.pairs
        fitted = fit_kernels(found.space, model, threads, pairs, found.seconds, found.turns, also)
        curves = {c: _cut(space, c, curve, count, threads) for c, curve in fitted.items()}
        places = zip(pairs.configs.tolist(), pairs.shapes.tolist(), pairs.threads.tolist(), strict=True)
        measured = dict(zip(places, map(Seen, found.turns.tolist(), found.seconds.tolist()), strict=True))
        best = np.min([c.mean.min(axis=1) for c in curves.values()], axis=0)
        importance = weights
        if points is not None and points.measured_weights and np.all(np.isfinite(best)):
            importance = weights * np.exp(best) / np.sum(weights * np.exp(best))
        return Evidence(threads, curves, measured, importance, weights)

    @cached_property
    def best(self) -> Floats:
        """[shape]: logarithm of the least expected seconds."""
        return np.asarray(np.min([c.mean.min(axis=1) for c in self.curves.values()], axis=0))

    @property
    def latency(self) -> float:
        """Weighted seconds over the range."""
        return float(self.weights @ np.exp(self.best))

    def cautious(self, deviations: float = 1.0) -> tuple[list[int], Floats]:
        """Configurations and their seconds [configuration, shape, thread choice], taken longer the less is known of them."""
        configs = sorted(self.curves)
        mean = np.stack([self.curves[c].mean for c in configs])
        deviation = np.stack([self.curves[c].deviation for c in configs])
        return configs, np.exp(mean + deviations * deviation)

    def leading(self, most: int, slack: float = 0.15) -> list[int]:
        """Configurations that come within `slack` of the best at some shape, at most `most`, those that do so most often."""
        configs, times = self.cautious()
        least = times.min(axis=2)
        near = least <= (1 + slack) * least.min(axis=0)
        score = (near * self.importance).sum(axis=1) + near.any(axis=1) * 1e-6 + (least == least.min(axis=0)).sum(axis=1)
        chosen = [i for i in np.argsort(-score, kind="stable")[:most] if score[i] > 0]
        return sorted(configs[i] for i in chosen)

    def fastest(self, shape: int, count: int) -> list[tuple[int, int]]:
        """(configuration, threads) expected to be fastest at a shape."""
        found = sorted((float(c.mean[shape, t]), config, threads) for config, c in self.curves.items()
                       for t, threads in enumerate(self.threads) if np.isfinite(c.mean[shape, t]))
        return [(config, threads) for _, config, threads in found[:count]]

    def open_cells(self, count: int, least: float) -> list[tuple[int, int, int]]:
        """(configuration, shape, threads) not measured whose measurement is most likely to change who wins.

        The value of a cell is the expected gain from knowing it, which for the leader of a shape is the chance to drop it.
        """
        configs = sorted(self.curves)
        if not configs:
            return []
        mean = np.stack([self.curves[c].mean for c in configs]).transpose(0, 2, 1).reshape(-1, len(self.importance))
        deviation = np.stack([self.curves[c].deviation for c in configs]).transpose(0, 2, 1).reshape(mean.shape)
        if len(mean) < 2:
            return []
        two = np.sort(mean, axis=0)[:2]
        others = np.where(mean == two[0], two[1], two[0])
        gap = np.where(np.isfinite(mean) & np.isfinite(others), np.abs(mean - others), np.inf)
        value = expected_improvement(np.zeros_like(gap), gap, deviation) * self.importance
        found: list[tuple[int, int, int]] = []
        for flat in np.argsort(-value, axis=None, kind="stable"):
            row, shape = divmod(int(flat), value.shape[1])
            cell = (configs[row // len(self.threads)], shape, self.threads[row % len(self.threads)])
            if value[row, shape] < least or len(found) == count:
                break
            if cell not in self.measured:
                found.append(cell)
        return sorted(found, key=lambda c: (c[1], c[0], c[2]))


def _cut(space: FeatureSpace, config: int, curve: Curve, count: int, threads: tuple[int, ...]) -> Curve:
    """The first `count` shapes; infinite where the kernel does not serve the shape."""
    pairs = Pairs.product([config], range(count), threads)
    legal = space.legal(pairs).reshape(count, len(threads))
    return Curve(np.where(legal, curve.mean[:count], np.inf), curve.deviation[:count])
