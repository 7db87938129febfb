"""What runner processes of all devices share: requests from stdin are answered until they end or the device is lost."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

import msgspec

from tilewright.passes.spaces.workload import Workload
from tilewright.search.runner.runner_requests import Prepare, Run, RunInTurns, RunnerReply, RunnerRequest

WITH_PARENT = "--with-parent"  # the process ends with the thread that started it, also while a kernel hangs
_PDEATHSIG, _KILL = 1, 9


def no_turns(workload: Workload, codes: Sequence[bytes], request: RunInTurns) -> RunnerReply:
    return RunnerReply(error="this runner times one kernel after the other")


def serve(requests: BinaryIO, replies: BinaryIO, run: Callable[[Workload, bytes, Run], RunnerReply],
          prepare: Callable[[Prepare], None] = lambda request: None,
          in_turns: Callable[[Workload, Sequence[bytes], RunInTurns], RunnerReply] = no_turns) -> None:
    """One JSON request a line, one reply a line. run: measures the code of a workload; prepare: told what a request brings;
    in_turns: measures the code of several kernels."""
    decoder = msgspec.json.Decoder(RunnerRequest)
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
                prepare(request)
                reply = RunnerReply()
            case Run():
                reply = run(workloads[request.workload], codes[request.digest], request)
            case RunInTurns():
                reply = in_turns(workloads[request.workload], [codes[d] for d in request.digests], request)
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()
        if reply.lost:
            return


def end_with_parent() -> None:
    """This process is killed when the thread that started it ends, also while it stands still."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, _KILL)


def reply_channel() -> BinaryIO:
    """Standard output for replies alone: whoever prints to it from now on writes to stderr instead. Asked to, the process ends
    with its parent from now on."""
    if WITH_PARENT in sys.argv:
        end_with_parent()
    faulthandler.enable()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies
