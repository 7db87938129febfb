"""Arenas: the temporaries of calls, one per stream and one per capture, and the GPU that they lie on."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.cuda.cuda_device import CudaDevice
from tilewright.runtime.cuda.cuda_table import ARENA_FIELDS, FUNCTIONS, SYMBOLS
from tilewright.runtime.cuda.driver import CudaError, address, checked, reported, start
from tilewright.runtime.device import LoadedCode
from tilewright.runtime.host.cpu import load_native
from tilewright.runtime.once import once

LEGACY = 1  # the default stream's own name
_ADDRESS, _BYTES, _STREAM, _CAPTURE = map(ARENA_FIELDS.index, ("address", "bytes", "stream", "capture"))


@dataclass(frozen=True)
class Wanted:
    """What tw_alloc asked for: bytes, on the stream with this id, in this capture of a graph (0 outside of one)."""

    size: int
    stream: int
    capture: int
    graph: int


@dataclass
class _Captured:
    """Memory that a graph uses; `returned` becomes 1 once the graph and all that was made of it are gone."""

    address: int
    size: int
    capture: int
    returned: Any


class Gpu:
    """A device as the programs of a process share it. `gpu(ordinal)` gives it."""

    def __init__(self, ordinal: int) -> None:
        self.device = CudaDevice(ordinal)
        self.ordinal = ordinal
        self.functions: Mapping[str, int] = {name: address(name) for name in FUNCTIONS}
        self.captured: list[_Captured] = []
        self._arenas: dict[int, Arena] = {}
        self._lock = threading.Lock()
        self._given_back: deque[Callable[[], None]] = deque()

    def give_back(self, after: Callable[[], None]) -> None:
        """Call `after`, which frees what no program has any more, once the device has done what it was given.

        Waiting for the device would cost a capture that is under way, and garbage is collected at any time: then, as far as one
        can tell, it is left for `catch_up`.
        """
        self._given_back.append(after)
        with contextlib.suppress(CudaError), self.current():
            if not _captures():
                self.catch_up()

    def catch_up(self) -> None:
        """Free what `give_back` left. Not during a capture. Where the device is lost, nothing is freed."""
        if not self._given_back:
            return
        with contextlib.suppress(CudaError), self.current(), relaxed():
            checked(start().cuCtxSynchronize(), "finish the work given to the GPU")
            with contextlib.suppress(IndexError):  # none is left, also where another thread took it
                while True:
                    free = self._given_back.popleft()
                    free()

    def arena(self, stream: int) -> Arena:
        """Of the stream with this handle."""
        found = self._arenas.get(stream)
        if found is None:
            with self._lock:
                found = self._arenas.setdefault(stream, Arena(self, stream))
        return found

    def stream(self, handle: int) -> Any:
        """cuda.core's Stream of a handle."""
        from cuda.core import Stream

        own = self.device.stream
        return own if int(own.handle) == handle else Stream.from_handle(handle or LEGACY)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes the device the thread's current one, for a while."""
        driver = start()
        if int(checked(driver.cuCtxGetCurrent(), "ask for the context")) == self.device.context:
            yield
            return
        checked(driver.cuCtxPushCurrent(self.device.context), f"use CUDA device {self.ordinal}")
        try:
            yield
        finally:
            checked(driver.cuCtxPopCurrent(), "leave a CUDA device")

    def capture_memory(self, wanted: Wanted, destroy: int) -> _Captured:
        """Memory for a capture that belongs to its graph, taken beside the capture rather than recorded in it."""
        driver = start()
        with self._lock:
            for spare in self.captured:
                if spare.returned.value and spare.size >= wanted.size:
                    spare.returned.value, spare.capture = 0, wanted.capture
                    break
            else:
                with relaxed():
                    found = checked(driver.cuMemAlloc(wanted.size), f"take {wanted.size} bytes of GPU memory for a captured call")
                spare = _Captured(int(found), wanted.size, wanted.capture, ctypes.c_uint64(0))
                self.captured.append(spare)
        flags = driver.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
        owner = checked(driver.cuUserObjectCreate(ctypes.addressof(spare.returned), driver.CUhostFn(destroy), 1, int(flags)),
                        "tie memory to a graph")
        move = driver.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
        checked(driver.cuGraphRetainUserObject(wanted.graph, owner, 1, int(move)), "tie memory to a graph")
        return spare


