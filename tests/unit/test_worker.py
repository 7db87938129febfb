"""The worker pool: what a crash, a hang or a noisy worker costs, and where a pool can be made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path

import msgspec
import pytest

from tilewright.compiler.builder import worker_process
from tilewright.compiler.builder.requests import FaultRequest, KernelReply, KernelRequest, PingRequest, WorkerRequest
from tilewright.compiler.builder.worker_pool import WorkerPool
from tilewright.compiler.builder.worker_process import WorkerProcess
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.program.kernel import MicroKernel

HOME = Path(__file__).parents[2]
pytestmark = pytest.mark.started


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(workers=1, time_limit=20.0) as made:
        yield made


def test_requests_and_replies_as_text() -> None:
    requests: list[WorkerRequest] = [
        PingRequest(),
        FaultRequest("hang"),
        KernelRequest("module {}", "k", "s", "generic", "generic{lanes=8}", "host"),
    ]
    for request in requests:
        line = msgspec.json.encode(request)
        assert b"\n" not in line and msgspec.json.decode(line, type=WorkerRequest) == request
    reply = KernelReply(True, MicroKernel("s", "k", "generic", "", (), ("1", "1", "1")), b"\x00\xff\n", "define\n")
    line = msgspec.json.encode(reply)
    assert b"\n" not in line and msgspec.json.decode(line, type=KernelReply) == reply


def test_a_worker_serves_many_requests(pool: WorkerPool) -> None:
    replies = pool.map([PingRequest() for _ in range(20)])
    assert all(r.ok for r in replies)
    assert len({r.worker for r in replies}) == 1


def test_workers_work_side_by_side() -> None:
    with WorkerPool(workers=2, time_limit=20.0) as pool:
        assert len({r.worker for r in pool.map([PingRequest() for _ in range(50)])}) <= 2


@pytest.mark.parametrize(("fault", "reason"), [("segfault", "killed by SIGSEGV"), ("exit", "exited with status 3")])
def test_a_crash_is_a_reply(pool: WorkerPool, fault: str, reason: str) -> None:
    before, failed, after = pool.map([PingRequest(), FaultRequest(fault), PingRequest()])
    assert before.ok and after.ok and before.worker != after.worker
    assert not failed.ok and reason in failed.error and fault in failed.error
    if fault == "segfault":
        assert "Segmentation fault" in failed.log


def test_a_hang_ends_with_the_time_limit() -> None:
    with WorkerPool(workers=1, time_limit=0.3) as pool:
        hung, after = pool.map([FaultRequest("hang"), PingRequest()])
    assert not hung.ok and "time limit of 0.3 s" in hung.error and after.ok


def test_kill_nine(pool: WorkerPool) -> None:
    """Between two requests, and during one."""
    os.kill(pool.submit(PingRequest()).result().worker, signal.SIGKILL)
    time.sleep(0.05)
    assert pool.submit(PingRequest()).result().ok
    hung = pool.submit(FaultRequest("hang"))
    _kill(pool, _kill(pool, None))
    assert "SIGKILL" in hung.result(10).error


def _kill(pool: WorkerPool, other_than: WorkerProcess | None) -> WorkerProcess:
    """The worker that serves the pool's one request, killed."""
    while not (serving := [w for w in pool._team._serving.values() if w is not other_than]):
        time.sleep(0.001)
    os.kill(serving[0]._process.pid, signal.SIGKILL)
    return serving[0]


def test_a_request_whose_worker_is_killed_is_served_by_another() -> None:
    with WorkerPool(workers=1, time_limit=20.0) as pool:
        future = _stopped_at_start(pool)
        killed = _kill(pool, None)._process.pid
        reply = future.result(20)
        assert reply.ok and reply.worker != killed


def test_noise_blocks_nobody(pool: WorkerPool) -> None:
    """A megabyte on each of stdout and stderr: no deadlock, and the replies stay readable."""
    assert all(r.ok for r in pool.map([FaultRequest("noise"), PingRequest(), FaultRequest("noise")]))


def test_the_log_is_bounded(pool: WorkerPool) -> None:
    noise = FaultRequest("x" * 200_000)
    assert len(pool.submit(noise).result().log) <= 40_000


def test_a_large_request(pool: WorkerPool) -> None:
    request = KernelRequest("not MLIR " * 300_000, "k", "big", "generic", "", "host:nosuch")
    reply = pool.submit(request).result()
    assert not reply.ok and reply.error


