"""Arms over real searches: one Tuner an operator, one arm for each bucket of its shapes.

The buckets of an operator share its cost model and its measurements, so a slot of one arm may better another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.passes.spaces.family_registry import config_text
from tilewright.search.protocols import BuildResult
from tilewright.search.search_strategy.outcome import Tuned
from tilewright.search.search_strategy.tuner import Tuner
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Points
from tilewright.search.task_scheduler.bandit import UNLIMITED, Trials
from tilewright.search.task_scheduler.candidate_jobs import At, Candidate, JobEnd
from tilewright.search.task_scheduler.peak import Peak

_IDLE = 2  # steps without a gain after which a bucket rests
_NAMES = {1: ("all",), 2: ("small", "large"), 3: ("small", "middle", "large")}
_UNKNOWN = 100.0  # times the ideal, before anything ran
_MEASURED, _CALLS = 0.1, 8  # seconds of a shape besides the calls of a measurement, and how many calls a long one is
_CUT = 2.0  # times its length, after which a slot is cut short within a step


@dataclass(frozen=True)
class OperatorUse:
    """A tuner, and how often a model calls its operator (all shapes together weigh 1)."""

    tuner: Tuner
    calls: int = 1

    @property
    def name(self) -> str:
        """Of the operator, unique in a model."""
        workload = self.tuner.ledger.task.workload
        return f"{workload.name}-{workload.key[:6]}"


class BucketArm:
    """One bucket of an operator's shapes: an Arm of search/task_scheduler/bandit.py.

    Args:
        shapes: numbers of the tuner's points.
    """

    def __init__(self, use: OperatorUse, shapes: Sequence[int], bucket: str, peak: Peak, clock: Callable[[], float]) -> None:
        self.tuner, self.clock = use.tuner, clock
        workload, points = use.tuner.ledger.task.workload, use.tuner.ledger.points
        self.key = f"{use.name}/{bucket}"
        self.group = f"{workload.kind.value}/{bucket}"
        self._shapes = np.array(shapes)
        self._weights = use.calls * np.array(points.weights)[self._shapes]
        self._focus = np.isin(np.arange(len(points)), self._shapes).astype(np.float64)
        dims = [dict(points.shapes[s]) for s in shapes]
        arithmetic = np.array([float(workload.flops.evaluate(d)) for d in dims])
        self.flops = float(self._weights @ arithmetic)
        least = [peak.seconds(f, workload.bytes.evaluate(d)) for f, d in zip(arithmetic, dims, strict=True)]
        self.ideal = float(self._weights @ np.array(least))
        self._trials = 1
        self._idle = 0

    @property
    def latency(self) -> float:
        evidence = self.tuner.ledger.evidence
        if not evidence.curves:
            return _UNKNOWN * self.ideal
        found = float(self._weights @ np.exp(evidence.best[self._shapes]))
        return found if math.isfinite(found) else _UNKNOWN * self.ideal

    @property
    def known(self) -> bool:
        return bool(self.tuner.ledger.evidence.curves)

    @property
    def trials(self) -> int:
        return self._trials

    @property
    def exhausted(self) -> bool:
        return self._idle >= _IDLE or not self.tuner.ledger.time.affords("evidence", "proposing")

    def tune(self, seconds: float, trials: Trials = UNLIMITED) -> list[tuple[int, float]]:
        """Rounds of the tuner that look at this bucket only, until the time is over or it has nothing left to gain.

        A round goes on past the end of the slot, but not for long, and never past the deadline of the ledger: up to twice as
        long, or for what choosing and learning take once.
        """
        ledger, points = self.tuner.ledger, list[tuple[int, float]]()
        end, begun = self.clock() + seconds, ledger.trials
        least = self.latency
        with ledger.time.until(self.clock() + max(_CUT * seconds, seconds + sum(ledger.time.costs.values()))):
            while self.clock() < end and not self.exhausted and ledger.trials - begun < min(trials.about, trials.most):
                before = ledger.trials
                ledger.focus, ledger.most_trials = self._focus, begun + trials.most
                try:
                    self.tuner.step()
                finally:
                    ledger.focus, ledger.most_trials = None, math.inf
                taken = ledger.trials - before
                worth = taken and ledger.gain >= ledger.options.enough
                self._idle = 0 if worth or self.tuner.cut else self._idle + 1
                self._trials += taken
                least = min(least, self.latency)
                points.append((self._trials, least))
        return points


class BatchArm(BucketArm):
    """A bucket whose candidates are built and measured elsewhere, several at once: a ParallelArm (parallel_tuner.py)."""

    def __init__(self, use: OperatorUse, shapes: Sequence[int], bucket: str, peak: Peak, clock: Callable[[], float]) -> None:
        super().__init__(use, shapes, bucket, peak, clock)
        self._number = {shape: i for i, shape in enumerate(use.tuner.ledger.points.shapes)}
        self._again: list[Candidate] = []
        self._since = 0

    def untuned(self) -> list[Candidate]:
        """What runs untuned, at some shapes of the whole range."""
        return [self._candidate(p.config, p.at) for p in self.tuner.untuned()]

    def propose(self, in_flight: Sequence[Candidate], most: int) -> list[Candidate]:
        """Suspects to be measured again; after a batch of new kernels what is open among the measured ones, as in a step of the
        tuner; else new kernels."""
        if self._again:
            found, self._again = self._again, []
            return found
        ledger = self.tuner.ledger
        pending = [n for n in (ledger.lattice.number(config_text(c.config)) for c in in_flight) if n is not None]
        ledger.focus = self._focus
        try:
            if self.tuner.unsettled >= ledger.options.batch and (found := self._unsure(in_flight)):
                return found
            proposals = self.tuner.propose_beside(pending, most)
            ledger.gain = sum(p.gain for p in proposals)
            if proposals and (ledger.gain >= ledger.options.enough or not ledger.evidence.curves):
                self._idle = 0
                self.tuner.unsettled += len(proposals)
                return [self._candidate(p.config, p.at) for p in proposals]
            self._idle += not in_flight
            return self._unsure(in_flight) if not in_flight else []
        finally:
            ledger.focus = None

    def _unsure(self, in_flight: Sequence[Candidate]) -> list[Candidate]:
        """Measured kernels where it is open which wins, but for what is under way."""
        self.tuner.unsettled = 0
        known = {(config_text(c.config), *at) for c in in_flight for at in c.places}
        texts, shapes = self.tuner.ledger.lattice.texts, self.tuner.ledger.points.shapes
        cells: dict[int, list[tuple[int, int]]] = {}
        for shape, threads, config in self.tuner.unsure():
            if (texts[config], shapes[shape], threads) not in known:
                cells.setdefault(config, []).append((shape, threads))
        return [self._candidate(config, tuple(at)) for config, at in cells.items()]

    def places(self, candidate: Candidate, built: BuildResult) -> list[At]:
        self.tuner.ledger.measurer.take_build(candidate.config, built)
        return self.tuner.ledger.measurer.open_places(candidate.config, candidate.places, candidate.again)

    def accept(self, candidate: Candidate, end: JobEnd) -> int:
        ledger = self.tuner.ledger
        taken = 0
        for (shape, threads), found in zip(end.places, end.measured, strict=False):
            taken += ledger.measurer.take_run(candidate.config, shape, threads, found) is not None
        self._trials += taken
        self._since += 1
        if not ledger.evidence.curves or self._since >= ledger.options.batch:
            self._since = 0
            ledger.learn()
        number = ledger.lattice.number(config_text(candidate.config))
        if number is not None and not candidate.again:
            places = [(self._number[shape], threads, number) for shape, threads in end.places if shape in self._number]
            suspects = self.tuner.striking(places)
            if suspects:
                at = tuple((ledger.points.shapes[shape], threads) for shape, threads, _ in suspects)
                built = ledger.measurer.built.get(config_text(candidate.config))
                self._again.append(replace(candidate, places=at, built=built, again=True))
        return taken

    def _candidate(self, config: int, at: Sequence[tuple[int, int]]) -> Candidate:
        ledger = self.tuner.ledger
        shapes, chosen = ledger.points.shapes, ledger.lattice.configs[config]
        built = ledger.measurer.built.get(config_text(chosen))
        return Candidate(ledger.task.workload, chosen, tuple((shapes[s], t) for s, t in at), built)


def batch_arms(uses: Sequence[OperatorUse], peak: Peak, clock: Callable[[], float], buckets: int = 3) -> list[BatchArm]:
    """As `operator_arms`, for a ParallelTuner."""
    return [BatchArm(*part, peak, clock) for part in _parts(uses, buckets)]


def operator_arms(uses: Sequence[OperatorUse], peak: Peak, clock: Callable[[], float], buckets: int = 3) -> list[BucketArm]:
    """The arms of a model: each operator's points in up to `buckets` groups by volume."""
    return [BucketArm(*part, peak, clock) for part in _parts(uses, buckets)]


