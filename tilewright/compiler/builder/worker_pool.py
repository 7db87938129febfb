"""WorkerPool: worker processes that build kernels, one request at a time each. A crash or a hang costs one candidate.

Needs no main guard, no multiprocessing and no pickle: works from a script, from stdin, from a thread, after a fork.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from types import TracebackType

from tilewright.compiler.builder.requests import KernelReply, PingRequest, WorkerRequest
from tilewright.compiler.builder.worker_process import WorkerLostError, WorkerProcess
from tilewright.compiler.builder.worker_reserve import RESERVE
from tilewright.runtime import knobs
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.host.host_cpu import affinity

_MOST_WORKERS = 8


class WorkerPool:
    """Processes that start on first use. Those that are idle when the pool closes rest for some seconds, for the next pool.

    Args:
        workers: default the knob TILEWRIGHT_WORKERS, else one per core, at most 8.
        time_limit: seconds a request may take; default the knob TILEWRIGHT_BUILD_SECONDS.
    """

    def __init__(self, workers: int | None = None, time_limit: float | None = None) -> None:
        self.workers = workers or knobs.WORKERS.get() or min(affinity(), _MOST_WORKERS)
        self.time_limit = time_limit or knobs.BUILD_SECONDS.get()
        self._start()

    def submit(self, request: WorkerRequest) -> Future[KernelReply]:
        """The reply to come. A hang of the worker, or the crash of two, is a reply with `ok` false; it does not raise.

        Raises:
            TilewrightError: the pool is closed.
        """
        if self._team.process != os.getpid():  # a fork took neither the threads nor the workers along
            self._finalizer.detach()
            self._start()
        return self._team.submit(request)

    def warm(self) -> None:
        """Start all workers; returns at once."""
        for _ in range(self.workers):
            self.submit(PingRequest())

    def map(self, requests: Iterable[WorkerRequest]) -> list[KernelReply]:
        """All replies, in the order of the requests."""
        return [future.result() for future in [self.submit(r) for r in requests]]

    def abandon(self, futures: Collection[Future[KernelReply]]) -> None:
        """Give up requests: those that wait are cancelled, workers that serve one are ended and replaced by the next request."""
        self._team.abandon(futures)

    def close(self) -> None:
        """Give the workers up. Requests that wait are cancelled; those being served get a failure reply."""
        self._finalizer()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        self._team = _Team(self.workers, self.time_limit)
        self._finalizer = weakref.finalize(self, self._team.close)  # also at interpreter exit


class _Team:
    """The threads of a pool, each with its worker process. They hold no reference to the pool: it can be freed."""

    def __init__(self, size: int, time_limit: float) -> None:
        self.process = os.getpid()
        self._size = size
        self._time_limit = time_limit
        self._jobs: queue.SimpleQueue[tuple[WorkerRequest, Future[KernelReply]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._serving: dict[Future[KernelReply], WorkerProcess] = {}
        self._given_up: set[Future[KernelReply]] = set()
        self._waiting = 0
        self._closed = False

    def submit(self, request: WorkerRequest) -> Future[KernelReply]:
        future: Future[KernelReply] = Future()
        with self._lock:
            if self._closed:
                raise TilewrightError("the worker pool is closed; make a new one")
            self._waiting += 1
            self._jobs.put((request, future))
            if len(self._threads) < min(self._size, self._waiting):
                thread = threading.Thread(target=self._serve, name="tilewright-worker", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def abandon(self, futures: Collection[Future[KernelReply]]) -> None:
        for future in futures:
            if not future.cancel():
                with self._lock:
                    if not future.done():
                        self._given_up.add(future)
                    worker = self._serving.get(future)
                    if worker is not None:
                        worker.kill()

    def close(self) -> None:
        if self.process != os.getpid():
            return  # the workers are those of the parent
        with self._lock:
            self._closed = True
            serving = list(self._serving.values())
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job[1].cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for worker in serving:
            worker.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)

    def _serve(self) -> None:
        """One thread: take jobs until the pool closes; a worker that is lost is replaced when the next job comes."""
        worker: WorkerProcess | None = None
        while (job := self._jobs.get()) is not None:
            request, future = job
            if future.set_running_or_notify_cancel():
                try:
                    worker, reply = self._answered(worker, request, future)
                except BaseException as error:
                    future.set_exception(error)
                    raise
                finally:
                    with self._lock:
                        self._given_up.discard(future)
                future.set_result(reply)
            with self._lock:
                self._waiting -= 1
        if worker is not None:
            RESERVE.put(worker)

    def _answered(self, worker: WorkerProcess | None, request: WorkerRequest,
                  future: Future[KernelReply]) -> tuple[WorkerProcess | None, KernelReply]:
        """The worker that is left, and the reply. What a worker died over is asked of a second one, and then given up: the first
        may have been killed from outside."""
        for is_second in (False, True):
            try:
                if is_new := worker is None or not worker.alive:
                    _end(worker)
                    worker = RESERVE.take(self._time_limit)
                with self._lock:
                    self._serving[future] = worker
                    if self._is_unwanted(future):
                        worker.kill()
                if is_new:
                    worker.ping()
                return worker, worker.ask(request)
            except WorkerLostError as error:
                _end(worker)
                worker, lost = None, error
                with self._lock:
                    if is_second or not lost.died or self._is_unwanted(future):
                        break
            finally:
                with self._lock:
                    self._serving.pop(future, None)
        return None, KernelReply(False, error=f"{request}: {lost}", log=lost.log, timed_out=not lost.died)

    def _is_unwanted(self, future: Future[KernelReply]) -> bool:
        return self._closed or future in self._given_up


def _end(worker: WorkerProcess | None) -> None:
    if worker is not None:
        worker.end()
