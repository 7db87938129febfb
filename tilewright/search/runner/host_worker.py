"""A runner process: one JSON request a line on stdin, one reply a line on stdout, until stdin ends. Imports no MLIR.

Started as `python -P -m tilewright.search.runner.host_worker` by ProcessRunner. A kernel that crashes ends this process only.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import BinaryIO

import msgspec

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.host.benchmark import Timing
from tilewright.runtime.host.cpu import HostDevice
from tilewright.search.runner.host_runner import HostRunner
from tilewright.search.runner.runner_requests import Prepare, Run, RunnerReply, RunnerRequest


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the input ends."""
    decoder = msgspec.json.Decoder(RunnerRequest)
    runner = HostRunner(HostDevice(), Timing())
    workloads: dict[str, Workload] = {}
    codes: dict[str, bytes] = {}
    for line in requests:
        request = decoder.decode(line)
        match request:
            case Prepare():
                if request.workload is not None:
                    workloads[request.workload.key] = request.workload.workload()
                if request.digest:
                    codes[request.digest] = request.code
                reply = RunnerReply()
            case Run():
                reply = _run(runner, workloads[request.workload], codes[request.digest], request)
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()


def _run(runner: HostRunner, workload: Workload, code: bytes, request: Run) -> RunnerReply:
    try:
        found = runner.run(workload, request.kernel, code, request.dims, request.threads)
    except (TilewrightError, MemoryError) as error:
        return RunnerReply(error=f"{type(error).__name__}: {error}")
    return RunnerReply(found.seconds, found.error, found.cache)


def main() -> None:
    """Keep the reply channel to ourselves: whoever prints to stdout writes to stderr instead."""
    faulthandler.enable()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
