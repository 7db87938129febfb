"""ModelTuner: spends slots of time over the arms of a model. The best model so far can be taken at any moment.

Every slot is a record in the log, so that a run can be shown, replayed and resumed; an interrupt loses nothing measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.search.database.records import TuningLog
from tilewright.search.database.slot_records import ArmBelief, SlotRecord
from tilewright.search.task_scheduler.bandit import UNLIMITED, Arm, ArmState, Bandit, Trials
from tilewright.search.task_scheduler.belief_pool import BeliefOptions, BeliefPool, cost_of_fit
from tilewright.search.task_scheduler.policies import Policy, Recorded, Ucb

_FITS = 50  # a slot is at least as long as so many fits and as what its choice took, so that beliefs take 2 % of the time
_SLOTS = 20  # at least, where slots can be short enough: one may take twice as long (operator_arms.py), a tenth of the budget


@dataclass(frozen=True)
class ModelBudget:
    """What the tuning of a model may spend; None: no limit of that kind.

    until_regret: stop when so small a share of the latency is expected to be left to gain.
    """

    seconds: float | None = None
    trials: int | None = None
    until_regret: float | None = None

    def share(self, seconds: float, trials: int) -> float:
        """What has been spent, 1 when the budget is used up."""
        parts = [0.0]
        if self.seconds is not None:
            parts.append(seconds / self.seconds if self.seconds > 0 else 1.0)
        if self.trials is not None:
            parts.append(trials / self.trials if self.trials > 0 else 1.0)
        return max(parts)


@dataclass(frozen=True)
class ModelTuneOptions:
    """device: that is measured on, by which slots of other machines are told apart. policy: who gets a slot.
    slot_seconds: None: long enough for the fits, and `least`. patience: trials without a gain."""

    policy: Policy = field(default_factory=Ucb)
    beliefs: BeliefOptions = field(default_factory=BeliefOptions)
    slot_seconds: float | None = None
    least: float = 1.0
    patience: int = 32
    seed: int = 0
    device: str = ""


@dataclass(frozen=True)
class ArmProgress:
    """An arm for the live view. latency, untuned: seconds, None while nothing was measured. gain, deviation: expected of the next
    slot, shares of the model's latency; None before the first choice."""

    key: str
    pulls: int
    seconds: float
    trials: int
    latency: float | None
    untuned: float | None
    gain: float | None
    deviation: float | None
    resting: bool


@dataclass(frozen=True)
class ModelProgress:
    """The state after a slot. latency, untuned: seconds of the model, calls and traffic counted. share: of the budget.

    eta: seconds left, None without a limit. overhead: share of the time that beliefs took. history: (seconds, latency).
    """

    slot: int
    arm: str
    policy: str
    seconds: float
    trials: int
    latency: float
    untuned: float
    share: float
    eta: float | None
    overhead: float
    arms: tuple[ArmProgress, ...]
    history: tuple[tuple[float, float], ...]

    @property
    def measured(self) -> bool:
        """Was every arm measured? Else the latencies of the model hold guesses."""
        return all(a.latency is not None for a in self.arms)


@dataclass(frozen=True)
class EndedSlot:
    """A slot that ended, as it is recorded. before: latency of the model. fits, fit_seconds: what its choice took."""

    state: ArmState
    begin: float
    seconds: float
    points: tuple[tuple[int, float], ...]
    before: float
    fits: int
    fit_seconds: float


