"""Operands of single GPU kernels: seeded values, views of them with gaps and offsets, their place on a device. No compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.runtime.program.kernel import MicroKernel, Param
from tilewright.runtime.program.tensor_map import DTYPES, TensorMap
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8, "u8": np.uint8,
         "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2, "i32": np.int32, "i64": np.int64, "i1": np.bool_}
TOLERANCE = {"f32": 2e-6, "f64": 1e-14, "f16": 2e-3, "bf16": 1.6e-2, "f8E4M3FN": 7e-2, "f8E5M2": 1.3e-1, "i8": 0.0, "i32": 0.0,
             "i64": 0.0}
Dim = int | str


@dataclass(frozen=True)
class T:
    """A tensor of a workload: element type, extents (numbers or local dims), axis of unit stride (None: no known one)."""

    element: str
    dims: tuple[Dim, ...]
    unit: int | None = -1

    def type(self) -> str:
        extents = "".join(f"{d if isinstance(d, int) else '?'}x" for d in self.dims)
        return f"tensor<{extents}{self.element}>"

    def attributes(self) -> str:
        dims = ", ".join(str(d) if isinstance(d, int) else f'"{d}"' for d in self.dims)
        unit = "" if self.unit is None or not self.dims else f", tw.unit = {self.unit % len(self.dims)}"
        return f"{{tw.dims = [{dims}]{unit}}}"

    def shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(d if isinstance(d, int) else dims[d] for d in self.dims)


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
            entry = module.kernel(step.symbol)
            device.launch(entry, device.grid(entry, step, blocks), (step.threads, 1, 1), step.shared_bytes, args, step.cluster)


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
    if t.element == "u8":
        values = rng.integers(0, 256, shape)
    else:
        values = rng.integers(-7, 8, shape) if t.element[0] == "i" else rng.standard_normal(shape)
    found = values.astype(NUMPY[t.element])
    if t.unit is not None and t.dims:
        found = np.moveaxis(np.ascontiguousarray(np.moveaxis(found, t.unit, -1)), -1, t.unit)
    return found


@dataclass(frozen=True)
class Trial:
    """Operands of a launch: seeded inputs, and outputs of the shapes wanted."""

    inputs: list[Placed]
    outputs: list[Placed]

    @classmethod
    def of(cls, inputs: Sequence[T], results: Sequence[T], dims: Mapping[str, int],
           pads: Mapping[int, tuple[int, ...]] | None = None, offsets: Mapping[int, int] | None = None) -> Trial:
        """pads, offsets: by number of the operand, inputs first."""
        arrays = [*(random(t, dims, i) for i, t in enumerate(inputs)), *(random(t, dims) for t in results)]
        made = [Placed(a, (offsets or {}).get(i, 0), (pads or {}).get(i, ())) for i, a in enumerate(arrays)]
        return cls(made[: len(inputs)], made[len(inputs) :])

    def expected(self, inputs: Sequence[T], reference: Callable[..., object]) -> tuple[Any, ...]:
        """What a reference makes of the inputs in f64, or in i64."""
        exact = (np.int64 if t.element[0] == "i" else np.float64 for t in inputs)
        found = reference(*(p.array.astype(e) for p, e in zip(self.inputs, exact, strict=True)))
        return found if isinstance(found, tuple) else (found,)


def results(device: Any, setup: Setup, outputs: Sequence[Placed]) -> list[np.ndarray]:
    """The outputs as they are in the device's memory."""
    found = []
    first = len(setup.buffers) - len(outputs)
    for number, p in enumerate(outputs, first):
        made, address = setup.buffers[number], setup.pointers[number]
        if hasattr(device, "memory") and (any(p.pads) or p.offset):  # the emulator, to which gaps are not written
            data, _ = device.memory.read(address, made.nbytes)
            memory = np.asarray(data).view(made.dtype)
        else:
            memory = device.copy_out(address, made.shape, made.dtype, f"result {number}")
        found.append(p.view(memory, setup.strides[number]).copy())
    return found
