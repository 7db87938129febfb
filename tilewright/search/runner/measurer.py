"""Measurer: builds configurations and measures them; every outcome, good or bad, is a record in the log."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.passes.spaces.family_registry import config_text, family_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.database.records import TuningLog, TuningRecord, impossible, latest
from tilewright.search.protocols import Builder, BuildResult, KernelAt, Measurement, Runner, RunnerInTurns
from tilewright.search.space.dense import dense_symbols
from tilewright.search.space.kernel_facts import KernelFacts
from tilewright.search.space.shapes import Dims
from tilewright.search.time_left import TimeLeft


@dataclass(frozen=True)
class Environment:
    """Where measurements are taken. device: names the machine and its features. clock: seconds since 1970."""

    device: str
    clock: Callable[[], float]
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasureContext:
    """How kernels are built and measured, where, and the log that takes every outcome.

    costs: part of a search -> the seconds it takes, which the searches of one model share. at_once: measurements that the runner
    takes at the same time, from as many threads. cache: the state of operands that the runner measures in, of which records count
    (TuningRecord.cache); None: of any.
    """

    builder: Builder
    runner: Runner
    environment: Environment
    log: TuningLog = field(default_factory=TuningLog)
    costs: dict[str, float] = field(default_factory=dict)
    at_once: int = 1
    cache: str | None = None


class Measurer:
    """Measurements of one workload. What the log knows of this device is not measured again.

    note: is told what the code of each built GPU kernel says, of this run and of the log.

    trials: measurements taken; failed: candidates that could not be built or run; time: until when there is time for either.
    """

    def __init__(self, workload: Workload, context: MeasureContext,
                 note: Callable[[str, KernelFacts], None] = lambda config, facts: None) -> None:
        self.workload, self.context, self.note = workload, context, note
        log = context.log
        self.time = TimeLeft(context.environment.clock, context.costs)
        self.trials = 0
        self.built: dict[str, BuildResult] = {}
        self.refused: dict[str, str] = {}
        self._same_code: dict[str, str] = {}
        self._requests = 0
        known = log.of(workload.key, context.environment.device)
        self._all = [r for r in known if context.cache in (None, r.cache) or not r.seconds]
        self._known = dict(latest(self._all))
        self._turns = Counter((r.config, r.shape, r.threads) for r in self._all if r.seconds)
        self.refused.update({r.config: r.error for r in self._known.values() if r.error and not r.dims})
        for record in self._known.values():
            if record.object and record.seconds:
                self._same_code.setdefault(record.object, record.config)
        for record in self._all:
            if record.built is not None:
                note(record.config, record.built)
        log.describe(workload)

    @property
    def records(self) -> list[TuningRecord]:
        """All of this workload on this device, in the order they were taken."""
        return self._all

    def turns(self, config: TileConfig, shape: Dims, threads: int) -> int:
        """How often a kernel was measured at a shape."""
        return self._turns[config_text(config), shape, threads]

    @property
    def failed(self) -> int:
        return sum(1 for r in self._known.values() if r.error)

    def build(self, configs: Sequence[TileConfig]) -> None:
        """Build those that are not built yet, as far as the time allows; a failure is recorded once."""
        missing = [c for c in dict.fromkeys(configs) if config_text(c) not in self.built and config_text(c) not in self.refused]
        results = self.context.builder.build([(self.workload, c) for c in missing], self.time.limit)
        for config, result in zip(missing, results, strict=True):
            self.take_build(config, result)

    def take_build(self, config: TileConfig, result: BuildResult) -> None:
        """A configuration was built, or was not, which is recorded once."""
        text = config_text(config)
        if result.late or text in self.built or text in self.refused:
            return
        if result.kernel is None:
            self.refused[text] = result.error
            self._record(config, (), 0, Measurement(error=result.error), build_seconds=result.seconds)
        else:
            self.built[text] = result
            if family_of(config.family).gpu:
                self.note(text, KernelFacts.of(result.kernel))

    def measure(self, config: TileConfig, shape: Dims, threads: int, again: bool = False) -> TuningRecord | None:
        """The record of a kernel at a shape, taken now unless it is known; None where it cannot be built, or not in time.

        Equal machine code is measured once: the record of its twin is copied.
        """
        text = config_text(config)
        known = self._known.get((text, shape, threads))
        if known is not None and not again:
            return known
        self.build([config])
        result = self.built.get(text)
        if result is None or result.kernel is None:
            return None
        digest = code_digest(result.kernel, result.code)
        twin = self._same_code.setdefault(digest, text)
        copied = self._known.get((twin, shape, threads)) if twin != text else None
        if copied is not None and not copied.error and not again:
            twin_of = Measurement(copied.seconds, "", copied.cache, runner=copied.runner)
            return self._record(config, shape, threads, twin_of, digest, when=copied.when)
        if not result.kernel.legal(dense_symbols(self.workload, dict(shape))):
            if known is not None and known.error:
                return known
            return self._record(config, shape, threads, Measurement(error=f"not legal at {dict(shape)}"), digest)
        found = self.context.runner.run(self.workload, result.kernel, result.code, dict(shape), threads, self.time.limit)
        return self.take_run(config, shape, threads, found)

    def in_turns(self, runner: RunnerInTurns, variants: Sequence[tuple[TileConfig, int]], shape: Dims,
                 rounds: int, within: int = 0) -> list[list[float]]:
        """Kernels, each on its threads, beside each other in so many rounds at least, or none where there is no time: seconds of
        each, infinite for what does not run. Equal code has one turn for all. The times of each are a record, which names the
        request; they are those of the pace that most rounds had, so that medians of two kernels relate as they did in rounds."""
        self.build([config for config, _ in variants])
        found = [self.built.get(config_text(config)) for config, _ in variants]
        asked: dict[tuple[str, int], KernelAt] = {}
        places: list[tuple[str, int] | None] = []
        for made, (_, threads) in zip(found, variants, strict=True):
            kernel = None if made is None else made.kernel
            if made is None or kernel is None or not kernel.legal(dense_symbols(self.workload, dict(shape))):
                places.append(None)
                continue
            place = (code_digest(kernel, made.code), threads)
            asked.setdefault(place, KernelAt(kernel, made.code, shape, threads))
            places.append(place)
        if not asked:
            return []
        taken = runner.run_in_turns(self.workload, list(asked.values()), rounds, self.time.limit, within)
        columns = dict(zip(asked, zip(*taken.rounds, strict=True), strict=True)) if taken.rounds else {}
        paced = dict(zip(asked, zip(*_at_one_pace(taken.rounds), strict=True), strict=True)) if taken.rounds else {}
        self._requests += 1
        request, told = f"{self.context.environment.clock():.6f}/{self._requests}", set[tuple[str, int]]()
        for own, (config, threads) in zip(places, variants, strict=True):
            if own is not None and own in paced:
                times = statistics.quantiles(paced[own], n=8)[2:5] if len(paced[own]) > 1 else paced[own]
                self.take_run(config, shape, threads, Measurement(tuple(times), cache=taken.cache), (request, within))
                self.trials -= own in told  # equal code took no turn of its own
                told.add(own)
        return [[math.inf if p is None else columns[p][n] for p in places] for n in range(len(taken.rounds))]

    def open_places(self, config: TileConfig, places: Sequence[tuple[Dims, int]], again: bool = False) -> list[tuple[Dims, int]]:
        """Of places, those where a built configuration is still to be measured: it is not known there, nor is equal code, and it
        is legal. What follows without a measurement is recorded."""
        found = []
        for shape, threads in places:
            text = config_text(config)
            result, known = self.built.get(text), self._known.get((text, shape, threads))
            if result is None or result.kernel is None or (known is not None and not again):
                continue
            twin = self._same_code.setdefault(code_digest(result.kernel, result.code), text)
            is_copied = twin != text and (twin, shape, threads) in self._known and not again
            if is_copied or not result.kernel.legal(dense_symbols(self.workload, dict(shape))):
                self.measure(config, shape, threads)
            else:
                found.append((shape, threads))
        return found

    def take_run(self, config: TileConfig, shape: Dims, threads: int, found: Measurement,
                 beside: tuple[str, int] = ("", 0)) -> TuningRecord | None:
        """A built configuration was measured; None where there was no time for it, which says nothing.

        beside: of the record, with `within`.
        """
        if found.late:
            return None
        result = self.built[config_text(config)]
        assert result.kernel is not None, "what was measured was built"
        digest = code_digest(result.kernel, result.code)
        self.trials += 1
        wrong = impossible(found.seconds)
        if wrong:
            found = Measurement(error=wrong, cache=found.cache)
        return self._record(config, shape, threads, found, digest, result.seconds, beside=beside)

    def _record(self, config: TileConfig, shape: Dims, threads: int, found: Measurement, digest: str = "",
                build_seconds: float = 0.0, when: float | None = None,
                beside: tuple[str, int] = ("", 0)) -> TuningRecord:
        """when: it was measured; None: now."""
        w, at = self.workload, self.context.environment
        made = self.built.get(config_text(config))
        told = KernelFacts.of(made.kernel) if made and made.kernel and family_of(config.family).gpu else None
        record = TuningRecord(w.key, w.name, config.family, config_text(config), dict(shape), threads, found.seconds, found.error,
                              found.cache, digest, at.device, dict(at.versions), at.clock() if when is None else when,
                              build_seconds, told, found.runner, *beside)
        self.context.log.add(record)
        self._all.append(record)
        self._known[record.config, shape, threads] = record
        self._turns[record.config, shape, threads] += bool(found.seconds)
        return record


def _at_one_pace(rounds: Sequence[Sequence[float]]) -> list[list[float]]:
    """Rounds as if the machine had been as fast in each as in the middle one: of two kernels, medians over the rounds then have
    the median ratio of a round."""
    paces = [statistics.geometric_mean(row) for row in rounds]
    usual = statistics.median(paces)
    return [[seconds * usual / pace for seconds in row] for row, pace in zip(rounds, paces, strict=True)]


def code_digest(kernel: MicroKernel, code: bytes) -> str:
    """sha256 of the object code, of a GPU kernel its PTX, with the kernel's symbol blanked, so that two names for one code are
    seen."""
    symbol, code = kernel.symbol.encode(), GpuImage.of(code).ptx or code
    return hashlib.sha256(code.replace(symbol, b"k" * len(symbol))).hexdigest()
