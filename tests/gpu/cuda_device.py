"""A CUDA device for the kernel tests: its memory is filled with 0xFF, which is NaN where a kernel writes nothing."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tilewright.runtime.cuda.cuda_device import CudaDevice
from tilewright.runtime.cuda.driver import checked, start, unavailable

_TRAFFIC = 64 << 20  # bytes


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


class Traffic:
    """Memory traffic of random size on a stream of its own, while kernels run: it moves their blocks and copies in time."""

    def __init__(self, device: CudaDevice) -> None:
        self._stream = device.core.create_stream()
        self._room = device.core.allocate(_TRAFFIC, stream=self._stream)

    def begin(self, seed: int) -> None:
        """Enqueue some, and wait a while, so that a launch that follows meets it anywhere."""
        random = np.random.default_rng(seed)
        for size in random.integers(1, _TRAFFIC, random.integers(0, 8)):
            checked(start().cuMemsetD8Async(int(self._room.handle), 0, int(size), self._stream.handle), "make traffic")
        time.sleep(float(random.exponential(50e-6)))
