"""ParallelTuner: a model's search with many candidates on their way at once.

Decisions count what is under way. An arm proposes as if each candidate that is not measured yet did as the cost model expects
(kriging believer: Ginsbourger et al., Kriging is well-suited to parallelize optimization, 2010); the bandit expects of an arm
what a slot adds to those it has in flight. Whenever builders or runners would idle, the next best slot is begun; no round waits
for the slowest of the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.search.database.records import TuningLog
from tilewright.search.protocols import BuildResult
from tilewright.search.task_scheduler.bandit import Arm, ArmState
from tilewright.search.task_scheduler.belief_pool import BeliefPool
from tilewright.search.task_scheduler.candidate_jobs import At, BuildJob, Candidate, JobEnd, Jobs, RunJob
from tilewright.search.task_scheduler.model_tuner import EndedSlot, ModelBudget, ModelProgress, ModelTuneOptions, ModelTuner

_POLL = 0.5  # seconds between two looks at the budget while nothing ends
_READY = 1.25  # candidates for each runner that are built or being measured, so that none waits for the next
_MOST, _FEWEST_OF_SLOT = 8, 2  # candidates of a slot
_SLOTS, _PLACES = 20, 3  # slots of a search, at least; measurements of a candidate, before any is known
_FEWEST = 0.02  # seconds of a build or of a run that is taken to last no time


class ParallelArm(Arm, Protocol):
    """An arm that proposes while others are under way."""

    def propose(self, in_flight: Sequence[Candidate], most: int) -> list[Candidate]:
        """The next candidates, about `most`; none when there is nothing left to try. in_flight: of this arm's operator."""
        ...

    def places(self, candidate: Candidate, built: BuildResult) -> list[At]:
        """A build ended: where it is still to be measured; none where that is known, or it was not built."""
        ...

    def accept(self, candidate: Candidate, end: JobEnd) -> int:
        """Measurements ended: take them over; returns how many count as trials."""
        ...


@dataclass
class _Slot:
    """A batch of an arm under way. waiting: not begun; open: not ended. begin: of the slot; before: latency of the model."""

    state: ArmState
    waiting: list[Candidate]
    open: int
    begin: float
    before: float
    fits: int
    fit_seconds: float
    trials: int = 0
    points: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class _Flying:
    slot: _Slot
    candidate: Candidate
    building: bool


@dataclass(frozen=True)
class FlightProgress:
    """Of candidates. in_flight: being built or measured; ready: built, waiting for a runner. builds, measurements: ended so far,
    apart from measurements that there was no time for. seconds: since the start."""

    in_flight: int
    ready: int
    builds: int
    measurements: int
    seconds: float


