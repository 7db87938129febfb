"""Arrays of other libraries in and out without copies: numpy, torch, anything with `__dlpack__`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.runtime.call.dlpack import from_dlpack
from tilewright.runtime.errors import DeviceError, DTypeError

Array = np.ndarray[Any, Any]
Wrap = Callable[[Array], Any]

_TORCH_STORAGE = {
    "bfloat16": ("int16", "bfloat16"),
    "float8_e4m3fn": ("uint8", "float8_e4m3fn"),
    "float8_e5m2": ("uint8", "float8_e5m2"),
}  # torch dtype -> what numpy reads it as, ml_dtypes name


def view(value: Any, name: str) -> tuple[Array, Wrap | None]:
    """An array over the memory of `value`, and how to give a result back as its kind (None: as numpy).

    A subclass of numpy's array is read as the memory that it is.

    Args:
        name: the argument, for errors.
    Raises:
        DTypeError: `value` is no array, or of a dtype that has no counterpart, or has what a result would lose: a mask, a
            gradient that is being recorded.
        DeviceError: its memory is not the CPU's.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(torch, value, name), to_torch
    if isinstance(value, (np.ndarray, np.generic)):  # a union takes three times as long
        refuse_mask(value, name)
        return np.asarray(value), None
    if not isinstance(value, type):
        if hasattr(value, "__dlpack__"):
            return from_dlpack(value, name), _wrap(value)
        if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
            return _as_array(value, name), None
    raise DTypeError(
        f"argument {name}: wanted an array (numpy, torch, or anything with __dlpack__), got "
        f"{type(value).__name__}; convert it with numpy.asarray"
    )


def result_view(value: Any, name: str) -> Array:
    """As `view`, of memory that a result is to be written to: never a copy, which nobody would see."""
    if type(value) is np.ndarray:
        return value
    shares = isinstance(value, np.ndarray) or hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")
    if isinstance(value, np.generic | type) or not shares:
        raise DTypeError(f"{name}: wanted an array whose memory can be written (numpy, torch, or anything with __dlpack__), got "
                         f"{type(value).__name__}; take a fresh numpy.empty")
    return view(value, name)[0]


def _as_array(value: Any, name: str) -> Array:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, AttributeError, RuntimeError, BufferError) as error:
        raise DTypeError(f"argument {name} of type {type(value).__name__} cannot be read as an array: {error}; convert it with "
                         "numpy.asarray") from error


def refuse_mask(value: Any, name: str) -> None:
    """DTypeError for numpy's masked arrays: a call reads all elements, those too that the mask hides."""
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise DTypeError(f"argument {name}: wanted plain memory, got a masked array, whose mask calls do not know; pass "
                         f"{name}.filled(value), or {name}.data for what lies under the mask")


def refuse_gradient(torch: Any, tensor: Any, name: str) -> None:
    """DTypeError for a torch tensor whose gradient is being recorded: it would end here, unnoticed."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise DTypeError(f"argument {name}: wanted a tensor without a gradient, as calls have no backward pass, got one with "
                         f"requires_grad=True; pass {name}.detach(), or call under torch.no_grad()")


def _wrap(value: Any) -> Wrap | None:
    if not hasattr(value, "__array_namespace__"):
        return None
    namespace = value.__array_namespace__()

    def wrap(array: Array) -> Any:
        return namespace.from_dlpack(array) if array.dtype.isbuiltin == 1 else namespace.asarray(array)

    return wrap


def _from_torch(torch: Any, tensor: Any, name: str) -> Array:
    if tensor.is_meta:
        raise DeviceError(f"argument {name} is a meta tensor, which has a shape and no memory; pass one with values")
    if not tensor.is_cpu:
        raise DeviceError(
            f"argument {name} lives on {tensor.device} and this model runs on the host; pass {name}.cpu()"
        )
    refuse_gradient(torch, tensor, name)
    try:
        if tensor.requires_grad:
            tensor = tensor.detach()
        storage = _TORCH_STORAGE.get(str(tensor.dtype)[len("torch.") :])
        if storage is None:
            found: Array = tensor.numpy()
            return found
        import ml_dtypes

        bits: Array = tensor.view(getattr(torch, storage[0])).numpy()
        return bits.view(getattr(ml_dtypes, storage[1]))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DTypeError(
            f"argument {name}: a torch tensor of {tensor.dtype} and layout {tensor.layout} cannot be read as an "
            f"array: {error}"
        ) from error


def to_torch(array: Array) -> Any:
    torch: Any = sys.modules["torch"]
    storage = None if array.dtype.isbuiltin == 1 else _TORCH_STORAGE.get(array.dtype.name)  # a name takes 5 us to make
    if storage is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(storage[0])).view(getattr(torch, storage[1]))
