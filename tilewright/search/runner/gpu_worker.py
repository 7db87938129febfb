"""A runner process for a GPU or its emulator: requests and replies as of `host_worker`. Imports no MLIR, no llvmlite.

Started as `python -P -m tilewright.search.runner.gpu_worker TARGET ORDINAL`. A kernel that fails on a GPU may cost the
process its CUDA context for good; the reply says so, and the next kernel is measured in another process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import BinaryIO

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.cuda.driver import CudaError
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.target import Target, TargetKind
from tilewright.search.runner.gpu_runner import CudaGpu, EmulatedGpu, GpuRunner, TimedGpu
from tilewright.search.runner.runner_requests import Prepare, Run, RunnerReply
from tilewright.search.runner.serving import reply_channel, serve
from tilewright.search.runner.verification import Case


def serve_gpu(requests: BinaryIO, replies: BinaryIO, gpu: TimedGpu) -> None:
    """Answer requests until the input ends or the GPU is lost."""
    cases: dict[str, Sequence[Case]] = {}
    runner = GpuRunner(gpu, cases)

    def prepare(request: Prepare) -> None:
        if request.workload is not None:
            cases[request.workload.key] = [c.case() for c in request.cases]

    serve(requests, replies, lambda workload, code, request: _run(runner, workload, code, request), prepare)


def gpu_of(target: Target, ordinal: int) -> TimedGpu:
    """Where kernels of a target run; DeviceError where there is no such GPU."""
    return EmulatedGpu(GpuLimits.of(target.arch)) if target.kind is TargetKind.EMULATOR else CudaGpu(ordinal)


def _run(runner: GpuRunner, workload: Workload, code: bytes, request: Run) -> RunnerReply:
    try:
        found = runner.run(workload, request.kernel, code, request.dims, request.threads, request.seconds)
    except (TilewrightError, MemoryError) as error:
        lost = isinstance(error, CudaError) and error.sticky
        return RunnerReply(error=f"{request.kernel.config}: {type(error).__name__}: {error}", lost=lost)
    return RunnerReply(found.seconds, found.error, found.cache)


def main() -> None:
    replies = reply_channel()
    serve_gpu(sys.stdin.buffer, replies, gpu_of(Target.parse(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
