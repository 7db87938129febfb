"""A worker process: one JSON request a line on stdin, one JSON reply a line on stdout, until stdin ends.

Started as `python -P -m tilewright.compiler.builder.worker SECONDS` by worker_pool.py. A crash of the code
generator ends this process only. What it prints goes to stderr. A request that takes far longer than SECONDS ends the process
even when the pool that should have ended it is gone.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time
from typing import BinaryIO

import msgspec

from tilewright.compiler.builder.requests import FaultRequest, KernelReply, KernelRequest, PingRequest, WorkerRequest
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.target import Target, TargetKind


def serve(requests: BinaryIO, replies: BinaryIO, seconds: float) -> None:
    """Answer requests until the input ends."""
    decoder = msgspec.json.Decoder(WorkerRequest)
    for line in requests:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 2 * seconds + 10)
        reply = answer(decoder.decode(line))
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def answer(request: WorkerRequest) -> KernelReply:
    """The reply to one request; a kernel that cannot be built is an answer too."""
    start = time.perf_counter()
    match request:
        case KernelRequest():
            reply = _build(request)
        case PingRequest():
            reply = KernelReply(True)
        case FaultRequest():
            _fail(request.fault)
            reply = KernelReply(True)
    return msgspec.structs.replace(reply, seconds=time.perf_counter() - start, worker=os.getpid())


def _build(request: KernelRequest) -> KernelReply:
    from tilewright.compiler.builder.assemble_kernel import assembled
    from tilewright.compiler.builder.build import build_kernel

    try:
        target = Target.parse(request.target)
        built = build_kernel(request.workload_ir, request.workload_key, request.symbol, request.config, target)
        if request.inspect or target.kind is TargetKind.CUDA:
            built = assembled(built, target)
    except TilewrightError as error:
        return KernelReply(False, error=str(error), log=getattr(error, "log", ""))
    return KernelReply(True, built.kernel, built.code, built.llvm_ir)


def _fail(fault: str) -> None:
    match fault:
        case "segfault":
            ctypes.string_at(8)
        case "hang":
            time.sleep(1e6)
        case "exit":
            os._exit(3)
        case "noise":
            sys.stdout.write("o" * 1_000_000)
            sys.stderr.write("e" * 1_000_000)
            sys.stdout.flush()
            sys.stderr.flush()
        case _:
            raise TilewrightError(f"fault {fault!r}: wanted segfault, hang, exit or noise")


def main() -> None:
    """Keep the reply channel to ourselves: whoever prints to stdout writes to stderr instead."""
    faulthandler.enable()
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies, seconds)


if __name__ == "__main__":
    main()
