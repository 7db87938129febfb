"""Slices: a process, with all that it starts, works for a millisecond or two, then stands still until others leave room.

While work of the lowest priority runs on a core, Linux takes that core for busy and leaves a process that waits for another core
where it is (no new-idle balance); a core that rests takes it over at once. So what others wait for is a slice at most, also
where native code runs, which no signal handler of Python's could interrupt: it is another process that stops it (SIGSTOP).
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress

from tilewright.compiler.refinement.cpu_share import process_seconds, started_by
from tilewright.runtime.host.giving_way import Others, free_cores, give_way, running_tasks
from tilewright.search.runner.line_process import own_environment

_SLICE, _AMONG = 0.002, 0.004  # seconds of work between two rests; the same where others leave no room
_LONGEST = 0.02  # seconds of work that are rested for, where it was longer or this process stood still
_GLANCE = 0.0005  # seconds between two looks whether others begin
_LOOK = 0.2  # seconds between two looks at which processes there are
_ALONE, _BESIDE = 0.1, 4.0  # cores that others use, from which on rests are so many times as long
_ENDING = 5.0  # seconds that a process has to end when it is asked to


def run_in_slices(module: str, arguments: Sequence[str], rest_for_each: float) -> int:
    """Run `python -m MODULE ARGUMENTS`, with the descriptor for its `Whole` as the last one, in slices until it ends; returns its
    exit code. rest_for_each: seconds of rest at least, for each second of work."""
    def ended(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, ended)
    try:
        with tempfile.TemporaryFile() as lock:
            descriptor = lock.fileno()
            line = [sys.executable, "-P", "-m", module, *arguments, str(descriptor)]
            process = subprocess.Popen(line, env=own_environment(), pass_fds=(descriptor,))
            try:
                _sliced(process, descriptor, rest_for_each)
                return process.returncode
            finally:
                _end(process)
    finally:
        signal.signal(signal.SIGTERM, before)


def _sliced(process: subprocess.Popen[bytes], lock: int, rest_for_each: float) -> None:
    started, others, looked, begin = list[int](), Others(process_seconds), -_LOOK, time.monotonic()
    while process.poll() is None:
        _work()
        if time.monotonic() - looked >= _LOOK:
            started, looked = [process.pid, *started_by(process.pid)], time.monotonic()
            others.look()
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # it times something
        try:
            _send(started, signal.SIGSTOP)
            worked = min(time.monotonic() - begin, _LONGEST)
            give_way(worked * rest_for_each, times=1.0 if others.cores < _ALONE else _BESIDE)
        finally:
            _send(started, signal.SIGCONT)
            fcntl.lockf(lock, fcntl.LOCK_UN)
            begin = time.monotonic()


def _work() -> None:
    """A slice: it ends early where nobody else was at work and somebody begins."""
    others = running_tasks() > free_cores()
    end = time.monotonic() + (_AMONG if others else _SLICE)
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _GLANCE))
        if not others and running_tasks() > free_cores() + 1:  # this process, and the one whose slice it is
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """It has ended, or is asked to: by Ctrl-C it is already."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(_ENDING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _send(processes: Sequence[int], what: signal.Signals) -> None:
    for process in processes:
        with suppress(OSError):
            os.kill(process, what)
