"""A threshold measured again: its operator at the shapes where other values would choose other kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import BuildError
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.calibration.choices import Choice, Threshold, differing
from tilewright.search.protocols import Builder, BuildResult
from tilewright.search.runner.gpu_runner import EmulatedGpu
from tilewright.search.runner.host_runner import HostRunner
from tilewright.search.runner.verification import blank, seeded
from tilewright.search.space.dense import dense_symbols
from tilewright.search.space.shapes import Dims
from tools.bench.search.oracle import paired, rounds

Timer = Callable[[Workload, Sequence[Choice], Dims], Mapping[Choice, float]]


class Tried(msgspec.Struct, frozen=True):
    """One value. geomean, worst: time over that with today's value, over all shapes and at the worst; below 1 it is faster. None
    where a kernel that it chooses cannot be built, or may not run at its shape."""

    value: int
    geomean: float | None
    worst: float | None
    worst_shape: dict[str, int]

    def __str__(self) -> str:
        at = ", ".join(f"{n}={v}" for n, v in self.worst_shape.items()) or "no shape"
        if self.geomean is None or self.worst is None:
            return f"  {self.value:>10}  chooses a kernel that may not run at {at}"
        return f"  {self.value:>10}  {self.geomean - 1:+7.2%} in the mean, {self.worst - 1:+7.2%} at {at}"


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
        head = (f"{self.family}.{self.name} = {self.value} {self.unit}: best {self.best}; "
                f"{self.operator}, {self.threads} threads, {self.measured} of {self.shapes} shapes differ")
        return "\n".join([head, *map(str, self.tried)])


def rederive(threshold: Threshold, chosen: Mapping[int, Sequence[Choice]], workload: Workload, shapes: Sequence[Dims],
             threads: int, timer: Timer) -> Rederived:
    """Measure every choice where the values differ, and compare each value with today's. BuildError where today's cannot run."""
    places, today = differing(chosen), chosen[threshold.value]
    times = {p: timer(workload, list(dict.fromkeys(c[p] for c in chosen.values())), shapes[p]) for p in places}
    tried = [_tried(value, [times[p].get(choices[p], math.inf) / _known(times[p], today[p]) for p in places], places, shapes)
             for value, choices in chosen.items()]
    best = min(tried, key=lambda t: (math.inf if t.geomean is None else t.geomean, t.value != threshold.value))
    return Rederived(threshold.family, threshold.name, threshold.value, threshold.origin.unit, threshold.origin.operator, threads,
                     best.value, len(shapes), len(places), tuple(tried))


def _tried(value: int, ratios: Sequence[float], places: Sequence[int], shapes: Sequence[Dims]) -> Tried:
    """From the times over today's at the places that were measured."""
    worst = max(ratios, default=1.0)
    shape = dict(shapes[places[ratios.index(worst)]]) if ratios else {}
    if math.isinf(worst):
        return Tried(value, None, None, shape)
    return Tried(value, round(math.exp(sum(map(math.log, ratios)) / max(1, len(shapes))), 4), round(worst, 4), shape)


def _known(times: Mapping[Choice, float], choice: Choice) -> float:
    if choice not in times:
        raise BuildError(f"{choice[0]}, which is chosen today, cannot be built or may not run at a shape of the operator")
    return times[choice]


class Built:
    """Kernels by configuration, each built once."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._built: dict[tuple[str, str], BuildResult] = {}

    def __call__(self, workload: Workload, configs: Sequence[str]) -> list[BuildResult]:
        missing = [c for c in dict.fromkeys(configs) if (workload.key, c) not in self._built]
        results = self._builder.build([(workload, parse_config(c)) for c in missing])
        self._built.update({(workload.key, c): result for c, result in zip(missing, results, strict=True)})
        return [self._built[workload.key, c] for c in configs]

    def running(self, workload: Workload, choices: Sequence[Choice], shape: Dims) -> dict[Choice, tuple[MicroKernel, bytes]]:
        """Kernel and code of the choices that could be built and may run at a shape."""
        found, symbols = {}, dense_symbols(workload, dict(shape))
        for choice, result in zip(choices, self(workload, [config for config, _ in choices]), strict=True):
            if result.kernel is not None and result.kernel.legal(symbols):
                found[choice] = (result.kernel, result.code)
        return found


class HostTimer:
    """In turns on this machine, for so many seconds each."""

    def __init__(self, built: Built, threads: int, seconds: float) -> None:
        self._built, self._threads, self._seconds = built, threads, seconds
        self._runner = HostRunner(HostDevice())

    def __call__(self, workload: Workload, choices: Sequence[Choice], shape: Dims) -> Mapping[Choice, float]:
        found = self._built.running(workload, choices, shape)
        calls = [self._runner.launcher(workload, kernel, code, dict(shape), threads or self._threads)
                 for (_, threads), (kernel, code) in found.items()]
        return dict(zip(found, paired(rounds(calls, self._seconds)).tolist(), strict=True)) if calls else {}


class EmulatedTimer:
    """By the emulator's clock, which is a model of a GPU and no measurement."""

    def __init__(self, built: Built, limits: GpuLimits) -> None:
        self._built, self._gpu = built, EmulatedGpu(limits)

    def __call__(self, workload: Workload, choices: Sequence[Choice], shape: Dims) -> Mapping[Choice, float]:
        arrays: list[np.ndarray] = [*seeded(workload, shape, 0), *blank(workload, shape)]
        return {choice: self._gpu.time(workload, kernel, code, dict(shape), arrays)[0]
                for choice, (kernel, code) in self._built.running(workload, choices, shape).items()}
