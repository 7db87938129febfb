"""WorkerProcess: one running `tilewright.compiler.builder.worker` and the talk with it."""

from __future__ import annotations

import os

import msgspec

from tilewright.compiler.builder.requests import KernelReply, PingRequest, WorkerRequest
from tilewright.search.runner.line_process import LineProcess, WorkerLostError

__all__ = ["WorkerLostError", "WorkerProcess"]

_START_SECONDS = 60.0


class WorkerProcess(LineProcess):
    """A worker that answers one request at a time, each within the time limit.

    Raises:
        WorkerLostError: it does not start.
    """

    def __init__(self, time_limit: float) -> None:
        self.time_limit = time_limit
        self._started_in = _surroundings()
        super().__init__("tilewright.compiler.builder.worker", str(time_limit))
        self.ping()

    @property
    def up_to_date(self) -> bool:
        """Would a worker started now find the same environment and the same CPUs?"""
        return self._started_in == _surroundings()

    def ping(self) -> None:
        """Wait until it answers.

        Raises:
            WorkerLostError: it does not.
        """
        self.exchange(msgspec.json.encode(PingRequest()) + b"\n", _START_SECONDS)

    def ask(self, request: WorkerRequest) -> KernelReply:
        """The worker's reply; its stderr meanwhile is added to the log of a failed one.

        Raises:
            WorkerLostError: the worker died, or did not answer within the time limit and was ended.
        """
        line = self.exchange(msgspec.json.encode(request) + b"\n", self.time_limit)
        try:
            reply = msgspec.json.decode(line, type=KernelReply)
        except msgspec.DecodeError as error:
            self.end()
            raise WorkerLostError(f"the worker's reply cannot be read: {error}", self.log) from error
        if not reply.ok:
            reply = msgspec.structs.replace(reply, log=f"{reply.log}\n{self.log}".strip())
        return reply


def _surroundings() -> tuple[dict[str, str], frozenset[int]]:
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return dict(os.environ), frozenset(cpus)
