"""Dumps, prints, times and reproducers of a pass pipeline."""

from __future__ import annotations

import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from tilewright.compiler.cli.main import main
from tilewright.passes.base import Mlir, Pass, PassPipeline
from tilewright.passes.mlir import ir, operations
from tilewright.passes.pipeline.instruments import Dump, PassTiming, PrintAfterAll, Reproducer, chain, standard
from tilewright.runtime.errors import PassError

MODULE = "func.func @f(%a: index) -> index { %c = arith.constant 1 : index  return %a : index }"


@dataclass(frozen=True)
class Spoil(Pass):
    """Erases the function, then fails: the reproducer must show the module as it was before."""

    name: ClassVar[str] = "spoil"

    def run(self, module: ir.Module) -> None:
        operations(module.body)[0].erase()
        raise ValueError("spoilt")


@pytest.fixture
def module() -> ir.Module:
    with ir.Context():
        return ir.Module.parse(MODULE)


def test_dump_numbers_the_files(module: ir.Module, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    PassPipeline([Mlir("cse"), Mlir("canonicalize")], Dump(folder)).run(module)
    assert [p.name for p in sorted(folder.iterdir())] == ["0001-f-mlir.mlir", "0002-f-mlir.mlir"]
    assert (folder / "0002-f-mlir.mlir").read_text().startswith("// after mlir{pipeline=canonicalize}\nmodule {")


def test_print_after_all(module: ir.Module) -> None:
    stream = io.StringIO()
    PassPipeline([Mlir("cse")], PrintAfterAll(stream)).run(module)
    assert re.search(r"----- after mlir\{pipeline=cse\} -----\nmodule \{", stream.getvalue())


def test_timing_reports_slowest_first(module: ir.Module) -> None:
    ticks = iter([0.0, 0.5, 1.0, 3.0])
    timing = PassTiming(clock=lambda: next(ticks))
    PassPipeline([Mlir("cse"), Mlir("canonicalize")], timing).run(module)
    assert timing.seconds == [("mlir{pipeline=cse}", 0.5), ("mlir{pipeline=canonicalize}", 2.0)]
    assert timing.report().splitlines()[0].split() == ["2000.00", "ms", "mlir{pipeline=canonicalize}"]


def test_reproducer_holds_the_module_before(module: ir.Module, tmp_path: Path) -> None:
    with pytest.raises(PassError, match="pass spoil failed: spoilt") as caught:
        PassPipeline([Mlir("cse"), Spoil()], Reproducer(tmp_path)).run(module)
    path = next(tmp_path.glob("reproduce-spoil-*.mlir"))
    assert str(caught.value).endswith(f"reproduce with: tilewright opt {path} --pass spoil")
    assert "func.func @f" in path.read_text()


def test_reproducer_command_fails_alike(module: ir.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PassError) as caught:
        PassPipeline([Mlir("no-such-pass")], Reproducer(tmp_path)).run(module)
    command = str(caught.value).rsplit("reproduce with: tilewright ", 1)[1]
    assert main(shlex.split(command)) == 1
    assert "'no-such-pass' does not refer to a registered pass" in capsys.readouterr().err


def test_reproducer_that_cannot_be_written_keeps_the_error(module: ir.Module, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PassError, match=r"spoilt\nthe module is not kept: cannot write .*reproduce-spoil"):
        PassPipeline([Spoil()], Reproducer(tmp_path / "file" / "folder")).run(module)


def test_nested_failure_is_reported_once(module: ir.Module, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Outer(Pass):
        name: ClassVar[str] = "outer"

        def run(self, module: ir.Module) -> None:
            PassPipeline([Spoil()], Reproducer(tmp_path)).run(module)

    with pytest.raises(PassError) as caught:
        PassPipeline([Outer()], standard(dump=tmp_path)).run(module)
    assert str(caught.value).count("reproduce with: ") == 1
    assert "--pass spoil" in str(caught.value)


def test_chain_calls_each(module: ir.Module) -> None:
    seen: list[str] = []
    both = chain(lambda e, m, p: seen.append(f"a {e}"), None, lambda e, m, p: seen.append(f"b {e}"))
    PassPipeline([Mlir("cse")], both).run(module)
    assert seen == ["a before", "b before", "a after", "b after"]