def _parts(uses: Sequence[OperatorUse], buckets: int) -> Iterator[tuple[OperatorUse, list[int], str]]:
    """Each bucket: its operator, numbers of its shapes and its name."""
    for use in uses:
        parts = shape_buckets(use.tuner.ledger.points, use.tuner.ledger.task.workload.flops.evaluate, buckets)
        for name, part in zip(_NAMES.get(len(parts), tuple(map(str, range(len(parts))))), parts, strict=True):
            yield use, part, name


def shape_buckets(points: Points, work: Callable[[Mapping[str, int]], int], most: int) -> list[list[int]]:
    """Numbers of the points in groups of neighbours, each spanning an equal part of the logarithm of the work."""
    logs: Floats = np.log2([max(1, work(dict(s))) for s in points.shapes])
    order = np.argsort(logs, kind="stable")
    low, high = float(logs.min()), float(logs.max())
    if high - low < 1.0 or most == 1:
        return [order.tolist()]
    place = np.minimum((most * (logs - low) / (high - low)).astype(int), most - 1)
    return [part for part in ([int(i) for i in order if place[i] == r] for r in range(most)) if part]


def best_of(uses: Sequence[OperatorUse]) -> dict[str, Tuned]:
    """The best model so far: workload key -> dispatch, at any moment."""
    return {u.tuner.ledger.task.workload.key: u.tuner.best() for u in uses}


