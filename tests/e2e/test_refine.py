"""`tilewright refine`: a saved model tuned for its traffic, never slower, with its constants and its bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.cli.main import main
from tilewright.compiler.refinement.cpu_share import CpuShare, process_seconds
from tilewright.compiler.refinement.refine import RefineOptions, refine
from tilewright.compiler.refinement.slices import run_in_slices
from tilewright.compiler.verification.verify_in_turns import compare, in_turns, median_within
from tilewright.runtime.errors import OptionError
from tilewright.runtime.host.host_cpu import affinity
from tilewright.runtime.host.whole_timing import Whole
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.traffic import SeenShape, Traffic
from tilewright.search.runner.actor_process import ActorProcess, see_to_end
from tools.bench.farm.refined import ALONE, Load, quantiles

RNG = np.random.default_rng(0)
W = RNG.standard_normal((48, 80)).astype(np.float32)


@pytest.fixture(autouse=True)
def on_the_same_cores() -> Iterator[None]:
    """A refinement keeps its process to some cores, which is that of the tests after these."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def model(**options: Any) -> CompiledFunction:
    graph = ops.Graph()
    x = graph.input("x", ["M", 48])
    graph.output(ops.relu(ops.add(ops.matmul(x, graph.input("w", [48, 80])), graph.input("b", [80]))), name="scores")
    return tw.compile(graph, {"M": (1, 64)}, constants={"w": W, "b": W[0]}, options=options)


def refined(capsys: pytest.CaptureFixture[str], folder: Path, fn: CompiledFunction, *more: str) -> dict[str, Any]:
    fn.save(folder / "m.tw")
    fn.count()
    for rows, calls in ((5, 8), (33, 3)):
        for _ in range(calls):
            fn(np.ones((rows, 48), np.float32))
    fn.traffic().save(folder / "t.json")
    capsys.readouterr()
    line = ["refine", str(folder / "m.tw"), "--traffic", str(folder / "t.json"), "--seconds", "6", "--cpu-share", "1", "--json",
            "-o", str(folder / "n.tw"), *more]
    assert main(line) == 0
    return next(e for e in map(json.loads, capsys.readouterr().out.splitlines()) if e["event"] == "refined")


@pytest.mark.parametrize("deterministic", ["shape", "batch"])
def test_refined_models_give_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str], deterministic: str,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.compiler.cli.refine._yield_to_others", lambda: None)
    fn = model(deterministic=deterministic, threads=1)
    done = refined(capsys, tmp_path, fn)
    assert done["worst"] >= 1 / 1.0301 and done["shapes"] == 2
    new = tw.load(tmp_path / "n.tw")
    assert [o.name for o in new.outputs] == ["scores"]
    assert new.program.constants == fn.program.constants and new.program.asked == fn.program.asked
    for rows in (1, 5, 17, 33, 64):
        x = RNG.standard_normal((rows, 48)).astype(np.float32)
        np.testing.assert_allclose(new(x), np.maximum(x @ W + W[0], 0), rtol=2e-5, atol=2e-4)
    x = RNG.standard_normal((33, 48)).astype(np.float32)
    before = fn(x)
    fn.reload(tmp_path / "n.tw")
    np.testing.assert_allclose(fn(x), before, rtol=1e-5, atol=1e-5)
    if deterministic == "batch":
        np.testing.assert_array_equal(fn(x), before)
    assert fn.traffic().calls == 13 + (deterministic == "batch")


