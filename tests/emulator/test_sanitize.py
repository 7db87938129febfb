"""tools.sanitize: clean models pass; a broken kernel is named with its instruction."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tilewright as tw
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.program.artifact import Artifact, Bundle
from tilewright.runtime.program.artifact_writer import write_artifact
from tilewright.runtime.program.seal import seal, stored_program
from tools.sanitize import main

MODEL = """
func.func @main(%x: tensor<?x24xf32> {tw.dims = ["M", 24]}, %w: tensor<24x12xf32> {tw.dims = [24, 12]})
    -> tensor<?x12xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %x, %c0 : tensor<?x24xf32>
  %empty = tensor.empty(%m) : tensor<?x12xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x12xf32>) -> tensor<?x12xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x24xf32>, tensor<24x12xf32>) outs(%init : tensor<?x12xf32>) -> tensor<?x12xf32>
  return %y : tensor<?x12xf32>
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.mlir"
    path.write_text(MODEL)
    return path


def broken(source: Path, target: Path, piece: str) -> Path:
    """A saved model whose kernels have no instruction that contains `piece`."""
    bundle = next(Artifact(source).bundles("cuda"))
    code: dict[str, Any] = dict(bundle.code())
    program = bundle.program()
    changed = {}
    for digest in {k.object for t in program.tables for k in t.kernels}:
        lines = GpuImage.of(bytes(code.pop(digest))).ptx.decode().split("\n")
        text = "\n".join(x for x in lines if piece not in x).encode()
        changed[digest] = hashlib.sha256(text).hexdigest()
        code[changed[digest]] = text
    tables = [replace(t, kernels=tuple(replace(k, object=changed[k.object]) for k in t.kernels)) for t in program.tables]
    other = replace(program, tables=tuple(tables))
    was, now = (seal("host", stored_program(p)) for p in (program, other))
    host = bytes(code.pop(program.host_object)).replace(was, now)
    other = replace(other, host_object=hashlib.sha256(host).hexdigest())
    write_artifact(target, [Bundle(other, {**code, other.host_object: host}, bundle.constants())])
    return target


def test_a_clean_model_passes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(model), "--dim", "M=1:40", "--arch", "sm_80", "--shapes", "2", "--seeds", "1", "--json"]) == 0
    events = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
    assert [(e["dims"]["M"], e["seed"]) for e in events if e["event"] == "run"] == [(1, None), (1, 0), (40, None), (40, 0)]
    assert events[-1]["findings"] == events[-1]["wrong"] == 0
    assert events[-1]["kernels"]


@pytest.mark.parametrize(("piece", "check"), [("bar.sync", "shared-memory-race"), ("cp.async.wait_group", "shared-memory-race"),
                                              ("st.global", "never-written")])
def test_a_broken_kernel_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], piece: str,
                                  check: str) -> None:
    saved = tmp_path / "model.tw"
    tw.compile(model, {"M": (1, 40)}, target="cuda:sm_80").save(saved)
    assert main([str(saved), "--shapes", "2", "--seeds", "1", "--json"]) == 0
    capsys.readouterr()
    assert main([str(broken(saved, tmp_path / "broken.tw", piece)), "--shapes", "2", "--seeds", "1", "--json"]) == 1
    found = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
    first = next(e for e in found if e["event"] == "finding")
    assert first["check"] == check
    if check == "shared-memory-race":
        assert first["instruction"] and first["thread"] and first["address"] and first["kernel"]


def test_text_names_kernels_and_shapes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(model), "--dim", "M=3", "--arch", "sm_80", "--shapes", "1", "--seeds", "0"]) == 0
    text = capsys.readouterr().out
    assert "gemv{" in text and "M=3" in text and "1 runs of" in text


def test_other_targets_are_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "host.tw"
    tw.compile(model, {"M": (1, 40)}).save(saved)
    assert main([str(saved)]) == 1
    assert "holds code for host" in capsys.readouterr().err
    assert main([str(tmp_path / "none.mlir")]) == 1
    assert main([str(model), "--dim", "nonsense"]) == 1
