"""SimulatedJobs: a farm of any size on a simulated clock, with times and durations out of measurement tables, and with faults.

A ParallelTuner runs on it as it does on a real farm, so that what limits a farm of many machines is seen on one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.passes.spaces.family_registry import config_text
from tilewright.search.database.measurement_table import OperatorTable
from tilewright.search.protocols import BuildResult, Measurement
from tilewright.search.runner.replay import ReplayBuilder
from tilewright.search.task_scheduler.candidate_jobs import At, BuildJob, Candidate, JobEnd, RunJob
from tilewright.search.task_scheduler.simulation import SimulatedClock, TableArm, table_builder


@dataclass(frozen=True)
class Faults:
    """What is lost. Defaults of seconds are assumed; `python -m tools.farm_faults` tells those of a real cluster.

    Attributes:
        share: of tasks whose actor is lost, half through.
        notice: until that is seen, and the task goes to another actor. back: from then on until another one has its place.
        ready: the same where one stands by for each runner, which takes `back` to be there again; None: none does.
        node_seconds: time between two losses of a node, with all that runs there, the first of them at a random time; 0: none.
        nodes: that builders and runners are spread over. node_notice: until the loss of one is seen. away: until one is back.
    """

    share: float = 0.0
    node_seconds: float = 0.0
    nodes: int = 8
    notice: float = 2.0
    back: float = 0.0
    ready: float | None = None
    node_notice: float = 2.0
    away: float = 20.0


@dataclass(order=True)
class _Task:
    end: float
    order: int
    number: int = field(compare=False)
    is_run: bool = field(compare=False)
    duration: float = field(compare=False)
    result: JobEnd = field(compare=False)
    place: int = field(compare=False)
    tries: int = field(compare=False)
    lost: bool = field(compare=False, default=False)
    with_node: bool = field(compare=False, default=False)


class SimulatedJobs:
    """Jobs whose results are those of tables.

    Args:
        overhead: seconds beside each task: dispatch and transfer. decide: seconds of the driver for each candidate; while it
            decides, nothing new is begun.
    Attributes:
        lost: actors; failed: candidates that two lost. busy: runner seconds that measured.
    """

    def __init__(self, tables: Sequence[OperatorTable], clock: SimulatedClock, builders: int, runners: int, seed: int = 0,
                 faults: Faults | None = None, overhead: float = 0.01, decide: float = 0.0) -> None:
        self.builders, self.runners, self.clock = builders, runners, clock
        self.overhead, self.decide, self.faults = overhead, decide, faults or Faults()
        self._tables = {t.workload.key: t for t in tables}
        self._builder: Mapping[str, ReplayBuilder] = {t.workload.key: table_builder(t) for t in tables}
        self._rng = np.random.default_rng([seed, 0xFA])
        self._running: list[_Task] = []
        self._waiting: tuple[list[_Task], list[_Task]] = ([], [])
        self._free = [self.builders, self.runners]
        self._away: list[tuple[float, int, int]] = []  # until when, builders, runners
        self._next_loss = self.faults.node_seconds * self._rng.random() if self.faults.node_seconds else math.inf
        self._stand_by_from = [0.0] * runners  # when another one stands by in each place
        self._order = 0
        self.lost = self.failed = 0
        self.busy = 0.0

    def build(self, job: BuildJob, seconds: float | None) -> None:
        table = self._tables[job.workload.key]
        (built,) = self._builder[job.workload.key].build([(job.workload, job.config)])
        duration = table.build_seconds[table.configs.index(config_text(job.config))]
        self._submit(False, job.number, duration, JobEnd(job.number, built, seconds=duration))

    def run(self, job: RunJob, seconds: float | None) -> None:
        table, kernel = self._tables[job.workload.key], job.built.kernel
        assert kernel is not None, "what is run was built"
        config = table.configs.index(kernel.config)
        found = []
        for shape, _ in job.places:
            time = table.seconds[config][table.shapes.index(shape)]
            found.append(Measurement((time,)) if time > 0 else Measurement(error="it does not run"))
        duration = len(job.places) * table.measure_seconds[config]
        self._submit(True, job.number, duration, JobEnd(job.number, None, job.places, tuple(found), duration))

    def done(self, seconds: float | None) -> list[JobEnd]:
        while self._running or (self._away and any(self._waiting)):
            back = min((at for at, *_ in self._away), default=math.inf)
            self._lose_nodes(min(back, self._running[0].end if self._running else math.inf))
            if not self._running or back < self._running[0].end:
                self.clock.now = max(self.clock.now, min(at for at, *_ in self._away))
                self._return()
                self._begin()
                continue
            task = heapq.heappop(self._running)
            self.clock.now = max(self.clock.now, task.end)
            end = self._lost(task) if task.lost else task.result
            if not task.lost:
                self.busy += task.duration * task.is_run
                self._free[task.is_run] += 1
            self._begin()
            if end is not None:
                return [end]
        return []

    def _lost(self, task: _Task) -> JobEnd | None:
        """Try a task once more; its end where that was done. Its actor is back after a time, or with its node."""
        self.lost += 1
        if not task.with_node:
            self._away.append((self.clock.now + self._back(task.is_run), int(not task.is_run), int(task.is_run)))
            self._return()
        if task.tries < 2:
            self._submit(task.is_run, task.number, task.duration, task.result, task.tries + 1)
            return None
        self.failed += 1
        return self._given_up(task)

    def _back(self, is_run: bool) -> float:
        """Seconds until another actor has the place of one that was lost."""
        faults = self.faults
        if not is_run or faults.ready is None:
            return faults.back
        place = int(self._rng.integers(self.runners))
        waits = self._stand_by_from[place] <= self.clock.now
        self._stand_by_from[place] = self.clock.now + faults.back
        return faults.ready if waits else faults.back

    def _given_up(self, task: _Task) -> JobEnd:
        reason = "two actors were lost over it"
        if not task.is_run:
            return JobEnd(task.number, BuildResult(None, error=reason), seconds=task.duration)
        places = task.result.places
        return JobEnd(task.number, None, places, tuple(Measurement(error=reason) for _ in places), task.duration)

    def _submit(self, is_run: bool, number: int, duration: float, result: JobEnd, tries: int = 1) -> None:
        self._order += 1
        self.clock.now += self.decide * (not is_run)
        task = _Task(0.0, self._order, number, is_run, duration, result, int(self._rng.integers(self.faults.nodes)), tries)
        self._waiting[is_run].append(task)
        self._begin()

    def _begin(self) -> None:
        for kind in (0, 1):
            while self._free[kind] > 0 and self._waiting[kind]:
                task = self._waiting[kind].pop(0)
                self._free[kind] -= 1
                task.lost = bool(self._rng.random() < self.faults.share)
                task.end = self.clock.now + self.overhead + task.duration
                if task.lost:
                    task.end = self.clock.now + task.duration / 2 + self.faults.notice
                heapq.heappush(self._running, task)

    def _lose_nodes(self, until: float) -> None:
        """Nodes that are lost before then, with what runs there."""
        while self._next_loss <= until:
            now, node = self._next_loss, int(self._rng.integers(self.faults.nodes))
            self._next_loss += self.faults.node_seconds
            share = 1 / self.faults.nodes
            gone = int(self.builders * share), int(self.runners * share)
            for kind in (0, 1):
                self._free[kind] -= gone[kind]
            self._away.append((now + self.faults.away, *gone))
            for task in self._running:
                if task.place == node and not task.with_node:
                    task.lost, task.with_node, task.end = True, True, now + self.faults.node_notice
                    self._free[task.is_run] += 1  # it ran on what is gone
            heapq.heapify(self._running)

    def _return(self) -> None:
        for entry in [a for a in self._away if a[0] <= self.clock.now]:
            self._away.remove(entry)
            _, *back = entry
            self._free = [free + int(more) for free, more in zip(self._free, back, strict=True)]


class TableBatchArm(TableArm):
    """A bucket of a table as a ParallelArm: what is under way is not proposed again."""

    batch = 4

    def propose(self, in_flight: Sequence[Candidate], most: int) -> list[Candidate]:
        search, table = self.search, self.search.table
        pending = [table.number(c.config) for c in in_flight]
        held = search.tried[pending].copy()
        search.tried[pending] = True  # TableSearch.next takes none of these; its model learns nothing of them
        found: list[int] = []
        try:
            while len(found) < min(self.batch, most) and (config := search.next(self.shapes)) is not None:
                found.append(config)
                search.tried[config, list(self.shapes)] = True
        finally:
            for config in found:
                search.tried[config, list(self.shapes)] = False
            search.tried[pending] = held
        return [Candidate(table.operator, table.tiles[c], tuple((table.shapes[s], 1) for s in self.shapes)) for c in found]

    def places(self, candidate: Candidate, built: BuildResult) -> list[At]:
        number = self.search.table.number(candidate.config)
        self.search.built.add(number)
        if built.kernel is None:
            runs = np.isfinite(self.search.table.times[number])
            self.search.tried[number] |= ~runs  # what the farm lost may be proposed again
            return []
        return list(candidate.places)

    def accept(self, candidate: Candidate, end: JobEnd) -> int:
        number = self.search.table.number(candidate.config)
        for (shape, _), found in zip(end.places, end.measured, strict=True):
            place = number, self.search.table.shapes.index(shape)
            if found.seconds or not np.isfinite(self.search.table.times[place]):
                self.search.tried[place] = True
        return len(end.measured)
