"""ProcessRunner: measures in a process of its own, so that a kernel that crashes or hangs costs one candidate."""

from __future__ import annotations

import hashlib
import math
import time
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType

import msgspec

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.protocols import KernelAt, Measurement, Turns
from tilewright.search.runner.case_form import CaseForm
from tilewright.search.runner.line_process import LineProcess, WorkerLostError
from tilewright.search.runner.runner_requests import Prepare, Run, RunInTurns, RunnerReply, RunnerRequest
from tilewright.search.runner.verification import Case

HOST_WORKER = f"{__package__}.host_worker"
_START_SECONDS = 60.0
_COOPERATIVE = 0.7  # of the time of a run, after which it stops by itself, so that its process need not be ended


class ProcessRunner:
    """A Runner. The process starts at the first run, is replaced when it was lost, and ends at `close` or with the interpreter.

    Args:
        time_limit: seconds that one measurement may take.
        module, arguments: what the process runs, search/runner/host_worker.py for the host.
        slower: times as long that it may take to start and to measure, where it works in slices. inherited: its descriptors.
        cases: workload key -> what its kernels must give before they are timed, for runners that verify.
    """

    def __init__(self, time_limit: float = 20.0, module: str = HOST_WORKER, arguments: Sequence[str] = (),
                 cases: Mapping[str, Sequence[Case]] | None = None, slower: float = 1.0, inherited: Sequence[int] = ()) -> None:
        self.time_limit, self.module, self.arguments = time_limit * slower, module, tuple(arguments)
        self._start_limit, self._inherited = _START_SECONDS * slower, tuple(inherited)
        self._cases = {} if cases is None else cases  # which may be filled later
        self._process: LineProcess | None = None
        self._sent: set[str] = set()

    def start(self) -> None:
        """Start the process, without waiting for it."""
        self._alive()

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        """A crash, a hang or an error of the process is a Measurement with an error; one for which there is no time is late."""
        if seconds is not None and seconds <= 0:
            return Measurement(error="there is no time left", late=True)
        end = time.monotonic() + (math.inf if seconds is None else seconds)
        try:
            process = self._alive()
            (digest,) = self._prepare(process, workload, [code], end)
            limit = min(self.time_limit, _until(end))
            request = Run(workload.key, kernel, digest, dict(dims), threads, None if seconds is None else _COOPERATIVE * limit)
            reply = self._ask(process, request, limit)
        except WorkerLostError as error:
            self.close()
            return Measurement(error=f"{kernel.config} at {dict(dims)}: {error}", late=time.monotonic() >= end)
        if reply.lost:
            self.close()
        return Measurement(reply.seconds, reply.error, reply.cache)

    def _prepare(self, process: LineProcess, workload: Workload, codes: Sequence[bytes], end: float) -> tuple[str, ...]:
        """Tell the process what it was not told yet; returns the digests of the codes."""
        if workload.key not in self._sent:
            cases = tuple(map(CaseForm.of, self._cases.get(workload.key, ())))
            self._ask(process, Prepare(WorkloadForm.of(workload), cases=cases), min(self._start_limit, _until(end)))
            self._sent.add(workload.key)
        digests = tuple(hashlib.sha256(code).hexdigest() for code in codes)
        for digest, code in zip(digests, codes, strict=True):
            if digest not in self._sent:
                self._ask(process, Prepare(None, digest, code), min(self._start_limit, _until(end)))
                self._sent.add(digest)
        return digests

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()
            self._process = None
        self._sent.clear()

    def __enter__(self) -> ProcessRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _alive(self) -> LineProcess:
        if self._process is None or not self._process.alive:
            self.close()
            self._process = LineProcess(self.module, *self.arguments, inherited=self._inherited)
            weakref.finalize(self, self._process.end)
        return self._process

    def _ask(self, process: LineProcess, request: RunnerRequest, seconds: float) -> RunnerReply:
        line = process.exchange(msgspec.json.encode(request) + b"\n", seconds)
        try:
            return msgspec.json.decode(line, type=RunnerReply)
        except msgspec.DecodeError as error:
            raise WorkerLostError(f"the runner's reply cannot be read: {error}", process.log) from error


class HostProcess(ProcessRunner):
    """A ProcessRunner on the host, which times kernels beside each other too."""

    def run_in_turns(self, workload: Workload, asked: Sequence[KernelAt], rounds: int, seconds: float | None = None,
                     within: int = 0) -> Turns:
        """Kernels at one shape; a crash, a hang or an error of the process is an error of all of them."""
        if seconds is not None and seconds <= 0:
            return Turns(error="there is no time left", late=True)
        end = time.monotonic() + (math.inf if seconds is None else seconds)
        try:
            process = self._alive()
            digests = self._prepare(process, workload, [x.code for x in asked], end)
            limit = min(self.time_limit, _until(end))
            request = RunInTurns(workload.key, tuple(x.kernel for x in asked), digests, dict(asked[0].dims),
                                 tuple(x.threads for x in asked), rounds, None if seconds is None else _COOPERATIVE * limit,
                                 within)
            reply = self._ask(process, request, limit)
        except WorkerLostError as error:
            self.close()
            return Turns(error=f"{len(asked)} kernels at {dict(asked[0].dims)}: {error}", late=time.monotonic() >= end)
        return Turns(reply.rounds, reply.error, reply.cache)


def _until(end: float) -> float:
    """Seconds until then."""
    return max(0.0, end - time.monotonic())
