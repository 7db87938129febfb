"""The report of a search: the ratios of the oracle, and how soon the search had its result, by replay of its log.

A replay takes the first measurements of the log, chooses as the search would with no more than them, and charges what it
chose the times that the oracle measured there, else the log, else what the cost model makes of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs

from tilewright.compiler.tuning.operator_tuning import best_known
from tilewright.passes.spaces.family_registry import config_text
from tilewright.runtime.program.dispatch import DispatchTable, select
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.forms import form_of
from tilewright.search.cost_model.measured import training_samples
from tilewright.search.cost_model.model import CostModel
from tilewright.search.database.records import TuningLog, TuningRecord, cells
from tilewright.search.runner.measurer import Environment, MeasureContext
from tilewright.search.runner.replay import ReplayBuilder, ReplayRunner
from tilewright.search.search_strategy.evidence import Evidence
from tilewright.search.search_strategy.outcome import Tuned
from tilewright.search.search_strategy.tune_options import TuneOptions
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Dims
from tools.bench.search.oracle import FEWEST, Oracle, Problem, Timed, Variant
from tools.bench.search.tuning import Tuning

FEW = 8  # shapes of the small set
CLOSE, WORST = 1.03, 0.10
_GROWTH = 1.2  # of the measurements, from one replay to the next


class Reached(msgspec.Struct, frozen=True):
    """Measurements and seconds since the compile began; None where the log ends before."""

    measurements: int
    seconds: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Of one operator. oracle: the oracle's time over the dispatched kernel's; default: the untuned one's over it, at the shapes
    of the oracle; everywhere: at each point of the range.

    close, worst_few, worst_all: when the choice was within 3 % of the final one, and when its worst regret was within 10 % of the
    best kernel of the oracle, on few shapes and on all; final_few and final_all: that of the whole log. At the few, all
    kernels of the oracle were measured, at the others those most likely to be best.
    """

    operator: str
    threads: int
    budget: float
    took: float
    space: int
    oracle_kernels: int
    kernels: int
    oracle_geomean: float
    oracle_worst: float
    default_geomean: float
    default_worst: float
    everywhere_geomean: float
    everywhere_worst: float
    measurements: int
    configurations: int
    close: Reached | None
    worst_few: Reached | None
    worst_all: Reached | None
    final_few: float
    final_all: float
    certificate_worst: float
    shapes: tuple[Timed, ...]

    def __str__(self) -> str:
        def at(found: Reached | None) -> str:
            return "not reached" if found is None else f"{found.seconds:.1f} s ({found.measurements} measurements)"

        return (
            f"{self.operator} t{self.threads}: {self.kernels} kernels of {self.space}, {self.measurements} measurements of "
            f"{self.configurations} kernels in {self.took:.1f} s\n"
            f"  oracle ({self.oracle_kernels} kernels, {len(self.shapes)} shapes) / dispatched: geomean "
            f"{self.oracle_geomean:.3f}, worst {self.oracle_worst:.3f}\n"
            f"  default / dispatched: geomean {self.default_geomean:.3f}, worst {self.default_worst:.3f}; over the range "
            f"{self.everywhere_geomean:.3f}, worst {self.everywhere_worst:.3f}\n"
            f"  within {CLOSE - 1:.0%} of final: {at(self.close)}; worst regret {WORST:.0%} on {FEW} shapes: "
            f"{at(self.worst_few)}, on all: {at(self.worst_all)}\n"
            f"  worst regret of the whole log: {self.final_few:.1%} on {FEW} shapes, {self.final_all:.1%} on all; "
            f"certified at held-out shapes: {self.certificate_worst:.1%}"
        )


