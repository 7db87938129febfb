"""Every pass and every configuration refuses an option that it does not have, by name and with those that it has."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tilewright.compiler.cli.main import main
from tilewright.passes.base import Pass
from tilewright.passes.pipeline.pass_registry import PASSES, passes_from_text
from tilewright.passes.spaces.family_registry import family_names, parse_config
from tilewright.runtime.errors import OptionError

MODULE = "func.func @f(%a: index) -> index { return %a : index }"


@pytest.mark.parametrize("kind", PASSES, ids=lambda p: p.name)
def test_an_unknown_option_names_those_that_there_are(kind: type[Pass]) -> None:
    known = [f.name.replace("_", "-") for f in dataclasses.fields(kind)]
    with pytest.raises(OptionError) as caught:
        passes_from_text(f"{kind.name}{{bogus=1}}")
    assert str(caught.value) == f"{kind.name} has no option 'bogus'; its options: {', '.join(known) or 'none'}"


@pytest.mark.parametrize("family", [*family_names(gpu=False), *family_names(gpu=True)])
def test_an_unknown_option_of_a_configuration(family: str) -> None:
    with pytest.raises(OptionError, match=f"{family} has no option 'bogus'; its options: "):
        parse_config(f"{family}{{bogus=1}}")


def test_the_command_line_says_so_and_prints_no_ir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.mlir"
    model.write_text(MODULE)
    assert main(["opt", str(model), "--pass", "fold-transpose{bogus=1}"]) == 1
    out, errors = capsys.readouterr()
    assert not out and "error: fold-transpose has no option 'bogus'; its options: results" in errors
