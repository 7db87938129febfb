"""Replaces a file whole: readers see the old one or the new one, also after a power cut."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_SUFFIX = ".tmp"
_FRESH_SECONDS = 60.0  # of an empty file that its writer may not have locked yet


@contextmanager
def replaced(target: Path, sync: bool = True, mode: int | None = None) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of the target at the end. A link stays one, and what it points to is replaced. What
    writers of the same file left that were killed is removed.

    Args:
        sync: wait until the disk has it.
        mode: of the file; None: that of the file that was there.
    Raises:
        OSError: it cannot be written; nothing is left.
    """
    place = Path(os.path.realpath(target))
    _clean(place)
    draft = place.with_name(f".{place.name}.{os.getpid()}.{secrets.token_hex(4)}{_SUFFIX}")
    try:
        with draft.open("xb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)  # how others tell that its writer lives
            yield file
            file.flush()
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode) if mode is None else mode)
            if sync:
                os.fsync(file.fileno())
            draft.replace(place)
        if sync:
            _sync_folder(place.parent)
    finally:
        draft.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _clean(place: Path) -> None:
    """Remove what dead writers of this file left."""
    with contextlib.suppress(OSError):
        for draft in list(place.parent.glob(f".{_literal(place.name)}.*.*{_SUFFIX}")):
            with contextlib.suppress(OSError):
                _remove_if_dead(draft)


def _remove_if_dead(draft: Path) -> None:
    """Raises OSError where its writer holds its lock."""
    descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if found.st_size or found.st_mtime < time.time() - _FRESH_SECONDS:
            draft.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _literal(name: str) -> str:
    """A name in a pattern of glob."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
