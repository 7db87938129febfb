"""Cache: files named by a key that says everything about their content, shared by processes, bounded in size.

An entry is written beside its place, brought to the disk and renamed into it, so a reader sees all of it or nothing. Entries that
`put` writes begin with a hash over key and content, and `get` gives none whose hash is another. Folders are made for their owner
alone (0700), and what another user may write is not read: entries are native code. A folder that cannot be used costs one warning
and no more: everything still works, uncached. Layout: <folder>/<two digits>/<rest of key>.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from tilewright.runtime import knobs
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.log import LOG
from tilewright.runtime.program.replace_file import replaced

_STALE_SECONDS = 3600.0  # a part-written file of a process that died
_LOCK = "prune.lock"
_MAGIC = b"\x89TWENTR\n"
_HEAD_BYTES = len(_MAGIC) + 32  # and a sha256
_OWNER_ALL, _OWNER_FILE = 0o700, 0o600


class CacheWarning(UserWarning):
    """The cache folder cannot be used; what is built is not kept."""


class _TooLargeError(Exception):
    """An entry is larger than the whole cache may be."""


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
        """The entry's file, marked as used now; None when there is none that no one else may write. It may vanish at any time."""
        place = self._place(key)
        if not self.limit:
            return None
        try:
            if not (stat.S_ISREG(place.stat().st_mode) and all(map(self._is_ours, (self.folder, place.parent, place)))):
                return None
        except OSError:
            return None
        with contextlib.suppress(OSError):  # read-only
            os.utime(place)
        return place

    def get(self, key: str) -> bytes | None:
        """The entry's bytes, as `put` took them, or None. An entry that is damaged is removed."""
        place = self.path(key)
        try:
            found = None if place is None else place.read_bytes()
        except OSError:
            return None
        if found is None:
            return None
        data = entry_content(key, found)
        if data is None:
            LOG.warning("%s is damaged and is made anew", place)
            self.remove(key)
            return None
        return data

    def put(self, key: str, data: bytes) -> Path | None:
        """Store an entry; None (and one warning) when the folder cannot take it, or the entry exceeds the limit."""
        return self.put_file(key, len(data), lambda file: file.write(entry_of(key, data)))

    def put_file(self, key: str, least: int, write: Callable[[IO[bytes]], object]) -> Path | None:
        """Store what `write` puts into the file that it is given, of `least` bytes or more; None as of `put`. It has to hold what
        tells damage: `get` is for what `put` wrote."""
        if not self.limit or least > self.limit:
            return None
        place = self._place(key)
        try:
            self.folder.mkdir(mode=_OWNER_ALL, parents=True, exist_ok=True)
            place.parent.mkdir(mode=_OWNER_ALL, exist_ok=True)
            if not all(map(self._is_ours, (self.folder, place.parent))):
                return None
            with replaced(place, mode=_OWNER_FILE) as file:
                write(file)
                size = file.tell()
                if size > self.limit:
                    raise _TooLargeError
        except _TooLargeError:
            return None
        except OSError as error:
            self._warn_of(error)
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
            self._warn_of(error)

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

    def _is_ours(self, path: Path) -> bool:
        """May nobody else write this file or folder? One warning where it is not so."""
        found = path.stat()
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid in (os.geteuid(), 0) and not mode & (stat.S_IWGRP | stat.S_IWOTH):
            return True
        wanted = _OWNER_ALL if path.is_dir() else _OWNER_FILE
        self._warn(f"{path} is not used: user {found.st_uid} owns it and its mode is {mode:04o}, so another user may write what "
                   f"would be run; wanted user {os.geteuid()} and {wanted:04o}. Remove it, or set {knobs.CACHE_DIR.name} to a "
                   "folder of your own")
        return False

    def _warn_of(self, error: OSError) -> None:
        self._warn(f"the cache {self.folder} cannot be written ({error.strerror or error}); what is built is not kept. "
                   f"Set {knobs.CACHE_DIR.name} to a folder that can be")

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(message, CacheWarning, stacklevel=4)


def entry_of(key: str, data: bytes) -> bytes:
    """An entry as it is stored: a hash in front of the data. The key is part of it, so that no entry is taken for another one."""
    return _MAGIC + bytes.fromhex(cache_key(key, data)) + data


def entry_content(key: str, stored: bytes) -> bytes | None:
    """The data of a stored entry; None where it is damaged or another one's."""
    data = stored[_HEAD_BYTES:]
    return data if entry_of(key, data)[:_HEAD_BYTES] == stored[:_HEAD_BYTES] else None
