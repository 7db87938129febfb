"""What travels between WorkerPool and its workers: one JSON object a line, `op` says which."""

from __future__ import annotations

import msgspec

from tilewright.runtime.program.kernel import MicroKernel


class KernelRequest(msgspec.Struct, frozen=True, tag="kernel", tag_field="op"):
    """Build one kernel: arguments of `build_kernel`, the target as text. `family` is for messages.

    inspect: let ptxas, where there is one, say what a kernel for the emulator takes; those for devices it assembles anyway.
    """

    workload_ir: str
    workload_key: str
    symbol: str
    family: str
    config: str
    target: str
    inspect: bool = False

    def __str__(self) -> str:
        return f"kernel {self.symbol} ({self.config or self.family})"


class PingRequest(msgspec.Struct, frozen=True, tag="ping", tag_field="op"):
    """Is the worker there?"""

    def __str__(self) -> str:
        return "ping"


class FaultRequest(msgspec.Struct, frozen=True, tag="fault", tag_field="op"):
    """For tests: "segfault", "hang", "exit", or "noise" (much text on stdout and stderr, then a good reply)."""

    fault: str

    def __str__(self) -> str:
        return f"fault {self.fault}"


WorkerRequest = KernelRequest | PingRequest | FaultRequest


class KernelReply(msgspec.Struct, frozen=True):
    """The kernel with its object code and the LLVM IR before optimisation, or why there is none.

    error: what happened, in one line. log: the compiler's own words and the end of the worker's stderr. seconds: time
    the build took. worker: process id. timed_out: no reply came within the time limit, which a busy machine may be the cause of.
    """

    ok: bool
    kernel: MicroKernel | None = None
    code: bytes = b""
    llvm_ir: str = ""
    error: str = ""
    log: str = ""
    seconds: float = 0.0
    worker: int = 0
    timed_out: bool = False