def _end_seconds(use: OperatorUse) -> float:
    """About what it takes to verify and to certify an operator, up to a factor that all have in common."""
    ledger = use.tuner.ledger
    times = [r.time for r in ledger.records if r.seconds]
    each = _MEASURED + _CALLS * sum(times) / max(1, len(times))
    return (1 + len(ledger.task.held_out)) * each


def finish(uses: Sequence[OperatorUse], seconds: float | None, trials: int | None = None) -> dict[str, Tuned]:
    """Verify and certify each operator, in `seconds` for all together, or, None, by so many trials, certificates apart, or,
    None too, by as many as its own allow.

    Each has its part of the time, half of it evenly, half by what its measurements take. What one leaves goes to those after it.
    """
    found: dict[str, Tuned] = {}
    begin = uses[0].tuner.ledger.clock() if uses else 0.0
    costs = [_end_seconds(use) for use in uses]
    for number, use in enumerate(uses):
        ledger = use.tuner.ledger
        left = None if seconds is None else max(0.0, begin + seconds - ledger.clock())
        count, before = len(uses) - number, ledger.verified
        left = None if left is None else left * (1 / count + costs[number] / sum(costs[number:])) / 2
        part = None if trials is None else max(0, round(trials / count))
        found[ledger.task.workload.key] = use.tuner.finish(left, part)
        trials = None if trials is None else trials - (ledger.verified - before)
    return found
