"""One process per system, stopped when it is not its turn; all systems measured in alternating rounds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench.operator_spec import Shape

ROOT = Path(__file__).resolve().parents[3]
# Pins that keep a peer from its best kernels.
PINS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
WANTED_PINS: Mapping[str, Mapping[str, str]] = {"numpy:avx2": {"OPENBLAS_CORETYPE": "Haswell"}}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
Turn = Callable[[float], float]


class WorkerDiedError(Exception):
    """A system's process ended; the text is the end of its standard error."""


def environment(threads: int, system: str = "") -> dict[str, str]:
    """The environment of a system's process: this one without pins but those the system is for, with thread counts. Only
    NumPy's own process gets OpenBLAS threads."""
    kept = {n: v for n, v in os.environ.items() if n not in PINS}
    kept.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    kept["OPENBLAS_NUM_THREADS"] = str(threads if system.partition(":")[0] == "numpy" else 1)
    kept.update(WANTED_PINS.get(system, {}))
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return kept


class Worker:
    """The process of one system at one thread count. It stands still except while it answers. module: what it runs."""

    def __init__(self, system: str, threads: int, options: Sequence[str] = (),
                 module: str = "tools.bench.harness.worker") -> None:
        self.system, self.threads = system, threads
        self.near: list[float] = []
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, system, str(threads), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=ROOT,
            env=environment(threads, system),
        )  # fmt: skip
        self._stopped = False

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request and its reply. WorkerDiedError when the process ends instead."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        if self._stopped:
            self._process.send_signal(signal.SIGCONT)
            self._stopped = False
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise WorkerDiedError(self._last_words())
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._stopped = True
        reply: dict[str, Any] = json.loads(line)
        return reply

    def turn(self, seconds: float) -> float:
        """Seconds per call over about this time; `near` keeps the witness's reads around it."""
        reply = self.ask(do="time", seconds=seconds)
        self.near += reply["near"]
        return float(reply["seconds"])

    @property
    def process(self) -> int:
        return self._process.pid

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        self._log.close()

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {code}"


class Team:
    """A worker per system at one thread count; one that dies is replaced at its next use."""

    def __init__(
        self, systems: Sequence[str], threads: int, options: Mapping[str, Sequence[str]] | None = None, cold: bool = False
    ) -> None:
        self.systems, self.threads = list(systems), threads
        self._common = ["--cold"] if cold else []
        self.families: list[str] = []
        self._options = options or {}
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def worker(self, system: str) -> Worker:
        if system not in self._workers:
            self._workers[system] = Worker(system, self.threads, [*self._options.get(system, ()), *self._common])
        return self._workers[system]

    def processes(self) -> list[int]:
        """The ids of the workers there are."""
        return [w.process for w in self._workers.values()]

    def ask(self, system: str, **request: Any) -> dict[str, Any]:
        """As Worker.ask; a worker that dies leaves the team."""
        try:
            return self.worker(system).ask(**request)
        except WorkerDiedError:
            self._workers.pop(system).close()
            raise

    def prepare(self, operator: str) -> tuple[dict[str, float], dict[str, str]]:
        """Seconds that each system took to prepare an operator, and error texts; those that do not offer it are in neither.
        `families` is then what ours computes it with."""
        self.families = []
        ready: dict[str, float] = {}
        failed: dict[str, str] = {}
        for system in self.systems:
            try:
                reply = self.ask(system, do="prepare", operator=operator)
            except WorkerDiedError as error:
                failed[system] = str(error)
                continue
            if "unsupported" not in reply:
                ready[system] = float(reply["seconds"])
                self.families += reply.get("families", [])
        return ready, failed

    def bind(self, systems: Sequence[str], shape: Shape, folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
        """Bind a shape everywhere and run once: file of each system's result, and error texts."""
        results: dict[str, Path] = {}
        failed: dict[str, str] = {}
        for system in systems:
            path = folder / f"{system.replace(':', '_')}.npy"
            try:
                reply = self.ask(system, do="bind", shape=dict(shape), output=str(path))
            except WorkerDiedError as error:
                failed[system] = str(error)
                continue
            if "unsupported" not in reply:
                results[system] = path
        return results, failed


def rounds(turns: Mapping[str, Turn], count: int, seconds: float) -> dict[str, list[float]]:
    """Seconds per call of each system in `count` rounds, one turn each; every round starts with the next system."""
    names = list(turns)
    found: dict[str, list[float]] = {n: [] for n in names}
    for number in range(count):
        first = number % max(1, len(names))
        for name in names[first:] + names[:first]:
            found[name].append(turns[name](seconds / count))
    return found
