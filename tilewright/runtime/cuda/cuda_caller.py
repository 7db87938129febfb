"""CudaCaller: runs a program on the GPU that its arrays lie on, in the order of a stream, and waits for nothing.

Calls with host arrays alone copy them in and the results out, and wait for those.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.call.binder import Bound
from tilewright.runtime.call.caller import Caller, single
from tilewright.runtime.call.interop import Wrap
from tilewright.runtime.call.interop import view as host_view
from tilewright.runtime.call.results import Results
from tilewright.runtime.cuda import cuda_arrays
from tilewright.runtime.cuda.arena import Gpu, gpu
from tilewright.runtime.cuda.cuda_arrays import DeviceArray
from tilewright.runtime.cuda.driver import checked, reported, start, unavailable
from tilewright.runtime.cuda.graphs import report_of
from tilewright.runtime.cuda.loaded import LoadedProgram
from tilewright.runtime.cuda.quick import QuickCalls
from tilewright.runtime.errors import DeviceError, ShapeError
from tilewright.runtime.program.artifact import Memory
from tilewright.runtime.program.graph_report import GraphReport
from tilewright.runtime.program.program import Program
from tilewright.runtime.ragged_dim import offsets_name

Make = Callable[[tuple[int, ...], np.dtype[Any]], tuple[DeviceArray, Any]]


class _Place(NamedTuple):
    """Where a call runs. like: an array of the caller's kind, None when all are the host's."""

    gpu: Gpu
    handle: int
    stream: Any
    like: Any


class CudaCaller(Caller):
    """A program for GPUs, loaded on each that a call names first. Calls from several threads may be on one stream or on many.

    Args:
        ordinal: the GPU of calls with host arrays alone.
    """

    def __init__(self, program: Program, code: Mapping[str, Memory], constants: Mapping[str, Memory], ordinal: int = 0) -> None:
        super().__init__(program, lambda value, name: (value, None), cuda_arrays.converted)
        self.ordinal = ordinal
        self._code, self._constants = code, constants
        self._loaded: dict[int, LoadedProgram] = {}
        self._quick = QuickCalls(program, self.counted, [self.binder.tensors[i][0] for i in sorted(self.offsets)])
        self._lock = threading.Lock()
        self._ends = tuple(offsets_name(d.name) for d in program.ragged)

    def __call__(self, *args: Any, out: Any = None, threads: int | None = None, stream: Any = None) -> Any:
        """As CompiledFunction. stream: where to enqueue; None is the current one of the arrays' library."""
        torch = cuda_arrays.torch_module()
        self.asked_threads(threads)
        if torch is not None and stream is None:
            quick = self._quick.call(torch, args, out)
            if quick is not None:
                return quick
        place = self._place(args, out, stream)
        loaded = self.loaded(place.gpu)
        with _torch_stream(place, args, stream), place.gpu.current(), contextlib.ExitStack() as held:
            bound = self._bind(args, place)
            if place.like is None:
                return self._on_host(bound, args, out, place, loaded, held)
            inputs = self._inputs(bound, place, held)
            made = cuda_arrays.maker(place.like, place.gpu, place.stream, loaded.context(place.handle).ring)
            results = _DeviceResults(self.program, made, place)
            outputs, returned = results.prepare(bound._replace(arrays=inputs), args, out)
            self._run(loaded, bound, inputs, outputs, place)
            if torch is not None:
                self._quick.learn(torch, args, bound, loaded)
            return single(returned)

    def call(self, /, *args: Any, out: Any = None, threads: int | None = None, stream: Any = None, **named: Any) -> Any:
        """As CompiledFunction.__call__. Calls with packed rows and offsets that were learned need no look at the sequences."""
        torch = cuda_arrays.torch_module()
        if self.ragged is not None and torch is not None and stream is None and self.signature.is_flat:
            self.asked_threads(threads)
            if named.keys() == {*self._ends}:
                found = self._quick.call(torch, (*args, *(named[name] for name in self._ends)), out)
            else:
                found = None if named else self._quick.call(torch, args, out)
            if found is not None:
                return found
        return super().call(*args, out=out, threads=threads, stream=stream, **named)

    def loaded(self, on: Gpu) -> LoadedProgram:
        """The program on a device, loaded there now if it was not."""
        found = self._loaded.get(on.ordinal)
        if found is None:
            with self._lock:
                found = self._loaded.get(on.ordinal)
                if found is None:
                    found = self._loaded[on.ordinal] = LoadedProgram(self.program, self._code, self._constants, on)
        return found

    def graphs(self) -> GraphReport:
        """As CompiledFunction.graphs."""
        found = [self._loaded[n] for n in sorted(self._loaded)]
        reports = [report_of(loaded) for loaded in found] or [report_of(None)]
        return GraphReport(tuple(s for r in reports for s in r.streams), reports[0].why)

    # where

    def _place(self, args: Sequence[Any], out: Any, stream: Any) -> _Place:
        reason = "" if self._loaded else unavailable()
        if reason:
            arch = self.program.target.partition(":")[2]
            raise DeviceError(f"this model is compiled for cuda:{arch} and no CUDA device can be used: {reason}; save() it and "
                              f"load() it where there is one, or compile for emulator:{arch} to run it on this CPU")
        given = (*args, *(out if isinstance(out, tuple | list) else (out,)))
        like, ordinal = None, self.ordinal
        for value in given:
            found = cuda_arrays.device_of(value)
            if found is not None and like is None:
                like, ordinal = value, found
            elif found is not None and found != ordinal:
                raise DeviceError(f"arrays of one call lie on the CUDA devices {ordinal} and {found}; move them to one")
        on = gpu(ordinal)
        if stream is not None:
            handle = cuda_arrays.stream_handle(stream)
        elif like is None:
            handle = int(on.device.stream.handle)
        else:
            current = cuda_arrays.current_stream(like, ordinal)
            handle = _default_stream() if current is None else current
        return _Place(on, handle, on.stream(handle), like)

    def _bind(self, args: Sequence[Any], place: _Place) -> Bound:
        seen = list(args)
        wrap: Wrap | None = None
        for position, _, _, argument in self.binder.tensors:
            if position < len(args) and type(args[position]) is not np.ndarray:
                value = args[position]
                if cuda_arrays.device_of(value) is None:
                    seen[position], kind = host_view(value, argument.name)
                    wrap = wrap or kind
                else:
                    seen[position] = cuda_arrays.view(value, argument.name, place.stream)
        return self.binder.bind(seen)._replace(wrap=wrap)

    # running

    def _run(self, loaded: LoadedProgram, bound: Bound, inputs: Sequence[Any], outputs: Sequence[Any], place: _Place) -> None:
        given, made = [a.address for a in inputs], [a.address for a in outputs]
        made += [0 if isinstance(bound.arrays[i], DeviceArray) else bound.arrays[i].ctypes.data for i in sorted(self.offsets)]
        status = loaded.call(given, made, bound.scalars, bound.dims, place.handle)
        self.check(status, bound, place.gpu.device.name)
        self.counted(bound.dims)

    def _on_host(self, bound: Bound, args: Sequence[Any], out: Any, place: _Place, loaded: LoadedProgram,
                 held: contextlib.ExitStack) -> Any:
        driver = start()
        if int(checked(driver.cuStreamIsCapturing(place.stream.handle), "look at the stream")):
            raise DeviceError("the stream is being captured and host arrays cannot be copied then; pass CUDA arrays")
        outputs, returned = self.results.prepare(bound, args, out)
        donors = {output: source for source, output in self.program.donated}
        tensors = [position for position, *_ in self.binder.tensors]
        inputs = self._inputs(bound, place, held)
        places = [inputs[tensors.index(donors[i])] if i in donors else self._room(a, place, held) for i, a in enumerate(outputs)]
        self._run(loaded, bound, inputs, places, place)
        for array, at in zip(outputs, places, strict=True):
            if array.nbytes:
                checked(driver.cuMemcpyDtoHAsync(array.ctypes.data, at.address, array.nbytes, place.stream.handle),
                        "copy a result from the GPU")
        with reported("finish a call"):
            place.stream.sync()
        return single(returned)

    def _inputs(self, bound: Bound, place: _Place, held: contextlib.ExitStack) -> list[Any]:
        """The tensor inputs on the device. Offsets of ragged dims that the host has are copied there.

        Raises:
            DeviceError: the stream is captured, and would copy them again from memory that is gone.
        """
        apart = [i for i in self.offsets if not isinstance(bound.arrays[i], DeviceArray)]
        if apart and int(checked(start().cuStreamIsCapturing(place.stream.handle), "look at the stream")):
            raise DeviceError(f"argument {self.binder.tensors[apart[0]][3].name} is an array of the host, and the stream is "
                              "being captured; pass the offsets as a CUDA array")
        return [self._on_device(a, place, held) for a in bound.arrays]

    def _on_device(self, array: Any, place: _Place, held: contextlib.ExitStack) -> DeviceArray:
        """The array itself, or a copy of a host array."""
        if isinstance(array, DeviceArray):
            return array
        made = self._room(array, place, held)
        if array.nbytes:
            checked(start().cuMemcpyHtoDAsync(made.address, array.ctypes.data, array.nbytes, place.stream.handle),
                    "copy an argument to the GPU")
        return made

    def _room(self, like: Any, place: _Place, held: contextlib.ExitStack) -> DeviceArray:
        """Memory for an array of the host, given back in the stream's order when `held` ends."""
        with reported(f"take {like.nbytes} bytes of GPU memory for an array of the host"):
            buffer = place.gpu.device.core.memory_resource.allocate(max(like.nbytes, 1), stream=place.stream)
        held.callback(buffer.close, place.stream)
        return DeviceArray(int(buffer.handle), like.shape, like.dtype, place.gpu.ordinal, buffer)


