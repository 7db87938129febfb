"""The end of actors' processes on this machine: those that are stopped too, with what they started, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from tilewright.search.runner.actor_process import ActorProcess, see_to_end, this_machine
from tilewright.search.runner.core_claim import claim_cores, unclaimed

_CHILD = "import time; time.sleep(100)"
_PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', '{_CHILD}']); time.sleep(100)"


@dataclass
class Family:
    parent: subprocess.Popen[bytes]

    @property
    def process(self) -> ActorProcess:
        return ActorProcess.of(self.parent.pid)


@pytest.fixture
def family() -> Iterator[Family]:
    """A process with a child."""
    made = Family(subprocess.Popen([sys.executable, "-c", _PARENT]))
    while len(made.process.with_children()) < 2:
        time.sleep(0.01)
    yield made
    for process in made.process.with_children():
        process.end()
    made.parent.wait()


def test_a_stopped_process_and_its_child_are_ended(family: Family) -> None:
    known = family.process.with_children()
    os.kill(family.parent.pid, signal.SIGSTOP)
    begin = time.monotonic()
    assert see_to_end(known, patience=0.1) == [] and time.monotonic() - begin >= 0.1
    assert not any(p.is_alive for p in known) and see_to_end(known) == []


def test_one_that_ends_by_itself_is_waited_for_no_longer(family: Family) -> None:
    known = family.process.with_children()
    for process in known:
        os.kill(process.process, signal.SIGTERM)
    begin = time.monotonic()
    assert see_to_end(known, patience=60.0) == [] and time.monotonic() - begin < 30


def test_another_process_of_that_number_is_left_alone(family: Family) -> None:
    own = family.process
    for other in (msgspec.structs.replace(own, started=own.started + 1), msgspec.structs.replace(own, machine="elsewhere"),
                  msgspec.structs.replace(own, started=0)):
        assert not other.is_alive and other.with_children() == []
        other.end()
        assert see_to_end([other]) == []
    assert own.is_alive and own.machine == this_machine()
    assert ActorProcess.here().process == os.getpid() and ActorProcess.here().is_alive


def test_builders_keep_off_the_cores_of_runners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    allowed = os.sched_getaffinity(0)
    assert unclaimed(allowed) == allowed
    (core,), held = claim_cores(1)
    assert core == max(allowed) and unclaimed(allowed) == (allowed - {core} or allowed)
    _, more = claim_cores(len(allowed))  # the rest, and the first again, which is shared
    assert unclaimed(allowed) == allowed and len(held) + len(more) == len(allowed)
    for descriptor in [*held, *more]:
        os.close(descriptor)
    assert unclaimed(allowed) == allowed
