"""Reckoner: what follows from the measurements of one operator: its cost model, the evidence, proposals and choices.

It is all of a search that takes processor time. The ledger, which keeps the books, hands it the records and the answers come back
as values, so that it may be here (LocalReckoner) or in another process of a farm (search/runner/ray_reckoner.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tilewright.passes.spaces.family_registry import config_text
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.form import CostForm
from tilewright.search.cost_model.measured import refit_device, training_samples
from tilewright.search.cost_model.model import CostModel
from tilewright.search.database.records import TuningRecord
from tilewright.search.search_strategy.evidence import Evidence
from tilewright.search.search_strategy.judged import judged_by
from tilewright.search.search_strategy.propose import Proposal, Proposer
from tilewright.search.search_strategy.selection import Selection, select_kernels, serves_all
from tilewright.search.search_strategy.tune_options import TuneOptions
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Points
from tilewright.search.space.task import Task, Untuned

_GROWTH = 1.15  # of the samples, before the model is trained again
_FINALISTS = 48

Records = Sequence[TuningRecord]  # of a workload on a device, in the order they were taken; they only grow


@dataclass(frozen=True)
class Wanted:
    """Of proposals. best: [shape] logarithm of the best seconds known; importance: [shape], sums to 1. taken: numbers of
    configurations that are not to be proposed; pending: those under way, which are believed to do as predicted. chance: that the
    last one gives way to a random one, where all together promise more than `unsure`."""

    best: Floats
    importance: Floats
    taken: frozenset[int]
    count: int
    pending: tuple[int, ...] = ()
    chance: float = 0.0
    unsure: float = -math.inf


class Reckoner(Protocol):
    """Configurations are numbers of the task's lattice, shapes those of its points."""

    def learn(self, records: Records, anew: bool = False) -> None:
        """Train the model, where there is enough more to learn from, or anew, whatever there is."""

    def evidence(self, records: Records) -> Evidence:
        """What the measurements say at the points."""
        ...

    def held_out(self, records: Records) -> Evidence:
        """What they say at the held-out shapes."""
        ...

    def open_cells(self, importance: Floats, count: int, least: float) -> list[tuple[int, int, int]]:
        """Evidence.open_cells of the evidence that was last asked for, with this importance of the shapes."""
        ...

    def choice(self, records: Records, usual: Untuned, hopeful: bool) -> Selection | None:
        """The kernels to keep over the whole range, of those that lead by the evidence that was last asked for; None while no
        kernel is known that others may fall back to.

        usual: what runs untuned. hopeful: what is expected counts, whether it was measured or not.
        """
        ...

    def propose(self, records: Records, wanted: Wanted) -> list[Proposal]:
        """The kernels that promise most, best first."""
        ...

    def random(self, taken: Collection[int], count: int) -> list[Proposal]:
        """Kernels drawn evenly, each at shapes spread over the range."""
        ...

    def apart(self, shapes: Sequence[int]) -> list[int]:
        """Of shapes, those that are not near one before them."""
        ...


@dataclass(frozen=True)
class Subject:
    """What is reckoned about. points: of the task, those that are looked at in a round. prior: a model to begin with."""

    task: Task
    points: Points
    options: TuneOptions
    prior: CostModel | None


MakeReckoner = Callable[[Subject, CostForm], Reckoner]


class LocalReckoner:
    """A Reckoner in this process.

    form: of the task's lattice; what is noted in it of built kernels counts.
    """

    def __init__(self, subject: Subject, form: CostForm) -> None:
        self.task, self.points, self.options, self.form = subject.task, subject.points, subject.options, form
        self.model = CostModel(prior=subject.prior)
        self._evidence: Evidence | None = None
        self.space = FeatureSpace(form, self.points.shapes)
        self.proposer = Proposer(self.space, self.options.thread_choices, np.random.default_rng(self.options.seed),
                                 self.options.shapes_each)
        _ = form.lattice.config_columns  # all that is learned and chosen reads them: they are a part of opening the search

    def learn(self, records: Records, anew: bool = False) -> None:
        records = self._deciding(records)
        if self.model.prior is not None:
            refit_device(self.form, records, self.model.prior)
        samples = training_samples(self.form, records)
        if samples is not None and (anew or len(samples) >= _GROWTH * self.model.samples):
            self.model.fit([samples])

    def _deciding(self, records: Records) -> Records:
        """Without those at the held-out shapes: they come after the choice, which a later compile is to make again."""
        aside = set(self.task.held_out)
        return [r for r in records if r.shape not in aside]

    def evidence(self, records: Records) -> Evidence:
        deciding = self._deciding(records)
        self._evidence = Evidence.of(self.space, self.points, self.model, deciding, self.options.thread_choices)
        return self._evidence

    def held_out(self, records: Records) -> Evidence:
        space = FeatureSpace(self.form, self.task.held_out)
        return Evidence.of(space, None, self.model, records, self.options.thread_choices)

    def open_cells(self, importance: Floats, count: int, least: float) -> list[tuple[int, int, int]]:
        return [] if self._evidence is None else replace(self._evidence, importance=importance).open_cells(count, least)

    def choice(self, records: Records, usual: Untuned, hopeful: bool) -> Selection | None:
        lattice, evidence = self.form.lattice, self._evidence or self.evidence(records)
        records = self._deciding(records)
        leading = {lattice.texts[c] for c in evidence.leading(_FINALISTS)}
        defaults = [c for c in map(lattice.number, map(config_text, self.task.defaults())) if c is not None]
        leading |= {lattice.texts[c] for c in defaults}
        judged = judged_by(records, usual, self.options.threads) if any(r.beside for r in records) else None
        if judged is not None:
            leading |= {other for ((other, _), _), shapes in judged.found.items() if any(f.faster for f in shapes.values())}
        full = FeatureSpace(self.form, self.task.points.shapes)
        kept = [r for r in records if r.config in leading]
        if not any(serves_all(full, c) for c in evidence.curves):
            return None
        found = Evidence.of(full, self.task.points, self.model, kept, self.options.thread_choices, defaults)
        return select_kernels(self.task, usual, full, found, self.options, hopeful, judged)

    def propose(self, records: Records, wanted: Wanted) -> list[Proposal]:
        best = self.proposer.believed(self.model, wanted.best, wanted.pending)
        found = self.proposer.propose(self.model, best, wanted.importance, wanted.taken, wanted.count)
        is_unsure = bool(found) and wanted.chance > 0 and sum(p.gain for p in found) > wanted.unsure
        if is_unsure and (wanted.chance >= 1 or self.proposer.rng.random() < wanted.chance):
            found[-1:] = self.proposer.random(wanted.taken | {p.config for p in found}, 1)
        return found

    def random(self, taken: Collection[int], count: int) -> list[Proposal]:
        return self.proposer.random(taken, count)

    def apart(self, shapes: Sequence[int]) -> list[int]:
        return self.proposer.apart(shapes)