class _DeviceResults(Results):
    """Results in device memory."""

    def __init__(self, program: Program, make: Make, place: _Place) -> None:
        super().__init__(program)
        self._make, self._place = make, place

    def _empty(self, bound: Bound, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, Any]:
        return self._make(shape, dtype)

    def _view(self, value: Any, name: str) -> Any:
        if cuda_arrays.device_of(value) is None:
            raise DeviceError(f"{name} is no CUDA array, but an argument is; pass memory of device {self._place.gpu.ordinal}")
        found = cuda_arrays.view(value, name, self._place.stream)
        if not found.is_shared:
            raise ShapeError(f"{name}: wanted C-contiguous memory at a multiple of 16 bytes; pass a fresh torch.empty")
        return found

    def _may_donate(self, bound: Bound, donor: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        donated: Any = bound.arrays[donor]
        return donated.is_shared and super()._may_donate(bound, donor, shape, dtype)

    def _span(self, array: Any) -> tuple[int, int]:
        return (array.address, array.address + array.nbytes) if array.nbytes else (0, 0)


def _default_stream() -> int:
    from cuda.core import LEGACY_DEFAULT_STREAM

    return int(LEGACY_DEFAULT_STREAM.handle)


def _torch_stream(place: _Place, args: Sequence[Any], stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Where `stream=` is not torch's current one: its allocator is told that the call's arrays are used on that."""
    torch = cuda_arrays.torch_module()
    if stream is None or torch is None or not isinstance(place.like, torch.Tensor):
        return contextlib.nullcontext()
    if cuda_arrays.current_stream(place.like, place.gpu.ordinal) == place.handle:
        return contextlib.nullcontext()
    used = torch.cuda.ExternalStream(place.handle, device=place.gpu.ordinal)
    for value in args:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            value.record_stream(used)
    return torch.cuda.stream(used)  # type: ignore[no-any-return]
