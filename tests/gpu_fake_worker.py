"""A runner process whose GPU is a fake: what it does follows from a kernel's image. `python -P -m gpu_fake_worker`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.cuda.driver import CudaError
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.runner.gpu_worker import serve_gpu
from tilewright.search.runner.serving import reply_channel

STICKY = 700


class FakeGpu:
    """Multiplies in NumPy. Once a kernel was sticky, nothing of this process works any more, as with CUDA."""

    cache = "none"
    filled = None

    def __init__(self) -> None:
        self.dead = False

    def run(self, kernel: MicroKernel, image: bytes, dims: Mapping[str, int], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        self._do(image)
        x, w, _ = arrays
        factor = np.float32(1.01 if image == b"wrong" else 1.0)
        return [x, w, x @ w * factor]

    def time(self, workload: Workload, kernel: MicroKernel, image: bytes, dims: Mapping[str, int],
             arrays: Sequence[np.ndarray]) -> list[float]:
        self._do(image.removeprefix(b"late "))
        return [float(os.getpid()), 1.0]

    def _do(self, image: bytes) -> None:
        if self.dead or image == b"sticky":
            self.dead = True
            raise CudaError("cannot launch: CUDA_ERROR_ILLEGAL_ADDRESS", STICKY)
        if image == b"refused":
            raise CudaError("cannot launch: CUDA_ERROR_INVALID_VALUE", 1)
        if image == b"hang":
            time.sleep(1000)


if __name__ == "__main__":
    replies = reply_channel()
    serve_gpu(sys.stdin.buffer, replies, FakeGpu())
