"""The bytes of a saved model: read from a descriptor into memory of this process, never mapped unless that is asked for.

A mapped page of a file that is cut short ends the process (SIGBUS), and one that is written to changes under code that has
checked it. What is read is this process's own: what was checked is what is used.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from pathlib import Path

from tilewright.runtime.errors import ArtifactError

_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"),
          (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))  # fmt: skip


def kind_of(mode: int) -> str:
    """What a path that is no regular file is; "" for a regular file."""
    return "" if stat.S_ISREG(mode) else next((name for is_kind, name in _KINDS if is_kind(mode)), "no regular file")


class StoredBytes:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.size = self._data.nbytes

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill the target with the bytes from an offset."""
        target[:] = self._data[offset : offset + target.nbytes]

    def read(self, offset: int, size: int) -> bytes:
        """That many bytes from an offset."""
        return bytes(self._data[offset : offset + size])

    def mapped(self) -> memoryview:
        """All of them, as they lie."""
        return self._data

    def was_written(self) -> bool:
        """Has the file been written to since it was opened, as far as its times tell?"""
        return False


class StoredFile(StoredBytes):
    """A regular file, open as long as this lives.

    Raises:
        ArtifactError: there is none, it cannot be read, or it is something else; a pipe or a device is not waited for.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._refuse_others(os.stat(path))
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            weakref.finalize(self, os.close, self._descriptor)
            found = os.fstat(self._descriptor)
        except OSError as error:
            wanted = "wanted a file that save() wrote: check the path"
            raise ArtifactError(f"cannot read {path}: {error.strerror}; {wanted}") from error
        self._refuse_others(found)
        self.size, self._written = found.st_size, found.st_mtime_ns

    def _refuse_others(self, found: os.stat_result) -> None:
        kind = kind_of(found.st_mode)
        if kind:
            example = self._path / "model.tw" if stat.S_ISDIR(found.st_mode) else "model.tw"
            raise ArtifactError(f"cannot read {self._path}: it is {kind}; wanted a file that save() wrote, such as {example}")

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill the target; ArtifactError where the file has become shorter."""
        done = 0
        try:
            while done < target.nbytes:
                count = os.preadv(self._descriptor, [target[done:]], offset + done)
                if not count:
                    break
                done += count
            size = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise ArtifactError(f"cannot read {self._path}: {error.strerror}; check the disk, or save the model again") from error
        if done < target.nbytes or size != self.size:
            raise ArtifactError(f"{self._path} was changed while it was loaded: wanted {self.size} bytes, found {size}; leave a "
                                "file that is in use as it is (save() replaces it whole), and load it again")

    def read(self, offset: int, size: int) -> bytes:
        room = bytearray(size)
        self.read_into(offset, memoryview(room))
        return bytes(room)

    def mapped(self) -> memoryview:
        try:
            return memoryview(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot map {self._path}: {error}; load it without shared=True") from error

    def was_written(self) -> bool:
        return os.fstat(self._descriptor).st_mtime_ns != self._written
