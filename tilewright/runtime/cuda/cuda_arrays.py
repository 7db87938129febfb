"""CUDA arrays in and out: torch tensors, anything with DLPack or `__cuda_array_interface__`, and memory of cuda.core's."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.call.binder import converted as host_converted
from tilewright.runtime.call.interop import refuse_gradient
from tilewright.runtime.cuda.arena import LEGACY, Gpu
from tilewright.runtime.cuda.driver import checked, reported, start
from tilewright.runtime.cuda.result_ring import ResultRing, can_keep
from tilewright.runtime.errors import DTypeError, ShapeError
from tilewright.runtime.program.tensor_map import ALIGNMENT
from tilewright.runtime.tensor import DType

_DEVICES = (2, 13)  # DLPack: CUDA memory, managed memory
_TORCH_NAMES = {"i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "f16": "float16", "bf16": "bfloat16",
                "f32": "float32", "f64": "float64", "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2"}


class Flags(NamedTuple):
    """As numpy's, as far as a call asks."""

    c_contiguous: bool = True
    aligned: bool = True
    writeable: bool = True


_WRITEABLE, _READ_ONLY, _SCATTERED = Flags(), Flags(writeable=False), Flags(c_contiguous=False)


class DeviceArray:
    """Device memory as Binder and Results see an array, dense where its flags say so.

    owner: keeps the memory. is_shared: it is the caller's own.
    """

    __slots__ = ("address", "dtype", "flags", "is_shared", "nbytes", "ndim", "ordinal", "owner", "shape")

    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], ordinal: int, owner: Any,
                 is_shared: bool = False, writeable: bool = True) -> None:
        self.address, self.shape, self.dtype, self.ordinal, self.owner = address, shape, dtype, ordinal, owner
        self.ndim, self.nbytes, self.is_shared = len(shape), math.prod(shape) * dtype.itemsize, is_shared
        self.flags = _WRITEABLE if writeable else _READ_ONLY


class CudaArray:
    """A result in memory of cuda.core's, for callers whose library makes none: other libraries read it through DLPack or
    `__cuda_array_interface__`, in the order of the stream that made it.

    Attributes:
        shape, dtype: numpy's. address: of the first element. stream: cuda.core's Stream.
    """

    def __init__(self, gpu: Gpu, stream: Any, shape: tuple[int, ...], dtype: np.dtype[Any],
                 ring: ResultRing | None = None) -> None:
        size = math.prod(shape) * dtype.itemsize
        self._buffer = _buffer(gpu, stream, size) if ring is None else ring.buffer(size, lambda n: _buffer(gpu, stream, n))
        self._gpu, self.stream, self.shape, self.dtype = gpu, stream, shape, dtype
        self.address = int(self._buffer.handle)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "strides": None,
                "stream": int(self.stream.handle) or LEGACY}

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DEVICES[0], self._gpu.ordinal

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """A capsule; `stream` (None: the default stream, -1: none) waits for what made the array."""
        from cuda.core.utils import StridedMemoryView

        if stream != -1:
            reader = self._gpu.stream(stream or LEGACY)
            if reader.handle != self.stream.handle:
                reader.wait(self.stream)
        view = StridedMemoryView.from_buffer(self._buffer, self.shape, dtype=self.dtype)
        return view.__dlpack__(stream=-1, max_version=max_version)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host, once it is made."""
        return copy_out(self.address, self.shape, self.dtype, self.stream)

    def __repr__(self) -> str:
        return f"CudaArray({self.shape}, {self.dtype}, device {self._gpu.ordinal})"


def _buffer(gpu: Gpu, stream: Any, size: int) -> Any:
    with gpu.current(), reported(f"take {size} bytes of GPU memory for a result"):
        return gpu.device.core.memory_resource.allocate(max(size, 1), stream=stream)


def torch_module() -> Any:
    """torch, where the caller has imported it."""
    return sys.modules.get("torch")


def device_of(value: Any) -> int | None:
    """The number of the GPU that an array lies on; None when it is no CUDA array."""
    torch = torch_module()
    if torch is not None and isinstance(value, torch.Tensor):
        return int(value.device.index) if value.is_cuda else None
    if isinstance(value, DeviceArray | CudaArray):
        return value.ordinal if isinstance(value, DeviceArray) else value._gpu.ordinal
    if isinstance(value, np.ndarray | np.generic | int | float):
        return None
    if hasattr(value, "__dlpack_device__"):
        kind, number = value.__dlpack_device__()
        return int(number) if int(kind) in _DEVICES else None
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return None
    driver = start()
    which = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(checked(driver.cuPointerGetAttribute(which, interface["data"][0]), "find the device of an array"))


def view(value: Any, name: str, stream: Any) -> DeviceArray:
    """An argument's memory, ready in the order of `stream` (cuda.core's).

    Raises:
        DTypeError: of an element type that has no counterpart, or its gradient is being recorded.
        ShapeError: not C-contiguous, not aligned, and no torch tensor.
    """
    torch = torch_module()
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(torch, value, name)
    from cuda.core.utils import StridedMemoryView

    try:
        with reported(f"read argument {name}"):
            found = StridedMemoryView.from_any_interface(value, stream_ptr=int(stream.handle) or LEGACY)
    except (BufferError, TypeError, ValueError) as error:
        raise DTypeError(f"argument {name} of type {type(value).__name__} cannot be read as a CUDA array: {error}") from error
    shape, dtype = tuple(found.shape), np.dtype(found.dtype)
    if found.strides is not None and not _is_dense(shape, found.strides):
        raise ShapeError(f"argument {name}: wanted a C-contiguous array, got strides {tuple(found.strides)} of shape {shape}; "
                         "pass a contiguous copy")
    if found.ptr % ALIGNMENT and math.prod(shape):
        raise ShapeError(f"argument {name} begins at 0x{found.ptr:x}; wanted a multiple of {ALIGNMENT} bytes, pass a copy")
    return DeviceArray(found.ptr, shape, dtype, found.device_id, (found, value), True, not found.readonly)


def _of_torch(torch: Any, tensor: Any, name: str) -> DeviceArray:
    """The tensor as it lies; `converted` copies one that is scattered."""
    refuse_gradient(torch, tensor, name)
    dtype = torch_dtypes(torch).get(tensor.dtype)
    if dtype is None or tensor.layout is not torch.strided or tensor.is_neg():
        raise DTypeError(f"argument {name}: a torch tensor of {tensor.dtype} and layout {tensor.layout} is not supported; wanted "
                         f"a strided one of {', '.join(d.value for d in DType)}, without a negative bit")
    is_dense = tensor.is_contiguous() and not (tensor.data_ptr() % ALIGNMENT and tensor.numel())
    found = DeviceArray(tensor.data_ptr(), tuple(tensor.shape), dtype, tensor.device.index, tensor, is_dense)
    if not is_dense:
        found.flags = _SCATTERED
    return found


def converted(array: Any, dtype: np.dtype[Any]) -> Any:
    """As Binder's: a dense copy, made by torch where it is a tensor of its."""
    if not isinstance(array, DeviceArray):
        return host_converted(array, dtype)
    dense = array.owner.contiguous()
    if dense.data_ptr() % ALIGNMENT and dense.numel():
        dense = dense.clone()
    return DeviceArray(dense.data_ptr(), array.shape, array.dtype, array.ordinal, dense)


