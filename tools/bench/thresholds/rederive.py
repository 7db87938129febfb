"""A threshold measured again: its operator at the shapes where other values would choose other kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from passes.spaces.registry import parse_config
from passes.workload import Workload
from runtime.cpu import HostDevice
from runtime.errors import BuildError
from runtime.limits import GpuLimits
from search.gpu_runner import EmulatedGpu
from search.host_runner import HostRunner
from search.protocols import Builder, BuildResult
from search.shapes import Dims
from search.verification import blank, seeded
from tools.bench.search.oracle import paired, rounds
from tools.bench.thresholds.choices import Choice, Threshold, differing

Timer = Callable[[Workload, Sequence[Choice], Dims], Mapping[Choice, float]]


class Tried(msgspec.Struct, frozen=True):
    """One value. geomean, worst: time over that with today's value, over all shapes and at the worst; below 1 it is faster."""

    value: int
    geomean: float
    worst: float
    worst_shape: dict[str, int]


class Rederived(msgspec.Struct, frozen=True, tag="threshold", tag_field="record"):
    """A threshold. best: the value of least geomean, today's where none is better. measured: at how many of the shapes values
    differ, so that they were measured."""

    family: str
    name: str
    value: int
    unit: str
    operator: str
    threads: int
    best: int
    shapes: int
    measured: int
    tried: tuple[Tried, ...]

    def __str__(self) -> str:
        lines = [f"{self.family}.{self.name} = {self.value} {self.unit}: best {self.best}; "
                 f"{self.operator}, {self.threads} threads, {self.measured} of {self.shapes} shapes differ"]
        for t in self.tried:
            at = ", ".join(f"{n}={v}" for n, v in t.worst_shape.items())
            lines.append(f"  {t.value:>10}  {t.geomean - 1:+7.2%} in the mean, {t.worst - 1:+7.2%} at {at or 'no shape'}")
        return "\n".join(lines)


def rederive(threshold: Threshold, chosen: Mapping[int, Sequence[Choice]], workload: Workload, shapes: Sequence[Dims],
             threads: int, timer: Timer) -> Rederived:
    """Measure every choice where the values differ, and compare each value with today's."""
    places = differing(chosen)
    times = {p: timer(workload, list(dict.fromkeys(c[p] for c in chosen.values())), shapes[p]) for p in places}
    tried = []
    for value, choices in chosen.items():
        today = chosen[threshold.value]
        ratios = {p: times[p][choices[p]] / times[p][today[p]] for p in places}
        worst = max(ratios, key=ratios.__getitem__, default=None)
        mean = math.exp(sum(map(math.log, ratios.values())) / max(1, len(shapes)))
        tried.append(Tried(value, round(mean, 4), round(ratios[worst], 4) if worst is not None else 1.0,
                           dict(shapes[worst]) if worst is not None else {}))
    best = min(tried, key=lambda t: (t.geomean, t.value != threshold.value))
    return Rederived(threshold.family, threshold.name, threshold.value, threshold.origin.unit, threshold.origin.operator, threads,
                     best.value, len(shapes), len(places), tuple(tried))


class Built:
    """Kernels by configuration, each built once. BuildError for one that cannot be."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._built: dict[tuple[str, str], BuildResult] = {}

    def __call__(self, workload: Workload, configs: Sequence[str]) -> list[BuildResult]:
        missing = [c for c in dict.fromkeys(configs) if (workload.key, c) not in self._built]
        results = self._builder.build([(workload, parse_config(c)) for c in missing])
        for config, result in zip(missing, results, strict=True):
            if result.kernel is None:
                raise BuildError(f"{config} of {workload.name} cannot be built: {result.error}", workload.ir)
            self._built[workload.key, config] = result
        return [self._built[workload.key, c] for c in configs]


class HostTimer:
    """In turns on this machine, for so many seconds each."""

    def __init__(self, built: Built, threads: int, seconds: float) -> None:
        self._built, self._threads, self._seconds = built, threads, seconds
        self._runner = HostRunner(HostDevice())

    def __call__(self, workload: Workload, choices: Sequence[Choice], shape: Dims) -> Mapping[Choice, float]:
        results = self._built(workload, [config for config, _ in choices])
        calls = []
        for (_, threads), result in zip(choices, results, strict=True):
            assert result.kernel is not None
            calls.append(self._runner.launcher(workload, result.kernel, result.code, dict(shape), threads or self._threads))
        return dict(zip(choices, paired(rounds(calls, self._seconds)).tolist(), strict=True))


class EmulatedTimer:
    """By the emulator's clock, which is a model of a GPU and no measurement."""

    def __init__(self, built: Built, limits: GpuLimits) -> None:
        self._built, self._gpu = built, EmulatedGpu(limits)

    def __call__(self, workload: Workload, choices: Sequence[Choice], shape: Dims) -> Mapping[Choice, float]:
        arrays: list[np.ndarray] = [*seeded(workload, shape, 0), *blank(workload, shape)]
        found = {}
        for choice, result in zip(choices, self._built(workload, [c for c, _ in choices]), strict=True):
            assert result.kernel is not None
            found[choice] = self._gpu.time(workload, result.kernel, result.code, dict(shape), arrays)[0]
        return found
