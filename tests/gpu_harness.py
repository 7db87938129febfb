"""Builds GPU kernels from workload texts and runs their PTX on the emulator under all of its checks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from kernel_harness import NUMPY, T

from tilewright.compiler.builder.build import BuiltKernel, build_kernel
from tilewright.runtime.emulator.emulator_device import EmulatorDevice
from tilewright.runtime.program.kernel import MicroKernel, Param, layout
from tilewright.runtime.program.tensor_map import DTYPES, TensorMap
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target, TargetKind
from tilewright.runtime.tensor import DType

TOLERANCE = {"f32": 2e-6, "f64": 1e-14, "f16": 2e-3, "bf16": 1.6e-2, "f8E4M3FN": 7e-2, "f8E5M2": 1.3e-1, "i8": 0.0, "i32": 0.0,
             "i64": 0.0}


@dataclass(frozen=True)
class Placed:
    """An array in device memory: the elements of a buffer that a view with an offset and strides (in elements) shows."""

    array: np.ndarray
    offset: int = 0
    pads: tuple[int, ...] = ()

    def buffer(self, fill: float | None) -> tuple[np.ndarray, tuple[int, ...]]:
        """The buffer and the strides; each axis but the fastest is `pads` elements longer than it has to be."""
        pads = self.pads or (0,) * self.array.ndim
        order = sorted(range(self.array.ndim), key=lambda a: (-self.array.strides[a], a))
        strides, step = [0] * self.array.ndim, 1
        for a in reversed(order):
            strides[a] = step
            step = step * self.array.shape[a] + pads[a]
        last = sum((n - 1) * s for n, s in zip(self.array.shape, strides, strict=True)) if self.array.size else -1
        memory = np.zeros(self.offset + last + 1, self.array.dtype)
        if fill is None:
            self.view(memory, strides)[...] = self.array
        return memory, tuple(strides)

    def view(self, memory: np.ndarray, strides: Sequence[int]) -> np.ndarray:
        size = self.array.dtype.itemsize
        at = (memory[self.offset :] if self.array.size else memory[:0]).view(f"V{size}")  # NumPy cannot stride over 8-bit floats
        return np.lib.stride_tricks.as_strided(at, self.array.shape, [s * size for s in strides]).view(memory.dtype)


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


@dataclass
class Setup:
    """A kernel's operands in the memory of a device: launch arguments, and per operand its buffer, address and strides."""

    args: list[int | bytes]
    buffers: list[np.ndarray]
    pointers: list[int]
    strides: list[tuple[int, ...]]


def place(device: Any, kernel: MicroKernel, dims: Mapping[str, int], inputs: Sequence[Placed],
          outputs: Sequence[Placed]) -> Setup:
    """Copies the inputs in; nothing is written to the buffers of outputs."""
    everything = (*inputs, *outputs)
    setup = Setup([], [], [], [])
    for number, p in enumerate(everything):
        memory, steps = p.buffer(None if number < len(inputs) else 0.0)
        address = device.alloc(max(1, memory.nbytes))
        if number < len(inputs) and memory.nbytes:
            device.copy_in(address, memory)
        setup.buffers.append(memory)
        setup.pointers.append(address)
        setup.strides.append(steps)
    space = device.alloc(max(1, Expr.parse(kernel.workspace).evaluate(dims)))
    for param in kernel.params:
        if param.kind == "pointer":
            p = everything[param.index]
            setup.args.append(setup.pointers[param.index] + p.offset * p.array.itemsize)
        elif param.kind == "tensor_map":
            p = everything[param.index]
            address = setup.pointers[param.index] + p.offset * p.array.itemsize
            setup.args.append(device.tensor_map(tensor_map(param, p, setup.strides[param.index], address)))
        else:
            setup.args.append({"stride": lambda p: setup.strides[p.index][p.axis], "dim": lambda p: dims[p.name],
                               "workspace": lambda p: space}[param.kind](param))
    return setup