def test_refine_and_swap_while_four_threads_call(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.compiler.cli.refine._yield_to_others", lambda: None)
    monkeypatch.setattr("tilewright.compiler.verification.verify_in_turns._LONGEST", 1.0)
    fn = model(threads=1)
    given = {rows: RNG.standard_normal((rows, 48)).astype(np.float32) for rows in (1, 5, 17, 33, 64)}
    wanted = {rows: np.maximum(x @ W + W[0], 0) for rows, x in given.items()}
    stop, faults, calls = threading.Event(), list[str](), [0] * 4

    def serve(number: int) -> None:
        rows = list(given)
        while not stop.wait(0.001):
            n = rows[calls[number] % len(rows)]
            calls[number] += 1
            try:
                error = float(np.abs(fn(given[n]) - wanted[n]).max())
            except tw.errors.TilewrightError as failed:
                faults.append(str(failed))
                continue
            if error > 2e-4:
                faults.append(f"off by {error} at {n}")

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(4)]
    fn.count()
    for t in threads:
        t.start()
    try:
        done = refined(capsys, tmp_path, fn)
        for i in range(10):
            fn.reload(tmp_path / ("n.tw" if i % 2 == 0 else "m.tw"))
        fn.rollback()
        counted = fn.traffic().calls
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not faults and min(calls) > 10 and done["worst"] >= 1 / 1.0301 and done["shapes"] >= 2
    assert 11 < counted <= sum(calls) + 11


def test_all_of_a_refinement_keeps_to_its_share(tmp_path: Path) -> None:
    fn, slept = model(threads=1), [0.0]
    fn.save(tmp_path / "m.tw")

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    cpu = CpuShare(0.03, clock=lambda: time.monotonic() + slept[0], sleep=sleep)  # less than a busy machine gives it
    begin, used = cpu.clock(), process_seconds()
    traffic = Traffic((SeenShape({"M": 5}, 8), SeenShape({"M": 33}, 3)))
    done = refine(tmp_path / "m.tw", traffic, tmp_path / "n.tw",
                  lambda _: lambda dims: [np.ones((dims["M"], 48), np.float32)], RefineOptions(1.0, cpu))
    share = (process_seconds() - used) / (cpu.clock() - begin) / cpu.cores
    assert share < 0.036 and cpu.rested >= slept[0] > 0 and len(done.shapes) == 2


_SPIN = """
import os, signal, sys, time
from tilewright.runtime.host.whole_timing import Whole

times = [0]  # that it was stopped and went on
signal.signal(signal.SIGCONT, lambda *_: times.__setitem__(0, times[0] + 1))

def spin(seconds, often=sys.maxsize):
    used, before = time.process_time(), times[0]
    while time.process_time() < used + seconds and times[0] - before < often: pass
    return times[0] - before

child = os.fork()  # what it starts is stopped too
if not child:
    os._exit(spin(20.0, 3))
while not os.path.exists(sys.argv[0] + ".alone"): pass
own = spin(20.0, 3)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
with Whole(int(sys.argv[1])).whole():
    time.sleep(0.001)
    timed = spin(0.04)
open(sys.argv[0] + ".said", "w").write(f"{own} {code} {timed}")
sys.exit(7)
"""


def test_work_is_cut_into_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = CpuShare(0.2 / affinity())  # a fifth of a core
    assert cpu.rest_for_each == pytest.approx(4.0) and CpuShare(1.0).rest_for_each == 0.0 and CpuShare(1e-3).rest_for_each == 20.0
    (tmp_path / "spin.py").write_text(_SPIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rests, longest = list[float](), 0.0

    def rested(seconds: float, times: float = 1.0) -> None:  # whatever others do
        nonlocal longest
        rests.append(times)
        longest = max(longest, seconds)
        if times == 1.0:  # others are known to do nothing
            (tmp_path / "spin.py.alone").touch()
        time.sleep(seconds)

    monkeypatch.setattr("tilewright.compiler.refinement.slices.give_way", rested)
    monkeypatch.setattr("tilewright.runtime.host.giving_way.busy_seconds", process_seconds)
    assert run_in_slices("spin", [], 6.0) == 7
    assert (tmp_path / "spin.py.said").read_text() == "3 3 0"
    assert rests[0] == 4.0 and rests[-1] == 1.0 and 0.02 * 6.0 >= longest > 0.002 * 6.0  # all of what was timed, or much of it


def test_who_stops_another_takes_no_core_from_others() -> None:
    line = ("import os\nfrom tilewright.compiler.refinement.cpu_share import interrupt_nobody, yield_to_others\n"
            "interrupt_nobody()\nprint(os.sched_getscheduler(0) == os.SCHED_BATCH, os.getpriority(os.PRIO_PROCESS, 0))\n"
            "yield_to_others()\nprint(os.sched_getscheduler(0) == os.SCHED_IDLE)")
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "19", "True"]


