"""Tuner: the joint search of one operator over its whole range (DietCode, MLSys'22, and beyond it).

`tune` is the recipe. A step builds the kernels that promise most, measures each at a few shapes, settles who wins where, and
teaches the model. `best` gives a dispatch at any moment; every measurement is in the log as soon as it is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from tilewright.passes.spaces.family_registry import config_text
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.model import CostModel
from tilewright.search.database.records import cells
from tilewright.search.runner.measurer import MeasureContext
from tilewright.search.search_strategy import final_choice
from tilewright.search.search_strategy.final_choice import TURNS
from tilewright.search.search_strategy.ledger import Place, SearchLedger
from tilewright.search.search_strategy.outcome import Progress, Tuned
from tilewright.search.search_strategy.propose import Proposal
from tilewright.search.search_strategy.reckoner import LocalReckoner, MakeReckoner, Wanted
from tilewright.search.search_strategy.selection import serves_all
from tilewright.search.search_strategy.thread_bound import near_bound, next_compared
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.space.task import Task

_UNSURE = 10  # times a gain that is enough, above which one kernel of a batch is a random one
_STRIKING = 0.95  # share of the least time of others at a shape


def tune(task: Task, context: MeasureContext, budget: Budget, options: TuneOptions | None = None,
         prior: CostModel | None = None, progress: Callable[[Progress], None] = lambda state: None) -> Tuned:
    """Search until the budget is spent or nothing is left to gain, then certify.

    What the log knows counts as measured and costs nothing. An interrupt leaves the log whole: the next call resumes.
    """
    tuner = Tuner(task, context, budget, options, prior, progress)
    while not tuner.done:
        tuner.step()
    return tuner.certified()


class Tuner:
    """A search that can be stepped, by `tune` or by a scheduler over many operators: it decides what is measured next.

    ledger: what it knows and has spent. begun: was the first round, of the default kernel, taken? cut: was there no time for a
    part of the last round? unsettled: kernels that were proposed beside others since what is open was last looked at.
    """

    def __init__(self, task: Task, context: MeasureContext, budget: Budget, options: TuneOptions | None = None,
                 prior: CostModel | None = None, progress: Callable[[Progress], None] = lambda state: None,
                 make: MakeReckoner = LocalReckoner) -> None:  # fmt: skip
        self.options = options or TuneOptions()
        self.ledger = SearchLedger(task, context, budget, self.options, prior, progress, make)
        self.reckoner, self._has_prior = self.ledger.reckoner, prior is not None
        self.begun = self.cut = False
        self.unsettled = 0
        self._idle = 0
        self._each = 0.0  # seconds that a new kernel took in the last round

    @property
    def done(self) -> bool:
        """Is the part of the budget spent that is not kept for the choice and its certificate, or is nothing left to gain?"""
        return not self.ledger.searching or self._idle >= 2 or self.cut

    def step(self) -> None:
        """One round: new kernels, then the shapes where it is open which kernel wins."""
        ledger = self.ledger
        before = ledger.trials
        if not self.begun:
            self._begin()
            self.begun = ledger.time.affords() or bool(ledger.kernels())
            return
        self._compare_threads()
        self.cut = not ledger.time.affords("evidence", "proposing")
        if self.cut:
            return
        proposals = self._propose()
        ledger.gain = sum(p.gain for p in proposals)
        if ledger.gain >= self.options.enough:
            self._measure("searching", proposals)
            ledger.learn()
        self._settle()
        worth = ledger.trials > before and ledger.gain >= self.options.enough
        self.cut = not ledger.time.affords()
        self._idle = 0 if worth or self.cut else self._idle + 1
        ledger.report("searching")

    def best(self) -> Tuned:
        """The dispatch that the measurements so far support; with none, the defaults of the family."""
        return final_choice.best_known(self.ledger)

    def certified(self) -> Tuned:
        """`best` after its kernels were measured where it chooses them, with its regret at held-out shapes."""
        return final_choice.certified(self.ledger)

    def finish(self, seconds: float | None, trials: int | None = None) -> Tuned:
        """`certified`, of a search that others stop: it has so many seconds from now on, or trials (keep_for_the_end)."""
        self.ledger.keep_for_the_end(seconds, trials)
        return self.certified()

    def _begin(self) -> None:
        """What runs untuned, which is built: there is a choice before anything else is. Then random kernels."""
        ledger = self.ledger
        few = self.options.first // 2 if self._has_prior else self.options.first
        known = ledger.kernels()
        self._measure("first kernels", self.untuned())
        self._compare_threads()
        if ledger.time.affords():
            self._measure("first kernels", self.reckoner.random(ledger.taken(), max(0, few - len(known))))
        ledger.learn()

    def _compare_threads(self) -> None:
        """Measure the default kernel on one thread and on all at some shapes, by which the ledger tells where several pay. They
        have a turn in each of the first steps: how fast lines change cores differs from one second to another."""
        ledger, threads = self.ledger, self.options.threads
        task, shapes = ledger.task, ledger.points.shapes
        number = {shape: i for i, shape in enumerate(shapes)}
        known = near_bound(task, threads, ledger.records)
        for at, _, config in ledger.untuned_at(number[s] for s in known if s in number):
            for count in (1, threads):
                place = ledger.lattice.configs[config], shapes[at], count
                if ledger.searching and ledger.measurer.turns(*place) < TURNS:
                    ledger.take("comparing threads", *place, again=True)
        while (shape := next_compared(task, shapes, threads, ledger.records)) is not None:
            before = ledger.trials
            self._take("comparing threads", [(s, t, c) for s, _, c in ledger.untuned_at([shape]) for t in (1, threads)])
            if ledger.trials == before:
                return

    def untuned(self) -> list[Proposal]:
        """What runs untuned: each default at the ends of where it would run, and between."""
        places: dict[int, list[tuple[int, int]]] = {}
        for shape, threads, number in self.ledger.untuned_at(range(len(self.ledger.points))):
            places.setdefault(number, []).append((shape, threads))
        found = []
        for number, at in places.items():
            chosen = np.unique(np.round(np.linspace(0, len(at) - 1, self.options.shapes_each)).astype(int))
            kept = set(self.reckoner.apart([at[i][0] for i in chosen]))
            found.append(Proposal(number, tuple(at[i] for i in chosen if at[i][0] in kept), 0.0))
        return [*found, *self._fallback(found)]

    def _fallback(self, chosen: Sequence[Proposal]) -> list[Proposal]:
        """A default that serves every shape, where none of these does: without one nothing can be chosen."""
        ledger = self.ledger
        space = FeatureSpace(ledger.form, ledger.task.points.shapes)
        if not chosen or any(serves_all(space, p.config) for p in chosen):
            return []
        numbers = (ledger.lattice.number(config_text(c)) for c in ledger.task.defaults())
        whole = next((n for n in numbers if n is not None and serves_all(space, n)), None)
        return [] if whole is None else [Proposal(whole, chosen[-1].at[-1:], 0.0)]

    def _propose(self) -> list[Proposal]:
        """A batch of new kernels, or as many as there is time to build and measure, or trials for."""
        evidence, taken, most = self.ledger.evidence, self.ledger.taken(), self.options.batch
        if math.isfinite(left := self.ledger.most_trials - self.ledger.trials):
            most = min(most, max(1, int(left / self.options.shapes_each)))
        if self._each and math.isfinite(self.ledger.time.seconds):
            most = min(most, max(1, int(self.ledger.time.seconds / self._each)))
        if not evidence.curves:
            return self.reckoner.random(taken, most)
        chance = most / self.options.batch if self.ledger.gain > _UNSURE * self.options.enough else 0.0
        wanted = Wanted(evidence.best, evidence.importance, frozenset(taken), most, chance=chance)
        with self.ledger.time.part("proposing"):
            return self.reckoner.propose(self.ledger.records, wanted)

    def propose_beside(self, pending: Collection[int], most: int) -> list[Proposal]:
        """New kernels, so many at most, while those of these numbers are under way: what they are to do counts as known."""
        ledger = self.ledger
        evidence, taken = ledger.evidence, ledger.taken() | set(pending)
        if not evidence.curves:
            return self.reckoner.random(taken, most)
        wanted = Wanted(evidence.best, evidence.importance, frozenset(taken), most, tuple(sorted(pending)),
                        most / self.options.batch, _UNSURE * self.options.enough)
        with ledger.time.part("proposing"):
            return self.reckoner.propose(ledger.records, wanted)

    def unsure(self) -> list[Place]:
        """Where it is open which of the measured kernels wins."""
        enough = self.options.enough / len(self.ledger.points)
        if not self.ledger.evidence.curves:
            return []
        cells = self.reckoner.open_cells(self.ledger.evidence.importance, self.options.cells, enough)
        return [(shape, threads, config) for config, shape, threads in cells]

    def striking(self, places: Sequence[Place]) -> list[Place]:
        """Those whose kernel seems fastest and much faster than the default kernel and all that was measured twice."""
        if not self.ledger.form.drifts:
            return []
        usual = set(self.ledger.untuned_at({shape for shape, _, _ in places}))
        return [place for place in places if self._is_striking(place, usual)]

    def _measure(self, phase: str, proposals: Sequence[Proposal]) -> None:
        """Build all, then measure shape by shape, so that operands are made once and building disturbs nothing."""
        begin = self.ledger.clock()
        self.ledger.measurer.build([self.ledger.lattice.configs[p.config] for p in proposals])
        self._take(phase, sorted((shape, threads, p.config) for p in proposals for shape, threads in p.at))
        if proposals:
            self._each = (self.ledger.clock() - begin) / len(proposals)

    def _take(self, phase: str, places: Sequence[Place]) -> None:
        """Measure. On a device whose speed drifts, what seems fastest at a shape and much faster than the default kernel and all
        that was measured twice is measured once more; and the default kernel comes first at each shape, where trials are not
        counted, so that the others are timed beside it (HostRunner)."""
        ledger, drifts = self.ledger, self.ledger.form.drifts
        shapes = ledger.points.shapes
        if drifts and ledger.budget.trials is None:
            known = {r.shape for r in ledger.records if r.seconds}
            fresh = {shape for shape, _, _ in places if shapes[shape] not in known}
            places = sorted([*ledger.untuned_at(fresh), *places], key=lambda place: place[0])
        usual = set(ledger.untuned_at({shape for shape, _, _ in places})) if drifts else set()
        for again in (False, True) if drifts else (False,):
            for shape, threads, config in places:
                if not ledger.searching:
                    return
                if not again or self._is_striking((shape, threads, config), usual):
                    ledger.take(phase, ledger.lattice.configs[config], shapes[shape], threads, again)

    def _is_striking(self, place: Place, usual: Collection[Place]) -> bool:
        """usual: the default kernel."""
        shape, threads, config = place
        texts, dims = self.ledger.lattice.texts, self.ledger.points.shapes[shape]
        here = {(c.threads, c.config): c for c in cells(r for r in self.ledger.records if r.shape == dims)}
        own = here.pop((threads, texts[config]), None)
        if own is None or own.turns > 1 or not here:
            return False
        fastest = min(c.seconds for c in here.values())
        plain = {(t, texts[c]) for s, t, c in usual if s == shape}
        sure = min((c.seconds for variant, c in here.items() if c.turns > 1 or variant in plain), default=fastest)
        return own.seconds < min(_STRIKING * sure, fastest)

    def _settle(self) -> None:
        """Measure where it is open which of the measured kernels wins, when there is time to find out."""
        if not self.ledger.time.affords("evidence"):
            return
        self._take("settling", self.unsure())
        self.ledger.outdate()
