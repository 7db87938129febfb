"""The README's example runs as it stands, and its commands name what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    exec(compile(code[1], "README.md", "exec"), {})
    assert "length=57" in capsys.readouterr().out


def test_commands_name_what_exists() -> None:
    from tilewright.compiler.cli.main import application

    known = {c.name for c in application().registered_commands}
    assert set(re.findall(r"tilewright (\w+) \S+\.(?:mlir|tw)", README)) <= known
    for path in re.findall(r"(?:tests|examples)/\S+?\.mlir", README):
        assert (ROOT / path).is_file()
