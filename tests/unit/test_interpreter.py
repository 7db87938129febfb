"""Interpreters that cannot run compiled models say so in one line."""

from __future__ import annotations

import sys

import pytest

import tilewright as tw
from tilewright.distribution import import_part
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interpreter import check_interpreter

IN_IT = """
import sys
sys.path[:] = {path}
import tilewright as tw
try:
    tw.{name}
except BaseException as error:
    said = f"{{type(error).__name__}}: {{error}}"
else:
    said = "taken"
with open({file!r}, "w") as file:
    file.write(said)
"""


@pytest.mark.parametrize("name", ["load", "compile", "ops"])
def test_a_subinterpreter_is_refused(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    file = tmp_path_factory.mktemp("said") / "it"
    code = IN_IT.format(path=sys.path, name=name, file=str(file))
    if sys.version_info >= (3, 13):
        import _interpreters

        number = _interpreters.create()
        _interpreters.exec(number, code)
        _interpreters.destroy(number)
    else:
        import _xxsubinterpreters

        number = _xxsubinterpreters.create()
        _xxsubinterpreters.run_string(number, code)
        _xxsubinterpreters.destroy(number)
    assert file.read_text().startswith("DeviceError: Tilewright runs in the main interpreter of a process, and ")
    assert callable(tw.load)


def test_python_without_its_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(DeviceError, match=r"needs Python's global interpreter lock, .* start it with PYTHON_GIL=1"):
        import_part("runtime.load.function", "tilewright.load")
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    check_interpreter()