def test_who_stops_another_does_not_leave_it_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "import sys\nfrom tilewright.compiler.refinement.slices import run_in_slices\nrun_in_slices('idle', [], 1.0)"
    (tmp_path / "idle.py").write_text("import os, sys, time\nfrom tilewright.search.runner.serving import end_with_parent\n"
                                      "end_with_parent()\nopen(__file__ + '.process', 'w').write(str(os.getpid()))\n"
                                      "while True: time.sleep(0.001)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(tw.__file__).parents[1]}")
    for end in (signal.SIGTERM, signal.SIGKILL):
        said = tmp_path / "idle.py.process"
        said.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", line]) as parent:
            while not (said.exists() and said.read_text()):
                assert parent.poll() is None
                time.sleep(0.02)
            parent.send_signal(end)
        process = ActorProcess.of(int(said.read_text()))
        assert parent.returncode in (128 + end, -end) and not see_to_end([process], patience=5.0) and not process.is_alive


def test_what_cannot_be_refined_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.compiler.refinement.slices.give_way", lambda seconds, times: 0.0)
    monkeypatch.setattr("tilewright.compiler.cli.refine._interrupt_nobody", lambda: None)
    fn, share = model(threads=1), ["--cpu-share", "0.4"]  # with less, most of the time is rest
    fn.save(tmp_path / "m.tw")
    Traffic((SeenShape({"N": 3}, 1),)).save(tmp_path / "t.json")
    assert main(["refine", str(tmp_path / "m.tw"), "--traffic", str(tmp_path / "t.json"), *share]) == 1
    assert "wanted calls at dims M" in capfd.readouterr().err
    (tmp_path / "bad.json").write_text("[]")
    assert main(["refine", str(tmp_path / "m.tw"), "--traffic", str(tmp_path / "bad.json"), *share]) == 1


def test_traffic_of_another_model_is_refused(tmp_path: Path) -> None:
    graph = ops.Graph()
    graph.output(ops.relu(graph.input("x", ["M", 8])))
    fn, other = model(threads=1), tw.compile(graph, {"M": (1, 64)}, options={"threads": 1})
    fn.save(tmp_path / "m.tw")
    other.count()
    other(np.ones((3, 8), np.float32))
    with pytest.raises(OptionError) as refused:
        refine(tmp_path / "m.tw", other.traffic(), tmp_path / "n.tw", lambda _: lambda dims: (), RefineOptions(0.0))
    said = str(refused.value)
    assert "m.tw, which is" in said and "(f32[M, 48]) -> (f32[M, 80]); got those of" in said
    assert "(f32[M, 8]) -> (f32[M, 8])" in said and "--other-model" in said


def test_slower_and_other_results_are_seen() -> None:
    fn, other = model(threads=1), model(threads=1, winograd=False)

    def arrays(dims: Any) -> list[np.ndarray]:
        return [np.ones((dims["M"], 48), np.float32)]

    same = compare(fn, other, {"M": 9}, arrays, bits=True)
    assert not same.wrong and same.ratio > 0 and same.rounds >= 8

    class Off:
        def call_flat(self, x: np.ndarray) -> np.ndarray:
            made: np.ndarray = fn.call_flat(x).copy()
            made[0, 0] += 1
            return made

    assert "other bits" in compare(fn, Off(), {"M": 9}, arrays, bits=True).wrong  # type: ignore[arg-type]
    assert "norm" in compare(fn, Off(), {"M": 9}, arrays, bits=False).wrong  # type: ignore[arg-type]


@pytest.mark.parametrize(("slower", "noise", "passes"), [(1.12, 0.15, 0.0), (1.12, 0.02, 0.0), (0.9, 0.15, 0.9), (0.9, 0.02, 1.0),
                                                         (1.0, 0.005, 1.0), (1.0, 0.15, None)])
