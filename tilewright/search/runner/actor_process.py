"""ActorProcess: where an actor runs, and the end of those that run on this machine.

Ray ends an actor that is killed, but one that is stopped, or whose node is gone, only after seconds, or not at all. Those of this
machine are seen to their end here: by process number and start time, so that no other process is ever meant.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_PATIENCE, _LOOK = 1.0, 0.02  # seconds that a process has to end by itself, and between two looks
_LONGEST = 10.0  # seconds to wait for the end of a process that was killed


class ActorProcess(msgspec.Struct, frozen=True):
    """machine: the same for all processes that can see each other. started: ticks since the machine began, 0 where unknown."""

    machine: str
    process: int
    started: int = 0

    @staticmethod
    def here() -> ActorProcess:
        """This process."""
        return ActorProcess.of(os.getpid())

    @staticmethod
    def of(process: int) -> ActorProcess:
        """One of this machine."""
        return ActorProcess(this_machine(), process, _status(process)[1])

    @property
    def is_alive(self) -> bool:
        """Does it run here? A process that only waits to be forgotten by its parent does not."""
        if self.machine != this_machine() or not self.started:
            return False
        _, started, state = _status(self.process)
        return started == self.started and state != "Z"

    def end(self) -> None:
        """Kill it, where it still runs here."""
        if self.is_alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.process, signal.SIGKILL)

    def with_children(self) -> list[ActorProcess]:
        """It and all that it started, as far as they run here."""
        if not self.is_alive:
            return []
        parents: dict[int, list[ActorProcess]] = {}
        for entry in _PROC.iterdir():
            if entry.name.isdigit():
                parent, started, _ = _status(int(entry.name))
                parents.setdefault(parent, []).append(ActorProcess(self.machine, int(entry.name), started))
        found = [self]
        for one in found:
            found.extend(parents.get(one.process, ()))
        return found


def see_to_end(processes: Iterable[ActorProcess], patience: float = _PATIENCE) -> list[ActorProcess]:
    """Wait until these have ended, and kill those of this machine that have not in time. Returns what is left after all."""
    left = [p for p in processes if p.is_alive]
    begin = time.monotonic()
    killed = False
    while left and time.monotonic() - begin < patience + _LONGEST:
        if not killed and time.monotonic() - begin >= patience:
            killed = True
            for process in left:
                process.end()
        time.sleep(_LOOK)
        left = [p for p in left if p.is_alive]
    return left


def this_machine() -> str:
    """One boot of one machine, and one set of process numbers on it: containers have sets of their own."""
    try:
        return f"{(_PROC / 'sys/kernel/random/boot_id').read_text().strip()} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return os.uname().nodename


def _status(process: int) -> tuple[int, int, str]:
    """(parent, start in ticks, state); zeros where there is no such process."""
    try:
        fields = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
        return int(fields[1]), int(fields[19]), fields[0]
    except (OSError, IndexError, ValueError):
        return 0, 0, ""
