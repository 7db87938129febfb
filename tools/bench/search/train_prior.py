"""Trains the cost models that ship with the package, and says what they are worth on operators they never saw.

    python -m tools.bench prior work/* --out search/prior
    python -m tools.bench prior work/* --evaluate [--json found.jsonl]

The folders are those of `python -m tools.bench search`. `--evaluate` takes each operator with an oracle, trains on the others of
its family, and compares at the oracle's shapes, by the times measured there: what the model alone would pick
with what the rules of the family pick, and how many measurements a search takes with and without the model to come within 3 %
of the oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from tilewright.passes.spaces.family_registry import config_text, parse_config
from tilewright.runtime.program.dispatch import select
from tilewright.search.cost_model.forms import feature_space, form_of
from tilewright.search.cost_model.measured import training_samples
from tilewright.search.cost_model.model import CostModel, Samples, Training
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.database.records import TuningLog, TuningRecord
from tilewright.search.prior.shipped import SUFFIX
from tilewright.search.runner.measurer import Environment, MeasureContext
from tilewright.search.runner.replay import ReplayBuilder, ReplayRunner
from tilewright.search.search_strategy.outcome import Tuned
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.shapes import Dims, Points
from tools.bench import command
from tools.bench.search.oracle import Problem
from tools.bench.search.replay import CLOSE
from tools.bench.search.tuning import Tuning

SHIPPED = Training(members=3, rounds=32, depth=5)
MOST = 1500  # measurements of an operator that are learned from
TRIALS = 160


@dataclass(frozen=True)
class Measured:
    """One operator with the records of its search and of its oracle."""

    problem: Problem
    tuning: Tuning
    oracle: list[TuningRecord]

    @staticmethod
    def of(folder: Path) -> Measured:
        tuning = Tuning.of(folder)
        return Measured(Problem.of(folder, tuning.threads), tuning, TuningLog(folder / "oracle.jsonl").records)

    @property
    def family(self) -> str:
        return self.problem.task.families[0]

    def samples(self) -> Samples:
        """At most so many, drawn evenly."""
        found = [r for r in (*self.problem.log.of(self.problem.workload.key), *self.oracle) if r.seconds]
        rng = np.random.default_rng(0)
        kept = [found[i] for i in sorted(rng.permutation(len(found))[:MOST])]
        samples = training_samples(form_of(self.problem.task.lattice()), kept)
        assert samples is not None
        return samples


class Worth(msgspec.Struct, frozen=True):
    """Of a model that never saw the operator. rules, model: geomean of the oracle's best time over that of what each picks,
    with no measurement. cold, warm: measurements until a search is within 3 % of the oracle, None within the budget."""

    operator: str
    threads: int
    rules: float
    model: float
    cold: int | None
    warm: int | None


def train(found: Sequence[Measured]) -> CostModel:
    """A model of a family."""
    model = CostModel(SHIPPED)
    model.fit([m.samples() for m in found])
    return model


def worth(measured: Measured, prior: CostModel) -> Worth:
    """Compare at the shapes of the oracle."""
    problem, threads = measured.problem, measured.tuning.threads
    lattice = Lattice(problem.workload, problem.task.limits, [parse_config(c) for c in {r.config: None for r in measured.oracle}])
    shapes = list({r.shape: None for r in measured.oracle})
    times = {(r.config, r.shape, r.threads): r.time for r in measured.oracle}
    best = np.array([min(s for (_, at, _), s in times.items() if at == shape) for shape in shapes])

    space = feature_space(lattice, shapes)
    pairs = Pairs.product(range(len(lattice)), range(len(shapes)), [threads])
    mean = np.where(space.legal(pairs), prior.predict(space, pairs)[0], np.inf).reshape(len(lattice), len(shapes))
    chosen = [lattice.texts[int(c)] for c in mean.argmin(axis=0)]
    picked = np.array([times[c, s, threads] for c, s in zip(chosen, shapes, strict=True)])
    leaves = [problem.default.select(dict(s)) for s in shapes]
    rules = np.array([times[problem.default.kernels[leaf.kernel].config, s, leaf.threads or threads]
                      for leaf, s in zip(leaves, shapes, strict=True)])
    cold, warm = (trials(measured, lattice, shapes, times, best, p) for p in (None, prior))
    return Worth(measured.tuning.operator, threads, geomean(best / rules), geomean(best / picked), cold, warm)


def geomean(ratios: np.ndarray) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def trials(measured: Measured, lattice: Lattice, shapes: Sequence[Dims], times: dict[tuple[str, Dims, int], float],
           best: np.ndarray, prior: CostModel | None) -> int | None:
    """Measurements of a search among the oracle's kernels until its choice is close to the best of them, and stays so."""
    threads = measured.tuning.threads
    points = Points.of([(dict(s), 1.0) for s in shapes])
    task = replace(measured.problem.task, points=points, held_out=(), configs=lattice.configs)
    options = TuneOptions(threads=threads, verify=0.0, certify=0.0)
    context = MeasureContext(ReplayBuilder(), ReplayRunner(measured.oracle), Environment("replay", lambda: 0.0))
    tuner = Tuner(task, context, Budget(trials=TRIALS), options, prior)

    def close(tuned: Tuned) -> bool:
        taken = []
        for shape in shapes:
            leaf = select(tuned.root, dict(shape))
            taken.append(times.get((config_text(tuned.configs[leaf.kernel]), shape, leaf.threads or threads), np.inf))
        return geomean(np.array(taken) / best) <= CLOSE

    reached = None
    while not tuner.done:
        tuner.step()
        if not close(tuner.best()):
            reached = None
        elif reached is None:
            reached = tuner.ledger.trials
    return reached


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("prior", __doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, help="folder for a model per family")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--json", type=Path, help="JSON Lines file that the evaluation is appended to")
    args = parser.parse_args(argv)
    everything = [Measured.of(f) for f in args.folders if (f / "tuning.json").exists()]
    for family in sorted({m.family for m in everything}):
        members = [m for m in everything if m.family == family]
        names = sorted({m.tuning.operator for m in members})
        if args.evaluate:
            for m in members:
                others = [o for o in members if o.tuning.operator != m.tuning.operator]
                if others and m.oracle:
                    found = worth(m, train(others))
                    print(found, flush=True)
                    if args.json:
                        with args.json.open("ab") as file:
                            file.write(msgspec.json.encode(found) + b"\n")
        if args.out:
            path = args.out / (family + SUFFIX)
            model = train(members)
            model.save(path)
            print(f"{path}: {path.stat().st_size} bytes, {model.samples} measurements of {', '.join(names)}")
    return 0
