"""The oracle of a search: many kernels of its space, timed at shapes that are drawn after the search ended."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

import tilewright as tw
from tilewright.compiler.builder.codegen import limits
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.passes.spaces.family_registry import config_text, parse_config
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.host.benchmark import Timing, time_call
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.program.program import Program
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.forms import form_of
from tilewright.search.cost_model.measured import training_samples
from tilewright.search.cost_model.model import CostModel
from tilewright.search.database.records import TuningLog, TuningRecord
from tilewright.search.runner.host_runner import HostRunner
from tilewright.search.runner.measurer import code_digest
from tilewright.search.search_strategy.evidence import Evidence
from tilewright.search.space.array_types import Floats
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.shapes import Dims, ShapeDemand
from tilewright.search.space.task import Task

RANDOM, LEADERS, LEADING, NEAR = 64, 3, 48, 64
RETIMED, GROUPS = 5, 4  # kernels timed in turns at once, and how often at most
FEWEST, MOST = 9, 500  # rounds of turns
LIKELY = 8  # kernels timed at each shape that was not drawn
_QUICK = Timing(warmup=0.0001, batch=0.0002, fewest=3, most=5, error=0.05)
_WARM = Timing(warmup=0.004, batch=0.0002, fewest=2, most=2)
_TURN = Timing(warmup=0.0001, batch=0.0001, fewest=2, most=2)
_HOPELESS = 1.6  # a first launch that takes this many times the untuned one is not repeated
_GLANCE, _LOOK = 0.01, 0.1  # seconds of turns of each, at shapes that were not drawn and at those that were
_SHORT = 100e-6  # seconds of a launch below which fewer threads are tried too


class OracleKernel(msgspec.Struct, frozen=True):
    """A built configuration."""

    config: str
    kernel: MicroKernel
    code: bytes


class Timed(msgspec.Struct, frozen=True):
    """Seconds a launch at one shape of the model, timed in turns; `best` is the fastest of the oracle's and these two."""

    shape: dict[str, int]
    dispatched: float
    default: float
    best: float
    dispatched_config: str
    best_config: str
    best_threads: int


class Oracle(msgspec.Struct, frozen=True):
    """What the sweep leaves. space: configurations in the lattice; kernels: how many of them were timed, in `took` seconds."""

    space: int
    kernels: int
    seed: int
    shapes: tuple[Timed, ...]
    took: float


@dataclass(frozen=True)
class Problem:
    """The tuned operator of a folder: its tables before and after, and the task that was searched."""

    folder: Path
    program: Program
    tuned: DispatchTable
    default: DispatchTable
    workload: Workload
    task: Task
    log: TuningLog

    @staticmethod
    def of(folder: Path, threads: int) -> Problem:
        log = TuningLog(folder / "log.jsonl")
        program, before = tw.load(folder / "tuned.tw").program, tw.load(folder / "default.tw").program
        key = max(log.workloads, key=lambda w: sum(1 for _ in log.of(w)))
        number = next(i for i, t in enumerate(program.tables) if t.workload == key)
        tuned = program.tables[number]
        default = next(t for t in before.tables if t.workload == key)
        uses = [dict(zip(tuned.dims, map(Expr.parse, c.dims), strict=True)) for c in program.calls if c.table == number]
        workload = log.workloads[key].workload()
        task = Task.of(workload, host(threads), (default.kernels[0].family,), ShapeDemand(program.ranges(), uses))
        return Problem(folder, program, tuned, default, workload, task, log)

    def local(self, shape: dict[str, int]) -> dict[str, int]:
        """Dims of the operator at dims of the model."""
        call = next(c for c in self.program.calls if self.program.tables[c.table].workload == self.workload.key)
        return {n: Expr.parse(d).evaluate(shape) for n, d in zip(self.tuned.dims, call.dims, strict=True)}


def host(threads: int) -> HostLimits:
    found = limits(Target.parse("host"), threads)
    assert isinstance(found, HostLimits)
    return found


def build(folder: Path, threads: int, least: int) -> None:
    """Choose and build the kernels of the oracle; leaves kernels.msgpack."""
    problem = Problem.of(folder, threads)
    lattice = problem.task.lattice()
    chosen = choose(problem, lattice, least)
    with WorkerBuilder(Target.parse("host")) as workers:
        built = workers.build([(problem.workload, parse_config(c)) for c in chosen])
    kernels = [OracleKernel(c, b.kernel, b.code) for c, b in zip(chosen, built, strict=True) if b.kernel is not None]
    (folder / "kernels.msgpack").write_bytes(msgspec.msgpack.encode(kernels))
    print(f"{len(kernels)} of {len(lattice)} configurations built, {len(built) - len(kernels)} refused")


