"""Helper processes of tests are forked from one that has imported what all of them need: importing it takes longer than most of
what they are asked for. Every eighth test, always the same ones, and those marked `started` start them as users do."""

from __future__ import annotations

import fcntl
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import forkserver, reduction
from pathlib import Path
from typing import Any

import pytest
from garbage import THRESHOLDS

_TESTS = Path(__file__).parent
_LINES = "tilewright.search.runner.line_process"
_FORKED = frozenset({
    "tilewright.compiler.builder.worker",
    "tilewright.compiler.isolation.compile_worker",
    "tilewright.search.runner.host_worker",
})
_PRELOADED = ("cuda_fake.fake_driver", "tilewright.compiler.api", "tilewright.compiler.builder.assemble_kernel", *sorted(_FORKED))
_plain: list[Any] = []


def context() -> Any:
    """Of multiprocessing; its processes have imported Tilewright and the fake driver."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(list(_PRELOADED))
    with pytest.MonkeyPatch.context() as patch:  # that process must find the same modules
        patch.setenv("PYTHONPATH", os.pathsep.join([str(_TESTS.parent), str(_TESTS)]))
        forkserver.ensure_running()
    return made


def fork_helpers(forked: bool) -> None:
    """Says so to what starts helper processes, where that is imported: a test that has not imported it by now starts them."""
    lines = sys.modules.get(_LINES)
    if lines is not None:
        _plain[:] = _plain or [lines.started]
        lines.started = _started if forked else _plain[0]


class Forked:
    """What LineProcess asks of a subprocess.Popen."""

    def __init__(self, module: str, arguments: Sequence[str], environment: dict[str, str], inherited: Sequence[int]) -> None:
        (asked, asking), (answers, answering), (noted, noting) = (os.pipe() for _ in range(3))
        self.stdin = os.fdopen(asking, "wb", buffering=0)
        self.stdout, self.stderr = (os.fdopen(end, "rb", buffering=0) for end in (answers, noted))
        theirs = asked, answering, noting
        handed = [_Descriptor(number, there) for there, number in [*enumerate(theirs), *zip(inherited, inherited, strict=True)]]
        self._owner, self._lock = os.getpid(), threading.Lock()
        asked_for = module, arguments, environment, os.getcwd(), handed
        self._process = context().Process(target=_run, args=asked_for, daemon=True)
        try:
            self._process.start()
        finally:
            for end in theirs:
                os.close(end)
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        if self._owner != os.getpid():
            return 0  # as Popen tells of a process that is no child
        with self._lock:
            return self._process.exitcode

    def wait(self, seconds: float) -> int | None:
        with self._lock:
            self._process.join(seconds)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(str(self._process), seconds)
        return self.poll()

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class _Descriptor:
    """An open one and its number in the other process."""

    def __init__(self, number: int, there: int) -> None:
        self.number, self.there = number, there

    def __reduce__(self) -> tuple[Any, ...]:
        return _Handed, (reduction.DupFd(self.number), self.there)


class _Handed:
    """A descriptor that came."""

    def __init__(self, duplicate: Any, there: int) -> None:
        self.number, self.there = duplicate.detach(), there


def _started(module: str, arguments: Sequence[str], inherited: Sequence[int]) -> Any:
    lines = sys.modules[_LINES]
    if module not in _FORKED or not hasattr(os, "fork"):
        return _plain[0](module, arguments, inherited)
    return Forked(module, arguments, lines.own_environment(), inherited)


def _run(module: str, arguments: Sequence[str], environment: dict[str, str], folder: str, handed: list[_Handed]) -> None:
    """Becomes `python -P -m module arguments`."""
    os.setpgid(0, 0)
    gc.set_threshold(*THRESHOLDS)
    above = 1 + max(each.there for each in handed)
    moved = [(fcntl.fcntl(each.number, fcntl.F_DUPFD, above), each.there) for each in handed]
    for each in handed:
        os.close(each.number)
    for number, there in moved:
        os.dup2(number, there)
        os.close(number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [module, *arguments]
    del sys.modules[module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
