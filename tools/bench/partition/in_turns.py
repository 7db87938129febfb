"""Processes that prepare side by side and then work one at a time, each when it is told to."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class Worker:
    """A process that prints `ready`, waits for a line, prints records as lines of JSON, and ends."""

    def __init__(self, name: str, line: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name, self.records = name, list[dict[str, Any]]()
        self.ready, self.ended = threading.Event(), threading.Event()
        self.process = subprocess.Popen(line, env=dict(environment), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for text in self.process.stdout or ():
            if text.startswith("{"):
                self.records.append(json.loads(text))
            elif text.startswith("ready"):
                self.ready.set()
        self.ready.set()
        self.ended.set()

    def turn(self, seconds: float) -> str:
        """Lets it work for so long at most; "" or what went wrong."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.close()
        except OSError:
            return f"ended before its turn, code {self.process.wait()}"
        if not self.ended.wait(seconds):
            return f"not done {seconds:g} s after its turn began"
        code = self.process.wait()
        return f"exit code {code}" if code else ""

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def in_turns(workers: Sequence[Worker], prepared: float, end: float, most: float) -> Iterator[dict[str, Any]]:
    """Records of all. prepared: when those that are not ready are given up; end: when no turn begins any more, both by the
    monotonic clock. most: seconds of a turn; a process gets some more for its end."""
    try:
        for worker in workers:
            if not worker.ready.wait(max(0.0, prepared - time.monotonic())):
                worker.end()
        for worker in workers:
            left = end - time.monotonic()
            if left <= 0:
                yield {"record": "left", "name": worker.name}
                continue
            problem = worker.turn(min(most + 3, left))
            if problem:
                worker.end()
                yield {"record": "broken", "name": worker.name, "error": problem}
            yield from worker.records
    finally:
        for worker in workers:
            worker.end()
