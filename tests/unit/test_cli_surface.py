"""What the command line shows: options declared once, JSON, narrow terminals, advice, files that are no models, completion."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console

from tilewright.compiler.cli.arguments import load_constants, load_inputs
from tilewright.compiler.cli.compile_arguments import CompileArguments, TuneArguments
from tilewright.compiler.cli.layout import Column, Facts, FittedTable
from tilewright.compiler.cli.main import main
from tilewright.compiler.cli.output import Output
from tilewright.compiler.cli.sampling import dims_of
from tilewright.compiler.cli.tuning_summary import Gain, advise, certify, gain_of, tell_gain
from tilewright.compiler.verification.random_inputs import RandomValues, random_inputs
from tilewright.runtime.errors import IngestError
from tilewright.runtime.program.certificate import Certificate, Expected
from tilewright.runtime.program.dispatch import DispatchTable, Leaf
from tilewright.runtime.program.program import Argument, Call, DimInfo, Program
from tilewright.runtime.tensor import DType

HOME = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]


def program(certificates: tuple[Certificate, ...] = ()) -> Program:
    tables = (DispatchTable("key0", "dense", ("d0",), (), Leaf(0)), DispatchTable("key1", "softmax", ("d0",), (), Leaf(0)))
    return Program(
        target="host", features="", dims=(DimInfo("B", 1, 8, at=("ids.0",)),),
        inputs=(Argument("ids", DType.I64, ("B", "4")), Argument("x", DType.F32, ("B",))), outputs=(), constants=(),
        tables=tables, calls=(Call(0, ("B",)), Call(0, ("B",)), Call(1, ("B",))), checks=(), arena="0", host_object="",
        runtime_object="", source="", dispatch_source="", certificates=certificates)


def certificate(key: str, default: float, predicted: float, held_out: bool = True) -> Certificate:
    expected = (Expected((1,), predicted, 0.0, predicted, default),) if predicted else ()
    shapes = ({"d0": 3},) if held_out else ()
    return Certificate(key, "here", 0.01, 0.02, 0.0, 0.1, 0.9, 0.3, 1, 3, shapes, (0.02,), 2, 7, 50, 0.0, expected)


def test_tune_has_every_option_of_compile() -> None:
    assert [f.name for f in fields(TuneArguments)] == [f.name for f in fields(CompileArguments)]


@pytest.mark.parametrize("command", ["compile", "tune"])
def test_options_reach_the_compiler(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = tmp_path / "f.mlir", {}
    model.write_text("module {}")

    def compile_model(file: Path, dims: object, **named: object) -> None:
        seen.update(named, file=file, dims=dims)
        raise IngestError("enough")

    monkeypatch.setattr("tilewright.compiler.api.compile", compile_model)
    argv = ["--precision", "bf16", "--deterministic", "batch", "--no-winograd", "--out-of-range", "fallback", "--seed", "3",
            "--trials", "5", "--max-regret", "0.1", "--max-kernels", "2", "--policy", "ansor", "--no-prior", "--threads", "2",
            "--donate", "x", "--dim", "T=1:8", "--function", "g", "--log", str(tmp_path / "l.jsonl"), "--print-ir-after-all"]
    assert main([command, str(model), *argv]) == 1
    o = seen["options"]
    assert (o.precision.value, o.deterministic.value, o.winograd, o.out_of_range.value, o.seed, o.trials) == (
        "bf16", "batch", False, "fallback", 3, 5)
    assert (o.max_regret, o.max_kernels, o.policy, o.prior, o.threads, o.seconds) == (0.1, 2, "ansor", False, 2, None)
    assert seen["donate"] == ("x",) and seen["function"] == "g" and list(seen["dims"]) == ["T"] and o.callback is not None


def test_errors_speak_of_options_and_are_events_too(tmp_path: Path, capsys: Capture) -> None:
    model = tmp_path / "f.mlir"
    model.write_text("module {}")
    assert main(["compile", str(model), "--max-kernels", "0", "--json"]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("error: --max-kernels 0: wanted an integer >= 1")
    assert json.loads(told.out) == {"event": "error", "kind": "OptionError", "message": told.err[len("error: "):-1]}


def test_what_is_no_number_is_null(capsys: Capture) -> None:
    Output(True).event("figures", a=float("nan"), b=[1.0, float("inf")], c={"d": -float("inf")}, e=0.5)
    assert json.loads(capsys.readouterr().out) == {"event": "figures", "a": None, "b": [1.0, None], "c": {"d": None}, "e": 0.5}


def test_certificates_tell_only_what_was_measured(capsys: Capture) -> None:
    certify(Output(True), program((certificate("key0", 2.0, 1.0, held_out=False), certificate("key1", 0.0, 0.0, held_out=False))))
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["measured_mean"] is first["measured_worst"] is first["confidence"] is None and first["predicted_worst"] == 0.1
    assert second["predicted_mean"] is second["predicted_worst"] is None


def test_the_gain_counts_calls_and_what_gains_nothing_gets_advice(capsys: Capture) -> None:
    gained = gain_of(program((certificate("key0", 2.0, 1.0), certificate("key1", 1.0, 1.0))))
    assert gained == Gain(2, 2, 14, (2 * 2.0 + 1.0) / (2 * 1.0 + 1.0))
    tell_gain(Output(False), gained, 60.0)
    assert "1.67x as fast as untuned" in capsys.readouterr().out
    nothing = gain_of(program((certificate("key0", 1.0, 1.0),)))
    tell_gain(Output(False), nothing, 15.0)
    told = capsys.readouterr().out
    assert "nothing was gained" in told and "7 measurements of 1 of 2 operators" in told and "100% of the time" in told
    assert "try: --seconds 60 with the same --log" in told and "1 operators were not measured" in told and "--dim" in told
    tell_gain(Output(True), replace(nothing, faster=None), None)
    event = json.loads(capsys.readouterr().out)
    assert event["faster"] is None and event["advice"] and "--trials" in " ".join(event["advice"])


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (5.0, 1.0, 1.0))
    assert any("quiet machine: its load is 5.0 on 2 cores" in line for line in advise(Gain(1, 1, 3, 1.0), 60.0))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 1.0, 1.0))
    assert not any("quiet" in line for line in advise(Gain(1, 1, 3, 1.0), 60.0))


def lines(shown: object, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text().splitlines()


def test_columns_of_high_rank_go_first_and_labels_last() -> None:
    table = FittedTable((Column("operator"), Column("time", True, 2), Column("latency", True, 1)),
                        [("contraction_mul_softmax_contraction", "1.0 s", "2.000 ms")])
    assert "time" in lines(table, 60)[0] and "latency" in lines(table, 60)[0]
    assert "time" in lines(table, 45)[0] and lines(table, 45)[1].startswith("contraction_mu…x_contraction ")
    assert "time" not in lines(table, 30)[0] and lines(table, 30)[1].startswith("contractio…")
    assert lines(FittedTable(table.columns, []), 60) == []


@pytest.mark.parametrize("width", [20, 50, 100])
def test_facts_are_a_table_or_records(width: int) -> None:
    facts = Facts("Operators", ("operator", "calls", "configurations"),
                  [["contraction_mul_softmax", "2", "host_matmul{mr=1 nv=48}\ngeneric"]], [False, True, False])
    shown = lines(facts, width)
    assert all(len(line) <= width for line in shown)
    assert ("│" in "".join(shown)) == (width == 100)
    if width == 50:
        assert shown[:4] == ["Operators", "contraction_mul_softmax", "  calls: 2", "  configurations: host_matmul{mr=1 nv=48}"]


@pytest.mark.parametrize(("name", "data", "says"), [
    ("m.tw", b"", "open it with `tilewright run` or"), ("m.pth", b"", "or bind them with --constants"),
    ("m.npz", b"", "the .pt2 file of the torch.nn.Module"), ("m.mlir", b"\xff\xfe\0", "other binary content"),
    ("m.mlir", b"", "is empty"),
])
@pytest.mark.parametrize("command", ["compile", "explain"])
def test_files_that_are_no_models(command: str, name: str, data: bytes, says: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    if (command, name) != ("explain", "m.tw"):
        assert main([command, str(path)]) == 1
        assert says in capsys.readouterr().err


def test_text_that_is_not_utf_8(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.mlir"
    path.write_bytes(b"module {} // na\xefve")
    assert main(["opt", str(path)]) == 1
    assert "byte 15 is no text in UTF-8" in capsys.readouterr().err
    assert main(["compile", str(path)]) == 1
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes()), encoding="utf-8"))
    assert main(["opt", "-"]) == 1
    assert "standard input is no MLIR: byte 15" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["compile"], ["tune", "--seconds", "1"], ["build-kernels"]])
def test_nothing_is_worked_out_for_a_file_that_cannot_be_written(argv: list[str], tmp_path: Path, capsys: Capture) -> None:
    model = tmp_path / "f.mlir"
    model.write_text("module {}")
    assert main([argv[0], str(model), *argv[1:], "-o", str(tmp_path / "no" / "m.tw")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert main([argv[0], str(model), *argv[1:], "-o", str(tmp_path)]) == 1
    assert "is a folder; wanted a file" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "npy"])
def test_damaged_arrays_are_wrong_usage(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(os.urandom(100))
    with pytest.raises(typer.BadParameter, match="damaged"):
        load_inputs([f"x={path}"]) if suffix == "npy" else load_constants(path)


def test_inputs_from_a_range() -> None:
    given = load_inputs(["ids=random:5:9", "x=random:-1:1"])
    assert given == {"ids": RandomValues(5, 9), "x": RandomValues(-1, 1)}
    ids, x = random_inputs(program(), {"B": 8}, 0, given)
    assert ids.dtype == np.int64 and ids.shape == (8, 4) and set(ids.ravel().tolist()) == {5, 6, 7, 8, 9}
    assert x.dtype == np.float32 and -1 <= x.min() < x.max() <= 1
    np.testing.assert_array_equal(ids, random_inputs(program(), {"B": 8}, 0, given)[0])
    assert dims_of(program(), given) == {}
    for bad in ("ids=random:9:5", "ids=random:1", "ids=random:a:b", "ids=random:0:inf", "x=nothing.npy"):
        with pytest.raises(typer.BadParameter):
            load_inputs([bad])
    with pytest.raises(typer.BadParameter, match="twice"):
        load_inputs(["x=1", "x=2"])


def shell(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    return subprocess.run([sys.executable, "-m", "tilewright", *argv], capture_output=True, text=True, check=False,
                          env={**inherited, "PYTHONPATH": str(HOME), **environment})


def test_a_shell_completes_commands_options_and_values() -> None:
    """As bash asks; nothing is looked up elsewhere."""
    def asked(words: str) -> set[str]:
        told = shell(_TILEWRIGHT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1))
        return set(told.stdout.split())

    assert asked("tilewright t") == {"tune", "targets"}
    assert "--max-regret" in asked("tilewright tune --max-")
    assert asked("tilewright compile --precision b") == {"bf16"}
    assert "emulator:sm_90a" in asked("tilewright compile --target emul")
    assert "thompson" in asked("tilewright tune --policy t")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-m", "tilewright", "targets", "--json"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(HOME)})
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 1


@pytest.mark.parametrize("columns", ["20", "50", "120"])
def test_help_fits(columns: str) -> None:
    told = shell("tune", "--help", COLUMNS=columns)
    assert told.returncode == 0 and "--until-regret" in told.stdout
    if columns == "50":
        assert "…" not in told.stdout and max(map(len, told.stdout.splitlines())) <= 50
