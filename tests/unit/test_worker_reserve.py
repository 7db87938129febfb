"""Workers that a closed pool leaves for the next one."""

import os
import time
from collections.abc import Iterator

import pytest

from tilewright.compiler.builder.worker_process import WorkerProcess
from tilewright.compiler.builder.worker_reserve import WorkerReserve

pytestmark = pytest.mark.started


@pytest.fixture
def reserve() -> Iterator[WorkerReserve]:
    made = WorkerReserve(seconds=60.0)
    yield made
    made.close()


def test_a_worker_is_taken_again(reserve: WorkerReserve) -> None:
    worker = reserve.take(20.0)
    reserve.put(worker)
    assert reserve.take(20.0) is worker
    other = reserve.take(20.0)
    assert other is not worker
    for each in (worker, other):
        each.end()


def test_a_worker_that_nobody_takes_ends() -> None:
    """Twice: what watches them ends with the last of them."""
    reserve = WorkerReserve(seconds=0.2)
    for _ in range(2):
        worker = WorkerProcess(20.0)
        reserve.put(worker)
        assert worker.alive
        until = time.monotonic() + 20
        while worker.alive and time.monotonic() < until:
            time.sleep(0.05)
        assert not worker.alive


def test_what_a_new_worker_would_see_decides(reserve: WorkerReserve, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerProcess(20.0)
    reserve.put(worker)
    monkeypatch.setenv("TILEWRIGHT_TEST_OF_THE_RESERVE", "1")
    fresh = reserve.take(20.0)
    assert fresh is not worker
    monkeypatch.delenv("TILEWRIGHT_TEST_OF_THE_RESERVE")
    short = reserve.take(5.0)
    assert short is not worker and short.time_limit == 5.0
    for each in (fresh, short):
        each.end()


def test_what_pytest_writes_from_test_to_test_is_no_difference(reserve: WorkerReserve, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerProcess(20.0)
    reserve.put(worker)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another test (call)")
    assert reserve.take(20.0) is worker
    worker.end()


def test_a_worker_that_died_meanwhile_is_replaced(reserve: WorkerReserve) -> None:
    worker = WorkerProcess(20.0)
    reserve.put(worker)
    worker.kill()
    fresh = reserve.take(20.0)
    assert fresh is not worker and fresh.alive and not worker.alive
    fresh.end()


def test_a_closed_reserve_keeps_none(reserve: WorkerReserve) -> None:
    worker, late = WorkerProcess(20.0), WorkerProcess(20.0)
    reserve.put(worker)
    reserve.close()
    reserve.put(late)
    assert not worker.alive and not late.alive


def test_a_fork_leaves_the_workers_to_the_parent(reserve: WorkerReserve) -> None:
    worker = WorkerProcess(20.0)
    reserve.put(worker)
    child = os.fork()
    if child == 0:
        fresh = reserve.take(20.0)
        fresh.end()
        os._exit(0 if fresh is not worker else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert reserve.take(20.0) is worker
    worker.end()
