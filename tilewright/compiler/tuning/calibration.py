"""`tilewright calibrate`: the operators that thresholds are measured on, and the kernels built and timed on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.builder.calibration_file import Calibration, store_calibration
from tilewright.compiler.builder.codegen import host_target, limits
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import SPEEDS_OF, outline
from tilewright.passes.spaces.family_registry import families_of, parse_config
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Dim
from tilewright.runtime.target import Target
from tilewright.search.calibration.calibrate import Probe, Tried, calibrate
from tilewright.search.calibration.choices import Choice
from tilewright.search.protocols import Builder, Runner
from tilewright.search.runner.runner_process import ProcessRunner
from tilewright.search.space.dense import dense_symbols
from tilewright.search.space.shapes import Dims

_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_IMAGES = (1, 2, 4, 8)
_SECONDS = 1.0  # that one measurement may take


@dataclass(frozen=True)
class Subject:
    """An operator over T. constants: shapes of the inputs that are bound."""

    body: Callable[[ops.Graph], ops.Tensor]
    values: tuple[int, ...] = _ROWS
    constants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def subjects() -> tuple[Subject, ...]:
    """Products with constant and with given weights in both orders, of a batch, rows, an image, elements, attention."""
    square, weight = {"w": (768, 768)}, [768, 768]
    return (
        Subject(lambda g: ops.softmax(g.input("x", ["T", 768]))),
        Subject(lambda g: ops.layernorm(g.input("x", ["T", 768]))),
        Subject(lambda g: ops.dense(g.input("x", ["T", 768]), g.input("w", weight)), constants=square),
        Subject(lambda g: ops.dense(g.input("x", ["T", 768]), g.input("w", weight))),
        Subject(lambda g: ops.matmul(g.input("x", ["T", 768]), g.input("w", weight), transpose_b=True)),
        Subject(lambda g: ops.batch_matmul(g.input("x", [12, "T", "T"]), g.input("v", [12, "T", 64]))),
        Subject(lambda g: _attention(g, 12, 64)),
        Subject(lambda g: ops.conv2d(g.input("x", ["T", 64, 28, 28]), g.input("w", [64, 64, 3, 3]), padding=1), _IMAGES,
                {"w": (64, 64, 3, 3)}),
        Subject(lambda g: ops.tanh(g.input("x", ["T", 768]))),
    )  # fmt: skip


def _attention(g: ops.Graph, heads: int, width: int) -> ops.Tensor:
    q, k, v = (g.input(n, [1, heads, "T", width]) for n in "qkv")
    return ops.attention(q, k, v)


@dataclass(frozen=True)
class Calibrated:
    """tried: every threshold that was measured. unfinished: was the time over before all were?"""

    tried: tuple[Tried, ...]
    unfinished: bool
    stored: Calibration


def calibrate_host(seconds: float, threads: int | None = None, told: Callable[[Tried], None] = lambda tried: None,
                   speeds: Mapping[str, int] = MappingProxyType({})) -> Calibrated:
    """Measure the thresholds of this machine for so many seconds, and store those that should be other ones.

    speeds: of the machine, measured before, which are stored with them.
    OSError where the cache folder cannot be written.
    """
    end = time.monotonic() + seconds
    target = full_target("host")
    found = limits(target, threads)
    assert isinstance(found, HostLimits)
    plain = replace(found, calibrated=())
    tried: list[Tried] = []
    with ExitStack() as stack:
        builder = stack.enter_context(WorkerBuilder(target))
        builder.warm()
        runner = stack.enter_context(ProcessRunner())
        runner.start()
        timer = _Timer(builder, runner, plain.threads or plain.cores, end)
        for one in calibrate(list(probes(target, plain)), plain, timer, lambda: time.monotonic() < end):
            tried.append(one)
            told(one)
    values = {f"{SPEEDS_OF}.{name}": value for name, value in speeds.items()}
    values |= {f"{t.threshold.family}.{t.threshold.name}": t.best for t in tried if t.best != t.threshold.value}
    stored = Calibration(host_target(target).cpu, values, time.time(), seconds, plain.threads)
    store_calibration(stored, plain)
    return Calibrated(tuple(tried), time.monotonic() >= end, stored)


def probes(target: Target, found: HostLimits) -> Iterator[Probe]:
    """The workloads of the subjects, each with the family that is preferred for it."""
    for subject in subjects():
        g = ops.Graph()
        g.output(subject.body(g))
        constants = {n: np.zeros(s, np.float32) for n, s in subject.constants.items()}
        dims = {"T": Dim(subject.values[0], subject.values[-1])}
        model = outline(Compilation(g, dims, target, CompileOptions(), constants))
        for workload in model.workloads:
            shapes = dict.fromkeys(tuple((n, e.evaluate({"T": v})) for n, e in use.items())
                                   for v in subject.values for use in model.uses[workload.key])
            yield Probe(families_of(workload, found)[0], workload, tuple(shapes))


@dataclass(frozen=True)
class _Timer:
    """Builds choices and times them in turns with the first of their shape (HostRunner)."""

    builder: Builder
    runner: Runner
    threads: int
    end: float

    def __call__(self, workload: Workload, choices: Sequence[Choice], shape: Dims) -> Mapping[Choice, float]:
        left = max(0.0, self.end - time.monotonic())
        built = self.builder.build([(workload, parse_config(text)) for text, _ in choices], left)
        found: dict[Choice, float] = {}
        for choice, result in zip(choices, built, strict=True):
            left = min(_SECONDS, self.end - time.monotonic())
            if result.kernel is None or not _legal(result.kernel, workload, shape) or left <= 0:
                continue
            measured = self.runner.run(workload, result.kernel, result.code, dict(shape), choice[1] or self.threads, left)
            if measured.seconds:
                found[choice] = statistics.median(measured.seconds)
        return found


def _legal(kernel: MicroKernel, workload: Workload, shape: Dims) -> bool:
    return kernel.legal(dense_symbols(workload, dict(shape)))
