"""LogFile: a file of lines that several processes append to: under its lock, a line whole or not at all.

A writer that was killed within a line leaves a part of it; whoever writes next sets it apart on a line of its own. A line that
the disk did not take is kept and written before the next one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tilewright.runtime.errors import LogError
from tilewright.runtime.log import LOG

LONGEST = 1 << 26  # bytes of a line; a longer one is none of ours
_PATIENCE = 2.0  # seconds to wait for the lock: others hold it while they write some lines
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_PROBE = b" " * 4095 + b"\n"  # readers pass over it


class LogFile:
    """The lines of a path, which need not exist yet.

    Raises LogError for what is there and is no regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unwritten: list[bytes] = []
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise _refused(path, "found", error) from error
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "no regular file"
            raise LogError(f"log {path}: it is {what}; wanted a file of JSON Lines, which is made where there is none")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are in the file now, with their numbers from 1; of one that is too long only its beginning. None where
        there is no file."""
        try:
            with open(self.path, "rb") as file:
                with _locked(file.fileno(), fcntl.LOCK_SH, self.path):
                    end = os.fstat(file.fileno()).st_size
                number, at = 0, 0
                while at < end and (line := file.readline(LONGEST)):
                    number, at = number + 1, at + len(line)
                    yield number, line
                    while len(line) == LONGEST and not line.endswith(b"\n"):
                        line = file.readline(LONGEST)
                        at += len(line)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _refused(self.path, "read", error) from error

    def prepare(self) -> None:
        """Make the file where there is none, end a line that was cut, and see that there is room for more. Raises LogError."""
        try:
            with self._opened() as (descriptor, held):
                size = os.fstat(descriptor).st_size
                if _is_cut(descriptor, size):
                    LOG.warning("log %s: its last writer was stopped within a line, which is set apart", self.path)
                    _write(descriptor, b"\n", held)
                    size += 1
                if held:
                    _write(descriptor, _PROBE, held)
                    os.ftruncate(descriptor, size)
        except OSError as error:
            raise _refused(self.path, "written", error) from error

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines that end in a line feed. What cannot be written is kept for the next time, and told of once."""
        failed_before = bool(self.unwritten)
        self.unwritten += lines
        error = self._flush()
        if error is not None and not failed_before:
            LOG.warning("log %s cannot be written: %s; measurements are kept in memory, and written when it can be", self.path,
                        error.strerror)

    def finish(self) -> None:
        """Write what could not be written before; what still cannot is kept aside, and told of."""
        error = self._flush() if self.unwritten else None
        if error is not None:
            LOG.warning("log %s cannot be written: %s; %s", self.path, error.strerror, kept_aside(self.unwritten, str(self.path)))

    def _flush(self) -> OSError | None:
        try:
            with self._opened() as (descriptor, held):
                cut = _is_cut(descriptor, os.fstat(descriptor).st_size)
                _write(descriptor, b"\n" * cut + b"".join(self.unwritten), held)
        except OSError as error:
            return error
        self.unwritten.clear()
        return None

    @contextmanager
    def _opened(self) -> Iterator[tuple[int, bool]]:
        """The file, made where there is none, and whether its lock is held."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            with _locked(descriptor, fcntl.LOCK_EX, self.path) as held:
                yield descriptor, held
        finally:
            os.close(descriptor)


def kept_aside(lines: Sequence[bytes], place: str) -> str:
    """Write the last lines for a log that cannot be written to a temporary file; what became of them, in words."""
    count = f"{len(lines)} of its lines are"
    try:
        descriptor, name = tempfile.mkstemp(".jsonl", "tilewright-")
        with open(descriptor, "wb") as file:
            file.writelines(lines)
    except OSError as error:
        return f"{count} lost: those for temporary files cannot be written either: {error.strerror}"
    return f"{count} in {name}; `tilewright logs merge {place} {name}` adds them when it can be written"


@contextmanager
def _locked(descriptor: int, kind: int, path: Path) -> Iterator[bool]:
    """With the lock of a file, if it can be had: some file systems keep none, a holder that was stopped does not give it back."""
    end, held = time.monotonic() + _PATIENCE, False
    while not held:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            if time.monotonic() > end:
                LOG.warning("log %s: another process has held its lock for %g s; going on without", path, _PATIENCE)
                break
            time.sleep(0.005)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            break
    try:
        yield held
    finally:
        if held:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_cut(descriptor: int, size: int) -> bool:
    """Does the file end within a line?"""
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _write(descriptor: int, data: bytes, held: bool) -> None:
    """Write all, or, where the lock is held, leave the file as it was."""
    size, left = os.fstat(descriptor).st_size, memoryview(data)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        if held:
            with suppress(OSError):
                os.ftruncate(descriptor, size)
        raise


def _refused(path: Path, what: str, error: OSError | ValueError) -> LogError:
    why = error.strerror if isinstance(error, OSError) else str(error)
    return LogError(f"log {path} cannot be {what}: {why}; give a file that can be, or make room for it")
