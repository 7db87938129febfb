"""Partitions as arms of a search: with a budget, alternatives of a model's cut, and of its strips of rows, are measured where the
model runs.

The cost model ranks partitions and is not exact, so those that it says are nearly as good are built with untuned kernels and held
against the one that is taken, in turns, at some shapes of the range. One that is faster by more than its rounds leave open
is what the next ones are held against. The log keeps each, so that a search that goes on, and a compile that measures nothing,
know them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.compiler.assemble import assemble
from tilewright.compiler.builder.fingerprint import fingerprint
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.options import Deterministic
from tilewright.compiler.compilation.outlined_model import Cut, OutlinedModel
from tilewright.compiler.compilation.partitions import Alternative, alternatives_of
from tilewright.compiler.tuning.cut_refused import Built, built_with_cuts
from tilewright.compiler.tuning.dispatch_tables import Tables, untuned_tables
from tilewright.compiler.tuning.operator_tuning import environment
from tilewright.compiler.verification.keep_what_gains import Verdict, function_of
from tilewright.compiler.verification.random_inputs import Array, random_inputs
from tilewright.compiler.verification.verify_in_turns import why_other
from tilewright.passes.partition.strip_choice import StripChoice
from tilewright.runtime.errors import BuildError, OptionError, PassError, TilewrightError
from tilewright.runtime.host.benchmark import Timing, time_beside
from tilewright.runtime.host.host_cpu import thread_count
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.log import LOG
from tilewright.search.database.cut_records import CutRecord, cuts_of
from tilewright.search.database.records import TuningLog
from tilewright.search.database.stored_log import open_log
from tilewright.search.protocols import Builder

_ARMS, _MOST = 8, 16  # alternatives of one partition, and of a model
_SHARE = 0.15  # of a search's seconds for all of them
_SECONDS = 8.0  # for all of them, where the search has no limit of time
_SHAPES = 3  # of the range, where no traffic says which
_SEED = 5
_ENDLESS = 1e9  # stands for infinity in the log
_TURNS = 0.2  # seconds of rounds at a shape, at most


def measured_cut(compilation: Compilation, builder: Builder) -> Built:
    """The model whose partition was measured to be the fastest, with its untuned tables. On a GPU, on a farm, and where a model
    branches, loops or is ragged, the one that is predicted to be.

    Raises:
        BuildError: no family could build an operator. LogError: the log cannot be read or written.
    """
    begin = time.monotonic()
    built = built_with_cuts(compilation, partial(untuned_tables, builder=builder))
    options = compilation.options
    if compilation.on_gpu or options.farm is not None or not built[0].graph or built[0].plan.ragged:
        return built
    log = open_log(options.log, writes=True)
    seconds = _SECONDS if options.seconds is None else _SHARE * options.seconds
    arms = _Arms(builder, log, built, time.monotonic() + seconds, time.monotonic() - begin)
    try:
        return arms.best()
    finally:
        log.finish()


def known_cut(model: OutlinedModel, tables: Tables, tables_of: Callable[[OutlinedModel], Tables]) -> Built:
    """The model with the partition that a log says is the fastest here, or as it is."""
    options, compilation = model.compilation.options, model.compilation
    if options.log is None or compilation.on_gpu or not model.graph:
        return model, tables
    log = open_log(options.log)
    taken = [r for r in _known(log, model) if r.taken]
    if not taken:
        return model, tables
    try:
        return built_with_cuts(compilation, tables_of, _cut_of(taken[-1]))
    except (OptionError, PassError) as error:
        LOG.warning("log %s: the partition that it names is passed over: %s", options.log, str(error).partition("\n")[0])
        return model, tables


def _known(log: TuningLog, model: OutlinedModel) -> list[CutRecord]:
    compilation = model.compilation
    return cuts_of(log.cuts, model.graph, environment(compilation.target).device, thread_count(compilation.options.threads))


def _flat(cut: Cut) -> tuple[int, ...]:
    return tuple(number for pair in cut.apart for number in pair)


def _cut_of(record: CutRecord) -> Cut:
    return Cut(record.way, tuple(zip(record.apart[::2], record.apart[1::2], strict=True)), StripChoice(record.strips))


@dataclass
class _Arms:
    """built: the model that others are held against. end: of the time, by time.monotonic(). cost: seconds that a model takes."""

    builder: Builder
    log: TuningLog
    built: Built
    end: float
    cost: float

    def best(self) -> Built:
        model = self.built[0]
        known = _known(self.log, model)
        self.built = known_cut(*self.built, partial(untuned_tables, builder=self.builder))
        seen = {_cut_of(r) for r in known}
        base: CompiledFunction | None = None
        while len(seen) < _MOST and time.monotonic() + self.cost < self.end:
            arm = next((a for a in alternatives_of(self.built[0], _ARMS) if a.cut not in seen), None)
            if arm is None:
                break
            begin = time.monotonic()
            base = base or function_of(assemble(*self.built))
            other, verdict = self._measured(arm, base)
            gains = other is not None and verdict.gains
            seen.add(arm.cut)
            self._note(model, arm, verdict, gains)
            if other is not None and gains:
                self.built, base = other, None
            self.cost = max(self.cost, time.monotonic() - begin)
        return self.built

    def _note(self, model: OutlinedModel, arm: Alternative, verdict: Verdict, gains: bool) -> None:
        """What was measured, for the log."""
        LOG.info("partition %s with %d pairs apart, strips of rows %s: %s", arm.cut.way, len(arm.cut.apart), arm.cut.strips.value,
                 verdict)
        self.log.add_cut(CutRecord(
            model.graph, arm.cut.way, _flat(arm.cut), min(verdict.ratio, _ENDLESS), min(verdict.error, _ENDLESS), arm.predicted,
            verdict.rounds, gains, arm.cut.strips.value, verdict.wrong[:1000], environment(model.compilation.target).device,
            thread_count(model.compilation.options.threads), {"compiler": fingerprint()[:12]}, time.time()))

    def _made(self, cut: Cut) -> Built:
        return built_with_cuts(self.built[0].compilation, partial(untuned_tables, builder=self.builder), cut)

    def _measured(self, arm: Alternative, base: CompiledFunction) -> tuple[Built | None, Verdict]:
        """Another partition and how it does, or why it does not."""
        try:
            other = self._made(arm.cut)
        except BuildError as error:
            return None, Verdict(math.inf, 0.0, 0, str(error).partition("\n")[0])
        return other, compared(base, function_of(assemble(*other)), other[0], self.end)


def compared(base: CompiledFunction, new: CompiledFunction, model: OutlinedModel, end: float) -> Verdict:
    """The time of one model over that of another: the geometric mean of some shapes.

    Args:
        model: of either. end: of the time, by time.monotonic().
    """
    bits = model.compilation.options.deterministic is Deterministic.BATCH
    given = [g for g in (_arrays(base, dims) for dims in _shapes(model)) if g is not None]
    found = []
    for number, arrays in enumerate(given):
        wrong = why_other(new, base.call_flat(*arrays), new.call_flat(*arrays), bits)
        if wrong:
            return Verdict(math.inf, 0.0, 0, wrong)
        left = (end - time.monotonic()) / (len(given) - number)
        timing = Timing(longest=max(0.01, min(_TURNS, left)), fewest=8)
        found.append(Verdict.of(time_beside(partial(new.call_flat, *arrays), partial(base.call_flat, *arrays), timing)))
    if not found:
        return Verdict(1.0, math.inf, 0)
    ratio = math.exp(statistics.fmean(math.log(v.ratio) for v in found))
    error = math.sqrt(sum(v.error**2 for v in found)) / len(found)
    return Verdict(ratio, error, sum(v.rounds for v in found))


def _shapes(model: OutlinedModel) -> Sequence[dict[str, int]]:
    """Those of the traffic, or some of the range."""
    traffic = [dict(dims) for dims, _ in sorted(model.compilation.options.traffic, key=lambda t: -t[1])][:_SHAPES]
    values = [(name, dim.values(_SHAPES)) for name, dim in model.ranges.dims]
    return traffic or [{name: found[min(n, len(found) - 1)] for name, found in values} for n in range(_SHAPES if values else 1)]


def _arrays(fn: CompiledFunction, dims: dict[str, int]) -> list[Array] | None:
    """Arguments at a shape; None where the model asserts more of its dims than their ranges say."""
    try:
        arrays = random_inputs(fn.program, dims, _SEED)
        fn.call_flat(*arrays)
    except TilewrightError:
        return None
    return arrays
