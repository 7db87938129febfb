"""Pauses of Python's cyclic collector while thousands of objects that stay are made: a full collection walks what all other
libraries of the process hold, 0.4 s beside torch."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_within = 0  # threads and depths that are in a pause
_paused = False  # is it off because of them?


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection of cycles until all that asked for it are done; one that is off stays off. Of all threads, as the collector
    is the process's."""
    global _within, _paused
    with _lock:
        _within += 1
        if gc.isenabled():
            gc.disable()
            _paused = True
    try:
        yield
    finally:
        with _lock:
            _within = max(0, _within - 1)  # 0 already in a process that was forked within
            if not _within and _paused:
                _paused = False
                gc.enable()


def _forget() -> None:
    """After a fork: the threads that paused it are those of the parent."""
    global _lock, _within, _paused
    _lock, _within = threading.Lock(), 0
    if _paused:
        _paused = False
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
