"""HostRunner: runs a kernel on seeded random data on the host CPU and times it."""

from __future__ import annotations

import ctypes
import hashlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

import numpy as np

from tilewright.passes.spaces.workload import Operand, Workload
from tilewright.runtime.device import LAUNCH, LoadedCode
from tilewright.runtime.float_environment import float_environment
from tilewright.runtime.host.benchmark import Timing, dispersion, time_beside, time_call, time_in_turns
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.program.arena_plan import workspace_stride
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr
from tilewright.search.protocols import KernelAt, Measurement, Turns
from tilewright.search.runner.constant_copies import WARM, Weights
from tilewright.search.space.dense import clear_zeros, dense_symbols, memory_order

_PAGE = 4096
_APART = 17 * 64
_TRIES, _STEADY = 3, 0.1  # of turns whose ratios are so far apart that something else ran between
_PATIENCE = 0.1  # seconds of all tries but the first, about
_LAUNCH = ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] + [ctypes.c_int64] * 4 + [ctypes.c_void_p] + [ctypes.c_int64] * 2
                                   + [ctypes.c_void_p, ctypes.c_int64]))


_Place = tuple[str, tuple[tuple[str, int], ...]]  # workload and dims


class _First(NamedTuple):
    """The first launch of a shape and what it took."""

    kernel: MicroKernel
    code: bytes
    threads: int
    seconds: float


class HostRunner:
    """A Runner in this process. Operands are dense. Inputs are warm in cache, the state that a layer finds them in; constants are
    found where a model leaves them that reads so many bytes between two calls of the layer (constant_copies.py).

    The first launch of a shape is timed by itself, those after it in turns with it: three figures about the median, at the speed
    that the machine had then, since neighbours on its cores change that more than kernels differ. Operands of the shapes used
    last are kept, up to `keep` bytes.
    """

    def __init__(self, device: HostDevice, timing: Timing | None = None, seed: int = 0, keep: int = 256 << 20,
                 weights: Weights = WARM) -> None:
        self.device, self.timing, self.seed, self.keep, self.weights = device, timing or Timing(), seed, keep, weights
        self._copies: tuple[str, list[Sequence[np.ndarray]], Iterator[int]] | None = None
        self._operands: dict[_Place, list[np.ndarray]] = {}
        self._first: dict[_Place, _First] = {}
        self._loaded: dict[bytes, LoadedCode] = {}

    @float_environment()
    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        """Times of one launch; a kernel whose guards do not hold at `dims` is an error text. In little time: fewer of them."""
        if not kernel.legal(dense_symbols(workload, dims)):
            return Measurement(error=f"{kernel.config} is not legal at {dict(dims)}")
        with self._awake():
            return self._timed(workload, kernel, code, dims, threads, self._timing(seconds))

    def _timed(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int,
               timing: Timing) -> Measurement:
        place = (workload.key, tuple(dims.items()))
        call, first = self.launcher(workload, kernel, code, dims, threads), self._first.get(place)
        if first is None:
            times = sorted(time_call(call, timing))
            self._first[place] = _First(kernel, code, threads, statistics.median(times))
            return Measurement(tuple(times), cache=self.weights.name)
        other = self.launcher(workload, first.kernel, first.code, dims, first.threads)
        tries, begin = [time_beside(call, other, timing)], time.perf_counter()
        while len(tries) < _TRIES and dispersion(tries[-1]) > _STEADY and time.perf_counter() - begin < _PATIENCE:
            tries.append(time_beside(call, other, timing))
        steadiest = min(tries, key=dispersion)
        found = tuple(first.seconds * ratio for ratio in statistics.quantiles(steadiest, n=8)[2:5])
        return Measurement(found, cache=self.weights.name)

    @float_environment()
    def run_in_turns(self, workload: Workload, asked: Sequence[KernelAt], rounds: int, seconds: float | None = None,
                     within: int = 0) -> Turns:
        """Kernels that are legal at one shape beside each other, on operands that are made anew, on other memory; in little time:
        fewer rounds, but one."""
        wrong = [x.kernel.config for x in asked if not x.kernel.legal(dense_symbols(workload, dict(x.dims)))]
        if wrong or len({x.dims for x in asked}) != 1:
            return Turns(error=f"wanted kernels that are legal at one shape, got {wrong or [x.dims for x in asked]}")
        place = (workload.key, asked[0].dims)
        before = self._operands.pop(place, None)  # times differ by where operands lie
        self._arrays(workload, dict(asked[0].dims), within)
        del before  # not sooner: its memory would be given again
        calls = [self.launcher(workload, x.kernel, x.code, dict(x.dims), x.threads) for x in asked]
        with self._awake():
            return Turns(tuple(time_in_turns(calls, rounds, self._timing(seconds))), cache=self.weights.name)

    def _awake(self) -> AbstractContextManager[None]:
        """Threads sleep where others are to have the cores between what is timed."""
        return nullcontext() if self.timing.rest else self.device.awake()

    def _timing(self, seconds: float | None) -> Timing:
        return self.timing if seconds is None else replace(self.timing, longest=min(self.timing.longest, seconds))

    def launcher(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int],
                 threads: int = 1) -> Callable[[], None]:
        """Launches a kernel that is legal at `dims` on operands of its own, once a call."""
        digest = hashlib.sha256(code).digest()
        if digest not in self._loaded:
            self._loaded[digest] = self.device.load([], [code])
        table = self.device.table([self._loaded[digest].address(kernel.symbol)])
        arrays = self._arrays(workload, dims)
        sets, turn = self._with_copies(workload, arrays)
        slots = [(ctypes.c_uint64 * max(1, len(kernel.params)))(*launch_slots(kernel, a, dims)) for a in sets]
        size = workspace_stride(Expr.parse(kernel.workspace)).evaluate(dims)
        room = np.zeros(size * threads + 64, np.uint8)
        start = (room.ctypes.data + 63) // 64 * 64
        launch = _LAUNCH(table[LAUNCH])
        arguments = [(ctypes.addressof(table), 0, *kernel.units(dims), ctypes.addressof(s), len(kernel.params), threads,
                      start, size) for s in slots]
        held = (table, sets, slots, room)  # what the addresses point to

        def call() -> None:
            launch(*arguments[0])

        def rotate() -> None:
            launch(*arguments[next(turn)])

        chosen = call if len(sets) == 1 else rotate
        chosen.__dict__["held"] = held
        return chosen

    def _with_copies(self, workload: Workload, arrays: list[np.ndarray]) -> tuple[list[list[np.ndarray]], Iterator[int]]:
        """The operands with each copy of the constants, and whose turn it is, which all launchers of a workload share: a kernel
        would else find what the one that it is timed beside has just read."""
        place = [i for i, o in enumerate(workload.inputs) if o.constant]
        fixed = all(d.constant is not None for i in place for d in workload.inputs[i].dims)
        count = self.weights.copies(sum(arrays[i].nbytes for i in place)) if fixed else 1
        if count == 1:
            return [arrays], iter(())
        if self._copies is None or self._copies[0] != workload.key:
            made = [[_placed_like(arrays[i], i + n) for i in place] for n in range(count)]
            self._copies = workload.key, list(made), cycle(range(count))
        sets = []
        for copy in self._copies[1]:
            own = list(arrays)
            for i, array in zip(place, copy, strict=True):
                own[i] = array
            sets.append(own)
        return sets, self._copies[2]

    def _arrays(self, workload: Workload, dims: Mapping[str, int], within: int = 0) -> list[np.ndarray]:
        """Those of the shape, made with so many bytes of a line before inputs where there are none."""
        key = (workload.key, tuple(dims.items()))
        found = self._operands.pop(key, None)
        if found is None:
            found = operands(workload, dims, np.random.default_rng(self.seed), within)
            size = sum(a.nbytes for a in found)
            while self._operands and size + sum(a.nbytes for kept in self._operands.values() for a in kept) > self.keep:
                del self._operands[next(iter(self._operands))]
        self._operands[key] = found
        return found


