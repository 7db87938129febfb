"""Simulation: measurement tables in place of a compiler and a device, so that policies are compared exactly.

`TableRunner` answers a search from a table. `TableArm` is an arm whose search is cheap enough to run thousands of slots: random
configurations at first, then those that a ridge regression on the logarithm of the time, shared by the buckets of an operator,
expects to be fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.database.measurement_table import OperatorTable
from tilewright.search.protocols import Measurement
from tilewright.search.runner.replay import ReplayBuilder
from tilewright.search.space.array_types import Floats
from tilewright.search.task_scheduler.bandit import UNLIMITED, Trials
from tilewright.search.task_scheduler.peak import Peak


class TableRunner:
    """A Runner that answers from tables; what a table does not hold is an error. `advance` is told what a measurement takes."""

    def __init__(self, tables: Sequence[OperatorTable], advance: Callable[[float], None] = lambda seconds: None) -> None:
        self._tables = {t.workload.key: t for t in tables}
        self.advance = advance

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        table = self._tables.get(workload.key)
        shape = tuple(dims.items())
        if table is None or kernel.config not in table.configs or shape not in table.shapes or threads != 1:
            return Measurement(error=f"no table has {kernel.config} at {dict(dims)} on {threads} threads")
        config = table.configs.index(kernel.config)
        self.advance(table.measure_seconds[config])
        seconds = table.seconds[config][table.shapes.index(shape)]
        return Measurement((seconds,)) if seconds > 0 else Measurement(error=f"{kernel.config} does not run at {dict(dims)}")


def table_builder(table: OperatorTable) -> ReplayBuilder:
    """A Builder that refuses what runs at no shape of the table."""
    dead = [c for c, row in zip(table.configs, table.seconds, strict=True) if not any(row)]
    return ReplayBuilder(dict.fromkeys(dead, "not built"))


@dataclass
class SimulatedClock:
    """Seconds that pass when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class TableSearch:
    """The search of one operator, shared by the arms of its buckets.

    explore: share of trials that are random. first: random trials before the model is asked. from_defaults: begin with what
    runs untuned; else with a random configuration that runs everywhere, as tuners without rules do.
    """

    table: OperatorTable
    seed: int
    explore: float = 0.25
    first: int = 4
    from_defaults: bool = False
    built: set[int] = field(default_factory=set)
    known: dict[int, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(
            [self.seed, int(self.table.workload.key[:8], 16) if _is_hex(self.table.workload.key) else 0]
        )
        self._features = _coordinates(self.table)
        self.order = self.rng.permutation(len(self.table.configs))
        self.tried = np.zeros(self.table.times.shape, bool)
        runs = np.flatnonzero(np.isfinite(self.table.times).all(axis=1))
        begin = range(self.table.defaults) if self.from_defaults else [next(int(c) for c in self.order if c in runs)]
        self.try_(begin, range(len(self.table.shapes)))
        self._begun = len(begin)

    def try_(self, configs: Sequence[int], shapes: Sequence[int]) -> float:
        """Build and measure; returns the seconds it takes."""
        spent = 0.0
        for config in configs:
            if config not in self.built:
                self.built.add(config)
                spent += self.table.build_seconds[config]
            for shape in shapes:
                if not self.tried[config, shape]:
                    self.tried[config, shape] = True
                    spent += self.table.measure_seconds[config]
        return spent

    def best(self) -> Floats:
        """[shape]: least seconds that are known."""
        return np.asarray(np.where(self.tried, self.table.times, np.inf).min(axis=0))

    def next(self, shapes: Sequence[int]) -> int | None:
        """The configuration to try at these shapes: random, or the one that the model expects to be fastest there."""
        free = [int(c) for c in self.order if not self.tried[c, list(shapes)].all()]
        if not free:
            return None
        tried = int(self.tried.any(axis=1).sum()) - self._begun
        if tried < self.first or self.rng.random() < self.explore:
            return free[0]
        return free[int(np.argmin(self._predicted(shapes)[free]))]

    def _predicted(self, shapes: Sequence[int]) -> Floats:
        """Logarithm of the seconds of each configuration, less the mean of its shape, averaged over what is known near."""
        usable = self.tried & np.isfinite(self.table.times)
        logs = np.where(usable, np.log(np.where(usable, self.table.times, 1.0)), 0.0)
        count = np.maximum(usable.sum(axis=0), 1)
        centred = np.where(usable, logs - logs.sum(axis=0) / count, 0.0)
        near = np.where(np.isin(np.arange(usable.shape[1]), list(shapes)), 1.0, 0.3) * usable
        weight = near.sum(axis=1)
        rows = np.flatnonzero(weight)
        target = (centred[rows] * near[rows]).sum(axis=1) / weight[rows]
        x = self._features[rows] * np.sqrt(weight[rows])[:, None]
        solved = np.linalg.solve(x.T @ x + 1.0 * np.eye(x.shape[1]), x.T @ (target * np.sqrt(weight[rows])))
        return np.asarray(self._features @ solved)


class TableArm:
    """One bucket of an operator's shapes; `advance` is told the seconds of each trial."""

    def __init__(
        self,
        search: TableSearch,
        shapes: Sequence[int],
        bucket: str,
        peak: Peak,
        advance: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        table = search.table
        self.search, self.shapes, self.advance = search, tuple(shapes), advance
        self.key, self.group = f"{table.name}/{bucket}", f"{table.workload.kind.value}/{bucket}"
        self._weight = table.calls / len(table.shapes)
        w = table.operator
        dims = [dict(table.shapes[s]) for s in self.shapes]
        self.flops = self._weight * float(sum(w.flops.evaluate(d) for d in dims))
        self.ideal = self._weight * sum(peak.seconds(w.flops.evaluate(d), w.bytes.evaluate(d)) for d in dims)

    @property
    def known(self) -> bool:
        return True

    @property
    def latency(self) -> float:
        return self._weight * float(self.search.best()[list(self.shapes)].sum())

    @property
    def floor(self) -> float:
        """The latency when every configuration of the table is known."""
        return self._weight * float(self.search.table.times.min(axis=0)[list(self.shapes)].sum())

    @property
    def trials(self) -> int:
        return int(self.search.tried[:, list(self.shapes)].all(axis=1).sum())

    @property
    def exhausted(self) -> bool:
        return bool(self.search.tried[:, list(self.shapes)].all())

    def tune(self, seconds: float, trials: Trials = UNLIMITED) -> list[tuple[int, float]]:
        points, spent = list[tuple[int, float]](), 0.0
        while spent < seconds and len(points) < min(trials.about, trials.most):
            config = self.search.next(self.shapes)
            if config is None:
                break
            taken = self.search.try_([config], self.shapes)
            spent += taken
            self.advance(taken)
            points.append((self.trials, self.latency))
        return points


A = TypeVar("A", bound=TableArm)


def table_arms(
    tables: Sequence[OperatorTable],
    peak: Peak,
    seed: int,
    buckets: int = 2,
    advance: Callable[[float], None] = lambda seconds: None,
    from_defaults: bool = False,
    kind: type[A] = TableArm,  # type: ignore[assignment]
) -> list[A]:
    """The arms of a model: each operator's shapes in up to `buckets` groups of neighbours. kind: of the arms."""
    found: list[A] = []
    for table in tables:
        search = TableSearch(table, seed, from_defaults=from_defaults)
        parts = np.array_split(np.arange(len(table.shapes)), min(buckets, len(table.shapes)))
        for number, part in enumerate(parts):
            found.append(kind(search, part.tolist(), str(number), peak, advance))
    return found


def _coordinates(table: OperatorTable) -> Floats:
    """[configuration, feature]: each value of each field of the configurations as a column, numbers also by their logarithm."""
    columns = [np.ones(len(table.tiles))]
    names = sorted({name for tile in table.tiles for name in vars(tile)})
    for name in names:
        values = [getattr(tile, name, None) for tile in table.tiles]
        distinct = list(dict.fromkeys(map(str, values)))
        if len(distinct) > 1:
            columns.extend(np.array([str(v) == d for v in values], float) for d in distinct)
            if all(isinstance(v, int) for v in values):
                logs = np.log2(1.0 + np.array(values, float))
                columns.append((logs - logs.mean()) / max(float(logs.std()), 1e-9))
    return np.stack(columns, axis=1)


def _is_hex(text: str) -> bool:
    return len(text) >= 8 and all(c in "0123456789abcdef" for c in text[:8])
