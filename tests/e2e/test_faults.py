"""A compile and its files when things go wrong: workers that die, disks that are full, saved models that are damaged."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.cache import Cache, CacheWarning
from tilewright.compiler.builder.requests import FaultRequest, KernelReply, KernelRequest, WorkerRequest
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.compiler.builder.worker_process import WorkerLostError, WorkerProcess
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import ArtifactError, BuildError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.target import Target

HOME = Path(__file__).resolve().parents[2]
X, W = np.arange(72, dtype=np.float32).reshape(9, 8) / 10, np.eye(8, 16, dtype=np.float32)
WANT = np.tanh(X.astype("f8") @ W)
DIMS = {"M": (1, 32)}


def graph(columns: int = 16) -> ops.Graph:
    g = ops.Graph()
    g.output(ops.dense(g.input("x", ["M", 8]), g.input("w", [8, columns]), activation="tanh"))
    return g


def check(fn: CompiledFunction) -> None:
    np.testing.assert_allclose(fn(X, W), WANT, atol=1e-6)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


class FaultyBuilder(WorkerBuilder):
    """Its workers fail in the given way at kernels of the given families (None: all)."""

    def __init__(self, fault: str, families: tuple[str, ...] | None = None, **options: float) -> None:
        super().__init__(Target.parse("host"), workers=1, **options)  # type: ignore[arg-type]
        self.fault, self.families = fault, families

    def _request(self, workload: Workload, config: TileConfig) -> KernelRequest:
        if self.families is None or config.family in self.families:
            return FaultRequest(self.fault)  # type: ignore[return-value]
        return super()._request(workload, config)


@pytest.mark.parametrize("fault", ["segfault", "exit"])
def test_a_worker_that_dies_costs_one_family(fault: str) -> None:
    """The next family serves, and the next compile is whole again."""
    with FaultyBuilder(fault, ("host_matmul",)) as builder:
        fn = tw.compile(graph(), DIMS, options=tw.CompileOptions(builder=builder))
    (call,) = fn.explain(M=9).calls
    assert call.family == "generic" and "host_matmul: " in call.why and not call.predicted
    check(fn)
    whole = tw.compile(graph(), DIMS)
    assert {c.family for c in whole.explain(M=9).calls} == {"host_matmul"}
    check(whole)


def test_what_was_not_built_in_time_is_built_by_the_next_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may be why: neither the kernel nor the model is kept."""
    ask, late = WorkerProcess.ask, []

    def none_in_time(worker: WorkerProcess, request: WorkerRequest) -> KernelReply:
        if getattr(request, "family", "") != "host_matmul":
            return ask(worker, request)
        late.append(request)
        worker.end()
        raise WorkerLostError("no reply within the time limit of 60 s; the worker was ended", "")

    with monkeypatch.context() as patch:
        patch.setattr(WorkerProcess, "ask", none_in_time)
        fn = tw.compile(graph(), DIMS)
    assert late and {c.family for c in fn.explain(M=9).calls} == {"generic"}
    check(fn)
    assert {c.family for c in tw.compile(graph(), DIMS).explain(M=9).calls} == {"host_matmul"}


def pointwise() -> ops.Graph:
    """Served by few configurations, each of which costs a time limit where workers hang."""
    g = ops.Graph()
    g.output(ops.tanh(g.input("x", ["M", 8])))
    return g


@pytest.mark.parametrize(("fault", "says", "model"), [
    ("segfault", "SIGSEGV", graph), ("exit", "status 3", graph), ("hang", "time limit of 2 s", pointwise)])
def test_when_no_family_is_left_the_error_says_why(fault: str, says: str, model: Callable[[], ops.Graph]) -> None:
    with FaultyBuilder(fault, time_limit=2) as builder, pytest.raises(BuildError, match=says):
        tw.compile(model(), DIMS, options=tw.CompileOptions(builder=builder))


def test_kill_nine_while_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request of the first worker is answered by SIGKILL; another worker takes over."""
    ask, killed = WorkerProcess.ask, []

    def ask_or_die(worker: WorkerProcess, request: WorkerRequest) -> object:
        if not killed:
            killed.append(worker._process.pid)
            os.kill(worker._process.pid, 9)
        return ask(worker, request)

    monkeypatch.setattr(WorkerProcess, "ask", ask_or_die)
    check(tw.compile(graph(), DIMS))
    assert killed


@pytest.mark.started
def test_no_worker_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(BuildError, match="no worker process can be started"):
        tw.compile(graph(), DIMS)


def run(script: str, cwd: Path, *, stdin: bool = False) -> str:
    """Standard output of a script, which must end well, in a folder and process of its own."""
    path = cwd / "the_script.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    command = [sys.executable, "-"] if stdin else [sys.executable, str(path)]
    done = subprocess.run(command, input=script if stdin else None, cwd=cwd, env=environment, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


SCRIPT = """
import numpy as np, threading
import tilewright as tw
g = tw.ops.Graph()
g.output(tw.ops.dense(g.input("x", ["M", 8]), g.input("w", [8, 16]), activation="tanh"))
def work():
    fn = tw.compile(g, {"M": (1, 32)})
    y = fn(np.ones((5, 8), np.float32), np.ones((8, 16), np.float32))
    print(y.shape, bool(np.allclose(y, np.tanh(8.0))))
