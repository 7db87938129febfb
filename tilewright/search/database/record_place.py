"""RecordPlace: the folder of a record store, on a disk or behind a URL that fsspec opens (extra `store`).

Names are relative, with "/" between folders. What is written whole is seen whole or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tilewright.runtime.errors import LogError, OptionError
from tilewright.runtime.program.replace_file import replaced

_PATIENCE = 30.0  # seconds to wait for another who compacts
_PROBE = bytes(4096)


class RecordPlace(Protocol):
    """Where the files of a store are. Errors are LogError, but FileNotFoundError of what was removed.

    text: as it was given. appends: may a file grow (`path`), or is each written once?
    """

    text: str
    appends: bool

    def names(self, folder: str) -> dict[str, int]:
        """Names of the files in a folder, with their bytes; none where there is no folder."""

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes: ...

    def write(self, name: str, data: bytes) -> None: ...

    def remove(self, name: str) -> None: ...

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process of this machine rewrites the store."""
        yield


class LocalPlace:
    """A folder, made when it is first written to."""

    appends = True

    def __init__(self, folder: Path) -> None:
        self.folder, self.text = folder, str(folder)
        if folder.exists() and not folder.is_dir():
            raise LogError(f"record store {folder} is a file; wanted a folder; leave the / at its end out for a log in a file")

    def path(self, name: str) -> Path:
        return self.folder / name

    def names(self, folder: str) -> dict[str, int]:
        found = {}
        try:
            with os.scandir(self.folder / folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file() and not entry.name.startswith("."):
                            found[entry.name] = entry.stat().st_size
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _refused(self.text, "listed", error) from error
        return found

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        try:
            with open(self.folder / name, "rb") as file:
                file.seek(start)
                return file.read() if size is None else file.read(size)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refused(f"{self.text}/{name}", "read", error) from error

    def write(self, name: str, data: bytes) -> None:
        try:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            with replaced(self.folder / name) as file:
                file.write(data)
        except OSError as error:
            raise _refused(f"{self.text}/{name}", "written", error) from error

    def prepare(self, folder: str) -> None:
        """Make a folder of it, and see that there is room for more. Raises LogError."""
        try:
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder / folder) as file:
                file.write(_PROBE)
                file.flush()
        except OSError as error:
            raise _refused(self.text, "written", error) from error

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / name).unlink()

    @contextmanager
    def alone(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / ".lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _refused(self.text, "written", error) from error
        with open(descriptor, "wb") as file:
            end = time.monotonic() + _PATIENCE
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise LogError(f"record store {self.text}: another process has compacted it for {_PATIENCE:g} s; wait "
                                       "for it, or end it") from None
                    time.sleep(0.05)
            yield


class RemotePlace:
    """Behind a URL: s3://bucket/folder, gs://..., memory://... Objects there are written once and do not grow."""

    appends = False

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise OptionError(f"log {url}: a URL needs fsspec: pip install 'tilewright[store]', and what it asks for to reach "
                              f"{url.partition(':')[0]}") from error
        self.text = url.rstrip("/")
        try:
            self._files: Any
            self._files, self._root = fsspec.core.url_to_fs(self.text)
        except (ValueError, ImportError, OSError) as error:
            raise LogError(f"record store {url} cannot be reached: {error}") from error

    def names(self, folder: str) -> dict[str, int]:
        root = f"{self._root}/{folder}"
        try:
            self._files.invalidate_cache()
            listed = self._files.ls(root, detail=True)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _refused(f"{self.text}/{folder}", "listed", error) from error
        return {entry["name"].rpartition("/")[2]: int(entry["size"] or 0) for entry in listed if entry["type"] == "file"}

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        try:
            end = None if size is None else start + size
            return bytes(self._files.cat_file(f"{self._root}/{name}", start=start, end=end))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refused(f"{self.text}/{name}", "read", error) from error

    def write(self, name: str, data: bytes) -> None:
        try:
            self._files.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(f"{self._root}/{name}", data)
        except OSError as error:
            raise _refused(f"{self.text}/{name}", "written", error) from error

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._files.rm_file(f"{self._root}/{name}")

    @contextmanager
    def alone(self) -> Iterator[None]:
        yield


def place_of(text: str) -> RecordPlace | None:
    """The place that a text names: a URL, a folder that is there, or a path that ends in a slash; None for a file."""
    if "://" in text:
        return RemotePlace(text)
    if text.endswith(os.sep) or os.path.isdir(text):
        return LocalPlace(Path(text))
    return None


def _refused(what: str, how: str, error: OSError) -> LogError:
    return LogError(f"record store {what} cannot be {how}: {error.strerror or error}; give a place that can be")
