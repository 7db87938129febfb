"""A runner process: one JSON request a line on stdin, one reply a line on stdout, until stdin ends. Imports no MLIR.

Started as `python -P -m tilewright.search.runner.host_worker` by ProcessRunner. A kernel that crashes ends this process only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.host.benchmark import Timing
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.host.whole_timing import WHOLE, Whole
from tilewright.search.protocols import KernelAt
from tilewright.search.runner.constant_copies import WARM, Weights
from tilewright.search.runner.host_runner import HostRunner
from tilewright.search.runner.runner_requests import Run, RunInTurns, RunnerReply
from tilewright.search.runner.serving import reply_channel, serve

REST = "--rest="  # seconds without work for each second of timing (runtime/host/benchmark.py)


def main() -> None:
    replies = reply_channel()
    weights = next((Weights.parse(a) for a in sys.argv[1:] if a.startswith("--weights=")), WARM)
    rest = next((float(a.removeprefix(REST)) for a in sys.argv[1:] if a.startswith(REST)), 0.0)
    lock = next((int(a.removeprefix(WHOLE)) for a in sys.argv[1:] if a.startswith(WHOLE)), None)
    runner = HostRunner(HostDevice(), Timing(rest=rest, whole=Whole(lock).whole), weights=weights)

    def run(workload: Workload, code: bytes, request: Run) -> RunnerReply:
        try:
            found = runner.run(workload, request.kernel, code, request.dims, request.threads, request.seconds)
        except (TilewrightError, MemoryError) as error:
            return RunnerReply(error=f"{type(error).__name__}: {error}")
        return RunnerReply(found.seconds, found.error, found.cache)

    def in_turns(workload: Workload, codes: Sequence[bytes], request: RunInTurns) -> RunnerReply:
        dims, each = tuple(request.dims.items()), zip(request.kernels, codes, request.threads, strict=True)
        asked = [KernelAt(kernel, code, dims, threads) for kernel, code, threads in each]
        try:
            found = runner.run_in_turns(workload, asked, request.rounds, request.seconds, request.within)
        except (TilewrightError, MemoryError) as error:
            return RunnerReply(error=f"{type(error).__name__}: {error}")
        return RunnerReply(error=found.error, cache=found.cache, rounds=found.rounds)

    serve(sys.stdin.buffer, replies, run, in_turns=in_turns)


if __name__ == "__main__":
    main()
