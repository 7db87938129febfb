"""The CUDA driver by cuda-python: is it there, what do its errors mean, where are its functions."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from tilewright.runtime.errors import DeviceError

OLDEST = 12000  # CUDA 12.0: PTX 8.0, thread block clusters, tensor maps
SUCCESS = 0
STICKY = frozenset((214, 219, 220, 226, 700, 702, 708, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999))
_REMEDIES = {
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU has no memory left; free arrays, call with smaller shapes, or use another device",
    "CUDA_ERROR_NOT_INITIALIZED": "CUDA cannot be used in a process forked after its first use; start processes by spawn",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the code is for another architecture; compile the model for this GPU",
    "CUDA_ERROR_INVALID_PTX": "the driver does not accept the kernel's PTX; compile the model for this GPU's architecture",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the driver is older than the kernel's PTX; update the driver",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": "the driver lacks its PTX compiler (libnvidia-ptxjitcompiler); install it whole",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "the kernel needs more registers or shared memory than the GPU has",
    "CUDA_ERROR_INVALID_VALUE": "the driver refuses a grid, a block, a size or a tensor map",
}
_CAPTURE = "the stream is being captured: call once with these shapes before the capture"
_LOST = "a kernel failed and CUDA is lost for this process; start it again, under compute-sanitizer to find the cause"


class CudaError(DeviceError):
    """A call of the driver failed. code: its CUresult. sticky: no later call of this process can succeed."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.sticky = code in STICKY


def unavailable() -> str:
    """Why no CUDA device can be used in this process; empty where one can. Starts the driver, makes no context."""
    parts = ("cuda", "cuda.bindings", "cuda.core")  # a missing parent makes the look for a child an error
    if not all(importlib.util.find_spec(part) for part in parts):
        return "cuda-python is not installed: pip install cuda-python"
    from cuda.bindings import driver

    try:
        code, *_ = driver.cuInit(0)
    except RuntimeError:  # DynamicLibNotFoundError
        return "there is no CUDA driver here; install NVIDIA's driver"
    if int(code) != SUCCESS:
        return f"the CUDA driver does not start: {code.name}"
    version = checked(driver.cuDriverGetVersion(), "ask the driver for its version")
    if version < OLDEST:
        return f"the CUDA driver is for CUDA {dotted(version)}; {dotted(OLDEST)} or later is needed, update the driver"
    return "" if checked(driver.cuDeviceGetCount(), "count the GPUs") else "the CUDA driver finds no GPU"


@functools.cache
def start() -> Any:
    """cuda.bindings.driver, the driver being started; DeviceError says why it cannot be."""
    reason = unavailable()
    if reason:
        raise DeviceError(f"no CUDA device can be used: {reason}")
    from cuda.bindings import driver

    return driver


def device_count() -> int:
    """GPUs that this process can use."""
    return int(checked(start().cuDeviceGetCount(), "count the GPUs"))


def driver_version() -> str:
    """As in `13.0`."""
    return dotted(int(checked(start().cuDriverGetVersion(), "ask the driver for its version")))


def address(function: str, version: int = OLDEST) -> int:
    """Where a function of the driver begins, as CUDA `version` declares it; DeviceError when the driver has none."""
    driver = start()
    flags = driver.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM
    found, _ = checked(driver.cuGetProcAddress(function.encode(), version, int(flags)), f"find {function} in the driver")
    if not found:
        raise DeviceError(f"the CUDA driver has no {function}; update the driver")
    return int(found)


def checked(result: tuple[Any, ...], doing: str) -> Any:
    """The value of a call of cuda.bindings: None, one, or a tuple. CudaError when it failed; `doing` is for the message."""
    code, *values = result
    if int(code) != SUCCESS:
        fail(int(code), doing)
    return tuple(values) if len(values) > 1 else values[0] if values else None


def fail(code: int, doing: str) -> NoReturn:
    """Raise the error of a CUresult."""
    name = name_of(code)
    if name.startswith("CUDA_ERROR_STREAM_CAPTURE"):
        remedy = _CAPTURE
    elif code in STICKY:
        remedy = _LOST
    else:
        remedy = _REMEDIES.get(name, "")
    raise CudaError(f"cannot {doing}: {name}{f'; {remedy}' if remedy else ''}", code)


@contextlib.contextmanager
def reported(doing: str) -> Iterator[None]:
    """Errors of cuda.core become CudaError."""
    from cuda.core._utils.cuda_utils import CUDAError

    try:
        yield
    except CUDAError as error:
        from cuda.bindings import driver

        found = re.search(r"CUDA_ERROR_\w+", str(error))
        if found is None or not hasattr(driver.CUresult, found[0]):
            raise CudaError(f"cannot {doing}: {_first_line(error)}") from error
        fail(int(getattr(driver.CUresult, found[0])), doing)
    except RuntimeError as error:
        raise CudaError(f"cannot {doing}: {_first_line(error)}") from error


def name_of(code: int) -> str:
    """Of a CUresult."""
    from cuda.bindings import driver

    try:
        return str(driver.CUresult(code).name)
    except ValueError:
        return f"CUDA error {code}"


def dotted(version: int) -> str:
    """As in `13.0`."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