def report(folder: Path) -> Report:
    """From what the steps left in a folder."""
    tuning = Tuning.of(folder)
    problem = Problem.of(folder, tuning.threads)
    oracle = msgspec.json.decode((folder / "oracle.json").read_bytes(), type=Oracle)
    records = [r for r in problem.log.of(problem.workload.key) if r.dims]
    replay = Replay(problem, tuning, records, TuningLog(folder / "oracle.jsonl").records)
    curve = replay.curve(choices(problem, tuning, records))
    few = replay.places([s.shape for s in oracle.shapes])[:: max(1, len(oracle.shapes) // FEW)]
    ratios = np.array([(s.best / s.dispatched, s.default / s.dispatched) for s in oracle.shapes])
    means = np.exp(np.log(ratios).mean(axis=0))
    everywhere = np.log(replay.table(problem.default) / replay.table(problem.tuned))
    final = curve[-1][1]
    certificate = next(c for c in problem.program.certificates if c.workload == problem.workload.key)
    return Report(
        operator=tuning.operator, threads=tuning.threads, budget=tuning.budget, took=tuning.took, space=oracle.space,
        oracle_kernels=oracle.kernels, kernels=len(problem.tuned.kernels), oracle_geomean=float(means[0]),
        oracle_worst=float(ratios[:, 0].min()), default_geomean=float(means[1]), default_worst=float(ratios[:, 1].min()),
        everywhere_geomean=float(np.exp(everywhere.mean())), everywhere_worst=float(np.exp(everywhere.min())),
        measurements=len(records), configurations=len({r.config for r in records}),
        close=lasting(curve, lambda s: float(np.exp(np.mean(np.log(s / final)))) <= CLOSE),
        worst_few=lasting(curve, lambda s: float((s / replay.best)[few].max()) <= 1 + WORST),
        worst_all=lasting(curve, lambda s: float((s / replay.best).max()) <= 1 + WORST),
        final_few=float((final / replay.best)[few].max() - 1), final_all=float((final / replay.best).max() - 1),
        certificate_worst=certificate.measured_worst, shapes=oracle.shapes,
    )  # fmt: skip


Choices = Sequence[tuple[Reached, Tuned]]
Curve = Sequence[tuple[Reached, Floats]]


def choices(problem: Problem, tuning: Tuning, records: Sequence[TuningRecord]) -> Choices:
    """What growing parts of the log support, and when it held so much."""
    counts = {round(_GROWTH**i) for i in range(1, math.ceil(math.log(len(records)) / math.log(_GROWTH)))} | {len(records)}
    options, found = TuneOptions(threads=tuning.threads), []
    for count in sorted(counts):
        log = TuningLog()
        log.records.extend(records[:count])
        here = Environment(records[0].device, lambda: 0.0)
        chosen = best_known(problem.task, MeasureContext(ReplayBuilder(), ReplayRunner(()), here, log), options)
        found.append((Reached(count, records[count - 1].when - tuning.started), chosen))
    return found


def lasting(curve: Curve, good: Callable[[Floats], bool]) -> Reached | None:
    """From where on everything is good; None where the end is not."""
    found = None
    for at, seconds in reversed(curve):
        if not good(seconds):
            break
        found = at
    return found


def levelled(records: Sequence[TuningRecord], untuned: Mapping[Dims, tuple[Variant, float]]) -> list[TuningRecord]:
    """Records of a log at the speed of the machine at which the untuned variant of a shape takes so many seconds, which it was
    measured at too: the times of a shape compare, those of two runs do not."""
    known = {(c.config, c.shape, c.threads): c.seconds for c in cells(records)}
    speed = {shape: seconds / known[config, shape, threads]
             for shape, ((config, threads), seconds) in untuned.items() if (config, shape, threads) in known}
    return [structs.replace(r, seconds=tuple(s * speed.get(r.shape, 1.0) for s in r.seconds)) for r in records]


class Replay:
    """best: seconds of the best kernel of the oracle at each point of the task, of those that it timed in turns."""

    def __init__(self, problem: Problem, tuning: Tuning, records: Sequence[TuningRecord], more: Sequence[TuningRecord]) -> None:
        self.problem, self.tuning, self.records = problem, tuning, records
        self.options = TuneOptions(threads=tuning.threads)
        self.lattice = problem.task.lattice()
        points = problem.task.points
        self.swept = {(c.config, c.shape, c.threads): c.seconds for c in cells(more)}
        untuned = zip(points.shapes, self._variants_of(problem.default), strict=True)
        records = levelled(records, {s: ((c, t), self.swept[c, s, t]) for s, (c, t) in untuned})
        model, everything = CostModel(), [*records, *more]
        form = form_of(self.lattice)
        samples = training_samples(form, everything)
        assert samples is not None
        model.fit([samples])
        space = FeatureSpace(form, points.shapes)
        self.evidence = Evidence.of(space, points, model, everything, self.options.thread_choices)
        self.measured = {(c.config, c.shape, c.threads): c.seconds for part in (records, more) for c in cells(part)}
        self.best = np.full(len(points), np.inf)
        place = {s: i for i, s in enumerate(points.shapes)}
        for c in cells(r for r in more if len(r.seconds) >= FEWEST):
            self.best[place[c.shape]] = min(self.best[place[c.shape]], c.seconds)

    def curve(self, choices: Choices) -> Curve:
        """The seconds of each choice at each point."""
        return [(at, self.seconds(tuned)) for at, tuned in choices]

    def variants(self, tuned: Tuned) -> list[Variant]:
        """Configuration and threads that a choice dispatches at each point."""
        texts = [config_text(c) for c in tuned.configs]
        leaves = [select(tuned.root, dict(shape)) for shape in self.problem.task.points.shapes]
        return [(texts[leaf.kernel], leaf.threads or self.tuning.threads) for leaf in leaves]

    def seconds(self, tuned: Tuned) -> Floats:
        """Of a dispatch at each point; infinite where nothing is known of the kernel."""
        shapes = self.problem.task.points.shapes
        return np.array([self._time(p, shapes[p], *variant) for p, variant in enumerate(self.variants(tuned))])

    def _time(self, place: int, shape: Dims, config: str, threads: int) -> float:
        number = self.lattice.number(config)
        curve = None if number is None else self.evidence.curves.get(number)
        expected = np.inf if curve is None else float(np.exp(curve.mean[place, self.options.thread_choices.index(threads)]))
        return self.measured.get((config, shape, threads), expected)

    def fastest(self, shape: Dims, count: int) -> list[Variant]:
        """Of the kernels of the oracle at a shape."""
        here = sorted((seconds, config, threads) for (config, at, threads), seconds in self.swept.items() if at == shape)
        return [(config, threads) for _, config, threads in here[:count]]

    def table(self, table: DispatchTable) -> Floats:
        """Seconds of a dispatch table at each point, as the oracle measured them."""
        shapes = self.problem.task.points.shapes
        return np.array([self.swept[c, s, t] for s, (c, t) in zip(shapes, self._variants_of(table), strict=True)])

    def _variants_of(self, table: DispatchTable) -> list[Variant]:
        leaves = [table.select(dict(shape)) for shape in self.problem.task.points.shapes]
        return [(table.kernels[leaf.kernel].config, leaf.threads or self.tuning.threads) for leaf in leaves]

    def places(self, shapes: Sequence[dict[str, int]]) -> list[int]:
        """Where shapes of the model are among the points."""
        number = {s: i for i, s in enumerate(self.problem.task.points.shapes)}
        return [number[tuple(self.problem.local(s).items())] for s in shapes]
