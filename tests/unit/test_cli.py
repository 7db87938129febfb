"""The command line's own behaviour: exit codes, messages, options, sampling. Runs that compile are in tests/e2e."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from tilewright.compiler.cli.arguments import load_constants, load_inputs, parse_dims
from tilewright.compiler.cli.main import main
from tilewright.compiler.cli.output import Output
from tilewright.compiler.cli.sampling import check_dims, dims_of, shapes_of
from tilewright.compiler.cli.tune_view import TuneView
from tilewright.compiler.verification.random_inputs import random_inputs
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.program.program import Argument, DimInfo, Program
from tilewright.runtime.shape import Dim, ShapeRange
from tilewright.runtime.tensor import DType
from tilewright.search.search_strategy.outcome import Progress

MODULE = "func.func @f(%a: index) -> index { %c = arith.constant 1 : index  return %a : index }\n"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "f.mlir"
    path.write_text(MODULE)
    return path


def program() -> Program:
    return Program(
        target="host", features="", dims=(DimInfo("B", 1, 8, at=("arg0.0",)), DimInfo("L", 0, 64, at=("arg3",))),
        inputs=(Argument("arg0", DType.F32, ("B", "16")), Argument("arg1", DType.F32, ("16", "64")),
                Argument("arg2", DType.F32, ("64",)), Argument("arg3", DType.I64, None),
                Argument("arg4", DType.I32, ("B",))),
        outputs=(), constants=(), tables=(), calls=(), checks=(), arena="0", host_object="", runtime_object="",
        source="", dispatch_source="")


def test_help_lists_every_command(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("compile", "tune", "run", "explain", "opt", "targets"):
        assert command in shown


def test_version(capsys: Capture) -> None:
    import tilewright

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == tilewright.__version__


@pytest.mark.parametrize("argv", [
    ["nope"], ["opt"], ["opt", "x", "--nope"], ["run", "no-such-file.mlir"], ["opt", "-", "--dim", "T=a:b"],
    ["opt", "-", "--dim", "T=9:1"],
])
def test_wrong_usage_is_2(argv: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(MODULE))
    assert main(argv) == 2
    assert "Usage" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "says"), [
    (["opt", "/no/such/file"], "error: cannot read /no/such/file: No such file"),
    (["opt", "-", "--pass", "nope"], "error: no pass 'nope'; the passes are "),
    (["opt", "-", "--pass", "mlir{"], "error: cannot read 'mlir{'"),
    (["opt", "-", "--pipeline", "nope"], "error: there is no pipeline 'nope'; the pipelines are "),
])
def test_errors_are_1_and_say_why(
    argv: list[str], says: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(MODULE))
    assert main(argv) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(says)
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_text_that_is_not_mlir(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.mlir"
    path.write_text("hello")
    assert main(["opt", str(path)]) == 1
    assert f"error: {path} is not valid MLIR" in capsys.readouterr().err


def test_debug_prints_the_traceback(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["opt", "/no/such/file", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    assert main(["opt", "/no/such/file"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_bad_knob_is_an_error(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "many")
    assert main(["targets"]) == 1
    assert "error: environment variable TILEWRIGHT_DEBUG='many'" in capsys.readouterr().err


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def read(self, size: int | None = -1) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert main(["opt", "-"]) == 130


def test_opt_writes_prints_and_times(model: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.mlir"
    argv = ["opt", str(model), "--pass", "mlir{pipeline=cse}", "--pass", "mlir", "--print-ir-after-all", "--timing"]
    assert main([*argv, "-o", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "arith.constant" not in out.read_text()
    assert captured.err.count("// ----- after mlir") == 2
    assert "ms  total" in captured.err


def test_opt_dumps_by_the_knob(model: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path / "dump"))
    assert main(["opt", str(model), "--pass", "mlir"]) == 0
    assert [p.name for p in (tmp_path / "dump").iterdir()] == ["0001-f-mlir.mlir"]


def test_opt_binds_dims(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "func.func @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> { return %x : tensor<?x4xf32> }"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["opt", "-", "--dim", "T@arg0.0=1:128:2"]) == 0
    shown = capsys.readouterr().out
    assert 'tw.dims = ["T", 4]' in shown
    assert "tw.ranges = {T = [1, 128, 2]}" in shown


def test_targets_as_json(capsys: Capture) -> None:
    assert main(["targets", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[0] == {"event": "target", "name": "host", "runs_here": True}
    assert next(e for e in events if e["event"] == "host")["threads"] >= 1
    assert events[-1]["event"] in ("cuda", "no_cuda")


def test_dims_are_read() -> None:
    read = parse_dims(["T@arg0.1,arg1.0=1:128:8", "arg2.0=0:4", "B=3"])
    assert read.ranges == {"T": Dim(1, 128, 8, at=("arg0.1", "arg1.0")), "arg2.0": Dim(0, 4)}
    assert read.values == {"B": 3}
    assert read.as_ranges()["B"] == Dim(3, 3)


@pytest.mark.parametrize("text", ["T", "T=", "T=1:", "T=1:2:3:4", "=1:2", "T=-1:2", "T@arg0.0=3", "T=5:4", "T=1:8:0"])
def test_bad_dims_are_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_dims([text])


def test_a_dim_given_twice_is_wrong_usage() -> None:
    with pytest.raises(typer.BadParameter, match="twice"):
        parse_dims(["T=1:2", "T=1:3"])


def test_constants_and_inputs_are_read(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "w.npz", arg1=w)
    save_file({"arg1": w}, tmp_path / "w.safetensors")
    np.save(tmp_path / "x.npy", w)
    for name in ("w.npz", "w.safetensors"):
        np.testing.assert_array_equal(load_constants(tmp_path / name)["arg1"], w)
    read = load_inputs([f"arg0={tmp_path / 'x.npy'}", "arg1=3", "arg2=0.5"])
    np.testing.assert_array_equal(read["arg0"], w)
    assert (int(read["arg1"]), float(read["arg2"])) == (3, 0.5)
    for bad in ("x.npy", "arg0=hello"):
        with pytest.raises(typer.BadParameter):
            load_inputs([bad])
    with pytest.raises(typer.BadParameter):
        load_constants(tmp_path / "w.bin")


def test_shapes_hold_the_ends_and_repeat() -> None:
    ranges = ShapeRange.of({"B": Dim(1, 8), "S": Dim(8, 512, 8)})
    shapes = shapes_of(ranges, 20, seed=1)
    assert len(shapes) == 20
    assert len({tuple(s.items()) for s in shapes}) == 20
    assert {"B": 1, "S": 8} in shapes
    assert {"B": 8, "S": 512} in shapes
    assert all(ranges[n].contains(v) for s in shapes for n, v in s.items())
    assert shapes == shapes_of(ranges, 20, seed=1)
    assert shapes != shapes_of(ranges, 20, seed=2)


def test_shapes_of_small_and_static_ranges() -> None:
    assert shapes_of(ShapeRange(()), 20, 0) == [{}]
    assert shapes_of(ShapeRange.of({"T": (0, 0)}), 20, 0) == [{"T": 0}]
    assert sorted(s["T"] for s in shapes_of(ShapeRange.of({"T": (1, 4)}), 20, 0)) == [1, 2, 3, 4]


def test_primes_are_among_the_shapes() -> None:
    values = [s["T"] for s in shapes_of(ShapeRange.of({"T": (1, 128)}), 20, 0)]
    assert sum(v > 10 and all(v % k for k in range(2, v)) for v in values) >= 3


def test_inputs_fit_the_program() -> None:
    dims = {"B": 3, "L": 5}
    arrays = random_inputs(program(), dims, seed=0)
    assert [a.shape for a in arrays] == [(3, 16), (16, 64), (64,), (), (3,)]
    assert [a.dtype.name for a in arrays] == ["float32", "float32", "float32", "int64", "int32"]
    assert int(arrays[3]) == 5
    assert arrays[2].min() >= 0.5
    again = random_inputs(program(), dims, seed=0, given={"arg1": np.zeros((16, 64), np.float32)})
    np.testing.assert_array_equal(arrays[4], again[4])
    assert not again[1].any()
    with pytest.raises(ShapeError, match="no input 'arg9'"):
        random_inputs(program(), dims, seed=0, given={"arg9": np.zeros(1)})


def test_dims_come_from_inputs_and_are_checked() -> None:
    given = {"arg0": np.zeros((3, 16), np.float32), "arg3": np.asarray(7)}
    assert dims_of(program(), given) == {"B": 3, "L": 7}
    assert check_dims(program(), {"L": 7, "B": 3}) == {"B": 3, "L": 7}
    with pytest.raises(ShapeError, match="dim L has no value: give --dim L=VALUE"):
        check_dims(program(), {"B": 3})
    with pytest.raises(ShapeError, match="no dim 'T'"):
        check_dims(program(), {"B": 3, "L": 1, "T": 1})
    with pytest.raises(ShapeError, match="B = 9 is outside"):
        check_dims(program(), {"B": 9, "L": 1})


def test_an_interrupt_that_was_dropped_is_raised_at_the_next_step() -> None:
    state = Progress("dense", "searching", 1, 1, 0, 1e-3, 0.1, 0.1, None)
    before = signal.getsignal(signal.SIGINT)
    with TuneView(Output(True)) as view:
        view.update(state)
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            view.update(state)
    assert signal.getsignal(signal.SIGINT) is before
