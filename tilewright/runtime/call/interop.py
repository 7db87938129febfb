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

    Args:
        name: the argument, for errors.
    Raises:
        DTypeError: `value` is no array, or of a dtype that has no counterpart.
        DeviceError: its memory is not the CPU's.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value, name), to_torch
    if isinstance(value, (np.ndarray, np.generic)):  # a union takes three times as long
        return np.asarray(value), None
    if hasattr(value, "__dlpack__"):
        return from_dlpack(value, name), _wrap(value)
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        return np.asarray(value), None
    raise DTypeError(
        f"argument {name}: wanted an array (numpy, torch, or anything with __dlpack__), got "
        f"{type(value).__name__}; convert it with numpy.asarray"
    )


def _wrap(value: Any) -> Wrap | None:
    if not hasattr(value, "__array_namespace__"):
        return None
    namespace = value.__array_namespace__()

    def wrap(array: Array) -> Any:
        return namespace.from_dlpack(array) if array.dtype.isbuiltin == 1 else namespace.asarray(array)

    return wrap


def _from_torch(tensor: Any, name: str) -> Array:
    if not tensor.is_cpu:
        raise DeviceError(
            f"argument {name} lives on {tensor.device} and this model runs on the host; pass {name}.cpu()"
        )
    try:
        if tensor.requires_grad:
            tensor = tensor.detach()
        storage = _TORCH_STORAGE.get(str(tensor.dtype)[len("torch.") :])
        if storage is None:
            found: Array = tensor.numpy()
            return found
        import ml_dtypes

        bits: Array = tensor.view(getattr(sys.modules["torch"], storage[0])).numpy()
        return bits.view(getattr(ml_dtypes, storage[1]))
    except (TypeError, RuntimeError) as error:
        raise DTypeError(
            f"argument {name}: a torch tensor of {tensor.dtype} and layout {tensor.layout} cannot be read as an "
            f"array: {error}"
        ) from error


def to_torch(array: Array) -> Any:
    torch: Any = sys.modules["torch"]
    storage = _TORCH_STORAGE.get(array.dtype.name)
    if storage is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(storage[0])).view(getattr(torch, storage[1]))
