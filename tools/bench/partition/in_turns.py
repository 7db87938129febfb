"""Processes that prepare side by side and then work one at a time, each when it is told to."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_ENDING = 3.0  # seconds that a killed process is waited for


class Worker:
    """A process that prints `ready`, waits for a line, prints records as lines of JSON and then `done`, and waits to be ended: to
    end takes long where it has memory of a device, and would disturb the next."""

    def __init__(self, name: str, line: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name, self.line, self.environment = name, line, environment
        self.records, self.problem = list[dict[str, Any]](), "not begun before the deadline"
        self.ready, self.done = threading.Event(), threading.Event()
        self.process: subprocess.Popen[str] | None = None

    def prepare(self, deadline: float) -> None:
        """Starts it and waits until it is ready; by the deadline it is so or given up."""
        if time.monotonic() >= deadline:
            return
        environment, pipe = dict(self.environment), subprocess.PIPE
        process = subprocess.Popen(self.line, env=environment, text=True, stdin=pipe, stdout=pipe)
        self.process, self.problem = process, ""
        threading.Thread(target=self._read, args=[process], daemon=True).start()
        if not self.ready.wait(deadline - time.monotonic()):
            self.problem = "not ready by the deadline"
            self.end()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for text in process.stdout or ():
            if text.startswith("{"):
                self.records.append(json.loads(text))
            elif text.startswith("ready"):
                self.ready.set()
            elif text.startswith("done"):
                self.done.set()
        if not self.done.is_set():
            self.problem = self.problem or f"ended with code {process.wait()}"
        self.ready.set()
        self.done.set()

    def turn(self, seconds: float) -> None:
        """Lets it work for so long at most."""
        if self.problem or self.process is None or self.process.stdin is None:
            return
        with contextlib.suppress(OSError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        if not self.done.wait(seconds):
            self.problem = f"not done {seconds:g} s after its turn began"
            self.end()

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_ENDING)


def prepared(workers: Sequence[Worker], deadline: float, at_once: int) -> ThreadPoolExecutor:
    """Starts them in their order, so many at once that are not ready; its `shutdown` waits until all are ready or given up, which
    is at the deadline of the monotonic clock."""
    pool = ThreadPoolExecutor(at_once)
    for worker in workers:
        pool.submit(worker.prepare, deadline)
    return pool


def in_turns(workers: Sequence[Worker], end: float, most: float) -> Iterator[dict[str, Any]]:
    """Records of all that were prepared, in their order. end: when no turn begins any more, by the monotonic clock. most: seconds
    of a turn; a process gets some more for its end."""
    try:
        for worker in workers:
            left = end - time.monotonic()
            if left <= 0:
                yield {"record": "left", "name": worker.name}
                continue
            worker.turn(min(most + 3, left))
            yield from worker.records
            if worker.problem:
                yield {"record": "broken", "name": worker.name, "error": worker.problem}
    finally:
        with ThreadPoolExecutor(max(1, len(workers))) as pool:
            for worker in workers:
                pool.submit(worker.end)