def operands(workload: Workload, dims: Mapping[str, int], rng: np.random.Generator, within: int = 0) -> list[np.ndarray]:
    """Dense random arrays of inputs and outputs, in order, laid out so that the axis of unit stride is innermost.

    within: bytes of a cache line before the inputs that are no constants; the others begin one.
    """
    free = [0 if o.constant else within for o in workload.inputs] + [0] * len(workload.outputs)
    every = zip((*workload.inputs, *workload.outputs), free, strict=True)
    return [_array((number, before), o, dims, rng) for number, (o, before) in enumerate(every)]


def _array(place: tuple[int, int], operand: Operand, dims: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    shape = [d.evaluate(dims) for d in operand.dims]
    order = memory_order(operand)
    values = rng.random([shape[a] for a in order], np.float32) - np.float32(0.5) if operand.dtype.is_float \
        else rng.integers(0, 2, [shape[a] for a in order])
    array = _placed(values.astype(operand.dtype.numpy), *place)
    return clear_zeros(operand, array.transpose([order.index(a) for a in range(len(shape))]))


def _placed(values: np.ndarray, number: int, within: int = 0) -> np.ndarray:
    """A copy on whole cache lines, but for what lies `within` one, each operand at another offset within a page, whatever the
    allocator gives: else kernels that are compared at different shapes differ by where their operands lie."""
    room = np.empty(values.nbytes + 2 * _PAGE + within, np.uint8)
    start = -room.ctypes.data % _PAGE + number * _APART % _PAGE + within
    placed = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    placed[...] = values
    return placed


def _placed_like(array: np.ndarray, number: int) -> np.ndarray:
    """A copy with the same strides, on memory of its own."""
    order = sorted(range(array.ndim), key=lambda a: -array.strides[a])
    dense = _placed(array.transpose(order), number)
    return dense.transpose([order.index(a) for a in range(array.ndim)])


def launch_slots(kernel: MicroKernel, arrays: list[np.ndarray], dims: Mapping[str, int]) -> list[int]:
    """Words of the native convention (runtime/program/kernel.py); scalars are 0."""
    words = []
    for p in kernel.params:
        if p.kind == "pointer":
            words.append(arrays[p.index].ctypes.data)
        elif p.kind == "stride":
            words.append(arrays[p.index].strides[p.axis] // arrays[p.index].itemsize)
        else:
            words.append(dims[p.name] if p.kind == "dim" else 0)
    return words
