"""Thresholds of the untuned choices as a machine wants them: where other values would choose other kernels, these are timed.

Each threshold is tried at a quarter to four times its value on the operators of its family. Only shapes at which the values
choose differently are measured, each kernel in turns with the first one there. Another value takes the place of today's where its
kernels take less time in the mean, by more than what the measurements leave open, and are nowhere much slower.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tilewright.passes.spaces import family_registry, threads_heuristics
from tilewright.passes.spaces.threads import FAMILY, one_thread_when_small
from tilewright.passes.spaces.threshold import calibrated
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Node
from tilewright.search.calibration.choices import Choice, Heuristics, Threshold, choices, differing, thresholds_of
from tilewright.search.space.shapes import Dims

GAIN, WORST = 0.02, 1.05  # share that a value must save in the mean, and time over today's at the worst shape

Timer = Callable[[Workload, Sequence[Choice], Dims], Mapping[Choice, float]]


@dataclass(frozen=True)
class Probe:
    """An operator whose kernels are of a family, and the shapes that it is looked at."""

    family: str
    workload: Workload
    shapes: tuple[Dims, ...]


@dataclass(frozen=True)
class Tried:
    """A threshold that was measured. gain: time with today's value over that with the best one, less 1; places: shapes."""

    threshold: Threshold
    best: int
    gain: float
    places: int


@dataclass(frozen=True)
class _Threads:
    """The thresholds of threads as the heuristics of a family: its default kernels, on one thread where there is little work."""

    family: str

    Thresholds: Callable[[], Any] = threads_heuristics.Thresholds

    def default(self, workload: Workload, limits: HostLimits, thresholds: Any) -> tuple[Sequence[TileConfig], Node]:
        configs, root = family_registry.heuristics_of(self.family).default(workload, limits)
        return configs, one_thread_when_small(root, workload, thresholds.small)


_Subjects = Sequence[tuple[Heuristics, Probe]]


def calibrate(probes: Sequence[Probe], limits: HostLimits, timer: Timer, going: Callable[[], bool]) -> Iterator[Tried]:
    """Each threshold of the probes' families in turn, while `going`; what was found counts for those after it.

    timer: seconds of choices at a shape, of those that can be built and may run there.
    """
    found: dict[str, int] = {}
    for family, subjects in _subjects(probes, limits.threads or limits.cores):
        for threshold in _known(family, subjects[0][0], limits):
            if not going():
                return
            here = replace(limits, calibrated=tuple(found.items()))
            tried = _tried(threshold, subjects, here, timer, going)
            if tried is None:
                continue
            if tried.best != threshold.value:
                found[f"{family}.{threshold.name}"] = tried.best
            yield tried


def _subjects(probes: Sequence[Probe], threads: int) -> Iterator[tuple[str, _Subjects]]:
    """Family, and its probes with their heuristics; that of threads first, where there are several: all other kernels run on so
    many."""
    if threads > 1:
        yield FAMILY, [(cast(Heuristics, _Threads(p.family)), p) for p in probes]
    for family in dict.fromkeys(p.family for p in probes):
        module = family_registry.heuristics_of(family)
        if hasattr(module, "Thresholds"):
            yield family, [(cast(Heuristics, module), p) for p in probes if p.family == family]


def _known(family: str, heuristics: Heuristics, limits: HostLimits) -> list[Threshold]:
    """The thresholds with the values that they have now; of threads the one that says where several pay."""
    values = calibrated(heuristics.Thresholds(), family, limits)
    found = [replace(t, value=getattr(values, t.name)) for t in thresholds_of(family, heuristics)]
    return [t for t in found if t.name == "small"] if family == FAMILY else found


def _tried(threshold: Threshold, subjects: _Subjects, limits: HostLimits, timer: Timer,
           going: Callable[[], bool]) -> Tried | None:
    """None where no shape of the probes tells the values apart, or the time was over before all were measured."""
    logs: dict[int, list[float]] = {}
    for heuristics, probe in subjects:
        chosen = choices(heuristics, threshold, probe.workload, limits, probe.shapes, lambda workload, configs: ())
        for place in differing(chosen):
            if not going():
                return None
            wanted = list(dict.fromkeys(here[place] for here in chosen.values()))
            times = timer(probe.workload, wanted, probe.shapes[place])
            today = times.get(chosen[threshold.value][place])
            if today is None:
                continue
            for value, here in chosen.items():
                logs.setdefault(value, []).append(math.log(times.get(here[place], math.inf) / today))
    if not logs:
        return None
    usual = threshold.value
    means = {value: statistics.fmean(ratios) for value, ratios in logs.items() if math.exp(max(ratios)) <= WORST}
    best = min(means, key=lambda v: (means[v], v != usual))
    if means[best] > math.log(1 - GAIN) or _open(logs[best]):
        best = usual
    return Tried(threshold, best, math.exp(-means[best]) - 1, len(logs[usual]))


def _open(logs: Sequence[float]) -> bool:
    """Is a mean gain within what its spread over the shapes leaves open?"""
    if len(logs) < 2:
        return True
    return statistics.fmean(logs) + statistics.stdev(logs) / math.sqrt(len(logs)) >= 0
