"""Messages in the words of Python and of the command line."""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path

import pytest

from tilewright.runtime.errors import IngestError, OptionError
from tilewright.runtime.wording import Wording, choices, command_text, option, option_name, ranges_to_paste

HOME = Path(__file__).parents[2] / "tilewright"
ATTRIBUTES = "dims|name|ranges|unit|constant|zeros|region|key|kind|pack|panel|copy|kernel|share|axes|block|config"
ATTRIBUTES += "|frontends|ops"  # operators are added in Python alone
PYTHON = re.compile(rf"\btw\.(?!{ATTRIBUTES})\w|dynamic_dims|CompileOptions"
                    r"|\b(constants|function|out_of_range|seconds|max_kernels)=")
ROOMS = ("compiler/dims", "compiler/constants", "compiler/compilation", "compiler/frontends", "compiler/tuning", "search",
         "passes", "runtime/shape.py")


def test_options_in_both_wordings() -> None:
    for said, python, command in (
        (option("max_kernels", 4), "max_kernels=4", "--max-kernels 4"),
        (option("precision", "f8"), "precision='f8'", "--precision f8"),
        (option("winograd", False), "winograd=False", "--no-winograd"),
        (option("prior", True), "prior=True", "--prior"),
        (option("constants"), "constants=", "--constants"),
        (option_name("max_kernels"), "max_kernels", "--max-kernels"),
        (choices(["ucb", "ansor"]), "'ucb', 'ansor'", "ucb, ansor"),
        (ranges_to_paste([("T", 1, 128), ("x.0", 2, 4)]), 'dynamic_dims={"T": tw.Dim(1, 128), "x.0": tw.Dim(2, 4)}',
         "--dim T=1:128 --dim x.0=2:4"),
    ):
        assert (str(said), command_text(said)) == (python, command)


def test_text_is_added_on_both_sides_and_an_error_keeps_both() -> None:
    said = "it is " + option("threads", 0) + ", " + option("seed", 1) + ": no"
    error = OptionError(said)
    assert str(error) == "it is threads=0, seed=1: no" and command_text(error) == "it is --threads 0, --seed 1: no"
    assert command_text(copy.deepcopy(error)) == command_text(error)
    assert command_text(IngestError("plain")) == "plain" and command_text(OSError(2, "gone")) == "[Errno 2] gone"


def _said_in_python(path: Path) -> list[str]:
    """Texts of errors outside a Wording that tell what to write in Python."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Raise) or node.exc is None:
            continue
        skipped = {id(inner) for call in ast.walk(node.exc) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                   and call.func.id in ("Wording", "option") for inner in ast.walk(call)}
        texts = [n for n in ast.walk(node.exc) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        found += [f"{path.relative_to(HOME)}:{n.lineno}: {n.value}" for n in texts
                  if id(n) not in skipped and PYTHON.search(n.value) and not n.value.startswith(TYPES)]
    return found


# Raised where only Python comes through: an argument is an object of another type.
OBJECTS = ("frontends/import_model.py",)
TYPES = ("target: wanted a text", "dynamic_dims: wanted a dict", "dynamic_dims: wanted the name", "options: wanted tw.",
         ": wanted tw.Farm(")


@pytest.mark.parametrize("room", ROOMS)
def test_errors_that_the_command_line_shows_speak_of_its_options(room: str) -> None:
    """What to write is said by a Wording (runtime/wording.py), which has it in both forms."""
    paths = [HOME / room] if room.endswith(".py") else sorted((HOME / room).rglob("*.py"))
    assert paths
    assert [said for p in paths if not str(p).endswith(OBJECTS) for said in _said_in_python(p)] == []


def test_a_text_in_python_alone_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "HOME", tmp_path)
    path = tmp_path / "bad.py"
    path.write_text('raise E(f"{x}: pass dynamic_dims")\nraise E(Wording("tw.Dim(1, 2)", "--dim") + ", tw.dims = 3")\n')
    assert _said_in_python(path) == ["bad.py:1: : pass dynamic_dims"]
    assert Wording("a", "b").command == "b"