"""


def test_from_a_script_without_a_main_guard_beside_other_packages(tmp_path: Path) -> None:
    """The working directory has folders named like ours; the script lies elsewhere, and compiles at its top level."""
    for name in ("compiler", "passes", "runtime", "search"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "scripts").mkdir()
    outcome = run(f"import os\nos.chdir({str(tmp_path)!r}){SCRIPT}work()\n", tmp_path / "scripts")
    assert outcome == "(5, 16) True\n"


def test_from_stdin_and_from_a_thread(tmp_path: Path) -> None:
    thread = "t = threading.Thread(target=work); t.start(); t.join()\n"
    assert run(f"{SCRIPT}work()\n{thread}", tmp_path, stdin=True) == "(5, 16) True\n" * 2


def test_after_a_fork_with_live_threads(tmp_path: Path) -> None:
    """Parent and child compile and call, before and after, with the pools of both alive."""
    fork = "import os\nwork()\nif (child := os.fork()) == 0:\n  g._outputs[0] = g._outputs[0] * 1.0\n  work()\n"
    outcome = run(f"{SCRIPT}{fork}else:\n  assert os.waitpid(child, 0)[1] == 0\n  work()\n", tmp_path)
    assert outcome.count("(5, 16) True\n") == 3


def test_compiles_at_once_from_several_threads() -> None:
    """Of the same model and of others: no crash, no half-written entry, right results."""
    results: list[bool] = []

    def work(columns: int) -> None:
        w = np.ones((8, columns), np.float32)
        fn = tw.compile(graph(columns), DIMS)
        results.append(bool(np.allclose(fn(X, w), np.tanh(X @ w), atol=1e-6)))

    threads = [threading.Thread(target=work, args=(columns,)) for columns in (16, 16, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [True] * 3


def test_a_full_disk(tmp_path: Path) -> None:
    """No file may grow beyond 2,000 bytes: nothing is cached and saving fails cleanly, but the compile works."""
    limit = "import resource, warnings\nwarnings.simplefilter('always')\n" \
            "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    save = """
fn = tw.compile(g, {"M": (1, 32)})
open("old.tw", "w").write("kept")
try:
    fn.save("old.tw")
except tw.errors.ArtifactError as error:
    print("refused", "old.tw" in str(error))
print(open("old.tw").read())
"""
    outcome = run(f"{limit}{SCRIPT}work()\n{save}", tmp_path)
    assert outcome == "(5, 16) True\nrefused True\nkept\n"
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.name not in ("the_script.py", "old.tw", "prune.lock")] == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(CacheWarning, match="cannot be written"):
        check(tw.compile(graph(), DIMS))


def test_a_damaged_cache_is_made_anew(tmp_path: Path) -> None:
    check(tw.compile(graph(), DIMS))
    entries = [p for p in (tmp_path / "cache").glob("??/*") if p.is_file()]
    assert entries
    for damage in (lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"\0" * len(b)):
        for entry in entries:
            entry.write_bytes(damage(entry.read_bytes()))
        check(tw.compile(graph(), DIMS))
        check(tw.compile(graph(), DIMS))


def test_a_warm_cache_starts_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    check(tw.compile(graph(), DIMS))
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    check(tw.compile(graph(), DIMS))
    check(tw.compile(graph(), DIMS, options=tw.CompileOptions(out_of_range="fallback")))  # the model anew, of cached kernels


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "model.tw"
    with WorkerBuilder(Target.parse("host"), Cache(path.parent / "cache")) as builder:
        tw.compile(graph(), DIMS, options=tw.CompileOptions(builder=builder), constants={"arg1": W}).save(path)
    return path.read_bytes()


@pytest.fixture
def model(saved: bytes, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "model.tw"
    path.write_bytes(saved)
    yield path


def test_a_saved_model_runs(model: Path) -> None:
    fn = tw.load(model)
    np.testing.assert_allclose(fn(X), WANT, atol=1e-6)
    model.unlink()
    np.testing.assert_allclose(fn(X), WANT, atol=1e-6)


def test_a_truncated_model_is_refused(model: Path, saved: bytes) -> None:
    for size in (0, 1, 7, 16, 100, len(saved) // 2, len(saved) - 1):
        model.write_bytes(saved[:size])
        with pytest.raises(ArtifactError, match=r"model\.tw"):
            tw.load(model, verify="full")


def test_a_flipped_bit_is_found_or_harmless(model: Path, saved: bytes) -> None:
    """At 60 places over the whole file: refused, or (between sections) of no effect."""
    refused = 0
    for at in range(3, len(saved), len(saved) // 60):
        model.write_bytes(saved[:at] + bytes([saved[at] ^ 0x10]) + saved[at + 1 :])
        try:
            np.testing.assert_allclose(tw.load(model, verify="full")(X), WANT, atol=1e-6)
        except ArtifactError:
            refused += 1
    assert refused > 40


def test_another_version_is_named(model: Path, saved: bytes) -> None:
    """Whatever number stands where the header has its version."""
    magic_and_version = saved[:16]
    model.write_bytes(magic_and_version[:8] + struct.pack("<I", 999) + saved[12:])
    with pytest.raises(ArtifactError, match="999"):
        tw.load(model)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "json.tw").write_text(json.dumps({"schema": 1}))
    for path in (tmp_path / "json.tw", tmp_path / "missing.tw", tmp_path):
        with pytest.raises(ArtifactError):
            tw.load(path)
