"""A CUDA device by cuda-python, as the tests' harness and GpuCaller want one: memory, images and launches in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode, launch
from cuda.pathfinder import DynamicLibNotFoundError


def missing_reason() -> str:
    """Why kernels cannot run on a GPU here; empty where they can."""
    try:
        code, *_ = driver.cuInit(0)
    except DynamicLibNotFoundError as error:
        return f"no CUDA driver: {str(error).splitlines()[0]}"
    if code != driver.CUresult.CUDA_SUCCESS:
        return f"the CUDA driver does not start: {code.name}"
    return "" if checked(driver.cuDeviceGetCount()) else "the CUDA driver has no device"


def checked(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; RuntimeError names its error."""
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {code.name}")
    return values[0] if values else None


@dataclass(frozen=True)
class Image:
    """Loaded PTX."""

    code: ObjectCode

    def kernel(self, symbol: str) -> Any:
        return self.code.get_kernel(symbol)


class CudaDevice:
    """The current device. Every launch is waited for, so that its errors are those of the call that caused them."""

    def __init__(self) -> None:
        self._device = Device()
        self._device.set_current()
        self._stream = self._device.create_stream()
        major, minor = self._device.compute_capability
        self.arch = f"sm_{major}{minor}{'a' if major >= 9 else ''}"
        self.name = f"cuda:{self.arch}"
        self._held: list[int] = []

    def alloc(self, size: int) -> int:
        """Device memory filled with 0xFF: NaN where a kernel writes nothing, and no address that a pointer may hold."""
        address = int(checked(driver.cuMemAlloc(size)))
        checked(driver.cuMemsetD8(address, 0xFF, size))
        self._held.append(address)
        return address

    def free(self, address: int) -> None:
        self._held.remove(address)
        checked(driver.cuMemFree(address))

    def close(self) -> None:
        """Free what is left."""
        for address in list(self._held):
            self.free(address)

    def copy_in(self, address: int, array: Any) -> None:
        dense = np.ascontiguousarray(array)
        checked(driver.cuMemcpyHtoD(address, dense.ctypes.data, dense.nbytes))

    def copy_out(self, address: int, shape: Sequence[int], dtype: Any, name: str = "") -> np.ndarray:
        found = np.empty(shape, dtype)
        if found.nbytes:
            checked(driver.cuMemcpyDtoH(found.ctypes.data, address, found.nbytes))
        return found

    def copy_within(self, target: int, source: int, size: int) -> None:
        checked(driver.cuMemcpyDtoD(target, source, size))

    def load(self, image: bytes) -> Image:
        return Image(ObjectCode.from_ptx(bytes(image)))

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int,
               args: Sequence[int]) -> None:
        if shared_bytes > 48 << 10:
            kernel.attributes.max_dynamic_shared_size_bytes = shared_bytes
        words = [np.uint64(a & (2**64 - 1)) for a in args]  # every parameter of our entries has eight bytes
        launch(self._stream, LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes), kernel, *words)
        self._stream.sync()
