"""Whole: what is timed is not cut into slices by whoever stops and continues this process (compiler/refinement/slices.py)."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

WHOLE = "--whole="  # of a process that times: descriptor of the lock, which it inherits


class Whole:
    """`whole` holds a lock, which whoever stops this process takes for a rest.

    Locks are those of processes, so that a descriptor that was inherited is another holder.
    """

    def __init__(self, descriptor: int | None) -> None:
        self.descriptor, self._depth = descriptor, 0

    @contextmanager
    def whole(self) -> Iterator[None]:
        if self.descriptor is not None and self._depth == 0:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self.descriptor is not None and self._depth == 0:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)
