from __future__ import annotations

import ctypes
import fcntl
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from search_surfaces import dense

from tilewright.runtime.host.benchmark import Timing
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.host.host_target import lowest_level
from tilewright.runtime.host.object_code import emit_object
from tilewright.runtime.host.whole_timing import WHOLE
from tilewright.runtime.program.kernel import MicroKernel, Param
from tilewright.search.protocols import KernelAt, RunnerInTurns
from tilewright.search.runner.host_runner import HostRunner, operands
from tilewright.search.runner.line_process import LineProcess
from tilewright.search.runner.runner_process import HOST_WORKER, HostProcess, ProcessRunner
from tilewright.search.runner.runner_requests import Prepare, RunnerReply

KERNEL = "define void @{name}(ptr %slots, i64 %begin, i64 %end, ptr %room) {{\n{body}\n}}\n"
PARAMS = (Param("pointer", 0), Param("pointer", 1), Param("pointer", 2), Param("dim", name="d0"))


def kernel(name: str, guards: tuple[str, ...] = ()) -> MicroKernel:
    return MicroKernel(name, dense().key, "host_matmul", name, PARAMS, ("1", "1", "1"), guards=guards)


def code(name: str, body: str) -> bytes:
    return emit_object(KERNEL.format(name=name, body=body), lowest_level(machine()))


@pytest.fixture(scope="module")
def runner():  # type: ignore[no-untyped-def]
    with ProcessRunner(time_limit=5.0) as found:
        yield found


def test_a_kernel_is_timed_in_another_process(runner: ProcessRunner) -> None:
    found = runner.run(dense(), kernel("good"), code("good", "  ret void"), {"d0": 3})
    assert not found.error and found.cache == "warm"
    assert 0 < found.seconds[0] < 1e-3 and list(found.seconds) == sorted(found.seconds)


def test_a_crash_is_a_result_and_the_next_kernel_runs(runner: ProcessRunner) -> None:
    crash = "  store i32 1, ptr inttoptr (i64 8 to ptr)\n  ret void"
    found = runner.run(dense(), kernel("bad"), code("bad", crash), {"d0": 3})
    assert "SIGSEGV" in found.error and not found.seconds
    assert ctypes.sizeof(ctypes.c_void_p) == 8  # this process lives
    assert not runner.run(dense(), kernel("good"), code("good", "  ret void"), {"d0": 3}).error


def test_a_hang_ends_at_the_time_limit() -> None:
    with ProcessRunner(time_limit=1.0) as quick:
        quick.run(dense(), kernel("good"), code("good", "  ret void"), {"d0": 3})
        loop = "  br label %again\nagain:\n  call void asm sideeffect \"\", \"\"()\n  br label %again"
        found = quick.run(dense(), kernel("stuck"), code("stuck", loop), {"d0": 3})
        assert "time limit of 1 s" in found.error


def test_the_process_imports_this_installation_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "search").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    process = LineProcess(HOST_WORKER)
    try:
        reply = msgspec.json.decode(process.exchange(msgspec.json.encode(Prepare()) + b"\n", 60.0), type=RunnerReply)
    finally:
        process.end()
    assert not reply.error


def test_a_kernel_whose_guards_fail_is_not_run(runner: ProcessRunner) -> None:
    found = runner.run(dense(), kernel("guarded", ("mod(d0, 2)",)), code("guarded", "  ret void"), {"d0": 3})
    assert "not legal" in found.error


