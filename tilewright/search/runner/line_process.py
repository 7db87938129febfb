"""LineProcess: a helper process that answers one line with one line, over pipes that never block."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_LOG_BYTES = 32 * 1024


class WorkerLostError(Exception):
    """The worker died or was ended. `log` is the end of what it wrote to stderr; `died`: nobody here ended it for its time."""

    def __init__(self, reason: str, log: str, died: bool = False) -> None:
        super().__init__(reason)
        self.log, self.died = log, died


class LineProcess:
    """`python -P -m MODULE ARGUMENTS`, which imports this same installation, whatever folders the current directory holds.

    Args:
        inherited: descriptors that it takes over, by the same numbers.
    Raises:
        WorkerLostError: it cannot be started.
    """

    def __init__(self, module: str, *arguments: str, inherited: Sequence[int] = ()) -> None:
        self._log = bytearray()
        self._answers = bytearray()
        try:
            self._process = started(module, arguments, inherited)
        except OSError as error:
            raise WorkerLostError(f"no worker process can be started: {error}", "") from error
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """The end of what it wrote to stderr since the last exchange began."""
        return self._log.decode(errors="replace")

    def exchange(self, line: bytes, seconds: float) -> bytes:
        """Write a line and read one, taking in stderr all the while.

        Raises:
            WorkerLostError: the process died, or did not answer in time and was ended.
        """
        self._log.clear()
        return self._exchange(line, seconds)

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def kill(self) -> None:
        """Kill the process only; whoever waits for its reply sees it die. May be called from any thread."""
        self._process.kill()

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Write a line and read one, taking in stderr all the while."""
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        deadline = time.monotonic() + seconds
        left = memoryview(line)
        with selectors.DefaultSelector() as selector:
            selector.register(stdin, selectors.EVENT_WRITE)
            selector.register(stdout, selectors.EVENT_READ)
            selector.register(stderr, selectors.EVENT_READ)
            while True:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    self.end()
                    raise WorkerLostError(
                        f"no reply within the time limit of {seconds:g} s; the worker was ended", self.log
                    )
                for key, _ in selector.select(remaining):
                    if key.fileobj is stdin:
                        left = self._write(left)
                        if not left:
                            selector.unregister(stdin)
                    elif key.fileobj is stderr:
                        if not self._take_log():
                            selector.unregister(stderr)
                    else:
                        data = _read(stdout.fileno(), 1 << 20)
                        if not data:
                            raise self._lost()
                        self._answers += data
                        if b"\n" in data:
                            answer, _, rest = bytes(self._answers).partition(b"\n")
                            self._answers[:] = rest
                            self._take_all_log()
                            return answer

    def _write(self, left: memoryview) -> memoryview:
        assert self._process.stdin is not None
        try:
            return left[os.write(self._process.stdin.fileno(), left[: 1 << 16]) :]
        except BlockingIOError:
            return left
        except OSError:  # it died; its stdout says so next
            return left[:0]

    def _take_log(self) -> bool:
        """Read what stderr has; False at its end and when there is nothing now."""
        assert self._process.stderr is not None
        data = _read(self._process.stderr.fileno(), 1 << 16)
        if data:
            self._log += data
            del self._log[:-_LOG_BYTES]
        return bool(data)

    def _take_all_log(self) -> None:
        while self._take_log():
            pass

    def _lost(self) -> WorkerLostError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._take_all_log()
        code = self._process.returncode
        self.end()
        if code is None:
            return WorkerLostError("the worker closed its output", self.log)
        if code < 0:
            return WorkerLostError(f"the worker was killed by {_signal_name(-code)}", self.log, died=True)
        return WorkerLostError(f"the worker exited with status {code}", self.log, died=True)


def started(module: str, arguments: Sequence[str], inherited: Sequence[int]) -> subprocess.Popen[bytes]:
    """The process, which talks by three pipes that are not buffered."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=own_environment(),
        bufsize=0,
        pass_fds=inherited,
        process_group=0 if os.name == "posix" else None,  # Ctrl-C is for the caller alone
    )


def _read(descriptor: int, most: int) -> bytes:
    """What a pipe has; nothing at its end, and for one that was not ready."""
    try:
        return os.read(descriptor, most)
    except OSError:
        return b""


def own_environment() -> dict[str, str]:
    """Of a process that imports this same installation."""
    package = sys.modules[__name__.partition(".")[0]].__file__
    assert package is not None
    home = str(Path(package).resolve().parent.parent)  # the folder that holds the outermost package
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([home, inherited] if inherited else [home])}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