def test_a_slower_kernel_does_not_pass_by_noise(slower: float, noise: float, passes: float | None) -> None:
    good, rng = list[bool](), np.random.default_rng(1)
    for _ in range(200):
        found = in_turns({}, lambda order: (np.exp(noise * rng.standard_normal(2)) * (1e-3, 1e-3 * slower)).tolist(), 1.0)
        assert found.good or "of the time before, at most" in str(found)
        good.append(found.good)
    assert passes is None or (passes and np.mean(good) >= passes) or not any(good)


def test_turns_end_as_soon_as_they_show_it() -> None:
    assert in_turns({}, lambda order: (1.0, 1.0), 0.0).rounds == in_turns({}, lambda order: (1.0, 1.1), 1e9).rounds == 8
    drawn = iter(range(1000))
    undecided = in_turns({}, lambda order: (1.0, 0.8 if next(drawn) % 2 else 1.2), 1e9)
    assert undecided.rounds == 120 and not undecided.good and "not shown to be as fast" in str(undecided)
    assert in_turns({}, lambda order: (1.0, 0.8 if next(drawn) % 2 else 1.2), 20.0).rounds == 11  # more than 20 s of calls
    assert median_within([1.0] * 7) == (-np.inf, np.inf) and median_within(list(range(12))) == (1, 10)


def test_what_is_not_timed_is_cut_into_slices() -> None:
    held, seen = [0], list[int]()

    class Held(Whole):
        @contextmanager
        def whole(self) -> Iterator[None]:
            held[0] += 1
            yield
            held[0] -= 1

    def arrays(dims: Any) -> list[np.ndarray]:
        seen.append(held[0])
        return [np.ones((dims["M"], 48), np.float32)]

    fn, cpu = model(threads=1), CpuShare(1.0, whole=Held(None))
    assert compare(fn, fn, {"M": 9}, arrays, bits=True, timed=cpu.timed).rounds >= 8 and seen == [0]


def test_tails_of_calls_are_told_from_noise() -> None:
    fn = model(threads=1)
    load = Load(fn, [3, 9], threads=2, pause=0.001)
    load.window(ALONE, lambda: time.sleep(0.05))
    load.end()
    assert not load.wrong and not load.failed and {n for _, n, _ in load.latencies} == {3, 9} and len(load.latencies) > 4
    load.latencies = [(begin + i / 1000, n, n * seconds) for begin, seconds in ((0.0, 1.0), (1.0, 1.5), (2.0, 1.0))
                      for i in range(200) for n in (3, 9)]
    load.windows = [(ALONE, 0.0, 0.5), ("refine", 1.0, 1.5), (ALONE, 2.0, 2.5)]
    found = quantiles(load.excess())
    assert found["p99_refine"] == found["medians"]["refine"] == 1.5 and found["control"] == 1.0 == found["p99_alone"]
    assert found["of"] == {ALONE: 800, "refine": 400}
    disturbed = [(kind, [1.0] * 97 + [tail * (3.0 if round_ % 2 else 1.0)] * 3)
                 for round_ in range(10) for kind, tail in ((ALONE, 1.5), ("refine", 1.5), (ALONE, 1.5))]
    assert quantiles(disturbed)["p99_refine_within"] == [1.0, 1.0]  # every other round is, as a whole


def test_a_share_of_the_machine_is_kept() -> None:
    now, used, slept = [0.0], [0.0], [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        slept[0] += seconds

    cpu = CpuShare(0.5, lambda: used[0], lambda: now[0], sleep)
    for _ in range(20):
        now[0] += 0.1
        used[0] += 0.4
        cpu.rest()
    assert used[0] / now[0] <= 0.5 * affinity() * 1.01 and cpu.rested == pytest.approx(slept[0])
    before = now[0]
    used[0] += 100.0
    cpu.rest(before + 0.3)
    assert now[0] == pytest.approx(before + 0.3)
    assert process_seconds() > 0
