"""A crash of MLIR or LLVM over a model is an error of the caller's process where the compile runs in another."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.compiler.cli.main import main
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.frontends.imported import ImportedModel
from tilewright.compiler.isolation.compile_request import CompileReply, CompileRequest
from tilewright.runtime.errors import BuildError, IngestError, OptionError
from tilewright.runtime.program.structure import Structure
from tilewright.runtime.wording import Wording, command_text

W = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
X = np.ones((3, 8), np.float32)
# The verifier of upstream reads the first result of each map; the text bounds see that of an alias no more than it does.
CRASHER = """#none = affine_map<(d0, d1, d2) -> ()>
func.func @main(%a: tensor<4x8xf32>, %b: tensor<8x5xf32>, %c: tensor<4x5xf32>) -> tensor<4x5xf32> {
  %0 = linalg.matmul indexing_maps = [#none, #none, #none] ins(%a, %b : tensor<4x8xf32>, tensor<8x5xf32>)
      outs(%c : tensor<4x5xf32>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}
"""
# A fault in a pass, put into whatever Python starts with this folder on its path.
FAULT = """
import os, sys
if "tilewright.compiler.isolation.compile_worker" in " ".join(sys.orig_argv):
    from tilewright.passes.dispatch_creation.fuse import Fuse
    Fuse.run = lambda self, module: os.abort()
"""


def model() -> ops.Graph:
    graph = ops.Graph()
    x, w = graph.input("x", ["T", 8]), graph.input("w", [8, 4])
    graph.output(ops.relu(ops.matmul(x, w)))
    return graph


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers abort in the pass `fuse`."""
    (tmp_path / "usercustomize.py").write_text(FAULT)
    (tmp_path / "sitecustomize.py").write_text(FAULT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "0")


def test_the_same_function_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    apart = tw.compile(model(), {"T": (1, 9)}, constants={"w": W}, options={"isolate": True})
    here = tw.compile(model(), {"T": (1, 9)}, constants={"w": W})
    assert apart.program == here.program
    np.testing.assert_array_equal(apart(X), here(X))
    apart.save(tmp_path / "m.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "m.tw")(X), here(X))


def test_a_crash_of_the_parser(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"crashed in the import of the model: the worker was killed by SIGSEGV.*_DUMP"):
        tw.compile(CRASHER, options={"isolate": True})
    path = tmp_path / "crasher.mlir"
    path.write_text(CRASHER)
    for command in ("compile", "run", "explain"):
        assert main([command, str(path), *(["-o", str(tmp_path / "m.tw")] if command == "compile" else [])]) == 1
        assert "crashed in the import of the model" in capfd.readouterr().err


@pytest.mark.started
@pytest.mark.usefixtures("faulty")
def test_a_crash_of_a_pass_names_it_and_keeps_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                         capfd: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "dump"
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(dump))
    named = r"fuse\{numbers=true\}"
    told = rf"in pass {named}: .*SIGABRT.*reproduce with: tilewright opt .*--pass '{named}'"
    with pytest.raises(BuildError, match=told) as caught:
        tw.compile(model(), {"T": (1, 9)}, options={"isolate": True})
    command = str(caught.value).rpartition("reproduce with: tilewright ")[2].replace("'", "").split()
    assert main(command) == 0  # it is a module, and this process has no fault
    assert "tw.region" in capfd.readouterr().out


@pytest.mark.started
@pytest.mark.usefixtures("faulty")
def test_what_watches_is_tried_apart_first() -> None:
    seen: list[str] = []
    with pytest.raises(BuildError, match="crashed in pass fuse"):
        tw.compile(model(), {"T": (1, 9)}, options=CompileOptions(isolate=True, callback=lambda *_: seen.append("here")))
    assert not seen


@pytest.mark.parametrize(("given", "kind", "message"), [
    ({"model_ir": "func.func @main( {\n}"}, IngestError, "is not valid MLIR"),
    ({"model_ir": "none.mlir"}, IngestError, "no model at 'none.mlir'"),
    ({"dynamic_dims": {"S": (1, 9)}}, IngestError, "S fits no dimension"),
    ({"constants": {1: W}}, OptionError, "wanted names of arguments, got 1"),
    ({"donate": ("z",)}, OptionError, "donate names 'z'"),
])  # fmt: skip
def test_errors_come_back_as_they_are(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        tw.compile(**{"model_ir": model(), "dynamic_dims": {"T": (1, 9)}, "options": {"isolate": True}, **given})


def test_both_wordings_cross() -> None:
    error = CompileReply.of(BuildError(Wording("python", "command"), "log")).error()
    assert isinstance(error, BuildError)
    assert (str(error), command_text(error), error.log) == ("python", "command", "log")


def test_a_compilation_crosses_whole(tmp_path: Path) -> None:
    import ml_dtypes

    text = model().module_text()
    inputs = Structure.mapping({"x": Structure.leaf(0)})
    imported = ImportedModel(text, {"T": tw.Dim(1, 9, samples=(3,))}, {"w": W}, ("x",), inputs, Structure.leaf(0),
                             frozenset({"k"}))
    options = CompileOptions(threads=2, seconds=3.5, precision="bf16", traffic=[({"T": 3}, 1.0)], seed=10**30, log=tmp_path / "l")
    half = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(2, 3)
    given = Compilation(imported, {"T": tw.Dim(2, 8, 2, at="x.0")}, full_target("host"), options, {"k": W, "h": half, "s": 2.0},
                        ("x",), "main")
    sent = CompileRequest.of(given, tmp_path / "arrays", None).compilation()
    model_sent = sent.model
    assert isinstance(model_sent, ImportedModel)
    assert replace(model_sent, constants={}) == replace(imported, constants={})
    np.testing.assert_array_equal(model_sent.constants["w"], W)
    assert set(sent.given_constants) == {"h", "s"} and sent.given_constants["s"].shape == ()
    assert sent.given_constants["h"].dtype == half.dtype and sent.given_constants["h"].tobytes() == half.tobytes()
    assert (sent.options, dict(sent.dims), sent.donate, sent.function) == (options, dict(given.dims), ("x",), "main")