class ModelTuner:
    """Steps a bandit over arms until the budget is spent.

    Args:
        clock: seconds. log: takes the slots; those of the same arms that it holds are taken over (`resume`).
        pool: beliefs, when they are to be shared or cached. progress: told after every slot.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        budget: ModelBudget,
        clock: Callable[[], float],
        options: ModelTuneOptions | None = None,
        log: TuningLog | None = None,
        pool: BeliefPool | None = None,
        progress: Callable[[ModelProgress], None] = lambda state: None,
    ) -> None:
        self._started = clock()
        self.options = options or ModelTuneOptions()
        self.budget, self.clock, self.progress = budget, clock, progress
        self.log = TuningLog() if log is None else log
        self.pool = pool or BeliefPool(self.options.beliefs, clock=clock)
        self.bandit = Bandit(arms, self.options.policy, self._slot_seconds(), self.pool, self.options.patience, self.options.seed)
        self._choice_seconds = 0.0
        self._first: dict[str, float] = {}
        self.run_name = f"{self._started:.6f}"
        self.trials = 0
        self.untuned = self.bandit.latency
        self.history: list[tuple[float, float]] = [(0.0, self.untuned)]

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self.clock() - self._started

    @property
    def latency(self) -> float:
        """Seconds of the model with the best kernels known so far."""
        return self.bandit.latency

    @property
    def done(self) -> bool:
        """Is the budget spent, or as little left to gain as was asked for?"""
        if self.budget.share(self.seconds + self._choice_seconds, self.trials) >= 1:
            return True
        wanted = self.budget.until_regret
        tried = all(s.pulls or s.arm.exhausted for s in self.bandit.states) or self.bandit.policy.believes
        return wanted is not None and self.bandit.slot > 0 and tried and self.bandit.remaining() <= wanted

    def run(self) -> float:
        """Step until done; returns the latency. KeyboardInterrupt passes through after the slot in flight is in the log."""
        while not self.done:
            if not self.step():
                break
        return self.latency

    def step(self) -> bool:
        """One slot; False when there is nothing left to try."""
        fits, fit_seconds = self.pool.fits, self.pool.seconds
        before, begin = self.bandit.latency, self.clock()
        state = self.bandit.choose()
        self._choice_seconds = self.clock() - begin
        if state is None:
            return False
        seconds = self.bandit.slot_seconds
        if self.options.slot_seconds is None:
            seconds = max(seconds, min(_FITS * (self.pool.seconds - fit_seconds), self._longest_slot()))
        if self.budget.seconds is not None:
            seconds = min(seconds, max(0.0, self.budget.seconds - self.seconds))
        begin, known = self.clock(), len(state.curve)
        complete = False
        try:
            self.bandit.run(state, seconds, trials=self._slot_trials())
            complete = True
        finally:
            spent = self.clock() - begin
            if not complete:
                self.bandit.follow(state, [(state.arm.trials, state.arm.latency)], spent)
            else:
                state.seconds += spent - seconds
            points = tuple(state.curve[known:])
            self.trials += max(len(points), state.curve[-1][0] - state.curve[known - 1][0])
            chosen = self.pool.fits - fits, self.pool.seconds - fit_seconds
            self.record(EndedSlot(state, begin, spent, points, before, *chosen), not complete)
        self.history.append((self.seconds, self.bandit.latency))
        self.progress(self.state(state.arm.key))
        return True

    def resume(self, slots: Sequence[SlotRecord] | None = None) -> int:
        """Take over slots of an earlier run, by default all of the log that name these arms; returns how many.

        The arms are expected to know what was measured in them already.
        """
        states = {s.arm.key: s for s in self.bandit.states}
        here = ("", self.options.device)
        taken = [s for s in (self.log.slots if slots is None else slots) if s.arm in states and s.device in here]
        for record in taken:
            state = states[record.arm]
            state.curve = [p for p in state.curve if p[0] < (record.points[0][0] if record.points else p[0] + 1)] or state.curve[
                :1
            ]
            self.bandit.follow(state, record.points, record.seconds)
            self.bandit.slot += 1
        return len(taken)

    def state(self, arm: str = "") -> ModelProgress:
        """For a live view."""
        arms = []
        for s in self.bandit.states:
            last = self.bandit.last.get(s.arm.key)
            known = s.arm.known
            if known and s.arm.key not in self._first:
                self._first[s.arm.key] = s.arm.latency if s.pulls else s.latencies[0]
            arms.append(
                ArmProgress(
                    s.arm.key,
                    s.pulls,
                    s.seconds,
                    s.curve[-1][0],
                    s.arm.latency if known else None,
                    self._first.get(s.arm.key),
                    last.gain if last else None,
                    last.deviation if last else None,
                    s.stopped or s.arm.exhausted,
                )
            )
        seconds = self.seconds
        eta = None if self.budget.seconds is None else max(0.0, self.budget.seconds - seconds)
        return ModelProgress(
            self.bandit.slot,
            arm,
            self.bandit.policy.name,
            seconds,
            self.trials,
            self.bandit.latency,
            self.untuned,
            min(1.0, self.budget.share(seconds, self.trials)),
            eta,
            self.pool.seconds / max(seconds, 1e-9),
            tuple(arms),
            tuple(self.history),
        )

    def record(self, slot: EndedSlot, interrupted: bool) -> None:
        """Put a slot in the log."""
        believes = self.bandit.policy.believes
        last = self.bandit.last.values() if believes else ()
        beliefs = tuple(
            ArmBelief(e.arm, *(float(f"{v:.4g}") for v in (e.gain, e.deviation, e.mean, e.low, e.high))) for e in last
        )
        arm = slot.state.arm
        curve = tuple(float(v) for v in self.pool.likeliest(arm.key)) if believes else ()
        self.log.add_slot(
            SlotRecord(
                self.run_name,
                self.bandit.slot,
                arm.key,
                self.bandit.policy.name,
                self.options.seed,
                slot.begin - self._started,
                slot.seconds,
                slot.points,
                arm.ideal,
                slot.before,
                self.bandit.latency,
                {s.arm.key: s.arm.latency for s in self.bandit.states},
                beliefs,
                curve,
                slot.fits,
                slot.fit_seconds,
                interrupted,
                self.options.device,
            )
        )

    def _slot_seconds(self) -> float:
        if self.options.slot_seconds is not None:
            return self.options.slot_seconds
        least, longest = self.options.least, self._longest_slot()
        if longest <= least or not self.options.policy.believes:
            return least
        return max(least, min(_FITS * cost_of_fit(self.clock, self.pool.sampler), longest))

    def _slot_trials(self) -> Trials:
        """So few that the budget holds several slots, and no more than are left of it."""
        if self.budget.trials is None:
            return UNLIMITED
        return Trials(self.budget.trials / _SLOTS, self.budget.trials - self.trials)

    def _longest_slot(self) -> float:
        """So long that the budget holds several."""
        return math.inf if self.budget.seconds is None else self.budget.seconds / _SLOTS


def recorded_policy(slots: Sequence[SlotRecord]) -> Recorded:
    """The schedule of a run as a policy, to replay it."""
    return Recorded(tuple(s.arm for s in sorted(slots, key=lambda s: s.slot)))
