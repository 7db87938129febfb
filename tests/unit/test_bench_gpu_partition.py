"""tools.bench gpu-partition without a GPU: subjects build and are compared, systems that fail are told, processes take turns."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bench_on_cpu import OnCpu
from tools.bench.partition import gpu_partition as bench
from tools.bench.partition import optimizers
from tools.bench.partition.gpu_subjects import APART, COMBO, EAGER, FUSED, INDUCTOR, OURS, DenseRows, Optimizer, Subject, Training
from tools.bench.partition.in_turns import Worker, in_turns, prepared
from tools.bench.partition.training import WORKLOADS
from tools.checkout import ROOT

torch: Any = pytest.importorskip("torch")
TARGET = "emulator:sm_90a"


class Graphs(OnCpu, bench.Graphs):
    """Graphs that are calls, by the CPU's clock."""

    def __init__(self) -> None:
        super().__init__(torch, 2, 1e-6, 1 << 12)

    def launches(self, call: Callable[[], Any]) -> int | None:
        return 1


def uncompiled(_: Any, function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {INDUCTOR: function, COMBO: function}


def timed(subject: Subject, folder: Path) -> list[dict[str, Any]]:
    subject.build(folder, TARGET)
    made = bench.Timed(torch, subject, folder, "cpu")
    made.prepare(time.monotonic() + 60.0)
    return [json.loads(json.dumps(made.at(Graphs(), at))) for at in subject.points]


@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_a_workload_in_all_systems(element: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.bench.partition.gpu_subjects.compiled", uncompiled)
    [workload] = (w for w in WORKLOADS if w.name == "cross_entropy")
    small = workload.__class__(workload.name, workload.build, tuple(
        g.__class__(tuple(e if e in ("T", 1) else 40 for e in g.size), g.labels and 40) for g in workload.given), workload.native)
    found = timed(Training(small, element, (2, 9)), tmp_path)
    assert [r["T"] for r in found] == [2, 9]
    for r in found:
        assert set(r["systems"]) == {OURS, EAGER, INDUCTOR, COMBO} and not r["wrong"] and not r["failed"]
        assert r["systems"][OURS]["error"] is not None and r["systems"][EAGER]["error"] is None
        assert set(r["over"]) == {EAGER, INDUCTOR, COMBO} and r["bytes"] > 0
    assert len(bench.summary(found).splitlines()) == 3


def test_both_forms_of_a_product_and_its_rows(tmp_path: Path) -> None:
    subject = DenseRows("layernorm", 32, 32, (5, 64))
    for found in timed(subject, tmp_path):
        assert set(found["systems"]) == {OURS, FUSED, APART, EAGER} and not found["wrong"]
    forms = {form: subject.systems(torch, tmp_path)[form] for form in (FUSED, APART)}
    given = subject.given(torch, 5, 0, "cpu")
    assert [form(*given).func.explain(T=5).launches for form in forms.values()] == [1, 2]


@pytest.mark.parametrize("step", optimizers.STEPS)
def test_a_step_of_an_optimizer(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "sizes", lambda share: [(3, 8), (8,), (8,), (5, 8)])
    monkeypatch.setattr(torch, "compile", lambda call, **_: call)
    [found] = timed(Optimizer(step, 64), tmp_path)
    assert set(found["systems"]) == {OURS, INDUCTOR, "foreach"} | ({"fused"} if step == "adamw" else set())
    assert found["systems"][OURS]["error"] < 1e-4 and not found["wrong"] and not found["failed"] and found["sets"] == 1


def test_what_fails_is_told(tmp_path: Path) -> None:
    def slow() -> None:
        """As a compiler that catches what interrupts it, and goes on."""
        with contextlib.suppress(TimeoutError):
            time.sleep(60)
        time.sleep(60)

    class Broken(Training):
        def systems(self, torch: Any, folder: Path) -> dict[str, Any]:
            def refused(*given: Any) -> Any:
                raise RuntimeError("no such kernel")

            return {OURS: lambda *given: lambda: given[0], "broken": refused, INDUCTOR: lambda *given: slow}

        def wanted(self, torch: Any, given: Sequence[Any]) -> tuple[Any, ...]:
            return (given[0] + 1,)

    [workload] = (w for w in WORKLOADS if w.name == "column_sum")
    made = bench.Timed(torch, Broken(workload, points=(2,)), tmp_path, "cpu")
    made.prepare(time.monotonic() + 0.2)
    found = made.at(Graphs(), 2)
    assert set(found["failed"]) == {"broken", INDUCTOR} and "no such kernel" in found["failed"]["broken"]
    assert found["wrong"] == [OURS] and not bench.summary([found])


def test_subjects_are_distinct() -> None:
    found = bench.chosen("*")
    assert len({(s.name, s.element) for s in found}) == len(found)
    assert [s.name for s in bench.chosen("lamb*,softmax_dropout_f32")] == ["softmax_dropout", "lamb_1", "lamb_64"]


def test_processes_take_turns() -> None:
    text = ("import sys, time, json\nprint('ready', flush=True)\nsys.stdin.readline()\nprint('noise')\n"
            "print(json.dumps({'at': time.monotonic()}))\ntime.sleep(0.2)\nprint(json.dumps({'at': time.monotonic()}))\n"
            "print('done', flush=True)\nsys.stdin.readline()")
    lines = {"a": text, "b": text, "never": "import time; time.sleep(60)", "dies": "import sys; sys.exit(4)",
             "slow": "print('ready', flush=True); import time; time.sleep(60)"}
    workers = [Worker(name, [sys.executable, "-c", line], {}) for name, line in lines.items()]
    prepared(workers, time.monotonic() + 5.0, 3).shutdown()
    found = list(in_turns(workers, time.monotonic() + 60.0, 0.5))
    assert len(found) == 7 and [r["at"] for r in found[:4]] == sorted(r["at"] for r in found[:4])
    assert [(r["record"], r["name"], r["error"]) for r in found[4:]] == [
        ("broken", "never", "not ready by the deadline"), ("broken", "dies", "ended with code 4"),
        ("broken", "slow", "not done 3.5 s after its turn began")]
    assert all(w.process and w.process.returncode is not None for w in workers)


def test_no_process_begins_late() -> None:
    """Neither to prepare after the deadline, nor its turn after the end."""
    ready = [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.readline()"]
    late, left = Worker("late", ready, {}), Worker("left", ready, {})
    prepared([late], time.monotonic(), 1).shutdown()
    prepared([left], time.monotonic() + 30, 1).shutdown()
    assert list(in_turns([late], time.monotonic() + 9, 1.0)) == [
        {"record": "broken", "name": "late", "error": "not begun before the deadline"}]
    assert list(in_turns([left], time.monotonic(), 1.0)) == [{"record": "left", "name": "left"}]
    assert late.process is None and left.process and left.process.returncode is not None


def test_a_process_prepares_waits_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    [subject] = bench.chosen("column_sum_f32")
    subject.build(tmp_path, TARGET)
    monkeypatch.setattr("tools.bench.partition.gpu_subjects.compiled", uncompiled)
    monkeypatch.setattr(bench, "Timed", partial(bench.Timed, device="cpu"))
    monkeypatch.setattr(bench, "Graphs", lambda *_: Graphs())
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
    monkeypatch.setattr(bench, "chosen", lambda _: [replace(subject, points=(2, 3))])
    assert bench.main(["--artifacts", str(tmp_path), "--filter", "column_sum_f32", "--worker", "0", "--until",
                       str(time.monotonic() + 60)]) == 0
    ready, *found, done = capsys.readouterr().out.splitlines()
    assert (ready, done) == ("ready", "done") and [json.loads(r)["T"] for r in found] == [2, 3]


def test_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Here the processes have no GPU, and say so."""
    monkeypatch.setattr("tilewright.runtime.cuda.cuda_device.properties_of", lambda ordinal: {"name": "none"})
    file = tmp_path / "out.jsonl"
    assert bench.main(["--artifacts", str(tmp_path), "--json", str(file), "--filter", "column_sum_f32", "--budget", "60"]) == 0
    begun, *found, seconds = map(json.loads, file.read_text().splitlines())
    assert seconds["preparing"] > 0
    assert begun["record"] == "run" and [(r["record"], r["name"]) for r in found] == [("broken", "column_sum_f32")]


def test_no_compiler_is_wanted_where_it_is_timed() -> None:
    text = ("import sys, tools.bench.partition.gpu_partition\n"
            "print([m for m in sys.modules if m.startswith(('mlir', 'llvmlite', 'tilewright.compiler.', 'tilewright.passes.'))])")
    assert subprocess.run([sys.executable, "-c", text], text=True, capture_output=True, check=True, cwd=ROOT).stdout == "[]\n"


def test_bad_usage() -> None:
    for argv in ([], ["--build", "a", "--artifacts", "b"]):
        with pytest.raises(SystemExit):
            bench.arguments(argv)