class ParallelTuner(ModelTuner):
    """Steps a bandit over arms whose candidates are under way together, until the budget is spent.

    Args:
        jobs: where candidates go. in_flight: most candidates under way; None: as many as keep the runners at work, by what
            builds and runs take. flight: told after each end.
    """

    def __init__(self, arms: Sequence[ParallelArm], budget: ModelBudget, clock: Callable[[], float], jobs: Jobs,
                 options: ModelTuneOptions | None = None, log: TuningLog | None = None, pool: BeliefPool | None = None,
                 progress: Callable[[ModelProgress], None] = lambda state: None, in_flight: int | None = None,
                 flight: Callable[[FlightProgress], None] = lambda state: None) -> None:  # fmt: skip
        super().__init__(arms, budget, clock, options, log, pool, progress)
        self.jobs, self.flight, self._limit = jobs, flight, in_flight
        self._arms = {arm.key: arm for arm in arms}
        self._flying: dict[int, _Flying] = {}
        self._ready: list[tuple[_Slot, Candidate, RunJob]] = []
        self._slots: list[_Slot] = []
        self._number = self.builds = self.measurements = 0
        self._build_seconds, self._run_seconds = 1.0, 0.2  # about, of one; guesses until some ended
        self._running = 0

    @property
    def flown(self) -> FlightProgress:
        """What is under way, and what was."""
        return FlightProgress(len(self._flying), len(self._ready), self.builds, self.measurements, self.seconds)

    @property
    def most_in_flight(self) -> int:
        """Candidates under way that keep every runner at work."""
        if self._limit is not None:
            return self._limit
        feeding = math.ceil(self.jobs.runners * max(self._build_seconds, _FEWEST) / max(self._run_seconds, _FEWEST))
        return math.ceil(_READY * self.jobs.runners) + min(self.jobs.builders, feeding)

    def run(self) -> float:
        """Until the budget is spent or nothing is left to try; returns the latency. What is under way at the end is taken over
        when it ends, as far as there is time. KeyboardInterrupt passes through."""
        while not self.done and self._fill():
            self._take(self.jobs.done(self._patience()))
        self._ready.clear()
        while self._flying and not self._is_late():
            self._take(self.jobs.done(self._patience()))
        for slot in list(self._slots):
            self._end(slot, True)
        return self.latency

    def measure(self, candidates: Sequence[tuple[ParallelArm, Candidate]]) -> None:
        """Candidates that are no choice of the bandit, such as what runs untuned: all of them, in the order given."""
        slots: dict[str, _Slot] = {}
        for arm, candidate in candidates:
            state = next(s for s in self.bandit.states if s.arm.key == arm.key)
            slot = slots.setdefault(arm.key, _Slot(state, [], 0, self.clock(), self.latency, 0, 0.0))
            slot.waiting.append(candidate)
            slot.open += 1
        waiting = list(slots.values())
        while (waiting or self._flying or self._ready) and not self._is_late():
            while waiting and len(self._flying) + len(self._ready) < self.jobs.builders + self.jobs.runners:
                self._launch(waiting[0])
                waiting = [s for s in waiting if s.waiting]
            self._feed()
            self._take(self.jobs.done(self._patience()), ended=False)

    def begin_anew(self) -> None:
        """The curves of the arms begin with what `measure` found."""
        for state in self.bandit.states:
            state.curve = [(max(state.arm.trials, 1), state.arm.latency)]
            state.latencies = [state.arm.latency]
        self.untuned = self.latency
        self.history[:] = [(self.seconds, self.untuned)]

    def _is_late(self) -> bool:
        return self.budget.seconds is not None and self.seconds >= self.budget.seconds

    def _patience(self) -> float | None:
        if self.budget.seconds is None:
            return None if self._flying else 0.0
        return max(0.0, min(_POLL, self.budget.seconds - self.seconds))

    def _fill(self) -> bool:
        """Begin candidates while there is room; False when nothing is left to try and nothing is under way."""
        self._feed()
        while self._room() > 0:
            slot = next((s for s in self._slots if s.waiting), None) or self._begin()
            if slot is None:
                break
            self._launch(slot)
            self._feed()
        return bool(self._flying or self._ready)

    def _room(self) -> int:
        """Candidates that may be begun. No more than trials are left, so that the last ones are well chosen too."""
        flying = len(self._flying) + len(self._ready)
        room = min(self.most_in_flight - flying, self.jobs.builders - (len(self._flying) - self._running))
        if self.budget.trials is not None:
            under_way = [f.candidate for f in self._flying.values()] + [candidate for _, candidate, _ in self._ready]
            room = min(room, self.budget.trials - self.trials - sum(len(c.places) for c in under_way))
        return room

    def _begin(self) -> _Slot | None:
        """A slot for the arm that pays most beside those under way."""
        fits, fit_seconds, before = self.pool.fits, self.pool.seconds, self.latency
        tried: set[str] = set()
        while True:
            pending = {key: sum(s.open for s in self._slots if s.state.arm.key == key) for key in self._arms}
            state = self.bandit.choose(pending, tried)
            if state is None:
                return None
            tried.add(state.arm.key)
            group = self._of_operator(state.arm.key)
            proposed = self._arms[state.arm.key].propose(group, self._slot_size)
            if proposed:
                slot = _Slot(state, proposed, len(proposed), self.clock(), before, self.pool.fits - fits,
                             self.pool.seconds - fit_seconds)
                self._slots.append(slot)
                return slot
            if not group:
                state.stopped = True

    @property
    def _slot_size(self) -> int:
        """Candidates of a slot: so few that the budget has some twenty slots, as where one is tried after the other."""
        size, ended = float(_MOST), self.builds + _MOST
        if self.budget.trials is not None:
            size = min(size, self.budget.trials / _SLOTS * ended / (self.measurements + _MOST * _PLACES))
        if self.budget.seconds is not None and self.builds > self.jobs.builders:
            size = min(size, self.budget.seconds / _SLOTS * self.builds / max(self.seconds, 1e-9))
        return max(_FEWEST_OF_SLOT, int(size))

    def _of_operator(self, key: str) -> list[Candidate]:
        """Candidates under way of the operator of an arm: its buckets share the kernels."""
        operator = key.rpartition("/")[0]
        flying = [(f.slot, f.candidate) for f in self._flying.values()]
        flying += [(slot, candidate) for slot, candidate, _ in self._ready]
        flying += [(slot, candidate) for slot in self._slots for candidate in slot.waiting]
        return [c for slot, c in flying if slot.state.arm.key.rpartition("/")[0] == operator]

    def _launch(self, slot: _Slot) -> None:
        """Begin the next candidate of a slot."""
        candidate = slot.waiting.pop(0)
        self._number += 1
        if candidate.built is not None:
            self._measure(slot, candidate, candidate.built)
            return
        self._flying[self._number] = _Flying(slot, candidate, True)
        self.jobs.build(BuildJob(self._number, candidate.workload, candidate.config), self._left())

    def _measure(self, slot: _Slot, candidate: Candidate, built: BuildResult) -> None:
        """A candidate is built: it waits for a runner, or is done with."""
        places = self._arms[slot.state.arm.key].places(candidate, built)
        if not places:
            self._close(slot)
            return
        self._number += 1
        self._ready.append((slot, candidate, RunJob(self._number, candidate.workload, built, tuple(places))))

    def _feed(self) -> None:
        """Give waiting candidates to runners that idle."""
        while self._ready and self._running < self.jobs.runners:
            slot, candidate, job = self._ready.pop(0)
            self._flying[job.number] = _Flying(slot, candidate, False)
            self._running += 1
            self.jobs.run(job, self._left())

    def _left(self) -> float | None:
        return None if self.budget.seconds is None else max(0.0, self.budget.seconds - self.seconds)

    def _take(self, ends: Sequence[JobEnd], ended: bool = True) -> None:
        for end in ends:
            flying = self._flying.pop(end.number)
            if flying.building:
                assert end.built is not None, "a build ends with a result"
                self.builds += 1
                self._build_seconds += (end.seconds - self._build_seconds) / min(self.builds, 20)
                self._measure(flying.slot, flying.candidate, end.built)
            else:
                self._running -= 1
                self.measurements += sum(not m.late for m in end.measured)
                self._run_seconds += (end.seconds - self._run_seconds) / max(1, min(self.measurements, 20))
                taken = self._arms[flying.slot.state.arm.key].accept(flying.candidate, end)
                self.trials += taken
                flying.slot.trials += taken
                arm = flying.slot.state.arm
                flying.slot.points.append((arm.trials, arm.latency))
                self._close(flying.slot)
            if ended:
                self._feed()
        self.flight(self.flown)

    def _close(self, slot: _Slot) -> None:
        """A candidate of a slot is done with."""
        slot.open -= 1
        if slot.open == 0 and slot in self._slots:
            self._end(slot, False)

    def _end(self, slot: _Slot, interrupted: bool) -> None:
        self._slots.remove(slot)
        spent = self.clock() - slot.begin
        known = len(slot.state.curve)
        self.bandit.follow(slot.state, slot.points, spent)
        for other in self.bandit.states:
            if other.arm.latency < other.curve[-1][1] * (1 - 1e-9):
                other.curve[-1] = (other.curve[-1][0], other.arm.latency)
        points = tuple(slot.state.curve[known:])
        self.record(EndedSlot(slot.state, slot.begin, spent, points, slot.before, slot.fits, slot.fit_seconds), interrupted)
        self.history.append((self.seconds, self.latency))
        self.progress(self.state(slot.state.arm.key))
