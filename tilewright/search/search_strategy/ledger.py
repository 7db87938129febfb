"""SearchLedger: the books of a search: what was measured and what follows from it, what was spent, what is told of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.program.dispatch import select
from tilewright.search.cost_model.forms import form_of
from tilewright.search.cost_model.model import CostModel
from tilewright.search.database.records import TuningRecord
from tilewright.search.protocols import KernelAt, Measurement, RunnerInTurns, RunnerOfMany
from tilewright.search.runner.measurer import MeasureContext, Measurer
from tilewright.search.search_strategy.evidence import Evidence
from tilewright.search.search_strategy.judged import Judged, judged_by
from tilewright.search.search_strategy.outcome import Progress
from tilewright.search.search_strategy.reckoner import LocalReckoner, MakeReckoner, Subject
from tilewright.search.search_strategy.selection import Selection
from tilewright.search.search_strategy.thread_bound import thread_bound
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Dims
from tilewright.search.space.task import Task, Untuned

Place = tuple[int, int, int]  # numbers of the shape, threads, number of the configuration
Variant = tuple[TileConfig, Dims, int]  # on so many threads


class SearchLedger:
    """Of one task.

    reckoner: what follows from the records. focus: factors of the importance of each point, while only a part of the range is
    looked at. most_trials: of this search, while a slot may take no more. gain: what the last proposals promised, as a share of
    the weighted time. verified: trials of the choice. compared: seconds that what is hoped for was
    timed beside what runs untuned. time: until when what is done now may last: of the search or of its end.
    """

    def __init__(self, task: Task, context: MeasureContext, budget: Budget, options: TuneOptions, prior: CostModel | None,
                 progress: Callable[[Progress], None], make: MakeReckoner = LocalReckoner) -> None:
        self.task, self.budget, self.options, self.progress = task, budget, options, progress
        self.clock = context.environment.clock
        self._started = self.clock()
        self.lattice = task.lattice()
        self.form = form_of(self.lattice)
        self.measurer = Measurer(task.workload, context, self.form.note)
        self.points = task.points.without(task.held_out).thin(options.points)
        self.reckoner = make(Subject(task, self.points, options, prior), self.form)
        self.focus: Floats | None = None
        self.gain, self.verified, self.compared = 1.0, 0, 0.0
        self.most_trials = math.inf
        self.time = self.measurer.time
        self.time.costs["opening"] = self.clock() - self._started
        self._evidence: Evidence | None = None
        self._outdated = True
        self._spend_until(self._search_until)

    @property
    def records(self) -> Sequence[TuningRecord]:
        """All measurements of the task on this device."""
        return self.measurer.records

    @property
    def trials(self) -> int:
        """Measurements taken in this search."""
        return self.measurer.trials

    @property
    def spent(self) -> float:
        """Share of the budget."""
        return self.budget.share(self.clock() - self._started, self.trials)

    @property
    def searching(self) -> bool:
        """Is there budget left beside what is kept for the choice and its certificate?"""
        left = self.trials < self.most_trials and self.spent < self._search_until
        return left and self.time.affords() and self._choosable

    @property
    def verifying(self) -> bool:
        """Is there budget left beside what is kept for the certificate?"""
        return self.spent < self._certify_from and self.time.affords("selection")

    @property
    def _choosable(self) -> bool:
        """Is there time to choose what is verified, and then what is kept?"""
        seconds = self.budget.seconds
        return seconds is None or self._started + seconds - self.clock() > 2 * self.time.costs.get("selection", 0.0)

    @property
    def _search_until(self) -> float:
        return self._certify_from - self.options.verify

    @property
    def _certify_from(self) -> float:
        return 1 - self.options.certify * bool(self.task.held_out)

    def keep_for_the_end(self, seconds: float | None, trials: int | None = None) -> None:
        """Set the budget so that the search is over now: so many seconds are left, or, None, so many trials to verify the choice,
        or, None too, their share of those that were taken."""
        if seconds is None:
            share = self._search_until if trials is None else self._certify_from
            self.budget = Budget(trials=round((self.trials + (trials or 0)) / share))
        else:
            whole = seconds / max(1 - self._search_until, 1e-9)
            self.budget = Budget(seconds=whole)
            self._started = self.clock() - whole * self._search_until
        self.verify_from_now()

    def verify_from_now(self) -> None:
        """The search is over: there is time for the choice."""
        self._spend_until(self._certify_from)

    def certify_from_now(self) -> None:
        """The choice is made: there is time for its certificate."""
        self._spend_until(1.0)

    def _spend_until(self, share: float) -> None:
        if self.budget.seconds is not None:
            self.time.end = self._started + share * self.budget.seconds

    @property
    def evidence(self) -> Evidence:
        """What the measurements say, since `outdate` was last called, or since there was last time to look."""
        if self._evidence is None or (self._outdated and self.time.affords("evidence")):
            with self.time.part("evidence"):
                self._evidence = self.reckoner.evidence(self.records)
            self._outdated = False
        if self.focus is not None:
            focused = self._evidence.importance * self.focus
            return replace(self._evidence, importance=focused / focused.sum())
        return self._evidence

    def outdate(self) -> None:
        """There are measurements that the evidence does not know."""
        self._outdated = True

    def learn(self, anew: bool = False) -> None:
        """Train the model on what is known, when that has grown, or anew, and there is time."""
        self.outdate()
        if not self.time.affords("learn"):
            return
        with self.time.part("learn"):
            self.reckoner.learn(self.records, anew)

    def taken(self) -> set[int]:
        """Configurations that were measured or cannot be built."""
        texts = {r.config for r in self.records} | set(self.measurer.refused)
        return {n for n in map(self.lattice.number, texts) if n is not None}

    def kernels(self) -> set[str]:
        """Texts of the configurations that were measured."""
        return {r.config for r in self.records if r.seconds}

    def take(self, phase: str, config: TileConfig, shape: Dims, threads: int, again: bool = False) -> None:
        """Measure, unless it is known, and tell of it."""
        self.measurer.measure(config, shape, threads, again)
        self.report(phase)

    @property
    def takes_groups(self) -> bool:
        """Does the runner take several measurements at once?"""
        return isinstance(self.measurer.context.runner, RunnerOfMany)

    def take_all(self, phase: str, groups: Sequence[Sequence[Variant]],
                 going: Callable[[], bool]) -> list[list[float] | None]:
        """Measure again what each group names, a group at once, and several groups at the same time, where the runner takes that,
        while `going`. Returns the seconds of each of a group, infinite for what does not run; None where there was no time."""
        measurer, runner = self.measurer, self.measurer.context.runner
        if not isinstance(runner, RunnerOfMany):
            return [self._taken(phase, group, going) for group in groups]
        measurer.build([config for group in groups for config, _, _ in group])
        open_ = [[v for v in group if measurer.open_places(v[0], [v[1:]], again=True)] for group in groups]

        def run(group: Sequence[Variant]) -> list[Measurement] | None:
            built = [measurer.built[config_text(config)] for config, _, _ in group]
            launches = [KernelAt(b.kernel, b.code, *v[1:]) for b, v in zip(built, group, strict=True) if b.kernel is not None]
            return runner.run_all(self.task.workload, launches, self.time.limit) if going() else None

        found: list[list[float] | None] = [None if some else [math.inf] * len(group)
                                           for some, group in zip(open_, groups, strict=True)]
        pool = ThreadPoolExecutor(measurer.context.at_once, "tilewright-run")
        try:
            asked = {pool.submit(run, group): number for number, group in enumerate(open_) if group}
            for done in as_completed(asked):
                number, measured = asked[done], done.result()
                if measured is None:
                    continue
                records = [measurer.take_run(*v, m) for v, m in zip(open_[number], measured, strict=True)]
                left = iter(records)
                if not any(m.late for m in measured):
                    found[number] = [self._seconds(next(left)) if v in open_[number] else math.inf for v in groups[number]]
                self.report(phase)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an interrupt nothing more is begun
        return found

    def _taken(self, phase: str, group: Sequence[Variant], going: Callable[[], bool]) -> list[float] | None:
        """Measured again, one after the other; None where there was no time for all."""
        found = []
        for variant in group:
            if not going():
                return None
            found.append(self._seconds(self.measurer.measure(*variant, again=True)))
            self.report(phase)
        return found

    @staticmethod
    def _seconds(record: TuningRecord | None) -> float:
        return math.inf if record is None else record.time

    def untuned(self) -> Untuned:
        """What runs untuned. Where nothing is timed beside it, on several threads from where they were seen to pay: else another
        number of threads takes its place as another kernel does."""
        if isinstance(self.measurer.context.runner, RunnerInTurns) or any(r.beside for r in self.records):
            return self.task.untuned()
        return self.task.untuned(thread_bound(self.task, self.options.threads, self.records))

    def judged(self) -> Judged:
        """What was timed beside what runs untuned says of where others are faster, but for the held-out shapes."""
        aside = set(self.task.held_out)
        return judged_by((r for r in self.records if r.shape not in aside), self.untuned(), self.options.threads)

    def untuned_at(self, shapes: Iterable[int]) -> list[Place]:
        """What runs untuned at shapes, where the space has it."""
        configs, root = self.untuned()
        found = []
        for shape in shapes:
            leaf = select(root, dict(self.points.shapes[shape]))
            number = self.lattice.number(config_text(configs[leaf.kernel]))
            if number is not None:
                found.append((shape, leaf.threads or self.options.threads, number))
        return found

    def selection(self, hopeful: bool = False) -> Selection | None:
        """The kernels to keep over the whole range; None while no kernel is known that others may fall back to.

        hopeful: what is expected counts, whether it was measured or not.
        """
        if not self.evidence.curves:
            return None
        with self.time.part("selection"):
            return self.reckoner.choice(self.records, self.untuned(), hopeful)

    def report(self, phase: str) -> None:
        """Tell of the state."""
        evidence = self._evidence
        elapsed = self.clock() - self._started
        eta = None if self.budget.seconds is None else max(0.0, self.budget.seconds - elapsed)
        latency = evidence.latency if evidence is not None and evidence.curves else float("nan")
        self.progress(Progress(self.task.workload.name, phase, self.trials, len(self.kernels()), self.measurer.failed, latency,
                               self.gain, min(1.0, self.spent), eta))
