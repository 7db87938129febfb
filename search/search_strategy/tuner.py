"""Tuner: the joint search of one operator over its whole range (DietCode, MLSys'22, and beyond it).

`tune` is the recipe. A step builds the kernels that promise most, measures each at a few shapes, settles who wins where, and
teaches the model. `best` gives a dispatch at any moment; every measurement is in the log as soon as it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from passes.spaces.registry import config_text
from passes.tile_config import TileConfig
from runtime.certificate import Certificate, Expected
from runtime.dispatch import Leaf, Node, select
from search.cost_model.feature_space import FeatureSpace
from search.cost_model.model import CostModel
from search.cost_model.occupancy_fit import refit_device
from search.database.records import TuningLog, cells
from search.protocols import Builder, Runner
from search.runner.measurer import Environment, Measurer
from search.search_strategy.certify import Entry, certify, measure_entry
from search.search_strategy.evidence import Evidence
from search.search_strategy.propose import Proposal, Proposer
from search.search_strategy.selection import Selection, select_kernels, serves_all, verified
from search.search_strategy.thread_bound import near_bound, next_compared, thread_bound
from search.space.lattice import Floats
from search.space.shapes import Dims
from search.space.task import Budget, Task, TuneOptions, Untuned

_FINALISTS = 48
_TURNS = 3  # measurements of a chosen kernel and of the untuned one in its place
_STRIKING = 0.95  # share of the least time of others at a shape
_GROWTH = 1.15  # of the samples, before the model is trained again


@dataclass(frozen=True)
class Progress:
    """State of a search. latency: weighted seconds over the range with the best kernel known of each shape. share: of the
    budget. eta: seconds left, None when the budget has no time limit. gain: what the next kernels promise."""

    workload: str
    phase: str
    trials: int
    kernels: int
    failed: int
    latency: float
    gain: float
    share: float
    eta: float | None


@dataclass(frozen=True)
class Tuned:
    """What a dispatch table is made of: configurations, the tree over their numbers, the certificate.

    predicted: seconds expected at each of `shapes`.
    """

    configs: tuple[TileConfig, ...]
    root: Node
    certificate: Certificate
    shapes: tuple[Dims, ...] = ()
    predicted: tuple[float, ...] = ()


def tune(task: Task, builder: Builder, runner: Runner, budget: Budget, environment: Environment,
         options: TuneOptions | None = None, log: TuningLog | None = None, prior: CostModel | None = None,
         progress: Callable[[Progress], None] = lambda state: None) -> Tuned:
    """Search until the budget is spent or nothing is left to gain, then certify.

    What the log knows counts as measured and costs nothing. An interrupt leaves the log whole: the next call resumes.
    """
    tuner = Tuner(task, builder, runner, budget, environment, options, log, prior, progress)
    while not tuner.done:
        tuner.step()
    return tuner.certified()


class Tuner:
    """A search that can be stepped, by `tune` or by a scheduler over many operators.

    focus: factors of the importance of each point, while only a part of the range is looked at.
    """

    def __init__(self, task: Task, builder: Builder, runner: Runner, budget: Budget, environment: Environment,
                 options: TuneOptions | None = None, log: TuningLog | None = None, prior: CostModel | None = None,
                 progress: Callable[[Progress], None] = lambda state: None) -> None:
        options = options or TuneOptions()
        self.task, self.budget, self.options, self.progress = task, budget, options, progress
        self.clock = environment.clock
        self.log = TuningLog() if log is None else log
        self.lattice = task.lattice()
        self.measurer = Measurer(task.workload, builder, runner, self.log, environment, self.lattice.note)
        self.model = CostModel(prior=prior)
        self.points = task.points.without(task.held_out).thin(options.points)
        self.space = FeatureSpace(self.lattice, self.points.shapes)
        self.rng = np.random.default_rng(options.seed)
        self.proposer = Proposer(self.space, options.thread_choices, self.rng, options.shapes_each)
        self._started = self.clock()
        self._gain = 1.0
        self._idle = 0
        self._begun = False
        self._evidence: Evidence | None = None
        self.focus: Floats | None = None

    @property
    def begun(self) -> bool:
        """Has the first round, of what runs untuned, been taken?"""
        return self._begun

    @property
    def gain(self) -> float:
        """What the last proposals promised, as a share of the weighted time."""
        return self._gain

    @property
    def spent(self) -> float:
        """Share of the budget."""
        return self.budget.share(self.clock() - self._started, self.measurer.trials)

    @property
    def done(self) -> bool:
        """Is the part of the budget spent that is not kept for the choice and its certificate, or is nothing left to gain?"""
        return self.spent >= self._search_until or self._idle >= 2

    @property
    def _search_until(self) -> float:
        return self._certify_from - self.options.verify

    @property
    def _certify_from(self) -> float:
        return 1 - self.options.certify * bool(self.task.held_out)

    @property
    def evidence(self) -> Evidence:
        """What the measurements say, brought up to date."""
        if self._evidence is None:
            self._evidence = Evidence.of(self.space, self.points, self.model, self.measurer.records, self.options.thread_choices)
        if self.focus is not None:
            focused = self._evidence.importance * self.focus
            return replace(self._evidence, importance=focused / focused.sum())
        return self._evidence

    def step(self) -> None:
        """One round: new kernels, then the shapes where it is open which kernel wins."""
        before = self.measurer.trials
        if not self._begun:
            self._begun = True
            few = self.options.first if self.model.prior is None else self.options.first // 2
            known = {r.config for r in self.measurer.records if r.seconds}
            self._measure("first kernels", self._untuned())  # they are built: there is a choice before anything else is
            self._compare_threads()
            self._measure("first kernels", self.proposer.random(self._taken(), max(0, few - len(known))))
            self.learn()
            return
        self._compare_threads()
        proposals = self._propose()
        self._gain = sum(p.gain for p in proposals)
        if self._gain >= self.options.enough:
            self._measure("searching", proposals)
            self.learn()
        self._settle()
        worth = self.measurer.trials > before and self._gain >= self.options.enough
        self._idle = 0 if worth else self._idle + 1
        self._report("searching")

    def best(self) -> Tuned:
        """The dispatch that the measurements so far support; with none, the defaults of the family."""
        chosen = self._select()
        if chosen is None:
            configs, root = self._usual()
            return Tuned(tuple(configs), root, self._named(certify((), np.zeros(1), np.ones(1), 0), len(configs)))
        certificate = certify((), chosen.regrets, np.array(self.task.points.weights), 0)
        configs = tuple(self.lattice.configs[c] for c in chosen.configs)
        predicted = tuple(float(s) for s in chosen.seconds)
        named = self._named(certificate, len(configs), self._expected(chosen))
        return Tuned(configs, chosen.root, named, self.task.points.shapes, predicted)

    def certified(self) -> Tuned:
        """`best` after its kernels were measured where it chooses them, and its regret at held-out shapes, as many of them as
        the rest of the budget allows."""
        self._verify()
        found = self.best()
        chosen = self._select()
        if chosen is None or not self.task.held_out:
            return found
        entries = self._hold_out(chosen)
        certificate = certify(entries, chosen.regrets, np.array(self.task.points.weights), self.options.rivals)
        return replace(found, certificate=self._named(certificate, len(found.configs), found.certificate.expected))

    def finish(self, seconds: float | None) -> Tuned:
        """`certified`, of a search that others stop: it has so many seconds from now on, or, None, its share of the trials."""
        if seconds is None:
            self.budget = Budget(trials=round(self.measurer.trials / self._search_until))
            return self.certified()
        whole = seconds / max(1 - self._search_until, 1e-9)
        self.budget = Budget(seconds=whole)
        self._started = self.clock() - whole * self._search_until
        return self.certified()

    def _usual(self) -> Untuned:
        """What runs untuned, on several threads from where they were seen to pay."""
        return self.task.untuned(thread_bound(self.task, self.options.threads, self.measurer.records))

    def _compare_threads(self) -> None:
        """Measure what runs untuned on one thread and on all at some shapes, by which `_usual` tells where several pay. They have
        a turn in each of the first steps: how fast lines change cores differs from one second to another."""
        threads = self.options.threads
        number = {shape: i for i, shape in enumerate(self.points.shapes)}
        known = near_bound(self.task, threads, self.measurer.records)
        for at, _, config in self._untuned_at(number[s] for s in known if s in number):
            for count in (1, threads):
                place = self.lattice.configs[config], self.points.shapes[at], count
                if self.spent < self._search_until and self.measurer.turns(*place) < _TURNS:
                    self.measurer.measure(*place, again=True)
                    self._report("comparing threads")
        while (shape := next_compared(self.task, self.points.shapes, threads, self.measurer.records)) is not None:
            before = self.measurer.trials
            self._take("comparing threads", [(s, t, c) for s, _, c in self._untuned_at([shape]) for t in (1, threads)])
            if self.measurer.trials == before:
                return

    def _untuned(self) -> list[Proposal]:
        """Each default at the ends of where it would run, and between."""
        places: dict[int, list[tuple[int, int]]] = {}
        for shape, threads, number in self._untuned_at(range(len(self.points))):
            places.setdefault(number, []).append((shape, threads))
        found = []
        for number, at in places.items():
            chosen = np.unique(np.round(np.linspace(0, len(at) - 1, self.options.shapes_each)).astype(int))
            found.append(Proposal(number, tuple(at[i] for i in chosen), 0.0))
        return found

    def _propose(self) -> list[Proposal]:
        evidence = self.evidence
        if not evidence.curves:
            return self.proposer.random(self._taken(), self.options.batch)
        found = self.proposer.propose(self.model, evidence.best, evidence.importance, self._taken(), self.options.batch)
        if found and self._gain > 10 * self.options.enough:
            found[-1:] = self.proposer.random(self._taken() | {p.config for p in found}, 1)
        return found

    def _taken(self) -> set[int]:
        """Configurations that were measured or cannot be built."""
        texts = {r.config for r in self.measurer.records} | set(self.measurer.refused)
        return {n for n in map(self.lattice.number, texts) if n is not None}

    def _measure(self, phase: str, proposals: Sequence[Proposal]) -> None:
        """Build all, then measure shape by shape, so that operands are made once and building disturbs nothing."""
        self.measurer.build([self.lattice.configs[p.config] for p in proposals])
        self._take(phase, sorted((shape, threads, p.config) for p in proposals for shape, threads in p.at))

    def _take(self, phase: str, places: Sequence[tuple[int, int, int]]) -> None:
        """Measure at (shape, threads, configuration). On a host, whose speed changes, what seems fastest there and much faster
        than what runs untuned and all that was measured twice is measured once more; and what runs untuned comes first at each
        shape, where trials are not counted, so that the others are timed beside it (search/runner/host_runner.py)."""
        host = self.lattice.form is None
        if host and self.budget.trials is None:
            known = {r.shape for r in self.measurer.records if r.seconds}
            fresh = {shape for shape, _, _ in places if self.points.shapes[shape] not in known}
            places = sorted([*self._untuned_at(fresh), *places], key=lambda place: place[0])
        usual = set(self._untuned_at({shape for shape, _, _ in places})) if host else set()
        for again in (False, True) if host else (False,):
            for shape, threads, config in places:
                if self.spent >= self._search_until:
                    return
                if not again or self._is_striking(shape, threads, config, usual):
                    self.measurer.measure(self.lattice.configs[config], self.points.shapes[shape], threads, again)
                    self._report(phase)

    def _untuned_at(self, shapes: Iterable[int]) -> list[tuple[int, int, int]]:
        """(shape, threads, configuration) of what runs untuned, where the space has it."""
        configs, root = self._usual()
        found = []
        for shape in shapes:
            leaf = select(root, dict(self.points.shapes[shape]))
            number = self.lattice.number(config_text(configs[leaf.kernel]))
            if number is not None:
                found.append((shape, leaf.threads or self.options.threads, number))
        return found

    def _is_striking(self, shape: int, threads: int, config: int, usual: Collection[tuple[int, int, int]]) -> bool:
        """usual: (shape, threads, configuration) of what runs untuned."""
        dims, text = self.points.shapes[shape], self.lattice.texts[config]
        here = {(c.threads, c.config): c for c in cells(r for r in self.measurer.records if r.shape == dims)}
        own = here.pop((threads, text), None)
        if own is None or own.turns > 1 or not here:
            return False
        fastest = min(c.seconds for c in here.values())
        plain = {(t, self.lattice.texts[c]) for s, t, c in usual if s == shape}
        sure = min((c.seconds for variant, c in here.items() if c.turns > 1 or variant in plain), default=fastest)
        return own.seconds < min(_STRIKING * sure, fastest)

    def _settle(self) -> None:
        """Measure where it is open which of the measured kernels wins."""
        unsure = self.evidence.open_cells(self.options.cells, self.options.enough / len(self.points))
        self._take("settling", [(shape, threads, config) for config, shape, threads in unsure])
        self._evidence = None

    def _verify(self) -> None:
        """Measure each chosen kernel in turns with what would run untuned, at the shapes it is chosen for, until the choice
        stands: all once, then again; those first where most is to gain."""
        shapes = verified(self.task)
        order = [shapes[i] for i in np.random.default_rng(self.options.seed).permutation(len(shapes))]
        while self.spent < self._certify_from:
            chosen = self._select(hopeful=True)
            if chosen is None:
                return
            before = self.measurer.trials
            usual = self._usual()
            rivals = {shape: self._rivals(chosen, usual, shape) for shape in order}
            taken = [self.measurer.turns(c, s, t) for s, both in rivals.items() for c, t in both if len(both) > 1]
            wanted = min(_TURNS, 1 + min(taken, default=0))
            gain = dict(zip(self.task.points.shapes, chosen.untuned / chosen.seconds, strict=True))
            for shape in sorted(order, key=lambda s: -gain[s]):
                for config, threads in rivals[shape]:
                    turns = wanted if len(rivals[shape]) > 1 else 1
                    if self.spent < self._certify_from and self.measurer.turns(config, shape, threads) < turns:
                        self.measurer.measure(config, shape, threads, again=True)
                        self._report("verifying")
            self._evidence = None
            if self.measurer.trials == before:
                return

    def _rivals(self, chosen: Selection, usual: Untuned, shape: Dims) -> list[tuple[TileConfig, int]]:
        """What is dispatched at a shape and what would run untuned, with their threads; one where they are the same."""
        configs, root = usual
        leaf, plain = chosen.leaf(dict(shape)), select(root, dict(shape))
        both = ((self.lattice.configs[chosen.configs[leaf.kernel]], leaf.threads), (configs[plain.kernel], plain.threads))
        return list(dict.fromkeys((config, threads or self.options.threads) for config, threads in both))

    def learn(self) -> None:
        """Train the model on what is known, when that has grown."""
        self._evidence = None
        if self.model.prior is not None:
            refit_device(self.lattice, self.measurer.records, self.model.prior)
        samples = Evidence.samples(self.lattice, self.measurer.records)
        if samples is not None and len(samples) >= _GROWTH * self.model.samples:
            self.model.fit([samples])

    def _select(self, hopeful: bool = False) -> Selection | None:
        if not self.evidence.curves:
            return None
        leading = {self.lattice.texts[c] for c in self.evidence.leading(_FINALISTS)}
        defaults = [c for c in map(self.lattice.number, map(config_text, self.task.defaults())) if c is not None]
        leading |= {self.lattice.texts[c] for c in defaults}
        full = FeatureSpace(self.lattice, self.task.points.shapes)
        records = [r for r in self.measurer.records if r.config in leading]
        if not any(serves_all(full, c) for c in self.evidence.curves):
            return None  # so far no kernel is known that others may fall back to
        evidence = Evidence.of(full, self.task.points, self.model, records, self.options.thread_choices, defaults)
        return select_kernels(self.task, self._usual(), full, evidence, self.options, hopeful)

    def _hold_out(self, chosen: Selection) -> list[Entry]:
        space = FeatureSpace(self.lattice, self.task.held_out)
        evidence = Evidence.of(space, None, self.model, self.measurer.records, self.options.thread_choices)
        found = []
        for number, shape in enumerate(self.task.held_out):
            if self.spent >= 1 and self.budget.seconds is not None:
                break
            leaf = chosen.leaf(dict(shape))
            rivals = [Leaf(c, t) for c, t in evidence.fastest(number, self.options.rivals)]
            dispatched = Leaf(chosen.configs[leaf.kernel], leaf.threads or self.options.threads)
            entry = measure_entry(shape, dispatched, rivals, self._time)
            if entry is not None:
                found.append(entry)
            self._report("certifying")
        return found

    def _time(self, leaf: Leaf, shape: Dims) -> float:
        """Seconds of a lattice number (as `kernel`) at a shape, measured now."""
        record = self.measurer.measure(self.lattice.configs[leaf.kernel], shape, leaf.threads, again=True)
        return float("inf") if record is None else record.time

    def _named(self, certificate: Certificate, kernels: int, expected: tuple[Expected, ...] = ()) -> Certificate:
        environment = self.measurer.environment
        return msgspec.structs.replace(certificate, workload=self.task.workload.key, device=environment.device, kernels=kernels,
                                       trials=self.measurer.trials, configurations=len(self.lattice), when=environment.clock(),
                                       expected=expected)

    def _expected(self, chosen: Selection) -> tuple[Expected, ...]:
        """What `explain` tells of the choice at each point of the task."""
        measured = {(c.config, c.shape, c.threads): c.seconds for c in cells(self.measurer.records)}
        found = []
        for s, shape in enumerate(self.task.points.shapes):
            leaf = chosen.leaf(dict(shape))
            here = (self.lattice.texts[chosen.configs[leaf.kernel]], shape, leaf.threads or self.options.threads)
            seconds = float(chosen.seconds[s])
            found.append(Expected(tuple(v for _, v in shape), seconds, measured.get(here, 0.0),
                                  seconds / (1 + float(chosen.regrets[s])), float(chosen.untuned[s])))
        return tuple(found)

    def _report(self, phase: str) -> None:
        evidence = self._evidence
        share = min(1.0, self.spent)
        elapsed = self.clock() - self._started
        eta = None if self.budget.seconds is None else max(0.0, self.budget.seconds - elapsed)
        latency = evidence.latency if evidence is not None and evidence.curves else float("nan")
        kernels = len({r.config for r in self.measurer.records if r.seconds})
        self.progress(Progress(self.task.workload.name, phase, self.measurer.trials, kernels, self.measurer.failed, latency,
                               self._gain, share, eta))

