"""Builds GPU kernels from workload texts and runs their PTX on the emulator under all of its checks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gpu_operands import TOLERANCE as TOLERANCE
from gpu_operands import Placed as Placed
from gpu_operands import T, Trial
from gpu_operands import launch as launch
from gpu_operands import place as place
from gpu_operands import random as random
from gpu_operands import results as results_of

from tilewright.compiler.builder.build import BuiltKernel, build_kernel
from tilewright.runtime.emulator.emulator_device import EmulatorDevice
from tilewright.runtime.program.kernel import layout
from tilewright.runtime.target import Target, TargetKind


@functools.cache
def build(text: str, config: str, arch: str = "sm_80") -> BuiltKernel:
    """One kernel of a text, configuration and architecture is built once."""
    return build_kernel(text, "", "kernel", config, Target(TargetKind.EMULATOR, arch))


def symbols(built: BuiltKernel, dims: Mapping[str, int], placed: Sequence[Placed]) -> dict[str, int]:
    """Values of all that guards may name."""
    values = dict(dims)
    for number, p in enumerate(placed):
        values |= layout(number, p.buffer(0.0)[1], p.offset)
    return values


def is_legal(text: str, config: str, dims: Mapping[str, int], placed: Sequence[Placed], arch: str = "sm_80") -> bool:
    built = build(text, config, arch)
    return built.kernel.legal(symbols(built, dims, placed))


def run(text: str, config: str, dims: Mapping[str, int], inputs: Sequence[Placed], outputs: Sequence[Placed],
        seed: int | None = None, arch: str = "sm_80", device: Any = None) -> list[np.ndarray]:
    """The results; every launch in order. Fails on any finding of the emulator and on elements that were never written.

    device: where to run; None is a fresh emulator.
    """
    built = build(text, config, arch)
    device = EmulatorDevice(arch, seed=seed) if device is None else device
    setup = place(device, built.kernel, dims, inputs, outputs)
    launch(device, built.kernel, built.code, dims, setup.args)
    return results_of(device, setup, outputs)


def check(text: str, config: str, inputs: Sequence[T], results: Sequence[T], dims: Mapping[str, int],
          reference: Callable[..., object], seed: int | None = None, arch: str = "sm_80",
          pads: Mapping[int, tuple[int, ...]] | None = None, offsets: Mapping[int, int] | None = None,
          device: Any = None, tolerance: float | None = None) -> bool:
    """Runs and compares with a reference in f64; False when a guard forbids it. tolerance: None is that of the result's type."""
    trial = Trial.of(inputs, results, dims, pads, offsets)
    if not is_legal(text, config, dims, [*trial.inputs, *trial.outputs], arch):
        return False
    got = run(text, config, dims, trial.inputs, trial.outputs, seed, arch, device)
    for t, found, want in zip(results, got, trial.expected(inputs, reference), strict=True):
        assert found.shape == np.shape(want)
        finite = np.isfinite(want)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
        scale = max(1.0, float(np.abs(want[finite]).max(initial=0)))
        error = np.abs(found.astype(np.float64) - want, where=finite, out=np.zeros(np.shape(want))).max(initial=0) / scale
        assert error <= (TOLERANCE[t.element] if tolerance is None else tolerance), (config, dims, error)
    return True