def launch(device: Any, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], args: Sequence[int | bytes]) -> None:
    """Every launch of a kernel, in order."""
    module = device.load(code)
    for step in kernel.launches():
        blocks = step.blocks(dims)
        if 0 not in blocks:
            device.launch(module.kernel(step.symbol), blocks, (step.threads, 1, 1), step.shared_bytes, args, step.cluster)


def run(text: str, config: str, dims: Mapping[str, int], inputs: Sequence[Placed], outputs: Sequence[Placed],
        seed: int | None = None, arch: str = "sm_80", device: Any = None) -> list[np.ndarray]:
    """The results; every launch in order. Fails on any finding of the emulator and on elements that were never written.

    device: where to run; None is a fresh emulator.
    """
    built = build(text, config, arch)
    device = EmulatorDevice(arch, seed=seed) if device is None else device
    setup = place(device, built.kernel, dims, inputs, outputs)
    launch(device, built.kernel, built.code, dims, setup.args)
    found = []
    for number, p in enumerate(outputs, len(inputs)):
        made, address = setup.buffers[number], setup.pointers[number]
        if isinstance(device, EmulatorDevice) and (any(p.pads) or p.offset):
            data, _ = device.memory.read(address, made.nbytes)
            memory = np.asarray(data).view(made.dtype)
        else:
            memory = device.copy_out(address, made.shape, made.dtype, f"result {number}")
        found.append(p.view(memory, setup.strides[number]).copy())
    return found


def tensor_map(param: Param, of: Placed, strides: Sequence[int], address: int) -> TensorMap:
    """What a launch passes for a slot of that kind."""
    dtype = DTYPES.index(DType.of(of.array.dtype))
    words = [address, dtype, len(param.axes), param.swizzle]
    for axis, box in zip(param.axes, param.box, strict=True):
        words += [of.array.shape[axis], strides[axis], box]
    return TensorMap.from_words(words)


def random(t: T, dims: Mapping[str, int], seed: int = 0) -> np.ndarray:
    """Values in the memory order of the type: the unit axis last."""
    rng = np.random.default_rng(seed + 17 * len(t.dims))
    shape = t.shape(dims)
    values = rng.integers(-7, 8, shape) if t.element[0] == "i" else rng.standard_normal(shape)
    found = values.astype(NUMPY[t.element])
    if t.unit is not None and t.dims:
        found = np.moveaxis(np.ascontiguousarray(np.moveaxis(found, t.unit, -1)), -1, t.unit)
    return found


def check(text: str, config: str, inputs: Sequence[T], results: Sequence[T], dims: Mapping[str, int],
          reference: Callable[..., object], seed: int | None = None, arch: str = "sm_80",
          pads: Mapping[int, tuple[int, ...]] | None = None, offsets: Mapping[int, int] | None = None,
          device: Any = None, tolerance: float | None = None) -> bool:
    """Runs and compares with a reference in f64; False when a guard forbids it. tolerance: None is that of the result's type."""
    pads, offsets = pads or {}, offsets or {}

    def placed(array: np.ndarray, number: int) -> Placed:
        return Placed(array, offsets.get(number, 0), pads.get(number, ()))

    arrays = [random(t, dims, i) for i, t in enumerate(inputs)]
    given = [placed(a, i) for i, a in enumerate(arrays)]
    wanted = [placed(random(t, dims), len(given) + i) for i, t in enumerate(results)]
    if not is_legal(text, config, dims, [*given, *wanted], arch):
        return False
    got = run(text, config, dims, given, wanted, seed, arch, device)
    exact = [x.astype(np.float64 if t.element[0] != "i" else np.int64) for x, t in zip(arrays, inputs, strict=True)]
    expected = reference(*exact)
    for t, found, want in zip(results, got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert found.shape == np.shape(want)
        finite = np.isfinite(want)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
        scale = max(1.0, float(np.abs(want[finite]).max(initial=0)))
        error = np.abs(found.astype(np.float64) - want, where=finite, out=np.zeros(np.shape(want))).max(initial=0) / scale
        assert error <= (TOLERANCE[t.element] if tolerance is None else tolerance), (config, dims, error)
    return True