def choose(problem: Problem, lattice: Lattice, least: int) -> list[str]:
    """All of a space little larger than `least`, else the defaults, the leaders of the log and neighbours of theirs, and the
    rest random ones, which do not depend on the log."""
    always = [k.config for k in (*problem.tuned.kernels, *problem.default.kernels)]
    always += [config_text(c) for c in problem.task.defaults()]
    if len(lattice) <= least * 5 // 4:
        return list(dict.fromkeys([*always, *lattice.texts]))
    leading = leaders(problem.log.of(problem.workload.key))
    near = [lattice.texts[n] for c in [*always, *leading] for n in lattice.neighbours(lattice.number(c) or 0)]
    chosen = dict.fromkeys([*always, *leading[:LEADING], *near[:NEAR]])
    for text in drawn(lattice):
        if len(chosen) >= max(least, len(always) + RANDOM):
            break
        chosen[text] = None
    return list(chosen)


def drawn(lattice: Lattice) -> list[str]:
    """The lattice in a random order."""
    return [lattice.texts[i] for i in np.random.default_rng(0).permutation(len(lattice))]


def leaders(records: Iterable[TuningRecord]) -> list[str]:
    """The fastest configurations of each shape of a log, those of most shapes first."""
    shapes: dict[Dims, list[TuningRecord]] = {}
    for r in records:
        if r.seconds:
            shapes.setdefault(r.shape, []).append(r)
    count: dict[str, int] = {}
    for found in shapes.values():
        for r in sorted(found, key=lambda r: r.time)[:LEADERS]:
            count[r.config] = count.get(r.config, 0) + 1
    return sorted(count, key=lambda c: -count[c])


def sweep(folder: Path, threads: int, count: int) -> None:
    """Time all kernels at shapes drawn now; leaves oracle.json and the times as records in oracle.jsonl."""
    problem = Problem.of(folder, threads)
    kernels = built_kernels(folder)
    seed = secrets.randbits(32)
    runner = HostRunner(HostDevice())
    started = time.time()
    sweeper = Sweep(problem, kernels, runner, threads)
    drawn_now = draw(problem, count, seed)
    found = tuple(sweeper.at(shape) for shape in drawn_now)
    sweeper.between({tuple(problem.local(s).items()) for s in drawn_now})
    (folder / "oracle.json").write_bytes(msgspec.json.encode(
        Oracle(len(problem.task.lattice()), len(kernels), seed, found, time.time() - started)))
    write_records(folder, sweeper.records)
    print(f"{len(found)} shapes in {time.time() - started:.1f} s")


def built_kernels(folder: Path) -> dict[str, OracleKernel]:
    """What `build` left, by configuration."""
    return {k.config: k for k in msgspec.msgpack.decode((folder / "kernels.msgpack").read_bytes(), type=list[OracleKernel])}


def write_records(folder: Path, records: Iterable[TuningRecord]) -> None:
    """The times of the oracle, in place of those of before."""
    (folder / "oracle.jsonl").write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in records))


def draw(problem: Problem, count: int, seed: int) -> list[dict[str, int]]:
    """Distinct shapes of the model's one dim, ascending; all of a range that holds no more."""
    (dim,) = problem.program.dims
    values = np.arange(dim.lo, dim.hi + 1)
    chosen = np.random.default_rng(seed).choice(values, min(count, len(values)), replace=False)
    return [{dim.name: int(v)} for v in sorted(chosen)]


Variant = tuple[str, int]  # configuration and threads


