"""Workers that a closed pool leaves for the next one: a worker starts in most of a second, a small kernel builds in a tenth."""

from __future__ import annotations

import atexit
import os
import threading
import time
from dataclasses import dataclass

from tilewright.compiler.builder.worker_process import WorkerLostError, WorkerProcess

IDLE_SECONDS = 10.0
_MOST = 8


@dataclass(frozen=True)
class _Resting:
    worker: WorkerProcess
    until: float


class WorkerReserve:
    """Idle workers of this process, each ended when `seconds` have passed and no pool took it."""

    def __init__(self, seconds: float = IDLE_SECONDS) -> None:
        self._seconds = seconds
        self._resting: list[_Resting] = []
        self._changed = threading.Condition()
        self._watched = self._closed = False
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def take(self, time_limit: float) -> WorkerProcess:
        """A worker that rests here and is as a new one would be, or a new one.

        Raises:
            WorkerLostError: none rests and none starts.
        """
        while True:
            with self._changed:
                fitting = [r for r in self._resting if r.worker.time_limit == time_limit and r.worker.up_to_date]
                if fitting:
                    self._resting.remove(fitting[-1])
                    self._changed.notify()
            if not fitting:
                return WorkerProcess(time_limit)
            worker = fitting[-1].worker
            try:
                worker.ping()
            except WorkerLostError:
                worker.end()
            else:
                return worker

    def put(self, worker: WorkerProcess) -> None:
        """Keep a worker that waits for a request; one too many is ended."""
        with self._changed:
            kept = worker.alive and len(self._resting) < _MOST and not self._closed
            if kept:
                self._resting.append(_Resting(worker, time.monotonic() + self._seconds))
                if not self._watched:
                    self._watched = True
                    threading.Thread(target=self._watch, name="tilewright-reserve", daemon=True).start()
        if not kept:
            worker.end()

    def close(self) -> None:
        """End all that rest here, and keep none from now on."""
        with self._changed:
            self._closed = True
            ended, self._resting = self._resting, []
            self._changed.notify()
        for resting in ended:
            resting.worker.end()

    def _watch(self) -> None:
        """Ends workers whose time has come, until none rests."""
        while True:
            with self._changed:
                if not self._resting:
                    self._watched = False
                    return
                left = self._resting[0].until - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                ended = self._resting.pop(0)
            ended.worker.end()

    def _forget(self) -> None:
        """After a fork: the workers and the thread are those of the parent."""
        self._resting, self._changed, self._watched = [], threading.Condition(), False


RESERVE = WorkerReserve()
