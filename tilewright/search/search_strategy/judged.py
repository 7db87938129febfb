"""Judged: where another kernel may take the place of what runs untuned, by the times of both beside each other.

The model: the logarithm of the ratio of their times at one shape, as one request finds it (its rounds in turns, on operands of
its own), is drawn about that shape's own mean, one where inputs begin cache lines and another where they lie as arrays of callers
do. Its deviation is the shape's own as far as several requests tell it, and else that of the middle one of all that were
compared. A kernel is faster where, wherever inputs lie, the mean is below a ratio of one by two deviations, and what one more
request would find by two of its own is no more than PROMISED above one: a caller's operands lie in one place for long. Shapes
where the two were not compared go by the two nearest between which they lie, which have to tell more: that the mean is below one
by PROMISED. Beyond the last shape where they were, what runs untuned stays.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.passes.spaces.family_registry import config_text
from tilewright.runtime.program.dispatch import select
from tilewright.search.database.records import TuningRecord
from tilewright.search.search_strategy.certify import DEVIATIONS, PLACES, POOLED
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Dims
from tilewright.search.space.task import Untuned

WITHIN = (0, 16)  # bytes of a cache line before inputs: what this package makes begins one, allocators of others keep to 16 bytes
TURNS = 4  # requests of a pair at a shape
PROMISED = 0.03  # logarithm of a ratio: by how much a tuned model may at most be slower than an untuned one at a shape
OPEN_TURNS = 8  # where it is open by then whether the other one is faster
_CHI = 2 / 9  # of the median of chi-squared over its degrees of freedom k: (1 - _CHI / k)^3 (Wilson and Hilferty)

Variant = tuple[str, int]  # text of a configuration, threads
Pair = tuple[Variant, Variant]  # another one, and what runs untuned


@dataclass(frozen=True)
class Found:
    """Of a pair at a shape: requests, mean of the logarithm of the ratio of the first one's time to the second's, what that mean
    is at most, and what another request would find at most; both infinite where no pair was compared twice, which alone tells how
    far apart times are, or where inputs always lay alike. fewest: where inputs lay in the fewest requests.
    """

    turns: int
    mean: float
    mean_most: float
    most: float
    fewest: int = WITHIN[0]

    @property
    def faster(self) -> bool:
        return self.mean_most < 0 and self.most < PROMISED

    @property
    def settled(self) -> bool:
        """Would no more requests be taken?"""
        open_ = self.mean < 0 and not self.faster
        return self.turns >= (OPEN_TURNS if open_ else TURNS)


@dataclass(frozen=True)
class Judged:
    """ratios: of each pair at each shape where it was compared, by where inputs lay, the logarithm of each request's ratio."""

    ratios: Mapping[Pair, Mapping[Dims, Mapping[int, list[float]]]]

    @staticmethod
    def of(records: Iterable[TuningRecord], plain: Callable[[Dims], Variant]) -> Judged:
        """plain: what runs untuned at a shape."""
        requests: dict[tuple[str, Dims, int], dict[Variant, float]] = defaultdict(dict)
        for r in records:
            if r.beside and r.seconds and r.within in WITHIN:
                requests[r.beside, r.shape, r.within][r.config, r.threads] = statistics.median(r.seconds)
        ratios: dict[Pair, dict[Dims, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(lambda: {w: [] for w in WITHIN}))
        for (_, shape, within), seconds in requests.items():
            usual = plain(shape)
            for other in seconds if usual in seconds else ():
                if other != usual:
                    ratios[other, usual][shape][within].append(math.log(seconds[other] / seconds[usual]))
        return Judged(ratios)

    @cached_property
    def found(self) -> dict[Pair, dict[Dims, Found]]:
        told = [x for shapes in self.ratios.values() for lain in shapes.values() for x in lain.values() if len(x) > 1]
        spreads = [statistics.variance(x) / (1 - _CHI / (len(x) - 1)) ** 3 for x in told]
        middle = statistics.median(spreads) if spreads else math.inf
        return {pair: {shape: _found(lain, middle) for shape, lain in shapes.items()} for pair, shapes in self.ratios.items()}

    def at(self, pair: Pair, shape: Dims) -> Found | None:
        return self.found.get(pair, {}).get(shape)

    def is_faster(self, pair: Pair, numbers: Mapping[Dims, int], apart: Floats, reach: Floats, expected: Floats) -> np.ndarray:
        """[shape]: is the first one faster there than the second? Between shapes where they were compared: so much faster at the
        nearest two that it is so there, too, where it may gain less, and less by what is expected to differ. Two shapes have one
        between them that is nearer to both than they are to each other.

        numbers: of the shapes. apart: [shape, shape] distances. reach: [shape] within which the pair must have been compared.
        expected: [shape] logarithm of the first one's expected time over the second's.
        """
        known = [(numbers[shape], found) for shape, found in self.found.get(pair, {}).items() if shape in numbers]
        if not known:
            return np.zeros(len(apart), np.bool_)
        places = np.array([n for n, _ in known])
        faster, gains = (np.array([getattr(f, name) for _, f in known]) for name in ("faster", "mean_most"))
        distance = apart[:, places]
        less = np.maximum(expected[:, None] - expected[places], 0.0)
        enough = faster & (gains + less < -PROMISED)
        first = distance.argmin(axis=1)
        nearest = np.take_along_axis(distance, first[:, None], axis=1)[:, 0]
        beyond = np.where(apart[np.ix_(places, places)][first] > distance, distance, np.inf)  # on the other side of the shape
        second = beyond.argmin(axis=1)
        rows = np.arange(len(apart))
        between = np.isfinite(beyond[rows, second]) & enough[rows, first] & enough[rows, second]
        return np.asarray((nearest <= reach + 1e-9) & np.where(nearest == 0, faster[first], between))


def judged_by(records: Iterable[TuningRecord], usual: Untuned, threads: int) -> Judged:
    """What records tell. usual: what runs untuned, on so many threads where it names none."""
    configs, root = usual

    def plain(shape: Dims) -> Variant:
        leaf = select(root, dict(shape))
        return config_text(configs[leaf.kernel]), leaf.threads or threads

    return Judged.of(records, plain)


def _found(lain: Mapping[int, list[float]], middle: float) -> Found:
    """lain: ratios by where inputs lay. middle: variance of a request's ratio at the middle one of all shapes."""
    means = [statistics.fmean(ratios) for ratios in lain.values() if ratios]
    bounds = [_at_most(ratios, middle) for ratios in lain.values()]
    mean_most, most = (max(b) for b in zip(*bounds, strict=True))
    fewest = min(lain, key=lambda within: len(lain[within]))
    return Found(sum(map(len, lain.values())), statistics.fmean(means), mean_most, most, fewest)


def _at_most(ratios: list[float], middle: float) -> tuple[float, float]:
    """Two deviations above the mean: of the mean, and of one more."""
    count = len(ratios)
    if not count:
        return math.inf, math.inf
    own = (count - 1) * statistics.variance(ratios) if count > 1 else 0.0
    variance = max((POOLED * max(middle, PLACES**2) + own) / (POOLED + count - 1), PLACES**2)
    mean, deviation = statistics.fmean(ratios), DEVIATIONS * math.sqrt(variance)
    return mean + deviation * math.sqrt(1 / count), mean + deviation * math.sqrt(1 + 1 / count)
