"""WorkerProcess: one running `tilewright.compiler.builder.worker` and the talk with it."""

from __future__ import annotations

import os

import msgspec

from tilewright.compiler.builder.requests import KernelReply, PingRequest, WorkerRequest
from tilewright.search.runner.line_process import LineProcess, WorkerLostError

__all__ = ["WorkerLostError", "WorkerProcess"]

_START_SECONDS = 10.0  # that a worker may take to start, where a request may take less
_IN_PASSING = frozenset({"PYTEST_CURRENT_TEST"})  # variables that another tool rewrites as it goes and no worker reads


class WorkerProcess(LineProcess):
    """A worker that answers one request at a time, each within the time limit. It starts meanwhile; `ping` waits for it.

    Raises:
        WorkerLostError: no process can be made.
    """

    def __init__(self, time_limit: float) -> None:
        self.time_limit = time_limit
        self._started_in = _surroundings()
        super().__init__("tilewright.compiler.builder.worker", str(time_limit))

    @property
    def up_to_date(self) -> bool:
        """Would a worker started now find the same environment and the same CPUs?"""
        return self._started_in == _surroundings()

    def ping(self) -> None:
        """Wait until it answers.

        Raises:
            WorkerLostError: it does not within the time limit, or what a start may take, and was ended.
        """
        self.exchange(msgspec.json.encode(PingRequest()) + b"\n", max(self.time_limit, _START_SECONDS))

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
    return {name: value for name, value in os.environ.items() if name not in _IN_PASSING}, frozenset(cpus)
