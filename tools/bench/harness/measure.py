"""Measure operators with a team of workers: prepare, bind, check against float64, alternate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tools.bench.harness.interleave import Team, WorkerDiedError, rounds
from tools.bench.harness.quiet import MOST, Snapshot, others, snapshot
from tools.bench.harness.records import Case, Failure, Record, timed
from tools.bench.harness.witness import SLOW, Witness
from tools.bench.operator_spec import TOLERANCE, Operator, relative_error
from tools.bench.references import reference

ATTEMPTS = 3


@dataclass
class Bench:
    """Measures operators with one team."""

    run: str
    team: Team
    seconds: float
    rounds: int
    folder: Path
    counters: Callable[[Sequence[int]], Snapshot] = snapshot
    witness: Witness = field(default_factory=Witness)

    def operator(self, subject: Operator, points: Sequence[Mapping[str, int]]) -> Iterator[Record]:
        """Prepare everywhere, then bind, check and measure each point."""
        prepared, failed = self.team.prepare(subject.name)
        yield from self._failures(subject, {}, failed)
        families = list(self.team.families)
        for shape in points:
            results, failed = self.team.bind(list(prepared), shape, self.folder)
            yield from self._failures(subject, shape, failed)
            for system in failed:
                prepared.pop(system)
            if not results:
                continue
            errors = self._errors(subject, shape, results)
            try:
                measured, foreign, near = self._measure(list(results))
            except WorkerDiedError as error:
                yield Failure(self.run, subject.name, self.team.threads, "while measuring", str(error), dict(shape))
                return
            timings = {s: timed(t, errors[s], prepared[s]) for s, t in measured.items()}
            wrong = [s for s, e in errors.items() if not e <= TOLERANCE[subject.dtype]]
            work = subject.work(shape)
            yield Case(self.run, subject.name, dict(shape), self.team.threads, timings, work, wrong, round(foreign, 2), families,
                       round(near, 2))

    def _measure(self, systems: Sequence[str]) -> tuple[dict[str, list[float]], float, float]:
        """Rounds in seconds, the cores that others used, and how much slower the second cache was than at its best; again, at
        most twice, while others disturb."""
        workers = {system: self.team.worker(system) for system in systems}
        for _ in range(ATTEMPTS):
            for worker in workers.values():
                worker.near.clear()
            before = self.counters(self.team.processes())
            measured = rounds({s: w.turn for s, w in workers.items()}, self.rounds, self.seconds)
            foreign = others(before, self.counters(self.team.processes()))
            near = self.witness.slowdown({s: w.near for s, w in workers.items()})
            if foreign <= MOST and near <= SLOW:
                break
        return measured, foreign, near

    def _errors(self, subject: Operator, shape: Mapping[str, int], results: Mapping[str, Path]) -> dict[str, float]:
        wanted = reference(subject, {**subject.constants(), **subject.arguments(shape)})
        return {system: relative_error(np.load(path), wanted) for system, path in results.items()}

    def _failures(self, subject: Operator, shape: Mapping[str, int], failed: Mapping[str, str]) -> Iterator[Record]:
        for system, error in failed.items():
            yield Failure(self.run, subject.name, self.team.threads, system, error, dict(shape))
