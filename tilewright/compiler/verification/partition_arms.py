"""Partitions as arms of a search: with a budget, alternatives of a model's cut, and of its strips of rows or of its products with
the work on their rows, are measured where the model runs: on the host in this process, on a GPU in another (gpu_models.py).

The cost model ranks partitions and is not exact, so those that it says are nearly as good are built with untuned kernels and held
against the one that is taken, in turns, at some shapes of the range. One that is faster by more than its rounds leave open
is what the next ones are held against. The log keeps each, so that a search that goes on, and a compile that measures nothing,
know them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from tilewright.compiler.assemble import assemble
from tilewright.compiler.builder.fingerprint import fingerprint
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.options import Deterministic
from tilewright.compiler.compilation.outlined_model import Cut, OutlinedModel
from tilewright.compiler.compilation.partitions import Alternative, alternatives_of
from tilewright.compiler.tuning.cut_refused import Built, built_with_cuts
from tilewright.compiler.tuning.dispatch_tables import Tables, untuned_tables
from tilewright.compiler.tuning.operator_tuning import environment
from tilewright.compiler.verification.gpu_models import GpuModels
from tilewright.compiler.verification.keep_what_gains import Verdict, function_of
from tilewright.compiler.verification.models_beside import Called, Shapes, ratios_here, verdict_of
from tilewright.passes.partition.strip_choice import StripChoice
from tilewright.runtime.errors import BuildError, OptionError, PassError
from tilewright.runtime.host.host_cpu import thread_count
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.log import LOG
from tilewright.runtime.target import TargetKind
from tilewright.search.database.cut_records import CutRecord, cuts_of
from tilewright.search.database.records import TuningLog
from tilewright.search.database.stored_log import open_log
from tilewright.search.protocols import Builder
from tilewright.search.runner.gpu_environment import is_for

_ARMS, _MOST = 8, 16  # alternatives of one partition, and of a model
_SHARE = 0.15  # of a search's seconds for all of them
_SECONDS = 8.0  # for all of them, where the search has no limit of time
_SHAPES = 3  # of the range, where no traffic says which
_ENDLESS = 1e9  # stands for infinity in the log


class Scale(Protocol):
    """What holds models against each other."""

    def compare(self, base: CompiledFunction, new: CompiledFunction, shapes: Shapes, end: float) -> Verdict:
        """The new model's time over the other's. end: of the time, by time.monotonic()."""


class HostModels:
    """In this process."""

    def compare(self, base: CompiledFunction, new: CompiledFunction, shapes: Shapes, end: float) -> Verdict:
        here = Called(base.program, base.call_flat), Called(new.program, new.call_flat)
        return verdict_of(*here, shapes, ratios_here(*here), end)


def measured_cut(compilation: Compilation, builder: Builder) -> Built:
    """The model whose partition was measured to be the fastest, with its untuned tables. On the emulator, whose clock is of
    single kernels, on a farm, and where a model branches, loops or is ragged, the one that is predicted to be.

    Raises:
        BuildError: no family could build an operator. LogError: the log cannot be read or written. DeviceError: the target is a
        GPU and there is none.
    """
    begin = time.monotonic()
    built = built_with_cuts(compilation, partial(untuned_tables, builder=builder))
    options, kind = compilation.options, compilation.target.kind
    if kind is TargetKind.EMULATOR or options.farm is not None or not built[0].graph or built[0].plan.ragged:
        return built
    with ExitStack() as stack:
        log = open_log(options.log, writes=True)
        stack.callback(log.finish)
        scale = stack.enter_context(GpuModels()) if kind is TargetKind.CUDA else HostModels()
        seconds = _SECONDS if options.seconds is None else _SHARE * options.seconds
        device = environment(compilation.target).device
        return _Arms(builder, log, built, scale, device, time.monotonic() + seconds, time.monotonic() - begin).best()


def known_cut(model: OutlinedModel, tables: Tables, tables_of: Callable[[OutlinedModel], Tables], device: str = "") -> Built:
    """The model with the partition that a log says is the fastest on a device, or as it is.

    Args:
        device: as the log names it; "" for this machine, or, of a GPU target, the GPU that the log knows partitions on.
    """
    options, compilation = model.compilation.options, model.compilation
    if options.log is None or not model.graph:
        return model, tables
    log = open_log(options.log)
    taken = [r for r in _known(log, model, device or _logged_device(log, model)) if r.taken]
    if not taken:
        return model, tables
    try:
        cut = replace(_cut_of(taken[-1]), measured=math.prod(r.ratio for r in taken))
        return built_with_cuts(compilation, tables_of, cut)
    except (OptionError, PassError) as error:
        LOG.warning("log %s: the partition that it names is passed over: %s", options.log, str(error).partition("\n")[0])
        return model, tables


def _logged_device(log: TuningLog, model: OutlinedModel) -> str:
    """This machine, or the GPU of the target's kind that a partition of the model was measured on last; "" for none."""
    target = model.compilation.target
    if target.kind is TargetKind.HOST:
        return environment(target).device
    return next((r.device for r in reversed(log.cuts) if r.graph == model.graph and is_for(r.device, target)), "")


