"""Measure operators with a team of workers: prepare, bind, check against float64, alternate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.bench.interleave import Team, WorkerDiedError, rounds
from tools.bench.operator_spec import TOLERANCE, Operator, relative_error
from tools.bench.records import Case, Failure, Record, timed
from tools.bench.references import reference


@dataclass
class Bench:
    """Measures operators with one team."""

    run: str
    team: Team
    seconds: float
    rounds: int
    folder: Path

    def operator(self, subject: Operator, points: Sequence[Mapping[str, int]]) -> Iterator[Record]:
        """Prepare everywhere, then bind, check and measure each point."""
        prepared, failed = self.team.prepare(subject.name)
        yield from self._failures(subject, {}, failed)
        for shape in points:
            results, failed = self.team.bind(list(prepared), shape, self.folder)
            yield from self._failures(subject, shape, failed)
            for system in failed:
                prepared.pop(system)
            if not results:
                continue
            errors = self._errors(subject, shape, results)
            turns = {system: self.team.worker(system).turn for system in results}
            try:
                measured = rounds(turns, self.rounds, self.seconds)
            except WorkerDiedError as error:
                yield Failure(self.run, subject.name, self.team.threads, "while measuring", str(error), dict(shape))
                return
            timings = {s: timed(t, errors[s], prepared[s]) for s, t in measured.items()}
            wrong = [s for s, e in errors.items() if not e <= TOLERANCE[subject.dtype]]
            yield Case(self.run, subject.name, dict(shape), self.team.threads, timings, subject.work(shape), wrong)

    def _errors(self, subject: Operator, shape: Mapping[str, int], results: Mapping[str, Path]) -> dict[str, float]:
        wanted = reference(subject, {**subject.constants(), **subject.arguments(shape)})
        return {system: relative_error(np.load(path), wanted) for system, path in results.items()}

    def _failures(self, subject: Operator, shape: Mapping[str, int], failed: Mapping[str, str]) -> Iterator[Record]:
        for system, error in failed.items():
            yield Failure(self.run, subject.name, self.team.threads, system, error, dict(shape))
