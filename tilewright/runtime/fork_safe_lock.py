"""A lock that a fork in another thread does not leave locked in the child."""

from __future__ import annotations

import os
import threading


class ForkSafeLock:
    """A lock for each process."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def of_process(self) -> threading.Lock:
        """The lock of this process."""
        return self._locks.get(os.getpid()) or self._locks.setdefault(os.getpid(), threading.Lock())