class Arena:
    """Memory for the temporaries of the calls on one stream, which hold `lock` while they enqueue: the stream's order keeps them
    apart. A capture gets memory of its own, for its graph may run later and elsewhere.

    Attributes:
        words: what native code reads (runtime/cuda/cuda_table.py).
    """

    def __init__(self, of: Gpu, stream: int) -> None:
        self.lock = threading.Lock()
        self.words = (ctypes.c_uint64 * len(ARENA_FIELDS))()
        self._gpu, self._handle = of, stream
        self._buffer: Any = None
        self._buffer_stream = 0

    def provide(self, wanted: Wanted, destroy: int) -> None:
        """Make the words fit what is wanted. destroy: address of tw_cuda_returned.

        Raises:
            CudaError: there is no such memory.
        """
        with self._gpu.current():
            if wanted.capture:
                found = self._gpu.capture_memory(wanted, destroy)
                self._set(found.address, found.size, wanted)
                return
            self._gpu.catch_up()
            if self._buffer is None or self._buffer.size < wanted.size or self._buffer_stream != wanted.stream:
                self._replace(wanted)
            self._set(int(self._buffer.handle), self._buffer.size, wanted)

    def _replace(self, wanted: Wanted) -> None:
        device, stream = self._gpu.device, self._gpu.stream(self._handle)
        old, self._buffer = self._buffer, None
        self._set(0, 0, wanted)
        if old is not None:
            if self._buffer_stream != wanted.stream:  # another stream got the handle; what ran on the old one may not be over
                checked(start().cuCtxSynchronize(), "finish the work of a stream that is gone")
            old.close(stream)
        size = wanted.size + wanted.size // 8
        with reported(f"take {size} bytes of GPU memory for the temporaries of a call"):
            self._buffer = device.core.memory_resource.allocate(size, stream=stream)
        self._buffer_stream = wanted.stream

    def _set(self, address: int, size: int, wanted: Wanted) -> None:
        words = self.words
        words[_ADDRESS], words[_BYTES], words[_STREAM], words[_CAPTURE] = address, size, wanted.stream, wanted.capture


@once
def gpu(ordinal: int) -> Gpu:
    """The device of this process; DeviceError as CudaDevice. The thread's current device stays what it is."""
    driver = start()
    before = checked(driver.cuCtxGetCurrent(), "ask for the context")
    try:
        return Gpu(ordinal)
    finally:
        checked(driver.cuCtxSetCurrent(before), "leave a CUDA device")


def _captures() -> bool:
    """Does this thread capture a stream, as far as that can be asked without an end to the capture?"""
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "cuda") and torch.cuda.is_current_stream_capturing():
        return True
    failed, status = start().cuStreamIsCapturing(LEGACY)  # fails while a stream that waits for the default one is captured
    return bool(failed) or bool(int(status))


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Lets this thread call what a capture forbids."""
    driver = start()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(driver.cuThreadExchangeStreamCaptureMode(mode), "change the capture mode")
    try:
        yield
    finally:
        checked(driver.cuThreadExchangeStreamCaptureMode(before), "restore the capture mode")


@once
def native_table(code: bytes) -> tuple[LoadedCode, Mapping[str, int]]:
    """The table's functions from an artifact. Graphs refer to them, so they stay until the process ends."""
    loaded = load_native([code])
    return loaded, {symbol: loaded.address(symbol) for symbol in SYMBOLS}
