"""Cache: files named by a key that says everything about their content, shared by processes, bounded in size.

An entry is written beside its place and renamed into it, so a reader sees all of it or nothing. A folder that cannot be
written costs one warning and no more: everything still works, uncached. Layout: <folder>/<two digits>/<rest of key>.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from tilewright.runtime import knobs
from tilewright.runtime.errors import TilewrightError

_STALE_SECONDS = 3600.0  # a part-written file of a process that died
_LOCK = "prune.lock"


class CacheWarning(UserWarning):
    """The cache folder cannot be used; what is built is not kept."""


def cache_key(*parts: str | bytes | memoryview) -> str:
    """sha256 over the parts and their lengths; a memoryview is one of bytes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class Cache:
    """A folder of entries; the ones not used for longest are removed when it grows beyond its limit.

    Args:
        folder: default the knob TILEWRIGHT_CACHE_DIR, else the user's cache folder.
        limit: bytes, default the knob TILEWRIGHT_CACHE_BYTES; 0 keeps nothing.
    """

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self.folder = folder or knobs.CACHE_DIR.get() or user_cache_path("tilewright", appauthor=False)
        self.limit = knobs.CACHE_BYTES.get() if limit is None else limit
        self._warned = False
        self._unchecked = self.limit  # bytes written since the size was last looked at; the first put looks

    def path(self, key: str) -> Path | None:
        """The entry's file, marked as used now; None when there is none. It may vanish at any time."""
        place = self._place(key)
        if not self.limit:
            return None
        with contextlib.suppress(OSError):  # read-only, or not there
            os.utime(place)
        return place if place.is_file() else None

    def get(self, key: str) -> bytes | None:
        """The entry's bytes, or None."""
        place = self.path(key)
        try:
            return None if place is None else place.read_bytes()
        except OSError:
            return None

    def put(self, key: str, data: bytes) -> Path | None:
        """Store an entry; None (and one warning) when the folder cannot take it, or the entry exceeds the limit."""
        return self.put_file(key, len(data), lambda draft: draft.write_bytes(data))

    def put_file(self, key: str, least: int, write: Callable[[Path], object]) -> Path | None:
        """Store what `write` puts into the file that it is given, of `least` bytes or more; None as of `put`."""
        if not self.limit or least > self.limit:
            return None
        place = self._place(key)
        draft = place.with_name(f".{place.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                write(draft)
                size = draft.stat().st_size
                if size > self.limit:
                    return None
                os.replace(draft, place)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            self._warn(error)
            return None
        self._unchecked += size
        if self._unchecked >= self.limit // 16:
            self._unchecked = 0
            self.prune()
        return place

    def remove(self, key: str) -> None:
        """Forget an entry, such as a damaged one."""
        with contextlib.suppress(OSError):
            self._place(key).unlink(missing_ok=True)

    def prune(self) -> None:
        """Remove part-written files, and the entries not used for longest until nine tenths of the limit are in use."""
        try:
            with FileLock(self.folder / _LOCK, timeout=0):
                self._prune()
        except Timeout:
            return  # another process is at it
        except OSError as error:
            self._warn(error)

    def _prune(self) -> None:
        entries = []
        for file in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):  # removed meanwhile
                stat = file.stat()
                if not file.name.startswith("."):
                    entries.append((stat.st_mtime, stat.st_size, file))
                elif stat.st_mtime < time.time() - _STALE_SECONDS:
                    file.unlink(missing_ok=True)
        total = sum(size for _, size, _ in entries)
        if total <= self.limit:
            return
        for _, size, file in sorted(entries):
            if total <= self.limit * 9 // 10:
                return
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
            total -= size

    def _place(self, key: str) -> Path:
        if not key.isalnum() or len(key) < 8:
            raise TilewrightError(f"cache key {key!r}: wanted a hexadecimal digest, as cache_key() gives")
        return self.folder / key[:2] / key[2:]

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the cache {self.folder} cannot be written ({error.strerror or error}); what is built is not kept. "
                f"Set {knobs.CACHE_DIR.name} to a folder that can be",
                CacheWarning,
                stacklevel=3,
            )
