"""Reads memory that another array library exports through `__dlpack__`, for every dtype that Tilewright knows.

numpy.from_dlpack takes neither bf16 nor fp8, and marks what old exporters give as read-only. Reference: DLPack 1.1.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.runtime.errors import DeviceError, DTypeError
from tilewright.runtime.tensor import DType

CPU = 1
_READABLE_DEVICES = (CPU, 3)  # 3: pinned CPU memory
_TENSOR = struct.Struct(
    "<QiiiBBHQQQ"
)  # data, device type and id, ndim, dtype code, bits, lanes, shape, strides, byte offset
# Byte offsets of the same fields, for native code; MANAGED: of the tensor in a DLManagedTensorVersioned.
RANK_AT, ELEMENT, SHAPE_AT, BYTE_OFFSET, TENSOR_BYTES, MANAGED = 16, 20, 24, 40, 48, 32
_MOST_AXES = 64  # of numpy's arrays
_VERSIONED_HEADER = struct.Struct("<IIQQQ")  # major, minor, manager context, deleter, flags
_DTYPES = {
    (0, 8): DType.I8,
    (0, 16): DType.I16,
    (0, 32): DType.I32,
    (0, 64): DType.I64,
    (1, 8): DType.U8,
    (1, 16): DType.U16,
    (1, 32): DType.U32,
    (1, 64): DType.U64,
    (2, 16): DType.F16,
    (2, 32): DType.F32,
    (2, 64): DType.F64,
    (4, 16): DType.BF16,
    (6, 8): DType.I1,
    (10, 8): DType.F8E4M3,
    (12, 8): DType.F8E5M2,
}
DLPACK_TYPES = {dtype: code | bits << 8 | 1 << 16 for (code, bits), dtype in _DTYPES.items()}  # as one word: with one lane


class _Memory:
    """An exported buffer; numpy keeps it, and with it the capsule, alive."""

    def __init__(self, capsule: Any, interface: dict[str, Any]) -> None:
        self.capsule = capsule
        self.__array_interface__ = interface


def from_dlpack(value: Any, name: str) -> np.ndarray[Any, Any]:
    """An array over the same memory as `value`, which exports CPU memory through `__dlpack__`.

    Args:
        name: the argument, for errors.
    Raises:
        DeviceError: the memory is not the CPU's.
        DTypeError: the exporter refuses, or the element type has no counterpart.
    """
    device, number = _asked(value, name, lambda: _device(value))
    if device not in _READABLE_DEVICES:
        raise DeviceError(
            f"argument {name} lives on a device (DLPack device {device}:{number}) and this model runs on the "
            "host; copy it to the CPU first"
        )
    capsule = _export(value, name)
    pointer, is_writable = _tensor(capsule, name)
    data, _, _, rank, code, bits, lanes, shape_at, strides_at, offset = _TENSOR.unpack(
        ctypes.string_at(pointer, _TENSOR.size)
    )
    if lanes != 1 or (code, bits) not in _DTYPES:
        raise DTypeError(
            f"argument {name} has elements of DLPack type ({code}, {bits} bits, {lanes} lanes), which is not "
            f"supported; use one of {', '.join(d.value for d in DType)}"
        )
    if not 0 <= rank <= _MOST_AXES:
        raise DTypeError(f"argument {name} has {rank} axes; wanted at most {_MOST_AXES}")
    dtype = _DTYPES[code, bits].numpy
    storage = dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
    shape = _integers(shape_at, rank)
    steps = _integers(strides_at, rank) if strides_at else None
    if not data and 0 not in shape:
        raise DTypeError(f"argument {name}: __dlpack__ gave no memory for the shape {shape}; pass an array that has some")
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": storage.str,
        "data": ((data or 0) + offset, not is_writable),
        "strides": None if steps is None or 0 in shape else tuple(s * storage.itemsize for s in steps),
    }
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.asarray(_Memory(capsule, interface)).view(dtype)


def _export(value: Any, name: str) -> Any:
    def capsule() -> Any:
        try:
            return value.__dlpack__(max_version=(1, 1))
        except TypeError:
            return value.__dlpack__()

    return _asked(value, name, capsule)


def _device(value: Any) -> tuple[int, int]:
    kind, number = value.__dlpack_device__()
    return int(kind), int(number)


def _asked(value: Any, name: str, ask: Callable[[], Any]) -> Any:
    """What the exporter says; DTypeError when it refuses."""
    try:
        return ask()
    except (BufferError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise DTypeError(
            f"argument {name} of type {type(value).__name__} cannot be read through DLPack: {error}"
        ) from error


def _tensor(capsule: Any, name: str) -> tuple[int, bool]:
    """Address of the DLTensor in a capsule, and whether it may be written."""
    api = ctypes.pythonapi
    is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", api))
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    if is_valid(capsule, b"dltensor_versioned"):
        base = int(pointer(capsule, b"dltensor_versioned"))
        major, minor, _, _, flags = _VERSIONED_HEADER.unpack(ctypes.string_at(base, _VERSIONED_HEADER.size))
        if major != 1:
            raise DTypeError(f"argument {name} is exported as DLPack {major}.{minor}; wanted version 1")
        return base + _VERSIONED_HEADER.size, not flags & 1
    if is_valid(capsule, b"dltensor"):
        return int(pointer(capsule, b"dltensor")), True
    raise DTypeError(f"argument {name}: __dlpack__ gave {capsule!r}, not a fresh DLPack capsule")


def _integers(address: int, count: int) -> tuple[int, ...]:
    return tuple((ctypes.c_int64 * count).from_address(address)) if count else ()
