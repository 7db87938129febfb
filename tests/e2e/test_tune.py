"""Tuning of a small model on this machine: log, resume, answers without measuring, certificate, command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.compiler.tuning.choose_tables
from tilewright.compiler.cli.main import main
from tilewright.runtime.program.dispatch import select
from tilewright.search.database.records import TuningLog, cells

MODEL = """
func.func @main(%arg0: tensor<?x64xf32> {tw.dims = ["T", 64]}, %arg1: tensor<64x96xf32>) -> tensor<?x96xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %t = tensor.dim %arg0, %c0 : tensor<?x64xf32>
  %empty = tensor.empty(%t) : tensor<?x96xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x96xf32>) -> tensor<?x96xf32>
  %y = linalg.matmul ins(%arg0, %arg1 : tensor<?x64xf32>, tensor<64x96xf32>) outs(%filled : tensor<?x96xf32>) -> tensor<?x96xf32>
  return %y : tensor<?x96xf32>
}
"""
DIMS = {"T": tw.Dim(1, 40)}


class NoRunner:
    def __init__(self) -> None:
        raise AssertionError("a log answers without measuring")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[tw.CompiledFunction, Path]:
    log = tmp_path_factory.mktemp("tune") / "log.jsonl"
    return tw.compile(MODEL, DIMS, options=tw.CompileOptions(trials=30, threads=1, log=log)), log


def test_a_tuned_model_is_right_at_every_shape(tuned: tuple[tw.CompiledFunction, Path]) -> None:
    fn, _ = tuned
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 96)).astype(np.float32)
    for t in range(1, 41):
        x = rng.standard_normal((t, 64)).astype(np.float32)
        assert np.linalg.norm(fn(x, w) - x @ w) <= 2e-5 * np.linalg.norm(x @ w)


def test_its_certificate_travels_with_it(tuned: tuple[tw.CompiledFunction, Path], tmp_path: Path) -> None:
    fn, log = tuned
    fn.save(tmp_path / "model.tw")
    (found,) = tw.load(tmp_path / "model.tw").program.certificates
    assert found.workload == fn.program.tables[0].workload
    assert found.held_out and len(found.regrets) == len(found.held_out)
    assert found.trials <= len(TuningLog(log))


def test_a_log_answers_a_later_compile_without_measuring(tuned: tuple[tw.CompiledFunction, Path],
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    _, log = tuned
    monkeypatch.setattr(tilewright.compiler.tuning.choose_tables, "HostProcess", NoRunner)
    size = log.stat().st_size
    fn = tw.compile(MODEL, DIMS, options=tw.CompileOptions(threads=1, log=log))
    known = {r.config for r in TuningLog(log).records if r.seconds}
    [table] = fn.program.tables
    assert {k.config for k in table.kernels} <= known
    assert {select(table.root, {table.dims[0]: t}).kernel for t in range(1, 41)} == set(range(len(table.kernels)))
    assert fn.program.certificates and log.stat().st_size == size


def test_the_command_resumes_and_reports(tuned: tuple[tw.CompiledFunction, Path], tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    _, log = tuned
    (tmp_path / "model.mlir").write_text(MODEL)
    (tmp_path / "log.jsonl").write_bytes(log.read_bytes() + b'{"record": "mea')
    arguments = ["tune", str(tmp_path / "model.mlir"), "-o", str(tmp_path / "m.tw"), "--dim", "T=1:40", "--trials", "10",
                 "--threads", "1", "--log", str(tmp_path / "log.jsonl"), "--json"]
    assert main(arguments) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = {e["event"] for e in events}
    assert {"skipped", "slot", "operator", "certificate", "saved"} <= kinds
    assert next(e for e in events if e["event"] == "skipped")["line"] == len(log.read_bytes().splitlines()) + 1
    assert tw.load(tmp_path / "m.tw").program.certificates


def test_the_command_shows_arms_and_logs_the_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.mlir").write_text(MODEL)
    log = tmp_path / "log.jsonl"
    arguments = ["tune", str(tmp_path / "model.mlir"), "-o", str(tmp_path / "m.tw"), "--dim", "T=1:40", "--seconds", "60",
                 "--trials", "60", "--threads", "1", "--log", str(log), "--json"]
    assert main(arguments) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    slots = [e for e in events if e["event"] == "slot"]
    arms = slots[-1]["arms"]
    assert len(arms) > 1 and sum(a["slots"] for a in arms) == len(slots) - 1 >= 1
    assert all(0 <= a["low"] <= a["gain"] <= a["high"] for a in arms)
    assert all(late["best"] <= early["best"] for early, late in pairwise(slots))
    assert [s.arm for s in TuningLog(log).slots] == [e["arm"] for e in slots[1:]]
    assert {s.policy for s in TuningLog(log).slots} == {"ucb"}


@pytest.mark.parametrize("policy", [None, "round_robin"])
def test_a_search_without_time_keeps_what_the_log_knows(
    policy: str | None, tuned: tuple[tw.CompiledFunction, Path], tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(tuned[1].read_bytes())
    known = tw.compile(MODEL, DIMS, options=tw.CompileOptions(threads=1, log=log))
    again = tw.compile(MODEL, DIMS, options=tw.CompileOptions(threads=1, log=log, seconds=1e-3, policy=policy))
    assert again.program.tables == known.program.tables


def test_explain_says_what_was_predicted_and_measured(tuned: tuple[tw.CompiledFunction, Path]) -> None:
    fn, log = tuned
    (certificate,) = fn.program.certificates
    assert [e.dims for e in certificate.expected] == [(t,) for t in range(1, 41)]
    kernels = {(c.config, dict(c.shape)["d0"]): c.seconds for c in cells(TuningLog(log).records)}
    calls = {t: fn.explain(T=t).calls[0] for t in range(1, 41)}
    known = {t: c for t, c in calls.items() if c.measured}
    assert known and all(c.measured == kernels[c.config, t] for t, c in known.items())
    assert all(0 < c.predicted < 1 and ("fastest known" in c.why) for c in calls.values())
    assert any("untuned" in c.why for c in calls.values())


def test_compile_takes_a_log_and_a_budget(tuned: tuple[tw.CompiledFunction, Path], tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    fn, log = tuned
    (tmp_path / "model.mlir").write_text(MODEL)
    (tmp_path / "log.jsonl").write_bytes(log.read_bytes())
    command = ["compile", str(tmp_path / "model.mlir"), "-o", str(tmp_path / "m.tw"), "--dim", "T=1:40", "--threads", "1",
               "--log", str(tmp_path / "log.jsonl"), "--json"]
    assert main(command) == 0
    assert len(TuningLog(tmp_path / "log.jsonl")) == len(TuningLog(log))
    assert tw.load(tmp_path / "m.tw").program.certificates[0].configurations == fn.program.certificates[0].configurations
    assert main([*command, "--trials", "4"]) == 0
    assert len(TuningLog(tmp_path / "log.jsonl")) > len(TuningLog(log))
    assert "progress" in {json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()}


def test_the_largest_operator_is_searched_first(tmp_path: Path) -> None:
    model = MODEL.replace("96", "8").replace("  return %y : tensor<?x8xf32>", """
  %empty2 = tensor.empty(%t) : tensor<?x640xf32>
  %filled2 = linalg.fill ins(%zero : f32) outs(%empty2 : tensor<?x640xf32>) -> tensor<?x640xf32>
  %z = linalg.matmul ins(%y, %arg2 : tensor<?x8xf32>, tensor<8x640xf32>) outs(%filled2 : tensor<?x640xf32>) -> tensor<?x640xf32>
  return %z : tensor<?x640xf32>""").replace(") -> tensor<?x8xf32> {", ", %arg2: tensor<8x640xf32>) -> tensor<?x640xf32> {")
    log = tmp_path / "log.jsonl"
    fn = tw.compile(model, DIMS, options=tw.CompileOptions(trials=4, threads=1, log=log))
    small, large = (fn.program.tables[call.table].workload for call in fn.program.calls)
    assert list(TuningLog(log).workloads) == [large, small]


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(MODEL)
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-m", "tilewright", "tune", str(tmp_path / "model.mlir"), "-o", str(tmp_path / "m.tw"),
               "--dim", "T=1:40", "--seconds", "120", "--threads", "1", "--log", str(log), "--json"]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, process_group=0)
    assert process.stdout is not None
    next(line for line in process.stdout if json.loads(line).get("trials", 0) > 0)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    process.stdout.close()
    found = TuningLog(log)
    assert len(found) > 0 and not found.skipped and not (tmp_path / "m.tw").exists()