def test_close_frees_those_who_wait() -> None:
    pool = WorkerPool(workers=1, time_limit=20.0)
    running, waiting = pool.submit(FaultRequest("hang")), pool.submit(PingRequest())
    while not running.running():
        time.sleep(0.01)
    pool.close()
    pool.close()
    assert not running.result(10).ok
    with pytest.raises(CancelledError):
        waiting.result(10)
    with pytest.raises(TilewrightError, match="closed"):
        pool.submit(PingRequest())


SCRIPT = """
import os
from tilewright.compiler.builder.worker_pool import WorkerPool
from tilewright.compiler.builder.requests import FaultRequest, PingRequest
pool = WorkerPool(workers=2, time_limit=20.0)
print([r.ok for r in pool.map([PingRequest(), FaultRequest("segfault"), PingRequest()])])
"""


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HOME)}


def test_from_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Also from a folder that has its own compiler and runtime; the pool is never closed."""
    for name in ("compiler", "runtime", "msgspec"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("[True, False, True]\n", 0), done.stderr


def test_from_stdin(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-"],
        input=SCRIPT,
        cwd=tmp_path,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("[True, False, True]\n", 0), done.stderr


def test_from_a_thread(pool: WorkerPool) -> None:
    replies: list[KernelReply] = []
    threads = [threading.Thread(target=lambda: replies.extend(pool.map([PingRequest()] * 5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(replies) == 20 and all(r.ok for r in replies)


def test_after_a_fork(pool: WorkerPool) -> None:
    mine = pool.submit(PingRequest()).result()
    child = os.fork()
    if child == 0:
        reply = pool.submit(PingRequest()).result(30)
        pool.close()
        os._exit(0 if reply.ok and reply.worker != mine.worker else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.submit(PingRequest()).result().worker == mine.worker


def _runs(process: int) -> bool:
    """A zombie that nobody has waited for yet does not run."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_no_worker_outlives_its_pool() -> None:
    script = SCRIPT + "print(pool.submit(PingRequest()).result().worker, flush=True)\nos.kill(os.getpid(), 9)\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=HOME, capture_output=True, text=True, timeout=60)
    worker = int(done.stdout.split()[-1])
    for _ in range(200):
        if not _runs(worker):
            return
        time.sleep(0.05)
    pytest.fail("the worker is still there")


def test_requests_that_are_given_up_cost_their_workers_and_no_more() -> None:
    with WorkerPool(workers=1, time_limit=60.0) as pool:
        assert pool.submit(PingRequest()).result().ok
        stuck, waiting = pool.submit(FaultRequest("hang")), pool.submit(FaultRequest("hang"))
        while not stuck.running():
            time.sleep(0.01)
        while not pool._team._serving:
            time.sleep(0.01)
        pool.abandon([stuck, waiting])
        assert waiting.cancelled() and "killed by SIGKILL" in stuck.result().error
        assert pool.submit(PingRequest()).result().ok


def _stopped_at_start(pool: WorkerPool) -> Future[KernelReply]:
    """A request whose worker gets SIGSTOP while it starts."""
    future = pool.submit(PingRequest())
    while not pool._team._serving:
        assert not future.done(), "a worker that rested answered"
        time.sleep(0.001)
    (worker,) = pool._team._serving.values()
    os.kill(worker._process.pid, signal.SIGSTOP)
    return future


def test_the_time_limit_holds_while_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_START_SECONDS", 0.5)
    with WorkerPool(workers=1, time_limit=0.5) as pool:
        reply = _stopped_at_start(pool).result(20)
        assert not reply.ok and "no reply within the time limit of 0.5 s" in reply.error
        monkeypatch.setattr(worker_process, "_START_SECONDS", 60.0)
        assert pool.submit(PingRequest()).result().ok


def test_a_worker_that_starts_can_be_given_up() -> None:
    with WorkerPool(workers=1, time_limit=61.0) as pool:  # of which none rests
        given_up = _stopped_at_start(pool)
        pool.abandon([given_up])
        assert "killed by SIGKILL" in given_up.result(20).error
        last = _stopped_at_start(pool)
    assert "killed by SIGKILL" in last.result(20).error


def test_kernels_that_are_not_built_in_time_are_late_and_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from search_surfaces import LIMITS, dense

    from tilewright.compiler.builder.cache import Cache
    from tilewright.compiler.builder.worker_builder import WorkerBuilder
    from tilewright.passes.spaces.family_registry import heuristics_of
    from tilewright.runtime.target import Target

    config = heuristics_of("host_matmul").default(dense(), LIMITS)[0][0]
    with WorkerBuilder(Target.parse("host"), Cache(tmp_path), workers=1) as builder:
        monkeypatch.setattr(builder, "_request", lambda workload, config: FaultRequest("hang"))
        (found,) = builder.build([(dense(), config)], 0.0)
        assert found.late and found.kernel is None
        assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 1000]