class Sweep:
    """Times kernels of an operator in this process; `records` are all that it took."""

    def __init__(self, problem: Problem, kernels: dict[str, OracleKernel], runner: HostRunner, threads: int) -> None:
        self.problem, self.kernels, self.runner, self.threads = problem, kernels, runner, threads
        self.records: list[TuningRecord] = []

    def at(self, shape: dict[str, int]) -> Timed:
        """All kernels at a glance, each beside the default one, then those that seem best in turns with the dispatched and the
        default one, until none seems better that had no turns: of many glances the least are lucky ones."""
        local = self.problem.local(shape)
        dispatched, default = (self.variant(t, local) for t in (self.problem.tuned, self.problem.default))
        usual = self._call(*_at(default, local))
        short = statistics.median(time_call(usual, _WARM)) < _SHORT
        ratios: dict[Variant, float] = {}
        for config in dict.fromkeys([dispatched[0], default[0], *self.kernels]):
            for count in {self.threads, 1} if short else {self.threads}:
                if self.legal((config, count), local):
                    beside = statistics.median(time_call(usual, _TURN))
                    ratios[config, count] = self._once(config, local, count, beside) / beside
        turns = confirmed(ratios, dispatched, default, lambda variants: self.turns(variants, local))
        winner = min(turns, key=turns.__getitem__)
        self.keep(turns, local)
        for (config, count), ratio in ratios.items():
            if (config, count) not in turns:
                self._record(config, local, count, [ratio * turns[default]])
        return Timed(shape, turns[dispatched], turns[default], turns[winner], dispatched[0], *winner)

    def keep(self, turns: Mapping[Variant, float], local: dict[str, int]) -> None:
        """Records of what had turns; one figure is a glance."""
        for (config, count), seconds in turns.items():
            self._record(config, local, count, [seconds] * FEWEST)

    def between(self, drawn: Collection[Dims]) -> None:
        """At every other point of the task: the dispatched kernel, the default, and those most likely to be best."""
        points, choices = self.problem.task.points, (1,) if self.threads == 1 else (1, self.threads)
        lattice = self.problem.task.lattice()
        known = [*self.problem.log.of(self.problem.workload.key), *self.records]
        form, model = form_of(lattice), CostModel()
        samples = training_samples(form, known)
        assert samples is not None
        model.fit([samples])
        evidence = Evidence.of(FeatureSpace(form, points.shapes), points, model, known, choices)
        for number, shape in enumerate(points.shapes):
            if shape in drawn:
                continue
            local = dict(shape)
            likely = [(lattice.texts[c], t) for c, t in evidence.fastest(number, LIKELY)]
            variants = [*(self.variant(t, local) for t in (self.problem.tuned, self.problem.default)), *likely]
            self.keep(self.turns([v for v in dict.fromkeys(variants) if self.legal(v, local)], local, _GLANCE), local)

    def legal(self, variant: Variant, local: dict[str, int]) -> bool:
        """Was it built, and may it run there?"""
        return variant[0] in self.kernels and self.kernels[variant[0]].kernel.legal(local)

    def variant(self, table: DispatchTable, local: dict[str, int]) -> Variant:
        """What a table dispatches."""
        leaf = table.select(local)
        return table.kernels[leaf.kernel].config, leaf.threads or self.threads

    def _call(self, config: str, local: dict[str, int], threads: int) -> Callable[[], None]:
        found = self.kernels[config]
        return self.runner.launcher(self.problem.workload, found.kernel, found.code, local, threads)

    def _once(self, config: str, local: dict[str, int], threads: int, usual: float) -> float:
        """Seconds, of a single launch where that shows that the kernel is hopeless."""
        call = self._call(config, local, threads)
        call()
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        return once if once > _HOPELESS * usual + 5e-6 else statistics.median(time_call(call, _QUICK))

    def turns(self, variants: Sequence[Variant], local: dict[str, int], seconds: float = _LOOK) -> dict[Variant, float]:
        """Seconds of each, timed for so long in turns."""
        found = self.rounds(variants, local, seconds)
        return {v: float(t) for v, t in zip(found, paired(np.stack(list(found.values()), axis=1)), strict=True)}

    def rounds(self, variants: Sequence[Variant], local: dict[str, int], seconds: float) -> dict[Variant, Floats]:
        """Seconds of each in every round, timed for so long; equal machine code is one kernel."""
        codes = {v: (code_digest(self.kernels[v[0]].kernel, self.kernels[v[0]].code), v[1]) for v in variants}
        calls = {code: self._call(*_at(v, local)) for v, code in codes.items()}
        times = dict(zip(calls, rounds(list(calls.values()), seconds).T, strict=True))
        return {v: times[codes[v]] for v in variants}

    def _record(self, config: str, local: dict[str, int], threads: int, seconds: Sequence[float]) -> None:
        w = self.problem.workload
        family = self.kernels[config].kernel.family
        self.records.append(TuningRecord(w.key, w.name, family, config, local, threads, tuple(seconds), when=time.time()))


def confirmed(glances: Mapping[Variant, float], dispatched: Variant, default: Variant,
              time_all: Callable[[list[Variant]], dict[Variant, float]]) -> dict[Variant, float]:
    """Seconds in turns of two variants and of those that seem best, some at a time until no glance is better than what had turns.

    glances: times as ratios to the default variant's.
    """
    turns = time_all(list(dict.fromkeys([dispatched, default, *sorted(glances, key=glances.__getitem__)[:RETIMED]])))
    for _ in range(GROUPS - 1):
        rivals = sorted(glances.keys() - turns.keys(), key=glances.__getitem__)[:RETIMED]
        if not rivals or glances[rivals[0]] * turns[default] >= min(turns.values()):
            break
        found = time_all(list(dict.fromkeys([dispatched, default, *rivals])))
        turns = {v: seconds * turns[default] / found[default] for v, seconds in found.items()} | turns
    return turns


def rounds(calls: Sequence[Callable[[], None]], seconds: float) -> Floats:
    """Seconds of each call, [rounds, calls], timed for so long each. A turn is so short that the speed of the machine, which
    neighbours change many times a second, is much the same within a round."""
    found: list[list[float]] = []
    until = time.perf_counter() + seconds * len(calls)
    while len(found) < FEWEST or (len(found) < MOST and time.perf_counter() < until):
        row = [0.0] * len(calls)
        for turn in range(len(calls)):
            place = (turn + len(found)) % len(calls)
            row[place] = statistics.median(time_call(calls[place], _TURN))
        found.append(row)
    return np.array(found)


def paired(times: Floats) -> Floats:
    """Seconds of each call from those of rounds, [rounds, calls]: the median of its ratio to the mean of its round, at the
    median speed."""
    level = np.exp(np.log(times).mean(axis=1))
    return np.asarray(np.median(times / level[:, None], axis=0) * np.median(level))


def _at(variant: Variant, local: dict[str, int]) -> tuple[str, dict[str, int], int]:
    return variant[0], local, variant[1]
