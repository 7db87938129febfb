"""Each example runs at its small size, and checks itself against PyTorch."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import tilewright as tw

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [p for p in sorted((ROOT / "examples").glob("*.py")) if p.stem != "comparison"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_example(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, which has PyTorch already: starting one for each takes longer than the examples do."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn" if example.stem == "pooled_digits" else "transformers")
    saved = tmp_path / "model.tw"
    monkeypatch.setattr(sys, "argv", [str(example), "--size", "small", "--save", str(saved)])
    monkeypatch.syspath_prepend(str(example.parent))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    assert "error" in capsys.readouterr().out and tw.load(saved).dims
