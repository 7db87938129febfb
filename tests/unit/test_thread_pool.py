"""The native thread pool and arena cache: every unit once, whatever the threads; nested, concurrent, forked callers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from busy_machine import skipped_where_cores_are_taken
from floats import MODES, mode

from tilewright.compiler.builder.codegen import compile_object, runtime_object
from tilewright.runtime.device import ALLOC, CONTEXT, LAUNCH, PARALLEL_FOR, RELEASE, LoadedCode
from tilewright.runtime.float_environment import MXCSR, RAISED
from tilewright.runtime.host import cpu
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.host.object_symbols import undefined_symbols
from tilewright.runtime.target import Target

HOST = Target.parse("host")

# count: slots = (int64 *hits, work): hits[unit] += 1, after spinning `work` times; notes its thread in workspace[0].
# parts: slots = (int64 *parts, work): *parts += 1 for each part, which puts its units behind and spins `work` times for each.
# nested: slots = (table, parallel_for, inner kernel, inner slots, inner units): each unit runs an inner loop.
KERNELS = """
define internal void @spin(i64 %times, ptr %place) alwaysinline {
entry:
  br label %spin
spin:
  %k = phi i64 [ 0, %entry ], [ %k1, %spin ]
  %k1 = add i64 %k, 1
  store volatile i64 %k1, ptr %place
  %busy = icmp slt i64 %k1, %times
  br i1 %busy, label %spin, label %exit
exit:
  ret void
}

