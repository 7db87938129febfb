"""Segments: what one writer adds to a record store. On a disk a file that grows, elsewhere objects that are written once.

No two writers share a segment, so that none waits for another and a torn line is its writer's own.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tilewright.runtime.errors import LogError
from tilewright.runtime.log import LOG
from tilewright.search.database.log_file import kept_aside
from tilewright.search.database.record_place import LocalPlace, RecordPlace

SEGMENTS, SUFFIX = "segments", ".jsonl"
_LINES, _SECONDS = 64, 5.0  # of an object, at most, before it is written


class SegmentWriter(Protocol):
    """Takes lines that end in a line feed. What cannot be written now is kept for the next time, and told of once."""

    def append(self, lines: Sequence[bytes]) -> None: ...

    def finish(self) -> None: ...


def segment_writer(place: RecordPlace, clock: Callable[[], float] = time.monotonic) -> SegmentWriter:
    """Of this process, for a place. The first segment is named when there is something to write.

    Raises LogError where a folder cannot be written, or has no room; what a URL does not take is seen at its first object.
    """
    if not isinstance(place, LocalPlace):
        return _SegmentObjects(place, clock)
    place.prepare(SEGMENTS)
    return _GrowingSegment(place)


def segment_name() -> str:
    """Unique; names of one writer sort in the order of time."""
    host = "".join(c for c in socket.gethostname() if c.isalnum())[:16] or "host"
    return f"{time.time_ns() // 1_000_000:013d}-{host}-{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"


class _GrowingSegment:
    """A file that this writer alone appends to, under its lock, which whoever compacts takes before it removes one."""

    def __init__(self, place: LocalPlace) -> None:
        self._place = place
        self._path: Path | None = None
        self._owner = 0
        self._unwritten: list[bytes] = []
        self._told = False

    def append(self, lines: Sequence[bytes]) -> None:
        self._unwritten += lines
        error = self._flush()
        if error is not None and not self._told:
            self._told = True
            LOG.warning("record store %s cannot be written: %s; measurements are kept in memory, and written when it can be",
                        self._place.text, error.strerror)

    def finish(self) -> None:
        error = self._flush() if self._unwritten else None
        if error is not None:
            LOG.warning("record store %s cannot be written: %s; %s", self._place.text, error.strerror,
                        kept_aside(self._unwritten, self._place.text))

    def _flush(self) -> OSError | None:
        try:
            while not self._write(b"".join(self._unwritten)):
                self._path = None  # it was compacted and removed meanwhile
        except OSError as error:
            return error
        self._unwritten.clear()
        self._told = False
        return None

    def _write(self, data: bytes) -> bool:
        """False where the segment is no more."""
        if self._path is None or self._owner != os.getpid():
            self._path, self._owner = self._place.path(f"{SEGMENTS}/{segment_name()}"), os.getpid()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            made = os.O_CREAT | os.O_EXCL
        else:
            made = 0
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | made, 0o644)
        except FileNotFoundError:
            if made:
                raise
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = os.fstat(descriptor)
            if found.st_nlink == 0:
                return False
            left = memoryview(data)
            try:
                while left:
                    left = left[os.write(descriptor, left) :]
            except OSError:
                os.ftruncate(descriptor, found.st_size)
                raise
        finally:
            os.close(descriptor)
        return True


class _SegmentObjects:
    """Lines are gathered for some seconds and written as one object."""

    def __init__(self, place: RecordPlace, clock: Callable[[], float]) -> None:
        self._place, self._clock = place, clock
        self._lines: list[bytes] = []
        self._since = 0.0
        self._told = False

    def append(self, lines: Sequence[bytes]) -> None:
        if not self._lines:
            self._since = self._clock()
        self._lines += lines
        if len(self._lines) >= _LINES or self._clock() - self._since >= _SECONDS:
            error = self._flush()
            if error is not None and not self._told:
                self._told = True
                LOG.warning("%s; measurements are kept in memory, and written when it can be", error)

    def finish(self) -> None:
        error = self._flush() if self._lines else None
        if error is not None:
            LOG.warning("%s; %s", error, kept_aside(self._lines, self._place.text))

    def _flush(self) -> LogError | None:
        try:
            self._place.write(f"{SEGMENTS}/{segment_name()}", b"".join(self._lines))
        except LogError as error:
            return error
        self._lines.clear()
        self._told = False
        return None
