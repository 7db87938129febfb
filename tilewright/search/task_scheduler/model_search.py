"""search_model: a model's operators searched together within one budget, from their first measurement to their dispatch.

The time is kept to: what cannot be cut short is begun only when there is time for it, and an operator that there is no time for
keeps what runs untuned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.search.database.records import TuningLog
from tilewright.search.search_strategy.outcome import Tuned
from tilewright.search.task_scheduler.belief_pool import BeliefOptions, BeliefPool, quick_beliefs
from tilewright.search.task_scheduler.candidate_jobs import Jobs
from tilewright.search.task_scheduler.model_tuner import ModelBudget, ModelProgress, ModelTuneOptions, ModelTuner
from tilewright.search.task_scheduler.operator_arms import OperatorUse, batch_arms, finish, operator_arms
from tilewright.search.task_scheduler.parallel_tuner import FlightProgress, ParallelTuner
from tilewright.search.task_scheduler.peak import Peak

_FIRST = 0.4  # share of the time in which the operators are opened and measured for the first time
_TASTE = 0.5  # times what making a space took, that its first measurements get at least
_KEPT, _MOST_KEPT = 0.25, 0.5  # shares of the time for verifying and certifying what was found: usually, and at most
_SEARCHED, _VERIFIED = 0.6, 0.85  # shares of the trials until which is searched, and verified, as one operator's (TuneOptions)
_CHOICES = 3  # selections of an operator in the end: what to verify, once more, and what to keep


@dataclass(frozen=True)
class Opening:
    """A search that was not begun: making its space takes time. weight: of its operator in the model, about."""

    weight: float
    open: Callable[[], OperatorUse]


@dataclass(frozen=True)
class SearchPlan:
    """Of a model. clock: seconds, that of the searches too. buckets: most of one operator's shapes. kept: share of the time for
    verifying and certifying what was found, at least."""

    budget: ModelBudget
    clock: Callable[[], float]
    options: ModelTuneOptions = field(default_factory=ModelTuneOptions)
    buckets: int = 3
    kept: float = _KEPT


@dataclass(frozen=True)
class Flight:
    """Where candidates of a search go. in_flight: most of them at a time; None: as many as keep the runners at work. told: how
    many are under way, after each end. beliefs: makes those of the arms."""

    jobs: Jobs
    in_flight: int | None = None
    told: Callable[[FlightProgress], None] = lambda state: None
    beliefs: Callable[[BeliefOptions, Callable[[], float]], BeliefPool] = quick_beliefs


@dataclass(frozen=True)
class FoundModel:
    """tuner: with its schedule and history. tuned: workload key -> dispatch, of the operators that there was time for."""

    tuner: ModelTuner
    tuned: dict[str, Tuned]


def search_model(openings: Sequence[Opening], plan: SearchPlan, peak: Peak, log: TuningLog,
                 progress: Callable[[ModelProgress], None] = lambda state: None, flight: Flight | None = None) -> FoundModel:
    """Open the operators, the weightiest first, give slots to their arms, then verify, choose and certify.

    flight: where candidates go to be built and measured, several at once; None: one after the other. A schedule that the log
    holds is gone on with. An interrupt passes through: everything measured is in the log.
    """
    clock, wanted = plan.clock, plan.budget
    begin = clock()
    uses = opened(openings, clock, wanted.seconds, flight is None)
    end = None if wanted.seconds is None else begin + wanted.seconds - _kept(uses, wanted.seconds, plan.kept)
    for use in uses:
        if end is not None:
            use.tuner.ledger.time.end = end
    taken = sum(u.tuner.ledger.trials for u in uses)
    budget = ModelBudget(
        None if end is None else max(0.0, end - clock()),
        None if wanted.trials is None else max(0, round(_SEARCHED * wanted.trials) - taken),
        wanted.until_regret,
    )
    believed = plan.options.beliefs
    pool = BeliefPool(believed, clock=clock) if flight is None else flight.beliefs(believed, clock)
    tuner: ModelTuner
    if flight is None:
        tuner = ModelTuner(operator_arms(uses, peak, clock, plan.buckets), budget, clock, plan.options, log, pool, progress)
    else:
        arms = batch_arms(uses, peak, clock, plan.buckets)
        options = replace(plan.options, slot_seconds=plan.options.slot_seconds or plan.options.least)  # no slot is timed there
        tuner = ParallelTuner(arms, budget, clock, flight.jobs, options, log, pool, progress, flight.in_flight, flight.told)
        first = {arm.key.rpartition("/")[0]: arm for arm in reversed(arms)}
        tuner.measure([(arm, c) for arm in first.values() for c in arm.untuned()])
        tuner.begin_anew()
    tuner.resume()
    progress(tuner.state())
    tuner.run()
    left = None if wanted.seconds is None else max(0.0, begin + wanted.seconds - clock())
    spent = sum(u.tuner.ledger.trials for u in uses)
    trials = None if wanted.trials is None else max(0, round(_VERIFIED * wanted.trials) - spent)
    return FoundModel(tuner, finish(_by_gain(uses, tuner), left, trials))


def opened(openings: Sequence[Opening], clock: Callable[[], float], seconds: float | None,
           first: bool = True) -> list[OperatorUse]:
    """Operators with their default kernels measured: as many as there is time for, but one. Each has its part of the time, and
    some more where making its space took all of that.

    seconds: of the whole search; None: as long as it takes. first: are the default kernels to be measured here?
    """
    start = clock()
    end = None if seconds is None else start + _FIRST * seconds
    found: list[OperatorUse] = []
    ordered = sorted(openings, key=lambda o: -o.weight)
    worst = 0.0  # seconds of an operator
    for number, opening in enumerate(ordered):
        begin = clock()
        if end is not None and found and begin + worst >= end:
            break
        use = opening.open()
        if end is not None and seconds is not None:
            now = clock()
            part = max(now + _TASTE * (now - begin), begin + (end - begin) / (len(ordered) - number))
            use.tuner.ledger.time.end = min(part, start + _MOST_KEPT * seconds)
        if first:
            use.tuner.step()
        worst = max(worst, clock() - begin)
        found.append(use)
    return found


def _kept(uses: Sequence[OperatorUse], seconds: float, share: float) -> float:
    """Seconds for the end, in which each operator's kernels are selected at least; one tells what that takes."""
    for use in uses[:1]:
        use.tuner.best()
    choices = sum(_CHOICES * u.tuner.ledger.time.costs.get("selection", 0.0) for u in uses)
    return min(max(share * seconds, choices), _MOST_KEPT * seconds)


def _by_gain(uses: Sequence[OperatorUse], tuner: ModelTuner) -> list[OperatorUse]:
    """Those first whose latency fell most: should the time not do for all, they are not left out."""
    gains: dict[str, float] = {}
    for state in tuner.bandit.states:
        operator = state.arm.key.rpartition("/")[0]
        gains[operator] = gains.get(operator, 0.0) + state.latencies[0] - state.arm.latency
    return sorted(uses, key=lambda u: -gains[u.name])