def test_launches_are_timed_beside_the_first_one_of_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is disturbed is tried again, and the steadiest counts."""
    rounds = iter([
        [1.0, 9.0, 2.0], [3.0, 2.0, 1.0], [2.0, 2.1, 2.2],
        [1.0, 3.0, 9.0], [1.0, 3.0, 9.0], [1.0, 4.0, 4.1],
        [2.0, 2.0, 2.0],
    ])  # fmt: skip
    monkeypatch.setattr("tilewright.search.runner.host_runner.time_call", lambda call, timing: [5e-6, 4e-6, 6e-6])
    monkeypatch.setattr("tilewright.search.runner.host_runner.time_beside", lambda call, other, timing: next(rounds))
    runner, first, second = HostRunner(HostDevice()), code("first", "  ret void"), code("second", "  ret void")

    def run(name: str, rows: int, threads: int = 1) -> tuple[float, ...]:
        return runner.run(dense(), kernel(name), {"first": first, "second": second}[name], {"d0": rows}, threads).seconds

    assert run("first", 3) == (4e-6, 5e-6, 6e-6)
    assert run("second", 3) == pytest.approx((2.05 * 5e-6, 2.1 * 5e-6, 2.15 * 5e-6))
    assert run("second", 3)[1] == pytest.approx(4.0 * 5e-6)
    assert run("second", 4, 2) == (4e-6, 5e-6, 6e-6)
    assert run("first", 4)[1] == pytest.approx(1e-5) and next(rounds, None) is None


def test_batches_are_whole_and_what_they_need_is_made_before(monkeypatch: pytest.MonkeyPatch) -> None:
    held, made, whole = [0], list[int](), [0]

    @contextmanager
    def within() -> Iterator[None]:
        held[0] += 1
        whole[0] += 1
        yield
        held[0] -= 1

    def operands_of(*given: Any) -> list[np.ndarray]:
        made.append(held[0])
        return operands(*given)

    monkeypatch.setattr("tilewright.search.runner.host_runner.operands", operands_of)
    runner = HostRunner(HostDevice(), Timing(fewest=3, most=3, error=1.0, whole=within))
    assert not runner.run(dense(), kernel("one"), code("one", "  ret void"), {"d0": 3}).error
    assert made == [0] and whole == [4]  # a warm-up and three batches
    runner.run(dense(), kernel("two"), code("two", "  ret void"), {"d0": 3})
    assert made == [0] and whole[0] >= 4 + 2 + 3 and held == [0]


def test_a_process_waits_for_the_lock_of_who_stops_it() -> None:
    with tempfile.TemporaryFile() as lock, ThreadPoolExecutor(1) as pool:
        line = (f"{WHOLE}{lock.fileno()}",)
        with ProcessRunner(arguments=line, inherited=(lock.fileno(),)) as runner:
            assert not runner.run(dense(), kernel("good"), code("good", "  ret void"), {"d0": 3}).error
            fcntl.lockf(lock, fcntl.LOCK_EX)
            found = pool.submit(runner.run, dense(), kernel("good"), code("good", "  ret void"), {"d0": 4})
            with pytest.raises(TimeoutError):
                found.result(0.5)
            fcntl.lockf(lock, fcntl.LOCK_UN)
            assert not found.result(30.0).error


def test_what_is_not_measured_in_its_time_is_late() -> None:
    with ProcessRunner(time_limit=20.0) as quick:
        assert quick.run(dense(), kernel("good"), code("good", "  ret void"), {"d0": 3}, 1, 0.0).late
        assert not quick.run(dense(), kernel("good"), code("good", "  ret void"), {"d0": 3}, 1, 20.0).late
        loop = "  br label %again\nagain:\n  call void asm sideeffect \"\", \"\"()\n  br label %again"
        found = quick.run(dense(), kernel("stuck"), code("stuck", loop), {"d0": 3}, 1, 0.5)
        assert found.late and not found.seconds
        assert not quick.run(dense(), kernel("good"), code("good", "  ret void"), {"d0": 3}, 1, 20.0).error


def at(name: str, body: str, rows: int = 3, guards: tuple[str, ...] = ()) -> KernelAt:
    return KernelAt(kernel(name, guards), code(name, body), (("d0", rows),))


def test_kernels_are_timed_beside_each_other() -> None:
    """In rounds, in the order they were named, in the same process as one alone; what crashes is an error of all of them."""
    loop = ("  br label %again\nagain:\n  %n = phi i64 [0, %0], [%m, %again]\n  %m = add i64 %n, 1\n"
            "  call void asm sideeffect \"\", \"\"()\n  %on = icmp ult i64 %m, 20000\n  br i1 %on, label %again, label %out\n"
            "out:\n  ret void")
    with HostProcess(time_limit=20.0) as beside:
        assert isinstance(beside, RunnerInTurns)
        assert not beside.run(dense(), kernel("good"), code("good", "  ret void"), {"d0": 3}).error
        found = beside.run_in_turns(dense(), [at("good", "  ret void"), at("slow", loop)], 5, 10.0)
        assert not found.error and len(found.rounds) >= 5 and {len(r) for r in found.rounds} == {2}
        assert statistics.median(slow / fast for fast, slow in found.rounds) > 2.0  # a round may be disturbed
        assert "legal" in beside.run_in_turns(dense(), [at("good", "  ret void"), at("odd", "  ret void", 3, ("mod(d0, 2)",))],
                                              3, 10.0).error
        assert beside.run_in_turns(dense(), [at("good", "  ret void")], 3, 0.0).late
        crash = at("bad", "  store i32 1, ptr inttoptr (i64 8 to ptr)\n  ret void")
        assert "SIGSEGV" in beside.run_in_turns(dense(), [at("good", "  ret void"), crash], 3, 10.0).error
        assert beside.run_in_turns(dense(), [at("good", "  ret void")], 3, 10.0).rounds
    assert not isinstance(ProcessRunner(), RunnerInTurns)
