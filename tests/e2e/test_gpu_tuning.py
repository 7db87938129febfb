"""Tuning for a GPU target, on the emulator's clock: the search, and the way from one machine to another and back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.compiler.tuning.choose_tables
from tilewright.compiler.builder.ptxas import find_tool
from tilewright.compiler.cli.main import main
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.tuning.archive_kernels import archive_kernels
from tilewright.runtime.cuda.driver import unavailable
from tilewright.runtime.errors import ArtifactError, DeviceError, OptionError
from tilewright.runtime.target import Target
from tilewright.search.archive.kernel_archive import KernelArchive
from tilewright.search.database.records import TuningLog

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
func.func @main(%arg0: tensor<?x32xf32> {tw.dims = ["T", 32]}, %arg1: tensor<32x64xf32>) -> tensor<?x64xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %t = tensor.dim %arg0, %c0 : tensor<?x32xf32>
  %empty = tensor.empty(%t) : tensor<?x64xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x64xf32>) -> tensor<?x64xf32>
  %y = linalg.matmul ins(%arg0, %arg1 : tensor<?x32xf32>, tensor<32x64xf32>) outs(%filled : tensor<?x64xf32>) -> tensor<?x64xf32>
  return %y : tensor<?x64xf32>
}
"""
TARGET = "emulator:sm_90a"
DIMS = {"T": tw.Dim(1, 64)}
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch_mlir", "llvmlite"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""


def tuned(log: Path | None, trials: int = 8, seed: int = 0) -> tw.CompiledFunction:
    return tw.compile(MODEL, DIMS, target=TARGET, options=tw.CompileOptions(trials=trials, log=log, seed=seed))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[tw.CompiledFunction, Path]:
    log = tmp_path_factory.mktemp("gpu") / "log.jsonl"
    return tuned(log), log


def test_a_model_tuned_on_the_clock_is_right(first: tuple[tw.CompiledFunction, Path]) -> None:
    fn, log = first
    rng = np.random.default_rng(0)
    w = rng.standard_normal((32, 64)).astype(np.float32)
    for t in (1, 7, 64):
        x = rng.standard_normal((t, 32)).astype(np.float32)
        assert np.linalg.norm(fn(x, w) - x @ w) <= 2e-5 * np.linalg.norm(x @ w)
    records = [r for r in TuningLog(log).records if r.seconds]
    assert records and all(r.device.startswith("emulator:sm_90a model") and "no measurement" in r.cache for r in records)
    assert all(r.built is not None and r.built.guards for r in records if "index=64" not in r.config)


def test_its_certificate_is_of_the_clock(first: tuple[tw.CompiledFunction, Path]) -> None:
    (found,) = first[0].program.certificates
    assert found.device.startswith("emulator:") and found.held_out and found.measured_worst >= found.measured_mean >= 0


def test_equal_seeds_give_equal_results(first: tuple[tw.CompiledFunction, Path]) -> None:
    fn, _ = first
    again = tuned(None)
    assert [k.config for k in again.program.tables[0].kernels] == [k.config for k in fn.program.tables[0].kernels]
    assert again.program.tables[0].root == fn.program.tables[0].root
    one, two = fn.program.certificates[0], again.program.certificates[0]
    assert (one.regrets, one.held_out, one.expected) == (two.regrets, two.held_out, two.expected)


