"""The processes of the actors: started, listened to, restarted when a fault killed them, judged when they end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tools.checkout import ROOT
from tools.soak.actor import Actor, Place, actor_class
from tools.soak.messages import Began, Condition, Report, Resources
from tools.soak.resources import children

_DECODER = msgspec.json.Decoder(Report)
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Role:
    """A seat among the actors. spec: MODULE:CLASS."""

    name: str
    spec: str
    number: int

    @property
    def actor(self) -> type[Actor]:
        return actor_class(self.spec)

    @property
    def seat(self) -> str:
        return f"{self.name}-{self.number}"


@dataclass
class Member:
    """A running actor. heard: when it last said something, by a clock that its stops do not count for; doing: its last step."""

    role: Role
    name: str
    process: subprocess.Popen[bytes]
    errors: Path
    heard: float
    doing: Began | None = None
    warm: Resources | None = None
    end: Resources | None = None
    killed: bool = False
    finishing: bool = False
    stopped: list[int] = field(default_factory=list)
    resumes: float = 0.0
    unread: bytes = b""

    @property
    def descriptor(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def put_under(self, condition: Condition) -> bool:
        """Tell it; False when it does not listen any more."""
        assert self.process.stdin is not None
        try:
            os.write(self.process.stdin.fileno(), msgspec.json.encode(condition) + b"\n")
        except OSError:
            return False
        return True

    def finish(self, now: float) -> None:
        """Let it end its step and report what it holds."""
        assert self.process.stdin is not None
        self.go_on(now)
        self.finishing, self.heard = True, now
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def stop(self, pids: list[int], until: float) -> None:
        for pid in pids:
            if _signalled(pid, signal.SIGSTOP):
                self.stopped.append(pid)
        self.resumes = until

    def go_on(self, now: float) -> None:
        """Let what was stopped run; time begins anew for it."""
        for pid in self.stopped:
            _signalled(pid, signal.SIGCONT)
        if self.stopped:
            self.heard = now
        self.stopped.clear()

    def kill(self) -> None:
        """End the actor alone: what it started has to notice by itself."""
        self.killed = True
        _signalled(self.process.pid, signal.SIGKILL)

    def read(self, now: float) -> list[Report] | None:
        """What it says; None at the end of its output."""
        data = os.read(self.descriptor, _BLOCK)
        if not data:
            return None
        self.heard = now
        *lines, self.unread = (self.unread + data).split(b"\n")
        reports = [_DECODER.decode(line) for line in lines]
        for report in reports:
            if isinstance(report, Began):
                self.doing = report
            elif isinstance(report, Resources):
                self.warm, self.end = (report, self.end) if report.at == "warm" else (self.warm, report)
        return reports

    def where(self) -> str:
        """The stacks of its threads, by faulthandler, where it still answers."""
        _signalled(self.process.pid, signal.SIGUSR1)
        time.sleep(1.0)
        return self.words()

    def words(self) -> str:
        """The end of what it wrote to standard error."""
        try:
            return self.errors.read_text(errors="replace")[-6000:]
        except OSError:
            return ""

    def close(self) -> int:
        """Wait for the end of the process; its exit code."""
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code

    def started(self) -> list[int]:
        """Processes that it started and that live."""
        return children(self.process.pid)


def start(role: Role, incarnation: int, place: Place, seed: int, now: float) -> Member:
    """A new process for a seat, with folders of its own and in a session of its own."""
    name = f"{role.seat}.{incarnation}"
    temporary = place.temporary / name
    temporary.mkdir()
    errors = place.run / f"{name}.stderr"
    environment = {**os.environ, "TMPDIR": str(temporary), "TILEWRIGHT_CACHE_DIR": str(place.cache),
                   "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    command = [sys.executable, "-m", "tools.soak.act", role.spec, "--seed", str(seed), "--name", name, "--folder", str(place.run)]
    with errors.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=environment,
                                   cwd=temporary, start_new_session=True, bufsize=0)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return Member(role, name, process, errors, now)


def _signalled(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
