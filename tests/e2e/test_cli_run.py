"""The commands that compile: compile, run, explain, on a model small enough to build in seconds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.cli.main import main

# relu(x @ w): one dim, one operator.
MODEL = """
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<?x8xf32>, %w: tensor<8x16xf32>) -> tensor<?x16xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x8xf32>
  %e = tensor.empty(%n) : tensor<?x16xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x16xf32>) -> tensor<?x16xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x8xf32>, tensor<8x16xf32>) outs(%f : tensor<?x16xf32>) -> tensor<?x16xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<?x16xf32>) outs(%e : tensor<?x16xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.maximumf %a, %zero : f32
    linalg.yield %m : f32
  } -> tensor<?x16xf32>
  return %r : tensor<?x16xf32>
}
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.mlir"
    path.write_text(MODEL)
    return path


def events(capsys: Capture) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_run_checks_many_shapes(model: Path, capsys: Capture) -> None:
    assert main(["run", str(model), "--dim", "T@arg0.0=1:64", "--check", "--shapes", "6", "--json"]) == 0
    found = events(capsys)
    runs = [e for e in found if e["event"] == "run"]
    assert [e["dims"]["T"] for e in runs][:2] == [1, 64]
    assert all(e["ok"] and 0 < e["norm_error"] <= 2e-5 for e in runs)
    assert found[-1] == {"event": "checked", "shapes": 6, "wrong": 0}


def test_run_prints_a_table(model: Path, capsys: Capture) -> None:
    assert main(["run", str(model), "--dim", "T@arg0.0=1:64", "--dim", "T=5", "--check"]) == 0
    shown = capsys.readouterr().out
    assert "5x16" in shown
    assert "1 shape checked, 0 wrong" in shown


def test_compile_then_run_and_explain(model: Path, tmp_path: Path, capsys: Capture) -> None:
    saved, results = tmp_path / "model.tw", tmp_path / "out.npz"
    assert main(["compile", str(model), "--dim", "T@arg0.0=1:64", "-o", str(saved), "--json"]) == 0
    found = events(capsys)
    assert found[0] == {"event": "dim", "name": "T", "lo": 1, "hi": 64, "multiple_of": 1, "at": ["arg0.0"]}
    assert found[-1]["event"] == "saved"
    assert found[-1]["bytes"] == saved.stat().st_size

    x, w = np.eye(3, 8, dtype=np.float32), np.arange(128, dtype=np.float32).reshape(8, 16) - 20
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "w.npy", w)
    given = ["--input", f"arg0={tmp_path / 'x.npy'}", "--input", f"arg1={tmp_path / 'w.npy'}"]
    assert main(["run", str(saved), *given, "-o", str(results), "--check"]) == 0
    with np.load(results) as arrays:
        np.testing.assert_array_equal(arrays["out0"], np.maximum(w[:3], 0))

    capsys.readouterr()
    assert main(["explain", str(saved), "--dim", "T=57", "--json"]) == 0
    kinds = [e["event"] for e in events(capsys)]
    assert "call" in kinds
    assert kinds[-1] == "memory"
    assert main(["explain", str(saved), "--dispatch"]) == 0
    assert main(["explain", str(saved), "--source"]) == 0
    assert "linalg.matmul" in capsys.readouterr().out
    assert main(["explain", str(saved), "--partition", "--json"]) == 0
    found = events(capsys)
    ways = {e["asked"]: e for e in found if e["event"] == "partition"}
    assert list(ways) == ["alone", "greedy", "gain", "cost"] and ways["alone"]["launches"] > ways["cost"]["launches"] == 1
    areas = [e for e in found if e["event"] == "area"]
    assert [(a["name"], a["kind"]) for a in areas] == [("matmul_max", "contraction")] and len(areas[0]["seconds"]) == 3
    assert main(["explain", str(saved), "--partition"]) == 0
    assert "matmul_max" in capsys.readouterr().out


def test_constants_are_bound(model: Path, tmp_path: Path, capsys: Capture) -> None:
    np.savez(tmp_path / "w.npz", arg1=np.ones((8, 16), np.float32))
    bind = ["--constants", str(tmp_path / "w.npz")]
    assert main(["run", str(model), "--dim", "T@arg0.0=1:64", "--dim", "T=3", *bind, "--check", "--seed", "4"]) == 0
    assert "0 wrong" in capsys.readouterr().out


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_lower_precision_is_checked_within_its_rounding(precision: str, model: Path, tmp_path: Path, capsys: Capture) -> None:
    saved = tmp_path / "model.tw"
    assert main(["compile", str(model), "--dim", "T@arg0.0=1:64", "--precision", precision, "-o", str(saved)]) == 0
    assert main(["run", str(saved), "--shapes", "4", "--check", "--json"]) == 0
    out = capsys.readouterr().out
    assert max(float(e) for e in re.findall(r'"norm_error": ([^,]*)', out)) > 2e-5