def test_a_log_answers_without_measuring(first: tuple[tw.CompiledFunction, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, log = first
    monkeypatch.setattr(tilewright.compiler.tuning.choose_tables, "gpu_runner", None)
    size = log.stat().st_size
    fn = tw.compile(MODEL, DIMS, target=TARGET, options=tw.CompileOptions(log=log))
    known = {r.config for r in TuningLog(log).records if r.seconds}
    (table,) = fn.program.tables
    assert fn.program.certificates and log.stat().st_size == size
    assert {k.config for k in table.kernels if k.guards} <= known


def test_a_killed_search_resumes(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(MODEL)
    log = tmp_path / "log.jsonl"
    command = ["tune", str(tmp_path / "model.mlir"), "-o", str(tmp_path / "m.tw"), "--dim", "T=1:64", "--target", TARGET,
               "--trials", "8", "--log", str(log), "--json"]
    process = subprocess.Popen([sys.executable, "-m", "tilewright", *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    next(line for line in process.stdout if json.loads(line).get("trials", 0) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    before = [r for r in TuningLog(log).records if r.seconds]
    assert before and not (tmp_path / "m.tw").exists()
    assert main(command) == 0
    taken = [(r.config, r.shape) for r in TuningLog(log).records if r.seconds]
    assert len(taken) > len(before) and (tmp_path / "m.tw").exists()
    known = {(r.config, r.shape) for r in before}
    held_out = {tuple(d.items()) for d in tw.load(tmp_path / "m.tw").program.certificates[0].held_out}
    assert not [t for t in taken[len(before) : len(before) + 4] if t in known and t[1] not in held_out]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and the archive of its kernels."""
    folder = tmp_path_factory.mktemp("split")
    (folder / "model.mlir").write_text(MODEL)
    assert main(["build-kernels", str(folder / "model.mlir"), "--dim", "T=1:64", "--target", "cuda:sm_90a", "--kernels", "12",
                 "-o", str(folder / "kernels.tw")]) == 0
    return folder


def test_built_here_measured_there_with_no_code_generator(split: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, log = KernelArchive(split / "kernels.tw"), split / "gpu.jsonl"
    (operator,) = archive
    assert len(operator.kernels) == 12 and archive.manifest.versions
    if find_tool("ptxas"):
        assert all(k.registers > 0 for k in operator.kernels)
    script = BLOCKED + "from tilewright.compiler.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    arguments = ["measure", str(split / "kernels.tw"), "--log", str(log), "--target", TARGET, "--trials", "12", "--json"]
    site = split / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BLOCKED)  # the runner process is another interpreter
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    done = subprocess.run([sys.executable, "-c", script, *arguments], env=environment, cwd=split, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"device", "progress", "certificate", "saved"} <= {e["event"] for e in events}
    blocked = subprocess.run([sys.executable, "-c", "import llvmlite"], env=environment, capture_output=True, text=True)
    assert "blocked" in blocked.stderr
    records = TuningLog(log).records
    measured = {r.config for r in records if r.seconds}
    assert len(measured) >= 4 and measured <= {k.config for k in operator.kernels} and not any(r.error for r in records)
    assert main(["compile", str(split / "model.mlir"), "--dim", "T=1:64", "--target", TARGET, "--log", str(log), "-o",
                 str(split / "model.tw"), "--json"]) == 0
    fn = tw.load(split / "model.tw")
    (table,) = fn.program.tables
    assert {k.config for k in table.kernels if k.guards} <= measured and fn.program.certificates
    x, w = np.ones((13, 32), np.float32), np.ones((32, 64), np.float32)
    assert (fn(x, w) == 32).all()
    assert capsys.readouterr().out


def test_a_log_of_a_gpu_serves_a_compile_where_there_is_none(split: Path, tmp_path: Path) -> None:
    log = tmp_path / "gpu.jsonl"
    text = (split / "gpu.jsonl").read_text()
    log.write_text(text.replace("emulator:sm_90a model 1, 132", "cuda:sm_90a NVIDIA H100, 114"))
    fn = tw.compile(MODEL, DIMS, target="cuda:sm_90a", options=tw.CompileOptions(log=log))
    (certificate,) = fn.program.certificates
    assert certificate.device == "cuda:sm_90a NVIDIA H100, 114 multiprocessors"
    log.write_text(text.replace("emulator:sm_90a model 1, 132", "cuda:sm_80 NVIDIA A100, 108"))
    assert not tw.compile(MODEL, DIMS, target="cuda:sm_90a", options=tw.CompileOptions(log=log)).program.certificates


def test_a_damaged_archive_is_refused(split: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = (split / "kernels.tw").read_bytes()
    cut = tmp_path / "cut.tw"
    cut.write_bytes(data[:-1])
    assert main(["measure", str(cut), "--target", TARGET]) == 1
    assert "truncated" in capsys.readouterr().err
    cut.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(ArtifactError, match="damaged"):
        archive = KernelArchive(cut)
        for operator in archive:
            archive.cases(operator)
            [archive.code(k) for k in operator.kernels]


def test_kernels_are_measured_only_where_they_can_run(split: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", str(split / "kernels.tw"), "--target", "emulator:sm_80", "--trials", "1"]) == 1
    assert "are for sm_90a" in capsys.readouterr().err
    with pytest.raises(OptionError, match="named architecture"):
        archive_kernels(Compilation(MODEL, DIMS, Target.parse("host")), split / "x.tw")


def test_without_a_gpu_a_search_for_one_says_so(tmp_path: Path) -> None:
    if not unavailable():
        pytest.skip("a GPU is here")
    with pytest.raises(DeviceError, match="no CUDA device"):
        tw.compile(MODEL, DIMS, target="cuda:sm_90a", options=tw.CompileOptions(trials=3, log=tmp_path / "log.jsonl"))
