"""Propose: which micro-kernels to measure next, and at which shapes.

The whole lattice is scored at all evaluation shapes. A kernel's worth is the expected reduction of the weighted time over the
range, given the best time that is known of each shape: it counts where it may win, not where it is fast.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.model import CostModel
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.space.array_types import Floats, Ints

_SHORTLIST = 384
_WHOLE = 20_000
_GENERATIONS = 4
_POPULATION = 2048
_OPTIMISM = 1.0
_NEAR = 0.5  # octaves in all dims together, within which another shape tells next to nothing more of a kernel


@dataclass(frozen=True)
class Proposal:
    """A configuration of the lattice, where to measure it (shape, threads), and the share of the weighted time that it is
    expected to save."""

    config: int
    at: tuple[tuple[int, int], ...]
    gain: float


def expected_improvement(best: Floats, mean: Floats, deviation: Floats) -> Floats:
    """E[max(0, best - x)] of a normal x; of logarithms it is the expected relative reduction."""
    from scipy.special import ndtr

    z = np.where(np.isfinite(mean), (best - mean) / deviation, -40.0)
    return np.asarray(deviation * (z * ndtr(z) + np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)))


class Proposer:
    """Scores a feature space.

    Args:
        threads: thread counts to choose from. shapes_each: measurements of a new kernel.
    """

    def __init__(self, space: FeatureSpace, threads: tuple[int, ...], rng: np.random.Generator, shapes_each: int = 3) -> None:
        self.space, self.threads, self.rng, self.shapes_each = space, threads, rng, shapes_each

    def propose(self, model: CostModel, best: Floats, importance: Floats, taken: Collection[int], count: int) -> list[Proposal]:
        """Up to `count` configurations, best first; each is assumed to do as predicted when the next is chosen.

        Args:
            best: [shape] logarithm of the best seconds known. importance: [shape], sums to 1. taken: not to be proposed.
        """
        free = self._candidates(model, best, importance, taken)
        if not len(free):
            return []
        mean, deviation = self._predict(model, free)
        found = []
        best = best.copy()
        open_ = np.ones(len(free), bool)
        for _ in range(min(count, len(free))):
            thread = np.argmin(mean, axis=2)
            least = np.take_along_axis(mean, thread[:, :, None], 2)[:, :, 0]
            unsure = np.take_along_axis(deviation, thread[:, :, None], 2)[:, :, 0]
            gains = expected_improvement(best, least, unsure) * importance
            total = np.where(open_, gains.sum(axis=1), -1.0)
            i = int(np.argmax(total))
            if total[i] <= 0:
                break
            open_[i] = False
            found.append(Proposal(int(free[i]), self._places(gains[i], least[i], unsure[i], thread[i]), float(total[i])))
            best = np.minimum(best, least[i])
        return found

    def believed(self, model: CostModel, best: Floats, pending: Collection[int]) -> Floats:
        """[shape] logarithm of the best seconds when these configurations, which are being measured, do as predicted."""
        if not pending:
            return best
        mean, _ = self._predict(model, np.array(sorted(pending), np.int64))
        return np.asarray(np.minimum(best, mean.min(axis=(0, 2))))

    def random(self, taken: Collection[int], count: int) -> list[Proposal]:
        """Configurations drawn evenly, each at shapes spread over the range."""
        free = np.setdiff1d(np.arange(len(self.space.lattice)), np.array(sorted(taken), np.int64))
        chosen = self.rng.choice(free, max(0, min(count, len(free))), replace=False).tolist() if len(free) else []
        return [Proposal(int(c), self.spread(int(c)), 0.0) for c in chosen]

    def spread(self, config: int) -> tuple[tuple[int, int], ...]:
        """Small, middling and large shapes that the kernel serves, each on the threads its work units fill."""
        pairs = Pairs.product([config], range(len(self.space.shapes)), [1])
        legal = np.flatnonzero(self.space.legal(pairs))
        if not len(legal):
            return ()
        chosen = np.unique(np.round(np.linspace(0, len(legal) - 1, self.shapes_each + 2)[1:-1]).astype(int))
        pieces = self.space.units(pairs)
        return tuple((int(s), max((t for t in self.threads if t <= pieces[s]), default=1)) for s in self.apart(legal[chosen]))

    def apart(self, shapes: Sequence[int] | Ints) -> list[int]:
        """Of shapes, those that are not near one before them."""
        extents, found = self._octaves(), list[int]()
        for s in shapes:
            if all(np.abs(extents[s] - extents[f]).sum() >= _NEAR for f in found):
                found.append(int(s))
        return found

    def _octaves(self) -> Floats:
        """[shape, dim]"""
        return np.asarray(np.log2(np.maximum(self.space.extents, 1).astype(float)))

    def _places(self, gains: Floats, mean: Floats, deviation: Floats, thread: Ints) -> tuple[tuple[int, int], ...]:
        """The shape of the largest gain, then those where gain and distance from the chosen ones are large."""
        extents = self._octaves()
        chosen = [int(np.argmax(gains))]
        while len(chosen) < self.shapes_each:
            apart = np.min([np.abs(extents - extents[c]).sum(axis=1) for c in chosen], axis=0)
            open_ = np.isfinite(mean) & (apart >= _NEAR)
            score = np.where(open_, (gains + 0.02 * gains.max()) * apart * deviation, 0.0)
            nxt = int(np.argmax(score))
            if nxt in chosen or score[nxt] <= 0:
                break
            chosen.append(nxt)
        return tuple((c, self.threads[int(thread[c])]) for c in chosen)

    def _candidates(self, model: CostModel, best: Floats, importance: Floats, taken: Collection[int]) -> Ints:
        """Free configurations that promise most by the shape-independent part of the model, which is cheap to score."""
        n = len(self.space.lattice)
        if n <= _WHOLE:
            free = np.setdiff1d(np.arange(n), np.array(sorted(taken), np.int64))
            return self._shortlist(model, free, best, importance, _SHORTLIST)
        population = np.array(self.space.lattice.sample(_POPULATION, self.rng))
        for _ in range(_GENERATIONS):
            parents = self._shortlist(model, population, best, importance, _SHORTLIST)
            children = [near for parent in parents for near in self.space.lattice.neighbours(int(parent))]
            population = np.unique(np.concatenate([parents, np.array(children, np.int64)]))
        free = np.setdiff1d(population, np.array(sorted(taken), np.int64))
        return self._shortlist(model, free, best, importance, _SHORTLIST)

    def _shortlist(self, model: CostModel, among: Ints, best: Floats, importance: Floats, count: int) -> Ints:
        if len(among) <= count:
            return among
        rate, unsure = model.predict_rates(self.space, among)
        pairs = Pairs.product(among, range(len(self.space.shapes)), self.threads)
        base = np.where(self.space.legal(pairs), self.space.log_base(pairs), np.inf)
        least = base.reshape(len(among), len(self.space.shapes), len(self.threads)).min(axis=2) + rate[:, None]
        gains = expected_improvement(best, least, np.maximum(unsure, 0.1)[:, None] * _OPTIMISM) * importance
        keep = {*np.argsort(-gains.sum(axis=1), kind="stable")[: count // 2].tolist()}
        each = max(1, count // 2 // len(self.space.shapes))
        for column in np.argsort(-gains, axis=0, kind="stable")[:each].T:
            keep.update(column.tolist())
        return among[np.array(sorted(keep), np.int64)]

    def _predict(self, model: CostModel, configs: Ints) -> tuple[Floats, Floats]:
        """[config, shape, thread choice]; infinite where the kernel does not serve the shape."""
        pairs = Pairs.product(configs, range(len(self.space.shapes)), self.threads)
        mean, deviation = model.predict(self.space, pairs)
        mean = np.where(self.space.legal(pairs), mean, np.inf)
        shape = (len(configs), len(self.space.shapes), len(self.threads))
        return mean.reshape(shape), deviation.reshape(shape)