def test_a_wrong_result_exits_with_1(model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.compiler.cli import run

    monkeypatch.setattr(run, "tolerance_of", lambda dtypes: run.Tolerance(0.0, 0.0))
    assert main(["run", str(model), "--dim", "T@arg0.0=1:64", "--dim", "T=64", "--check"]) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(("argv", "code", "says"), [
    (["--dim", "T@arg0.0=1:64"], 1, "dim T has no value"),
    (["--dim", "T@arg0.0=1:64", "--dim", "T=65"], 1, "T = 65 is outside its range 1..64"),
    (["--dim", "T@arg0.0=1:64", "--dim", "T=3", "--input", "arg7=1"], 1, "no input 'arg7'"),
    (["--dim", "T@arg0.0=1:64", "--shapes", "3", "--dim", "T=3"], 2, "--shapes picks"),
    (["--dim", "T@arg0.0=1:64", "--dim", "T=3", "--target", "mars"], 1, "target 'mars': wanted one of host"),
    ([], 1, "arg0.0"),
])
def test_run_says_what_is_wrong(argv: list[str], code: int, says: str, model: Path, capsys: Capture) -> None:
    assert main(["run", str(model), *argv]) == code
    assert says in capsys.readouterr().err


def test_artifact_takes_no_ranges(model: Path, tmp_path: Path, capsys: Capture) -> None:
    saved = tmp_path / "model.tw"
    saved.write_bytes(b"nonsense")
    assert main(["run", str(saved), "--dim", "T=1:4"]) == 2
    assert main(["run", str(saved), "--dim", "T=4"]) == 1
    assert "not a Tilewright model" in capsys.readouterr().err


def test_dumps_hold_graph_and_kernels(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path / "dump"))
    assert main(["run", str(model), "--dim", "T@arg0.0=1:64", "--dim", "T=3"]) == 0
    assert sorted((tmp_path / "dump").glob("0001-main-*.mlir"))
    assert any("llvm.func" in p.read_text() for p in (tmp_path / "dump").glob("*/*.mlir"))


def test_compile_prints_ir(model: Path, tmp_path: Path, capsys: Capture) -> None:
    argv = ["compile", str(model), "--dim", "T@arg0.0=1:64", "-o", str(tmp_path / "m.tw"), "--print-ir-after-all"]
    assert main(argv) == 0
    assert "// ----- after " in capsys.readouterr().err


def test_an_exported_program_brings_its_dims_inputs_and_weights(tmp_path: Path, capsys: Capture) -> None:
    torch = pytest.importorskip("torch")

    class Embedded(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 4)

        def forward(self, ids: Any, cache: Any) -> Any:
            return {"y": self.linear(self.table(ids)) + cache[0], "kept": (cache[1] * 2,)}

    batch = torch.export.Dim("batch", min=1, max=16)
    inputs = (torch.zeros(2, 3, dtype=torch.int64), (torch.randn(2, 3, 4), torch.randn(2, 4)))
    exported = torch.export.export(Embedded().eval(), inputs, dynamic_shapes=({0: batch}, ({0: batch}, {0: batch})))
    model, saved = tmp_path / "model.pt2", tmp_path / "model.tw"
    torch.export.save(exported, model)
    assert main(["compile", str(model), "-o", str(saved), "--json"]) == 0
    (dim,) = [e for e in events(capsys) if e["event"] == "dim"]
    assert (dim["lo"], dim["hi"]) == (1, 16)
    argv = ["run", str(saved), "--dim", f"{dim['name']}=5", "--input", "ids=random:0:49", "--check", "--json"]
    assert main(argv) == 1
    assert "give --constants" in events(capsys)[-1]["message"]
    assert main([*argv, "--constants", str(model)]) == 0
    found = events(capsys)
    assert [e["shape"] for e in found[:2]] == [[5, 3, 4], [5, 4]] and all(e["ok"] for e in found[:2])
    assert main(["opt", str(model)]) == 0
    assert "func.func @main" in capsys.readouterr().out


def test_run_tells_null_for_what_it_did_not_compare(model: Path, capsys: Capture) -> None:
    assert main(["run", str(model), "--dim", "T@arg0.0=1:64", "--dim", "T=3", "--json"]) == 0
    run = next(e for e in events(capsys) if e["event"] == "run")
    assert run["norm_error"] is run["max_error"] is run["ok"] is run["nonfinite_match"] is None and run["seconds"] > 0


def test_explain_compiles_a_model_first_and_tells_null_for_what_was_not_measured(model: Path, capsys: Capture) -> None:
    assert main(["explain", str(model), "--dim", "T@arg0.0=1:64", "--dim", "T=5", "--json"]) == 0
    found = events(capsys)
    call = next(e for e in found if e["event"] == "call")
    assert found[0]["event"] == "compiled" and call["predicted"] is call["measured"] is None
