"""Actors that do what a soak has to notice, each once it is warm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import ClassVar

from tilewright.runtime.errors import OptionError
from tools.soak.actor import Actor, Step, Verdict
from tools.soak.messages import Outcome


class Fine(Actor):
    """Does nothing wrong."""

    warm_after: ClassVar[int] = 1

    def next(self) -> Step:
        return Step(type(self).__name__, self.work)

    def work(self) -> Verdict:
        time.sleep(0.05)
        return Verdict()


class Wrong(Fine):
    def work(self) -> Verdict:
        super().work()
        return Verdict(Outcome.WRONG, "3 of 4 elements differ")


class Raw(Fine):
    def work(self) -> Verdict:
        super().work()
        raise IndexError("list index out of range")


class Refused(Fine):
    """An error of Tilewright where there was nothing to refuse."""

    def work(self) -> Verdict:
        super().work()
        raise OptionError("wanted something else")


class Crashing(Fine):
    """Once; whoever takes its seat is fine."""

    def work(self) -> Verdict:
        if self.name.endswith(".0"):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().work()


class Exiting(Fine):
    """Once, as Crashing."""

    def work(self) -> Verdict:
        if self.name.endswith(".0"):
            os._exit(7)
        return super().work()


class Hanging(Fine):
    def work(self) -> Verdict:
        time.sleep(3600)
        return Verdict()


class OfDescriptors(Fine):
    kept: ClassVar[list[int]] = []

    def work(self) -> Verdict:
        """Opens in its second step what it never closes: it is warm after the first."""
        self.kept.append(os.open(os.devnull, os.O_RDONLY) if len(self.kept) == 1 else -1)
        return super().work()


class OfFiles(Fine):
    def prepare(self, beat: object) -> None:
        self.path = tempfile.mkstemp(prefix="left")


class OfDrafts(Fine):
    """Leaves a file that is written beside its place."""

    def prepare(self, beat: object) -> None:
        (self.place.cache / f".entry.{os.getpid()}.abcd").write_bytes(b"half")


class OfProcesses(Fine):
    def prepare(self, beat: object) -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


class OfMemory(Fine):
    stays: ClassVar[bool] = True
    kept: ClassVar[list[bytes]] = []

    def work(self) -> Verdict:
        self.kept.append(b"x" * (1 << 22) if self.kept else b"")
        return super().work()