def _known(log: TuningLog, model: OutlinedModel, device: str) -> list[CutRecord]:
    return cuts_of(log.cuts, model.graph, device, _threads(model))


def _threads(model: OutlinedModel) -> int:
    """Of a call; on a GPU they count for nothing."""
    return 1 if model.compilation.on_gpu else thread_count(model.compilation.options.threads)


def _flat(cut: Cut) -> tuple[int, ...]:
    return tuple(number for pair in cut.apart for number in pair)


def _cut_of(record: CutRecord) -> Cut:
    return Cut(record.way, tuple(zip(record.apart[::2], record.apart[1::2], strict=True)), StripChoice(record.strips))


@dataclass
class _Arms:
    """built: the model that others are held against. device: where, as the log names it. end: of the time, by time.monotonic().
    cost: seconds that a model takes."""

    builder: Builder
    log: TuningLog
    built: Built
    scale: Scale
    device: str
    end: float
    cost: float

    def best(self) -> Built:
        model = self.built[0]
        known = _known(self.log, model, self.device)
        self.built = known_cut(*self.built, partial(untuned_tables, builder=self.builder), self.device)
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
            verdict.rounds, gains, arm.cut.strips.value, verdict.wrong[:1000], self.device, _threads(model),
            {"compiler": fingerprint()[:12]}, time.time()))

    def _made(self, cut: Cut) -> Built:
        return built_with_cuts(self.built[0].compilation, partial(untuned_tables, builder=self.builder), cut)

    def _measured(self, arm: Alternative, base: CompiledFunction) -> tuple[Built | None, Verdict]:
        """Another partition and how it does, or why it does not."""
        try:
            other = self._made(arm.cut)
        except BuildError as error:
            return None, Verdict(math.inf, 0.0, 0, str(error).partition("\n")[0])
        model = other[0]
        bits = model.compilation.options.deterministic is Deterministic.BATCH
        verdict = self.scale.compare(base, function_of(assemble(*other)), Shapes(shapes_of(model), bits), self.end)
        share = verdict.ratio * (self.built[0].cut.measured or 1.0)
        return (replace(model, cut=replace(model.cut, measured=share)), other[1]), verdict


def shapes_of(model: OutlinedModel) -> Sequence[dict[str, int]]:
    """Those of the traffic, or some of the range."""
    traffic = [dict(dims) for dims, _ in sorted(model.compilation.options.traffic, key=lambda t: -t[1])][:_SHAPES]
    values = [(name, dim.values(_SHAPES)) for name, dim in model.ranges.dims]
    return traffic or [{name: found[min(n, len(found) - 1)] for name, found in values} for n in range(_SHAPES if values else 1)]
