"""Bandit: arms are operator x shape bucket; a slot goes where the model's latency is expected to fall most (DynaTune, ICLR'21).

The reward is the share of the model's present latency that a slot saves: calls and traffic are in the latency of an arm, and no
constant depends on its unit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tilewright.search.space.array_types import Floats
from tilewright.search.task_scheduler.belief import Prediction
from tilewright.search.task_scheduler.belief_pool import BeliefPool
from tilewright.search.task_scheduler.policies import ArmView, Policy
from tilewright.search.task_scheduler.tuning_curve import MOST

_BATCH = 8  # trials under way that count as a slot
_SAME = 1e-3  # relative change of a latency that counts as a gain


@dataclass(frozen=True)
class Trials:
    """Of a slot. about: it ends after the round that reaches them. most: no trial is begun beyond them."""

    about: float = math.inf
    most: float = math.inf


UNLIMITED = Trials()


class Arm(Protocol):
    """One operator over one bucket of its shapes, which can be tuned a slot at a time.

    key: unique. group: arms alike. ideal: seconds it would contribute at the peak of the device. flops: likewise weighted.
    """

    key: str
    group: str
    ideal: float
    flops: float

    @property
    def latency(self) -> float:
        """Seconds that the arm contributes to the model with the best kernels known."""
        ...

    @property
    def known(self) -> bool:
        """Does `latency` rest on a measurement? Else it is a guess."""
        ...

    @property
    def trials(self) -> int:
        """Kernels tried for this arm, the untuned included."""
        ...

    @property
    def exhausted(self) -> bool:
        """Is nothing left to try?"""
        ...

    def tune(self, seconds: float, trials: Trials = UNLIMITED) -> Sequence[tuple[int, float]]:
        """Tune for about so long; (trials, latency) after each trial."""
        ...


@dataclass
class ArmState:
    """What happened to an arm: its curve (trials, latency), the latency after each slot, and what a trial costs."""

    arm: Arm
    order: int
    curve: list[tuple[int, float]]
    latencies: list[float]
    pulls: int = 0
    seconds: float = 0.0
    idle: int = 0
    stopped: bool = False

    @staticmethod
    def of(arm: Arm, order: int) -> ArmState:
        return ArmState(arm, order, [(max(arm.trials, 1), arm.latency)], [arm.latency])

    def throughput(self) -> tuple[Floats, Floats]:
        """Trials and share of the peak."""
        table = np.array(self.curve, np.float64)
        return table[:, 0], np.minimum(self.arm.ideal / table[:, 1], MOST)

    def rate(self, fallback: float) -> float:
        """Trials a second."""
        tried = self.curve[-1][0] - self.curve[0][0]
        return tried / self.seconds if self.seconds > 0 and tried > 0 else fallback


@dataclass(frozen=True)
class Expectation:
    """What a slot is expected to do to an arm: shares of the model's latency, and the throughput it will have (80 % interval)."""

    arm: str
    gain: float
    deviation: float
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0


@dataclass
class Bandit:
    """Holds the arms' states, asks the policy, and stops arms that no longer gain.

    patience: trials without a gain after which an arm rests; when all rest, those with something left to try go on.
    """

    arms: Sequence[Arm]
    policy: Policy
    slot_seconds: float
    pool: BeliefPool
    patience: int = 32
    seed: int = 0
    slot: int = 0
    states: list[ArmState] = field(init=False)
    last: dict[str, Expectation] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.states = [ArmState.of(arm, i) for i, arm in enumerate(self.arms)]
        self._rng = np.random.default_rng([self.seed, 7])

    @property
    def latency(self) -> float:
        """Seconds of the model: calls and traffic counted."""
        return float(sum(a.latency for a in self.arms))

    @property
    def open(self) -> list[ArmState]:
        """Arms that may get a slot; empty when there is nothing left to try."""
        left = [s for s in self.states if not s.arm.exhausted]
        awake = [s for s in left if not s.stopped]
        if left and not awake:
            for s in left:
                s.stopped, s.idle = False, 0
            return left
        return awake

    def choose(self, pending: Mapping[str, int] | None = None, besides: Collection[str] = ()) -> ArmState | None:
        """The arm of the next slot; None when there is nothing left to try.

        Args:
            pending: trials of arms that are under way: what a slot adds to what they will have come to is what counts.
            besides: arms that are not to be chosen.
        """
        candidates = [s for s in self.open if s.arm.key not in besides]
        if not candidates:
            return None
        self.slot += 1
        views = self._views(candidates, pending or {})
        return candidates[self.policy.choose(views, self.slot, self._rng)]

    def run(self, state: ArmState, seconds: float, spent: float | None = None,
            trials: Trials = UNLIMITED) -> list[tuple[int, float]]:
        """Give an arm a slot. spent: what it took, when the caller knows better than `seconds`. Other arms may gain, too."""
        before = {s.order: s.arm.latency for s in self.states}
        points = list(state.arm.tune(seconds, trials))
        self.follow(state, points, seconds if spent is None else spent)
        for other in self.states:
            if other is not state and other.arm.latency < before[other.order] * (1 - 1e-9):
                other.curve[-1] = (other.curve[-1][0], other.arm.latency)
        return points

    def follow(self, state: ArmState, points: Sequence[tuple[int, float]], seconds: float) -> None:
        """Take over what a slot did."""
        best = state.curve[-1][1]
        for trials, latency in points:
            state.idle = 0 if latency < best * (1 - _SAME) else state.idle + 1
            best = min(best, latency)
            state.curve.append((trials, best))
        state.pulls += 1
        state.seconds += seconds
        state.latencies.append(best)
        state.stopped = state.idle >= self.patience or not points

    def remaining(self, factor: float = 8.0) -> float:
        """Share of the model's latency that is still expected to go when every open arm gets `factor` times its trials."""
        total, found = self.latency, 0.0
        if not self.policy.believes:
            return 1.0 if self.open else 0.0
        for s in self.open:
            x, y = s.throughput()
            found += s.arm.latency / total * self.pool.predict(s.arm.key, float(y[-1]), float(x[-1]) * factor).gain
        return found

    def _views(self, candidates: Sequence[ArmState], pending: Mapping[str, int]) -> list[ArmView]:
        total = self.latency
        predictions = self._predict(pending) if self.policy.believes else {}
        found = []
        for s in candidates:
            share = s.arm.latency / total
            p = predictions.get(s.arm.key)
            pulls = s.pulls + -(-pending.get(s.arm.key, 0) // _BATCH)
            view = ArmView(s.arm.key, s.arm.group, s.order, pulls, s.arm.latency, share, s.arm.flops, tuple(s.latencies))
            if p is not None:
                self.last[s.arm.key] = Expectation(s.arm.key, share * p.gain, share * p.gain_deviation, p.mean, p.low, p.high)
                view = ArmView(
                    view.key,
                    view.group,
                    view.order,
                    view.pulls,
                    view.latency,
                    share,
                    view.flops,
                    view.latencies,
                    share * p.gain,
                    share * p.gain_deviation,
                    share * p.saved,
                    p.weights,
                )
            found.append(view)
        return found

    def _predict(self, pending: Mapping[str, int]) -> Mapping[str, Prediction]:
        rates = [s.rate(0.0) for s in self.states if s.seconds > 0]
        usual = float(np.median(rates)) if rates else 2.0
        histories = {}
        for s in self.states:
            x, y = s.throughput()
            histories[s.arm.key] = (s.arm.group, x, y, max(1.0, round(self.slot_seconds * s.rate(usual))))
        return self.pool.predictions(histories, pending)
