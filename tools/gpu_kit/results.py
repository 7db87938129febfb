"""What the steps of the kit share: results written as they come, a time to end at, commands with a limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ended:
    """How a command ended. code: None where it was ended for its time."""

    code: int | None
    output: str
    seconds: float

    @property
    def tail(self) -> str:
        """The end of what it wrote."""
        return self.output[-2000:]


class Step:
    """A step of the kit. Records go to `<name>.jsonl` of the results' folder.

    Args:
        root: of the kit. results: folder. target: "cuda", or an emulator to try the way. seconds: that the step may take.
        jobs: processes that may use the device at a time where nothing is timed. peers: of the benchmark, as of
            `tools.bench gpu`.
    """

    def __init__(self, name: str, root: Path, results: Path, target: str, seconds: float, jobs: int = 1,
                 peers: str = "torch") -> None:
        self.root, self.results, self.target, self.jobs, self.peers = root, results, target, jobs, peers
        self._writing = threading.Lock()
        self.path = results / f"{name}.jsonl"
        self._end = time.monotonic() + seconds
        results.mkdir(parents=True, exist_ok=True)
        self.failed = 0
        self.add({"record": "step", "name": name, "target": target, "seconds": seconds,
                  "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def left(self) -> float:
        """Seconds that are left of the step."""
        return max(0.0, self._end - time.monotonic())

    def add(self, record: dict[str, Any]) -> None:
        """Write a record, and count it where it says that something failed."""
        with self._writing, self.path.open("a") as file:
            self.failed += record.get("ok") is False
            file.write(json.dumps(record) + "\n")
            print(json.dumps(record)[:300], flush=True)

    def run(self, command: Sequence[str], most: float = float("inf")) -> Ended:
        """Run a command in the kit's folder, at most so long and never beyond the end of the step; both outputs together."""
        start, limit = time.monotonic(), min(most, self.left)
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(list(command), cwd=self.root, stdin=subprocess.DEVNULL, stdout=output,
                                           stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, process_group=0)
            except OSError as error:
                return Ended(127, str(error), 0.0)
            code: int | None = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(limit)
            if code is None:
                os.killpg(process.pid, signal.SIGKILL)  # with what it started
                process.wait()
            output.seek(0)
            return Ended(code, output.read().decode(errors="replace"), time.monotonic() - start)

    def python(self, *arguments: str, most: float = float("inf")) -> Ended:
        """Run this Python with arguments."""
        return self.run([sys.executable, *arguments], most)

    def told(self, what: str, ended: Ended) -> None:
        """Record how a command ended."""
        self.add({"record": "command", "what": what, "ok": ended.code == 0, "code": ended.code,
                  "seconds": round(ended.seconds, 3), **({} if ended.code == 0 else {"tail": ended.tail})})
