"""As much of torch as a CUDA call looks at, over the fake driver's memory: for `sys.modules["torch"]`."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from cuda_fake.fake_state import RELAXED, FakeState, Stream

from tilewright.runtime.emulator import EmulatorDevice

_DTYPES = {"float32": np.float32, "float16": np.float16, "float64": np.float64, "int64": np.int64, "int32": np.int32,
           "int8": np.int8, "bool": np.bool_}


class Name(NamedTuple):
    """A torch.dtype."""

    name: str

    @property
    def itemsize(self) -> int:
        return np.dtype(_DTYPES[self.name]).itemsize


class Storage:
    """Memory, and the tensors and Python storages that hold it. used_on: streams that it is recorded for."""

    def __init__(self) -> None:
        self.holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self.used_on: list[int] = []


class UntypedStorage:
    """What `untyped_storage` gives."""

    def __init__(self, storage: Storage) -> None:
        self._cdata = storage
        storage.holders.add(self)


class Tensor:
    """A tensor in device memory, or on the host where `device.index` is None."""

    is_cuda, requires_grad, is_nested = True, False, False
    __torch_function__, __torch_dispatch__ = "of operators", "none"

    def __init__(self, torch: FakeTorch, address: int, shape: tuple[int, ...], dtype: str, index: int) -> None:
        self._torch, self._address, self._dense = torch, address, True
        self._storage = Storage()
        self._storage.holders.add(self)
        self.shape, self.dtype, self.layout = shape, getattr(torch, dtype), torch.strided
        self.device = SimpleNamespace(index=index)

    @property
    def used_on(self) -> list[int]:
        return self._storage.used_on

    def data_ptr(self) -> int:
        return self._address

    def get_device(self) -> int:
        return self.device.index

    def numel(self) -> int:
        return math.prod(self.shape)

    def is_contiguous(self) -> bool:
        return self._dense

    def is_neg(self) -> bool:
        return False

    def untyped_storage(self) -> UntypedStorage:
        return UntypedStorage(self._storage)

    def as_strided(self, shape: tuple[int, ...], strides: list[int]) -> Tensor:
        """A tensor over the same memory, dense."""
        made = Tensor(self._torch, self._address, shape, self.dtype.name, self.device.index)
        made._storage = self._storage
        self._storage.holders.add(made)
        return made

    def resize_(self, shape: tuple[int, ...]) -> Tensor:
        """This one, of a shape that takes no more memory."""
        assert math.prod(shape) <= self.numel()
        self.shape = shape
        return self

    def contiguous(self) -> Tensor:
        return self.clone()

    def clone(self) -> Tensor:
        return self._torch.tensor(self.get(), self.device.index)

    def record_stream(self, stream: Any) -> None:
        self._storage.used_on.append(stream.cuda_stream)

    def get(self) -> np.ndarray:
        """The values as they are now; nothing is waited for."""
        with self._torch.driver.lock:
            return self._torch.driver.devices[self.device.index].copy_out(self._address, self.shape, _DTYPES[self.dtype.name])


class Parameter(Tensor):
    """What torch.nn.Parameter is: a tensor that operators see as any other."""

    __torch_function__ = "disabled"


class Wrapped(Tensor):
    """A subclass that sees operators first."""


class FakeTorch(ModuleType):
    """`current`: handle of the thread's current stream. made: what `empty` made: its address, its shape and the stream current
    then. taken: how often it took memory of the device rather than memory that was let go on the same stream.
    """

    def __init__(self, driver: FakeState) -> None:
        super().__init__("torch")
        self.driver, self.made, self.taken = driver, list[tuple[int, tuple[int, ...], int]](), 0
        self._local = threading.local()
        self._free: dict[tuple[int, int, int], list[tuple[int, list[int]]]] = {}
        self.Tensor, self.strided = Tensor, "strided"
        for name in _DTYPES:
            setattr(self, name, Name(name))
        self._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: self.current, _disabled_torch_function_impl="disabled",
                                  _storage_Use_Count=lambda storage: len(storage.holders))
        self.cuda = SimpleNamespace(ExternalStream=lambda handle, device: SimpleNamespace(cuda_stream=handle), stream=self._using,
                                    is_current_stream_capturing=self._captures)

    @property
    def current(self) -> int:
        found: int = getattr(self._local, "current", 0)
        return found

    @current.setter
    def current(self, handle: int) -> None:
        self._local.current = handle

    def _captures(self) -> bool:
        stream = self.driver._streams.get(self.current)
        return stream is not None and stream.capture is not None

    @contextlib.contextmanager
    def _using(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.cuda_stream
        yield
        self.current = before

    def tensor(self, values: np.ndarray, index: int = 0, offset: int = 0, kind: type[Tensor] = Tensor) -> Tensor:
        """A tensor that holds values already, `offset` bytes into its memory."""
        device = self.driver.devices[index]
        with self.driver.lock:
            address = device.alloc(values.nbytes + offset + 1) + offset
            if values.nbytes:
                device.copy_in(address, values)
        return kind(self, address, values.shape, str(values.dtype), index)

    def empty(self, shape: tuple[int, ...], dtype: Any, device: Any) -> Tensor:
        """As by torch's allocator: memory let go is given again on its stream, and only once what it was recorded for is over.
        That of a capture stays its graph's."""
        room = -(-max(math.prod(shape) * dtype.itemsize, 1) // 512) * 512
        stream = self.driver._streams.get(self.current if self.current > RELAXED else -1 - device.index)
        captured = stream is not None and stream.capture is not None
        free = self._free.setdefault((device.index, self.current, room), [])
        with self.driver.lock:
            ready = (a for a, streams in reversed(free) if not any(self.driver._streams[s].queue for s in streams))
            at = None if captured else next(ready, None)
            if at is None:
                at = self.driver.devices[device.index].alloc(room)
                self.taken += 1
            else:
                free[:] = [f for f in free if f[0] != at]
                self._forget(stream, self.driver.devices[device.index], at, room)
        made = Tensor(self, at, shape, dtype.name, device.index)
        if not captured:
            weakref.finalize(made._storage, free.append, (at, made._storage.used_on)).atexit = False
        self.made.append((at, shape, self.current))
        return made

    def _forget(self, stream: Stream | None, device: EmulatorDevice, address: int, size: int) -> None:
        """Nobody has written to memory that is given again, in the order of the stream."""
        memory = device.memory

        def forget() -> None:
            memory.valid[memory._span(address, size)] = 0

        if stream is None:
            forget()
        else:
            self.driver.do(stream, forget)
