"""A CUDA device for the kernel tests: its memory is filled with 0xFF, which is NaN where a kernel writes nothing."""

from __future__ import annotations

from typing import Any

from tilewright.runtime.cuda.cuda_device import CudaDevice
from tilewright.runtime.cuda.driver import checked, start, unavailable


def missing_reason() -> str:
    """Why kernels cannot run on a GPU here; empty where they can."""
    return unavailable()


class FilledDevice(CudaDevice):
    """Every launch is waited for, so that its errors are those of the call that caused them."""

    def alloc(self, size: int) -> int:
        address = super().alloc(size)
        checked(start().cuMemsetD8Async(address, 0xFF, max(size, 1), self.stream.handle), "fill memory")
        return address

    def launch(self, *args: Any, **options: Any) -> None:
        super().launch(*args, **options)
        self.sync()
