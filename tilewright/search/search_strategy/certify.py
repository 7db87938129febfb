"""Measures the certificate of a dispatch: its kernels against their rivals at shapes that the search never saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from tilewright.runtime.program.certificate import Certificate, Interval
from tilewright.runtime.program.dispatch import Leaf
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Dims

_SHARE = 0.9
DEVIATIONS = 2.0  # of an interval to each side
_MEDIAN = 1.25  # deviations of a median over those of a mean
_MEDIAN_OF = 3  # rounds at least, whose median passes over one that was disturbed
_FEW = 8  # rounds, below which quartiles tell nothing of their noise
POOLED = 4  # rounds that the noise of the other shapes counts for in that of one, and times that PLACES counts for
TakeRounds = Callable[[Sequence[Leaf], Dims, int], Sequence[Sequence[float]]]  # so many rounds of seconds of each, or fewer
PLACES = 0.004  # deviation of a ratio besides what rounds show, where nothing tells it: by where operands lie another time
# Expected maximum of so many equal kernels' noise and zero, in deviations (order statistics of the normal distribution).
_LUCK = (0.0, 0.40, 0.85, 1.03, 1.16, 1.27)


@dataclass(frozen=True)
class Entry:
    """The dispatched variant and its rivals at one held-out shape, timed in turns: seconds, the dispatched one first.

    deviation: of the logarithm of a rival's ratio in one round; 0 where there was none to tell by. turns: rounds. usual: which of
    them runs untuned; None where that was not timed. times: how often there were rounds, apart in time and each with operands of
    their own. apart: variance of the logarithm of a ratio from one time to another besides the noise of rounds, as these times
    tell it, less than nothing where they are more alike than rounds are.
    """

    shape: Dims
    seconds: tuple[float, ...]
    deviation: float = 0.0
    turns: int = 1
    usual: int | None = None
    times: int = 1
    apart: float = 0.0

    @property
    def regret(self) -> float:
        return self.seconds[0] / min(self.seconds) - 1

    @property
    def untuned(self) -> Entry | None:
        """The same, were the default kernel dispatched here; None where it was not timed."""
        if self.usual is None:
            return None
        rest = (s for i, s in enumerate(self.seconds) if i != self.usual)
        return replace(self, seconds=(self.seconds[self.usual], *rest), usual=0)

    @property
    def luck(self) -> float:
        """By how much the regret is expected to be too large, in its deviations: the luckiest of the rivals counts."""
        return _LUCK[min(len(self.seconds), len(_LUCK)) - 1]


class Rounds:
    """The dispatched leaf at a held-out shape, what runs untuned and its rivals, timed in turns, so that drift of the machine
    hits all alike. What counts of a rival is the median of its ratios to the dispatched one of the same round."""

    def __init__(self, shape: Dims, dispatched: Leaf, rivals: Sequence[Leaf], usual: Leaf | None = None) -> None:
        self.shape, self.usual = shape, usual
        self.timed = list(dict.fromkeys([dispatched, *([] if usual is None else [usual]), *rivals]))
        self._rows: list[list[float]] = []
        self._begins: list[int] = []  # rows that the rounds of one time begin with

    def take(self, rounds: TakeRounds, turns: int) -> int:
        """So many more rounds, or as many as there is time for; returns how many were taken."""
        before = len(self._rows)
        for taken in rounds(self.timed, self.shape, turns):
            if self._rows and np.isfinite(taken).sum() < np.isfinite(self._rows[0]).sum():
                break  # cut short
            self._rows.append(list(taken))
        if len(self._rows) > before:
            self._begins.append(before)
        return len(self._rows) - before

    @property
    def entry(self) -> Entry | None:
        """None where the dispatched kernel does not run, or none of its rivals."""
        rounds, turns = np.array(self._rows), len(self._rows)
        if not turns or not np.all(np.isfinite(rounds[:, 0])) or (len(self.timed) > 1 and np.isfinite(rounds[0]).sum() < 2):
            return None
        ratios = rounds / rounds[:, :1]
        seconds = rounds[:, 0].min() * self._middle(ratios)
        logs = np.log(ratios[:, 1:][:, np.isfinite(ratios[:, 1:]).all(axis=0)])
        deviation = float(np.sqrt((_deviations(logs) ** 2).mean())) if logs.size and turns > 1 else 0.0
        place = None if self.usual is None else self.timed.index(self.usual)  # no further than the second
        known = None if place is None or not np.isfinite(seconds[place]) else place
        timed = tuple(float(s) for s in seconds if np.isfinite(s))
        return Entry(self.shape, timed, deviation, turns, known, len(self._begins), self._apart(logs, deviation))

    def _middle(self, ratios: Floats) -> Floats:
        """Of the ratios of all rounds: the mean of the medians of each time, so that a time counts once, however many rounds it
        had; of times too short for a median, that of all rounds."""
        times = np.split(ratios, self._begins[1:])
        if min(map(len, times)) < _MEDIAN_OF:
            return np.asarray(np.median(ratios, axis=0))
        return np.asarray(np.exp(np.mean([np.log(np.median(t, axis=0)) for t in times], axis=0)))

    def _apart(self, logs: Floats, deviation: float) -> float:
        """`Entry.apart`, of the logarithms of all ratios: [round, rival]."""
        times = np.split(logs, self._begins[1:])
        if len(times) < 2 or not logs.size:
            return 0.0
        medians = np.array([np.median(t, axis=0) for t in times])
        expected = (_MEDIAN * deviation) ** 2 * np.mean([1 / len(t) for t in times])
        return float(medians.var(axis=0, ddof=1).mean() - expected)


def _deviations(logs: Floats) -> Floats:
    """Of each column; of many rounds by their quartiles, which a round that was interrupted does not move: so does a median."""
    if len(logs) < _FEW:
        return np.asarray(logs.std(axis=0, ddof=1))
    low, high = np.quantile(logs, [0.25, 0.75], axis=0)
    return np.asarray((high - low) / 1.349)  # as of a normal distribution


def one_by_one(measure: Callable[[Leaf, Dims], float], going: Callable[[], bool] = lambda: True) -> TakeRounds:
    """Rounds of single measurements, but for the first while `going`."""
    def taken(leaves: Sequence[Leaf], shape: Dims, turns: int) -> list[list[float]]:
        found: list[list[float]] = []
        while len(found) < turns and (not found or going()):
            found.append([measure(leaf, shape) for leaf in leaves])
        return found

    return taken


def measure_entry(shape: Dims, dispatched: Leaf, rivals: Sequence[Leaf], measure: Callable[[Leaf, Dims], float],
                  turns: int = 3, usual: Leaf | None = None) -> Entry | None:
    """`Rounds` of one shape, `turns` of them, by single measurements."""
    rounds = Rounds(shape, dispatched, rivals, usual)
    rounds.take(one_by_one(measure), turns)
    return rounds.entry


def certify(entries: Sequence[Entry], regrets: Floats, weights: Floats, rivals: int) -> Certificate:
    """The statement from measured entries and predicted regrets over the weighted points of the range.

    With n shapes drawn alike, the chance that all lie within the worst while fewer than a share q of the range do is q^n.
    """
    measured = np.array([e.regret for e in entries])
    mean, worst = intervals(entries)
    return Certificate(
        workload="",
        device="",
        measured_mean=float(measured.mean()) if len(measured) else 0.0,
        measured_worst=float(measured.max()) if len(measured) else 0.0,
        predicted_mean=float(regrets @ weights / weights.sum()),
        predicted_worst=float(regrets.max()),
        share=_SHARE,
        confidence=1 - _SHARE ** len(measured),
        points=len(regrets),
        rivals=rivals,
        held_out=tuple(dict(e.shape) for e in entries),
        regrets=tuple(float(r) for r in measured),
        mean_within=mean,
        worst_within=worst,
    )


def intervals(entries: Sequence[Entry]) -> tuple[Interval, Interval]:
    """Where the mean and the worst regret at the entries' shapes lie when they are measured another time, as far as the noise of
    their rounds and what differs from time to time leave open: two deviations to each side, as many more as the largest of some
    errors has where the worst is at most, and lower by what the luckiest rival of each is expected to owe to noise.
    """
    if not entries:
        return (0.0, 0.0), (0.0, 0.0)
    regret, own = np.array([e.regret for e in entries]), errors(entries)
    luck, known = np.array([e.luck for e in entries]), POOLED + sum(e.times - 1 for e in entries)
    one, largest = _reach(1, known), _reach(len(entries), known)
    error, owed = one * float(np.sqrt((own**2).sum())) / len(entries), float((luck * own).mean())
    high, low = regret + largest * own, regret - (luck + one) * own
    mean = float(regret.mean())
    return (max(0.0, mean - owed - error), mean + error), (max(0.0, float(low.max())), float(high.max()))


def _reach(count: int, known: int) -> float:
    """Deviations that the largest of so many errors exceeds as seldom as one normal error exceeds DEVIATIONS, where so many
    degrees of freedom tell the deviation (Student's t, expanded; Abramowitz and Stegun, 26.7.5)."""
    normal = NormalDist()
    z = -normal.inv_cdf(normal.cdf(-DEVIATIONS) / count)
    return z + (z**3 + z) / (4 * known)


def errors(entries: Sequence[Entry]) -> Floats:
    """The deviation of each entry's regret from what another time will show. Its noise is its own, and the fewer rounds tell of
    it, the more that of all; what differs from time to time, likewise its own the more times tell of it, is in those that were
    taken, and in the other one."""
    told = [e for e in entries if len(e.seconds) > 1 and e.turns > 1]
    rounds = np.array([e.turns - 1 for e in told])
    pooled = float(rounds @ np.array([e.deviation**2 for e in told]) / rounds.sum()) if told else 0.0
    again = np.array([e.times - 1 for e in told])
    apart = (POOLED * PLACES**2 + float(again @ np.array([e.apart for e in told]))) / (POOLED + again.sum()) if told else 0.0
    found = []
    for e in entries:
        known = e.turns - 1 if len(e.seconds) > 1 else 0
        noise = (POOLED * pooled + known * e.deviation**2) / (POOLED + known)
        own = (POOLED * apart + (e.times - 1) * _sure(e)) / (POOLED + e.times - 1)
        drawn = max(own, PLACES**2) * (1 + 1 / e.times)
        found.append(np.sqrt(_MEDIAN**2 * noise / e.turns + drawn) * (1 + e.regret))
    return np.array(found)


def _sure(entry: Entry) -> float:
    """By how much its times are further apart than the noise of rounds alone lets so few of them be, with one deviation."""
    if entry.times < 2:
        return 0.0
    chance = (_MEDIAN * entry.deviation) ** 2 * entry.times / entry.turns * np.sqrt(2 / (entry.times - 1))
    return max(0.0, entry.apart - float(chance))
