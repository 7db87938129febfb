"""What a process has one of is made once, whatever the threads: the runtime's code, whose fork handler outlives its callers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tilewright.runtime.once import once

# Eight threads begin at once with a process that has used nothing of the runtime; each then uses its own device.
FIRST_USE = """
import os, sys, threading
from tilewright.runtime.device import PARALLEL_FOR
from tilewright.runtime.host import cpu

sys.setswitchinterval(1e-5)
code = cpu._make_native()
together, devices = threading.Barrier(8), []

def begin():
    together.wait()
    devices.append(cpu.HostDevice(code))

threads = [threading.Thread(target=begin) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(devices) == 8
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0, "the child died in a handler whose code is gone"
assert len({device.table([])[PARALLEL_FOR] for device in devices}) == 1, "several thread pools"
"""


def test_the_runtime_is_loaded_once_by_many_threads() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


def test_one_of_many_threads_makes_it() -> None:
    made: list[object] = []

    @once
    def make(name: str, size: int) -> object:
        time.sleep(0.05)
        made.append((name, size))
        return object()

    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(make("a", 1))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and len(set(map(id, found))) == 1
    assert make("b", 1) is not found[0] and made == [("a", 1), ("b", 1)]


def test_a_failure_is_tried_again() -> None:
    tries = 0

    @once
    def fail() -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("the first time")
        return tries

    with pytest.raises(ValueError, match="the first time"):
        fail()
    assert fail() == fail() == 2
