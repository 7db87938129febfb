"""GpuRunner: verifies each kernel, then times it, on a GPU by events or on the emulator by its clock."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tilewright.passes.spaces.family_registry import cost_of, parse_config
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.cuda.cuda_device import CudaDevice
from tilewright.runtime.cuda.replays import WARM_SECONDS
from tilewright.runtime.cuda.timer import MOST_SETS, KernelTimer
from tilewright.runtime.emulator.emulator_device import EmulatorDevice
from tilewright.runtime.gpu.gpu_launch import enqueue, fetch, place, release
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.protocols import Measurement
from tilewright.search.runner.emulator_clock import EmulatorClock
from tilewright.search.runner.verification import Case, blank, legal_cases, seeded, why_wrong
from tilewright.search.runner.wave_check import wave_check
from tilewright.search.space.dense import dense_symbols
from tilewright.search.space.shapes import Dims

_REPEATS = 20


class TimedGpu(Protocol):
    """Runs single kernels. arrays: inputs, then outputs, dense.

    cache: the state of the operands before each timed launch. filled: the device that kernels must be right on with two waves of
    blocks, None where that would take too long.
    """

    cache: str
    filled: GpuLimits | None

    def run(self, kernel: MicroKernel, image: bytes, dims: Mapping[str, int], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All operands after one launch."""

    def time(self, workload: Workload, kernel: MicroKernel, image: bytes, dims: Mapping[str, int],
             arrays: Sequence[np.ndarray]) -> list[float]:
        """Seconds of one launch, several times."""


class CudaGpu:
    """A GPU. CudaError where a kernel fails; a sticky one costs the process."""

    cache = (f"cold: operands rotate over copies that exceed twice the L2 cache, {MOST_SETS} at most; repeats of "
             f"{WARM_SECONDS:g} s warm up")

    def __init__(self, ordinal: int = 0) -> None:
        self._timer = KernelTimer(CudaDevice(ordinal))
        self.filled: GpuLimits | None = self._timer.device.limits()

    def run(self, kernel: MicroKernel, image: bytes, dims: Mapping[str, int], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self._timer.run(kernel, image, dims, arrays)

    def time(self, workload: Workload, kernel: MicroKernel, image: bytes, dims: Mapping[str, int],
             arrays: Sequence[np.ndarray]) -> list[float]:
        return self._timer.time(kernel, image, dims, arrays, _REPEATS)


class EmulatedGpu:
    """The emulator: results under all of its checks, times by its clock, which is a model."""

    cache = EmulatorClock.cache

    def __init__(self, limits: GpuLimits) -> None:
        self.limits, self._clock = limits, EmulatorClock(limits)
        self.filled: GpuLimits | None = None
        self._times: dict[tuple[str, tuple[tuple[str, int], ...]], float] = {}

    def run(self, kernel: MicroKernel, image: bytes, dims: Mapping[str, int], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        device = EmulatorDevice(self.limits.arch)
        placed = place(device, kernel, dims, arrays)
        enqueue(device, kernel, device.load(image), dims, placed)
        found = [fetch(device, placed, i, a) for i, a in enumerate(arrays)]
        release(device, placed)
        return found

    def time(self, workload: Workload, kernel: MicroKernel, image: bytes, dims: Mapping[str, int],
             arrays: Sequence[np.ndarray]) -> list[float]:
        block = cost_of(kernel.family).kernel_cost(parse_config(kernel.config), workload, self.limits).block
        registers = kernel.registers or block.registers
        key = (hashlib.sha256(image).hexdigest(), tuple(dims.items()))
        if key not in self._times:  # the clock gives the same again
            self._times[key] = self._clock.seconds(kernel, image, dims, arrays, workload.bytes.evaluate(dims), registers)
        return [self._times[key]]


class GpuRunner:
    """A Runner in this process.

    Args:
        cases: workload key -> what its kernels must give. A kernel that gives something else, or of which none can be asked
            because its guards hold at none of them, is refused at every shape.
        keep: bytes of operands that are kept for the next kernel at the same shape.
    """

    def __init__(self, gpu: TimedGpu, cases: Mapping[str, Sequence[Case]], keep: int = 1 << 30) -> None:
        self.gpu, self.cases, self.keep = gpu, cases, keep
        self._verdicts: dict[tuple[str, str], str] = {}
        self._operands: dict[tuple[str, Dims, int], list[np.ndarray]] = {}

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        """Times of one launch; a kernel whose guards do not hold at `dims`, or that computes something else, is an error text.

        Raises:
            DeviceError: the kernel failed.
        """
        if not kernel.legal(dense_symbols(workload, dims)):
            return Measurement(error=f"{kernel.config} is not legal at {dict(dims)}")
        wrong = self._verdict(workload, kernel, code)
        if wrong:
            return Measurement(error=wrong)
        times = self.gpu.time(workload, kernel, code, dims, self._arrays(workload, tuple(dims.items()), 0))
        return Measurement(tuple(sorted(times)), cache=self.gpu.cache)

    def _verdict(self, workload: Workload, kernel: MicroKernel, code: bytes) -> str:
        """Why a kernel may not win; empty where it may. Found once for each kernel."""
        key = (workload.key, hashlib.sha256(code).hexdigest())
        if key not in self._verdicts:
            self._verdicts[key] = f"{kernel.config}: stopped while it was verified"  # stands if the kernel raises
            self._verdicts[key] = self._verify(workload, kernel, code)
        return self._verdicts[key]

    def _verify(self, workload: Workload, kernel: MicroKernel, code: bytes) -> str:
        cases = legal_cases(workload, kernel, self.cases.get(workload.key, ()))
        if not cases:
            return f"{kernel.config}: not verified, since its guards hold at none of the shapes with known outputs"
        for case in cases:
            dims = dict(case.shape)
            arrays = [*self._arrays(workload, case.shape, case.seed)[: len(workload.inputs)], *blank(workload, case.shape)]
            got = self.gpu.run(kernel, code, dims, arrays)[len(workload.inputs):]
            wrong = why_wrong(workload, case, got, kernel)
            if wrong:
                return f"{kernel.config}: wrong: {wrong}"
        large = wave_check(workload, kernel, cases, self.gpu.filled) if self.gpu.filled else None
        if large is None:
            return ""
        given = self._arrays(workload, large.case.shape, large.case.seed)[: len(workload.inputs)]
        got = self.gpu.run(kernel, code, dict(large.shape), large.arrays(given))[len(workload.inputs):]
        wrong = large.why_wrong(got, kernel)
        return f"{kernel.config}: wrong: {wrong}" if wrong else ""

    def _arrays(self, workload: Workload, shape: Dims, seed: int) -> list[np.ndarray]:
        """Inputs and blank outputs, the same again for the next kernel."""
        key = (workload.key, shape, seed)
        found = self._operands.pop(key, None)
        if found is None:
            found = [*seeded(workload, shape, seed), *blank(workload, shape)]
            size = sum(a.nbytes for a in found)
            while self._operands and size + sum(a.nbytes for kept in self._operands.values() for a in kept) > self.keep:
                del self._operands[next(iter(self._operands))]
        self._operands[key] = found
        return found
