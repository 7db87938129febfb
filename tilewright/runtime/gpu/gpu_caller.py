"""GpuCaller: runs a program whose kernels are GPU images; arrays of the host are copied in and results copied out.

The native host program is the same as on the CPU; its C table is filled with functions that hand launches to the device.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.call.caller import TW_CALL, Caller, single
from tilewright.runtime.device import (
    ALLOC,
    CONTROL,
    COPY,
    KERNELS_PER_CALL,
    LAUNCH,
    NEXT_LAUNCH,
    POLL,
    RELEASE,
    TABLE_WORDS,
    TENSOR_MAP,
    ControlOp,
)
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.gpu.accelerator import Accelerator
from tilewright.runtime.gpu.gpu_control import GpuControl
from tilewright.runtime.host.cpu import load_native
from tilewright.runtime.program.artifact import Memory, raw_bytes
from tilewright.runtime.program.kernel import Launch, Param
from tilewright.runtime.program.program import Program
from tilewright.runtime.program.tensor_map import HEAD_WORDS, MAP_BYTES, TensorMap

_I64, _P = ctypes.c_int64, ctypes.c_void_p
_LAUNCH = ctypes.CFUNCTYPE(None, _P, _I64, _I64, _I64, _I64, _P, _I64, _I64, _P, _I64)
_ALLOC = ctypes.CFUNCTYPE(_P, _P, _I64)
_RELEASE = ctypes.CFUNCTYPE(None, _P, _P)
_COPY = ctypes.CFUNCTYPE(None, _P, _P, _P, _I64)
_TENSOR_MAP = ctypes.CFUNCTYPE(None, _P, _P, _P)
_CONTROL = ctypes.CFUNCTYPE(_I64, _P, _I64, _P)
_POLL = ctypes.CFUNCTYPE(_I64, _P)
_UNWRITTEN = 0xFF  # byte of memory that no kernel has to write; floats of it are NaN


class GpuCaller(Caller):
    """A program on an accelerator. Constants are copied in once."""

    def __init__(self, program: Program, code: Mapping[str, Memory], constants: Mapping[str, Memory],
                 device: Accelerator) -> None:
        super().__init__(program)
        self.device = device
        self._native = load_native([bytes(code[program.host_object])])
        self._run = TW_CALL(self._native.address("tw_call"))
        self._entries = self._load(code)
        self._constants = [self._place(np.frombuffer(raw_bytes(constants[c.digest]), np.uint8)) for c in program.constants]
        self._control = GpuControl(device)
        self._failure: BaseException | None = None
        self._callbacks = (_LAUNCH(self._launch), _ALLOC(self._alloc), _RELEASE(self._release), _COPY(self._copy),
                           _TENSOR_MAP(self._tensor_map), _CONTROL(self._on_control), _POLL(self._poll))
        self._table = (ctypes.c_uint64 * TABLE_WORDS)()
        for word, callback in zip((LAUNCH, ALLOC, RELEASE, COPY, TENSOR_MAP, CONTROL, POLL), self._callbacks, strict=True):
            self._table[word] = ctypes.cast(callback, _P).value or 0

    def _load(self, code: Mapping[str, Memory]) -> dict[int, tuple[Any, Launch, tuple[Param, ...]]]:
        """Launch number -> the loaded image, the launch of it and its slots. An image makes a kernel ready when it is first
        asked for: a call of one shape launches few of a table's kernels."""
        images: dict[str, Any] = {}
        entries: dict[int, tuple[Any, Launch, tuple[Param, ...]]] = {}
        for number, call in enumerate(self.program.calls):
            for index, kernel in enumerate(self.program.tables[call.table].kernels):
                if kernel.object not in images:
                    images[kernel.object] = self.device.load(bytes(code[kernel.object]))
                for step, launch in enumerate(kernel.launches()):
                    entry = number * KERNELS_PER_CALL + index + step * NEXT_LAUNCH
                    entries[entry] = (images[kernel.object], launch, kernel.params)
        if (prelude := self.program.prelude) is not None:
            image = self.device.load(bytes(code[prelude.object]))
            entries[len(self.program.calls) * KERNELS_PER_CALL] = (image, prelude.launches()[0], prelude.params)
        return entries

    def __call__(self, *args: Any, out: Any = None, threads: int | None = None, stream: Any = None) -> Any:
        self.refuse_stream(stream)
        self.asked_threads(threads)
        bound = self.binder.bind(args)
        outputs, returned = self.results.prepare(bound, args, out)
        inputs = [self._place(a) for a in bound.arrays]
        seen = self._seen([a for i, a in enumerate(bound.arrays) if i in self.offsets])
        donors = {o: inputs[i] for i, o in self.program.donated}
        places = [donors[i] if i in donors else self._fresh(a.nbytes) for i, a in enumerate(outputs)]
        listed = [*inputs, *self._constants, *places, *seen]
        pointers = (_P * len(listed))(*listed)
        scalars = (ctypes.c_uint64 * len(bound.scalars))(*bound.scalars)
        dims = (_I64 * len(bound.dims))(*bound.dims)
        try:
            status = self._run(ctypes.addressof(self._table), pointers, scalars, dims, 1)
            self._reraise()
            self.check(status, bound, self.device.name)
            for place, output in zip(places, outputs, strict=True):
                if output.nbytes:
                    output[...] = self.device.copy_out(place, output.shape, output.dtype)
        finally:
            for place in {*inputs, *places}:
                self.device.free(place)
        self.counted(bound.dims)
        return single(returned)

    def _seen(self, offsets: Sequence[np.ndarray[Any, Any]]) -> list[int]:
        """Addresses of the offsets of ragged dims on the host, which its program checks; 0 for those that it does not see."""
        return [a.ctypes.data for a in offsets]

    def _fresh(self, size: int) -> int:
        """Room for results or temporaries. Rows between sequences are written by nobody and may be read for nothing, so that all
        of it is set here where there are such rows."""
        if any(d.has_gaps for d in self.program.ragged):
            return self._place(np.full(size, _UNWRITTEN, np.uint8))
        return self._room(size)

    def _room(self, size: int) -> int:
        return self.device.alloc(max(size, 1))

    def _place(self, array: np.ndarray[Any, Any]) -> int:
        address = self._room(array.nbytes)
        if array.nbytes:
            self.device.copy_in(address, np.ascontiguousarray(array))
        return address

    def _reraise(self) -> None:
        """What a callback of this call raised."""
        failure, self._failure = self._failure, None
        self._control.reset()
        if failure is not None:
            raise failure

    def _guarded(self, action: Callable[[], int | None]) -> int:
        """Errors cannot pass through native code: the first is kept and raised after it."""
        if self._failure is not None:
            return 0
        try:
            return action() or 0
        except (DeviceError, MemoryError, ValueError, KeyError, IndexError, KeyboardInterrupt) as error:
            self._failure = error
            return 0

    def _launch(self, table: int, number: int, *words: int) -> None:
        """The words are those of `launch` in runtime/device.py; a GPU has no use for the last three."""
        x, y, z, slots, count, *_ = words

        def run() -> None:
            image, launch, params = self._entries[number]
            if math.prod((x, y, z)):
                words = (ctypes.c_uint64 * count).from_address(slots)
                args = [ctypes.string_at(word, MAP_BYTES) if param.kind == "tensor_map"
                        else ctypes.string_at(word, param.bytes) if param.kind == "entries"
                        else self._control.predicate if param.kind == "predicate" else word
                        for word, param in zip(words, params, strict=True)]
                self.device.launch(image.kernel(launch.symbol), (x, y, z), (launch.threads, 1, 1), launch.shared_bytes, args,
                                   launch.cluster, early=launch.early)

        self._guarded(run)

    def _tensor_map(self, table: int, target: int, words: int) -> None:
        def run() -> None:
            rank = ctypes.c_int64.from_address(words + 16).value
            wanted = TensorMap.from_words(list((_I64 * (HEAD_WORDS + 3 * rank)).from_address(words)))
            ctypes.memmove(target, self.device.tensor_map(wanted), MAP_BYTES)

        self._guarded(run)

    def _alloc(self, table: int, size: int) -> int:
        return self._guarded(lambda: self._fresh(size))

    def _release(self, table: int, address: int) -> None:
        self._guarded(lambda: self.device.free(address))

    def _copy(self, table: int, target: int, source: int, size: int) -> None:
        self._guarded(lambda: self._control.copy(target, source, size))

    def _on_control(self, table: int, op: int, words: int) -> int:
        return self._guarded(lambda: self._control.run(ControlOp(op), words))

    def _poll(self, table: int) -> int:
        """A loop ends where a callback of this call has failed, or where the user has pressed Ctrl-C."""
        self._guarded(lambda: None)
        return int(self._failure is not None)