def current_stream(value: Any, ordinal: int) -> int | None:
    """Handle of the stream that the library of an array is at; None when it says none."""
    torch = torch_module()
    if torch is not None and isinstance(value, torch.Tensor):
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return int(raw(ordinal) if raw is not None else torch.cuda.current_stream(ordinal).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        return int(cupy.cuda.get_current_stream().ptr)
    if isinstance(value, CudaArray):
        return int(value.stream.handle)
    return None


def stream_handle(stream: Any) -> int:
    """The CUstream of what `stream=` may be: anything with `__cuda_stream__`, a torch or cupy stream, a handle.

    Raises:
        DTypeError: it is none of these.
    """
    given = getattr(stream, "__cuda_stream__", None)
    if given is not None:
        return int((given() if callable(given) else given)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    raise DTypeError(f"stream: wanted an object with __cuda_stream__, got {type(stream).__name__}")


def maker(like: Any, gpu: Gpu, stream: Any, ring: ResultRing | None = None
          ) -> Callable[[tuple[int, ...], np.dtype[Any]], tuple[DeviceArray, Any]]:
    """How results are made for callers with arrays such as `like`: uninitialised memory, and what they get. ring: where memory
    comes from, if there is one."""
    torch = torch_module()
    if torch is not None and isinstance(like, torch.Tensor):
        types = {d: t for t, d in torch_dtypes(torch).items()}

        def tensor(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[DeviceArray, Any]:
            if ring is not None and can_keep(torch):
                made = ring.tensor(torch, shape, types[dtype], like.device)
            else:
                made = torch.empty(shape, dtype=types[dtype], device=like.device)
            return DeviceArray(made.data_ptr(), shape, dtype, gpu.ordinal, made), made

        return tensor
    namespace = _namespace(like)
    if ring is not None and int(checked(start().cuStreamIsCapturing(stream.handle), "look at the stream")):
        ring = None  # a graph of the caller's writes to its results whenever it is launched

    def array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[DeviceArray, Any]:
        made = CudaArray(gpu, stream, shape, dtype, ring)
        seen = DeviceArray(made.address, shape, dtype, gpu.ordinal, made)
        return seen, made if namespace is None else namespace.from_dlpack(made)

    return array


def _namespace(like: Any) -> Any:
    """What makes arrays such as `like` from DLPack; None where nothing is known to."""
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__()
    library = sys.modules.get(type(like).__module__.partition(".")[0])
    return library if hasattr(library, "from_dlpack") else None


def copy_out(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Any) -> np.ndarray[Any, Any]:
    """Device memory as a new array, after all that the stream was given."""
    found = np.empty(shape, dtype)
    if found.nbytes:
        checked(start().cuMemcpyDtoHAsync(found.ctypes.data, address, found.nbytes, stream.handle), "copy a result from the GPU")
    with reported("finish the work given to the GPU"):
        stream.sync()
    return found


@functools.lru_cache(maxsize=4)
def torch_dtypes(torch: Any) -> dict[Any, np.dtype[Any]]:
    """numpy's counterparts of torch's element types."""
    return {getattr(torch, name): DType(text).numpy for text, name in _TORCH_NAMES.items() if hasattr(torch, name)}


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent not in (0, 1) and stride != step:
            return not math.prod(shape)
        step *= max(extent, 1)
    return True