define void @count(ptr %slots, i64 %begin, i64 %end, ptr %workspace) {
entry:
  %hits = load ptr, ptr %slots
  %field = getelementptr i64, ptr %slots, i64 1
  %work = load i64, ptr %field
  %used = load i64, ptr %workspace
  %used1 = add i64 %used, 1
  store i64 %used1, ptr %workspace
  br label %next
next:
  %i = phi i64 [ %begin, %entry ], [ %i1, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %exit
body:
  call void @spin(i64 %work, ptr %workspace)
  %place = getelementptr i64, ptr %hits, i64 %i
  %old = load i64, ptr %place
  %new = add i64 %old, 1
  store i64 %new, ptr %place
  %i1 = add i64 %i, 1
  br label %next
exit:
  ret void
}

define void @nested(ptr %slots, i64 %begin, i64 %end, ptr %workspace) {
entry:
  %table = load ptr, ptr %slots
  %f1 = getelementptr i64, ptr %slots, i64 1
  %loop = load ptr, ptr %f1
  %f2 = getelementptr i64, ptr %slots, i64 2
  %kernel = load ptr, ptr %f2
  %f3 = getelementptr i64, ptr %slots, i64 3
  %inner = load ptr, ptr %f3
  %f4 = getelementptr i64, ptr %slots, i64 4
  %units = load i64, ptr %f4
  br label %next
next:
  %i = phi i64 [ %begin, %entry ], [ %i1, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %exit
body:
  call void %loop(ptr %table, ptr %kernel, ptr %inner, i64 %units, i64 2, ptr %workspace, i64 0)
  %i1 = add i64 %i, 1
  br label %next
exit:
  ret void
}
"""

# Of two kernels, since the pool remembers how long each took.
KERNELS += "".join("""
define void @parts(ptr %slots, i64 %begin, i64 %end, ptr %workspace) {
entry:
  %parts = load ptr, ptr %slots
  %field = getelementptr i64, ptr %slots, i64 1
  %work = load i64, ptr %field
  %old = atomicrmw add ptr %parts, i64 1 monotonic
  %units = sub i64 %end, %begin
  %number = add i64 %old, 1
  %place = getelementptr i64, ptr %parts, i64 %number
  store i64 %units, ptr %place
  %all = mul i64 %units, %work
  call void @spin(i64 %all, ptr %workspace)
  ret void
}
""".replace("@parts", name) for name in ("@parts", "@little"))

# Notes the mode of floating point in workspace[0], and spins.
MODE = """
declare void @llvm.x86.sse.stmxcsr(ptr)
define void @mode(ptr %slots, i64 %begin, i64 %end, ptr %workspace) {
  call void @llvm.x86.sse.stmxcsr(ptr %workspace)
  %place = getelementptr i64, ptr %workspace, i64 1
  call void @spin(i64 100000, ptr %place)
  ret void
}
"""

word, pointer = ctypes.c_int64, ctypes.c_void_p
LOOP = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, word, word, pointer, word)
LAUNCHER = ctypes.CFUNCTYPE(None, pointer, word, word, word, word, pointer, word, word, pointer, word)
ALLOCATE = ctypes.CFUNCTYPE(pointer, pointer, word)
GIVE_BACK = ctypes.CFUNCTYPE(None, pointer, pointer)


@dataclass
class Host:
    code: LoadedCode
    table: ctypes.Array[ctypes.c_uint64]

    @property
    def address(self) -> int:
        return ctypes.addressof(self.table)

    def loop(self, kernel: str, slots: np.ndarray, units: int, threads: int, workspace: np.ndarray) -> None:
        LOOP(self.table[PARALLEL_FOR])(
            self.address,
            self.code.address(kernel),
            slots.ctypes.data,
            units,
            threads,
            workspace.ctypes.data,
            workspace.strides[0],
        )

    def count(self, units: int, threads: int, work: int = 0) -> np.ndarray:
        hits = np.zeros(max(units, 1), np.int64)
        self.loop("count", np.array([hits.ctypes.data, work], np.uint64), units, threads, np.zeros((64, 8), np.int64))
        return hits[:units]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    device = HostDevice(runtime_object(HOST))
    code = device.load([compile_object(KERNELS + (MODE if machine() == "x86_64" else ""), HOST)])
    table = device.table([0, code.address("count")])
    table[CONTEXT] = 64  # more threads than cores, to find races
    yield Host(code, table)


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 8, 16])
def test_every_unit_runs_once(host: Host, threads: int) -> None:
    for units in (0, 1, 2, 3, 7, 64, 1000, 9973):
        assert (host.count(units, threads) == 1).all(), (units, threads)


def test_workspaces_belong_to_threads(host: Host) -> None:
    hits, workspace = np.zeros(400, np.int64), np.zeros((8, 8), np.int64)
    slots = np.array([hits.ctypes.data, 2000], np.uint64)
    host.loop("count", slots, 400, 4, workspace)
    assert (hits == 1).all()
    assert workspace[:4, 0].any() and not workspace[4:].any() and not workspace[:, 1:].any()


def test_launch_takes_the_kernel_by_number(host: Host) -> None:
    hits, workspace = np.zeros(100, np.int64), np.zeros((4, 8), np.int64)
    slots = np.array([hits.ctypes.data, 0], np.uint64)
    LAUNCHER(host.table[LAUNCH])(host.address, 1, 100, 1, 1, slots.ctypes.data, 2, 4, workspace.ctypes.data, 64)
    assert (hits == 1).all()


def test_the_table_bounds_the_threads(host: Host) -> None:
    limited = HostDevice(runtime_object(HOST)).table([])
    assert 1 <= limited[CONTEXT] <= len(os.sched_getaffinity(0))


def test_a_nested_loop_runs_in_its_caller(host: Host) -> None:
    hits = np.zeros(50, np.int64)
    inner = np.array([hits.ctypes.data, 0], np.uint64)
    outer = np.array(
        [host.address, host.table[PARALLEL_FOR], host.code.address("count"), inner.ctypes.data, 50], np.uint64
    )
    host.loop("nested", outer, 1, 4, np.zeros((8, 8), np.int64))  # one unit: serial, the inner loop may use the pool
    assert (hits == 1).all()
    LOOP(host.table[PARALLEL_FOR])(
        host.address, host.code.address("nested"), outer.ctypes.data, 6, 1, np.zeros((8, 8), np.int64).ctypes.data, 64
    )
    assert (hits == 7).all()


def test_nested_in_parallel(host: Host) -> None:
    """Each outer unit has its own hits by way of one inner unit: the sum is what counts."""
    hits = np.zeros(1, np.int64)
    inner = np.array([hits.ctypes.data, 0], np.uint64)
    outer = np.array(
        [host.address, host.table[PARALLEL_FOR], host.code.address("count"), inner.ctypes.data, 1], np.uint64
    )
    host.loop("nested", outer, 2, 1, np.zeros((8, 8), np.int64))
    assert hits[0] == 2
    host.loop("nested", outer, 64, 4, np.zeros((8, 8), np.int64))  # completes: no deadlock on the pool's lock


def test_callers_at_once(host: Host) -> None:
    """Python threads drop the GIL in ctypes, so that several callers meet in the pool."""
    wrong: list[tuple[int, int]] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(300):
            units, threads = chance.choice([1, 5, 40, 333]), chance.randint(1, 6)
            if not (host.count(units, threads, chance.choice([0, 0, 50])) == 1).all():
                wrong.append((units, threads))

    callers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_many_short_loops(host: Host) -> None:
    """Late workers of one loop meet the next ones: the claim word must keep them apart."""
    for i in range(3000):
        units = 2 + i % 13
        assert (host.count(units, 2 + i % 7) == 1).all(), i


@pytest.mark.skipif(machine() != "x86_64", reason="no clock is read on other machines")
def test_a_loop_that_was_short_has_a_part_for_each_thread(host: Host) -> None:
    def short(units: int, threads: int) -> list[int]:
        """Of loops that take no time those that were not disturbed: these count as long."""
        found = (_parts(host, "parts", units, threads, 0) for _ in range(20_000))
        return next(made for made in found if len(made) == threads)

    long = 200_000
    _parts(host, "parts", 3, 2, long)
    counts = [len(_parts(host, "parts", *loop, long)) for loop in ((3, 2), (5, 2), (7, 3), (24, 2))]
    assert counts == [3, 4, 6, 12]
    assert len(_parts(host, "parts", 5, 2, 0)) == 4  # taken for as long as the last time
    first, second = short(1000, 2)
    assert first + second == 1000 and second >= 500  # the caller's is larger
    *others, own = short(1000, 4)
    assert len(others) == 3 and max(others) - min(others) <= 1 and own > 250 and sum(others) + own == 1000


@pytest.mark.skipif(machine() != "x86_64", reason="no clock is read on other machines")
def test_a_loop_that_several_threads_do_not_shorten_is_the_callers(host: Host) -> None:
    """Of next to nothing: the others cannot even be told in that time. One of milliseconds is theirs again at once."""
    assert any(sum(len(_parts(host, "little", 2, 2, 0)) == 1 for _ in range(200)) > 150 for _ in range(100))
    assert [len(_parts(host, "little", 2, 2, 2_000_000)) for _ in range(20)][1:] == [2] * 19
    assert 1 in (len(_parts(host, "little", 2, 2, 0)) for _ in range(20_000))


@pytest.mark.skipif(machine() != "x86_64", reason="no clock is read on other machines")
def test_loops_of_other_lengths_are_others(host: Host) -> None:
    """That two units are the caller's does not make a thousand of the same kernel his."""
    assert any(sum(len(_parts(host, "little", 2, 2, 0)) == 1 for _ in range(200)) > 150 for _ in range(100))
    assert len(_parts(host, "little", 1000, 2, 0)) > 1


def _parts(host: Host, kernel: str, units: int, threads: int, work: int) -> list[int]:
    """Units of the parts that a loop is cut into."""
    made = np.zeros(32, np.int64)
    host.loop(kernel, np.array([made.ctypes.data, work], np.uint64), units, threads, np.zeros((64, 8), np.int64))
    return sorted(made[1 : made[0] + 1].tolist())


def test_sleeping_workers_wake(host: Host) -> None:
    pause = threading.Event()
    for _ in range(5):
        pause.wait(0.01)  # longer than a worker spins
        assert (host.count(256, 4, 100) == 1).all()


def _in_child(holds: Callable[[], bool]) -> None:
    """In a fork, in which no worker runs."""
    child = os.fork()
    if not child:
        found = False
        with contextlib.suppress(BaseException):
            found = holds()
        os._exit(0 if found else 1)
    assert os.waitpid(child, 0)[1] == 0


def _states() -> str:
    """A letter of each other thread of this process: R runs or would, S sleeps."""
    found = ""
    for task in {int(t) for t in os.listdir("/proc/self/task")} - {os.getpid()}:
        with open(f"/proc/self/task/{task}/stat") as stat:
            found += stat.read().rpartition(")")[2].split()[0]
    return found


def _states_after_loops(host: Host) -> list[str]:
    """Of the one worker, some time after each of 200 loops, which it would spend asleep if it did not wait for the next."""
    pause, found = threading.Event(), []
    for _ in range(200):
        host.count(64, 2, 2000)
        pause.wait(0.0002)
        found.append(_states())
    return found


def _sleeps(pause: threading.Event) -> bool:
    """Does the one worker sleep before long?"""
    return any(_states() == "S" or pause.wait(0.002) for _ in range(5000))


@pytest.mark.skipif(sys.platform != "linux", reason="states of threads are read from /proc")
@pytest.mark.parametrize("siblings", [False, True])
def test_workers_stay_awake_where_that_is_asked_for(host: Host, siblings: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And sleep again after that, whatever ended it; with another thread on their core, as ever."""
    monkeypatch.setattr(cpu, "has_siblings", lambda: siblings)

    def stay_and_sleep() -> bool:
        pause, awake = threading.Event(), []
        with contextlib.suppress(KeyError), HostDevice(runtime_object(HOST)).awake():
            host.count(64, 2, 2000)
            if siblings:
                return _sleeps(pause)
            for _ in range(5):
                pause.wait(0.002)
                awake.append(_states())
            raise KeyError
        return awake == ["R"] * 5 and _sleeps(pause)

    _in_child(stay_and_sleep)


@pytest.mark.skipif(sys.platform != "linux" or machine() != "x86_64", reason="no clock is read on other machines, or no /proc")
def test_workers_wait_for_loops_that_follow_soon(host: Host) -> None:
    """Longer than they spin, so long as loops do; then they sleep. Where others want the cores they rightly never wait."""
    def wait_and_sleep() -> bool:
        found = (_states_after_loops(host).count("R") for _ in range(100))  # others may be at work
        return any(awake > 50 for awake in found) and _sleeps(threading.Event())

    with skipped_where_cores_are_taken():
        _in_child(wait_and_sleep)


@pytest.mark.skipif(sys.platform != "linux" or machine() != "x86_64", reason="no clock is read on other machines, or no /proc")
def test_workers_do_not_wait_where_others_take_their_core(host: Host) -> None:
    """They sleep at once then, so as to be preferred when they wake."""
    def sleep() -> bool:
        neighbours = [subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\nwhile 1: pass"])
                      for core in os.sched_getaffinity(0)]
        try:
            return any(_states_after_loops(host).count("S") > 100 for _ in range(50))
        finally:
            for neighbour in neighbours:
                neighbour.kill()

    _in_child(sleep)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_use_after_fork(host: Host) -> None:
    """The child has no workers of its parent, and makes its own."""
    stop = threading.Event()
    busy = threading.Thread(target=lambda: [host.count(64, 4, 100) for _ in iter(stop.is_set, True)])
    host.count(100, 4)
    busy.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                right = all((host.count(500, 4, 20) == 1).all() for _ in range(20))
                os._exit(0 if right else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        busy.join()
    assert (host.count(500, 4) == 1).all()


@pytest.mark.skipif(machine() != "x86_64", reason="the mode is that of MXCSR")
def test_workers_have_the_mode_of_all_calls_whoever_makes_them(host: Host) -> None:
    def is_right() -> bool:
        """Of the first worker that gets a part."""
        with mode("up, both"):
            for _ in range(500):
                workspace = np.zeros((4, 8), np.int64)
                host.loop("mode", np.zeros(1, np.uint64), 64, 4, workspace)
                if workspace[1:, 0].any():
                    return set(workspace[1:, 0].tolist()) <= {0, MXCSR} and workspace[0, 0] & ~RAISED == MODES["up, both"]
        return False

    child = os.fork()
    if not child:
        os._exit(0 if is_right() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_others_set_as_affinity_stays(host: Host) -> None:
    """The pool sets none: not even for a moment, as it could not tell what came meanwhile."""
    assert not [s for s in undefined_symbols(runtime_object(HOST)) if "affinity" in s]
    before = set(os.listdir("/proc/self/task"))
    cores = sorted(os.sched_getaffinity(0))
    seen = threading.Event()
    wrong: list[set[int]] = []

    def loops() -> None:
        os.sched_setaffinity(0, cores[:1])  # of this thread
        while not seen.is_set():
            host.count(64, 3, 200)

    caller = threading.Thread(target=loops)
    caller.start()
    try:
        for turn in range(100):
            for task in set(os.listdir("/proc/self/task")) - before - {str(caller.native_id)}:
                wanted = set(cores[turn % 2 : 2])
                with contextlib.suppress(ProcessLookupError):  # it has handed over
                    os.sched_setaffinity(int(task), wanted)
                    threading.Event().wait(0.002)
                    if os.sched_getaffinity(int(task)) != wanted:
                        wrong.append(os.sched_getaffinity(int(task)))
    finally:
        seen.set()
        caller.join()
    assert not wrong


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers stay")
def test_a_worker_on_the_callers_core_hands_over(host: Host) -> None:
    """To a thread that may run where it might, again and again where there is no other core; the loops go on."""
    def hand_over() -> bool:
        core = {min(os.sched_getaffinity(0))}
        os.sched_setaffinity(0, core)
        workers = set[int]()
        for _ in range(100_000):
            if not (host.count(64, 2, 2000) == 1).all():
                return False
            now = {int(task) for task in os.listdir("/proc/self/task")} - {os.getpid()}
            workers |= now
            for task in now:
                with contextlib.suppress(ProcessLookupError):  # it has
                    if os.sched_getaffinity(task) != core:
                        return False
            if len(workers) > 3:
                return len(now) < 3  # the one, and one that ends
        return False

    child = os.fork()  # in it no worker runs
    if not child:
        os._exit(0 if hand_over() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_arenas_are_aligned_distinct_and_reused(host: Host) -> None:
    take, give = ALLOCATE(host.table[ALLOC]), GIVE_BACK(host.table[RELEASE])
    first = take(host.address, 100_000)
    second = take(host.address, 100_000)
    assert first and second and first % 64 == second % 64 == 0 and abs(first - second) >= 100_000
    ctypes.memset(first, 1, 100_000)
    ctypes.memset(second, 2, 100_000)
    give(host.address, first)
    assert take(host.address, 50_000) == first
    give(host.address, first)
    give(host.address, second)
    give(host.address, None)


def test_no_memory_is_null(host: Host) -> None:
    take = ALLOCATE(host.table[ALLOC])
    assert take(host.address, 1 << 59) is None
    assert take(host.address, -1) is None


def test_more_arenas_than_places(host: Host) -> None:
    take, give = ALLOCATE(host.table[ALLOC]), GIVE_BACK(host.table[RELEASE])
    for size in (64, 10_000, 1_000_000, 0):
        held = [take(host.address, size) for _ in range(9)]
        assert len(set(held)) == 9 and all(held)
        for arena in held:
            give(host.address, arena)
