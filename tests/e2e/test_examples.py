"""Each example runs at its small size, and checks itself against PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [p for p in sorted((ROOT / "examples").glob("*.py")) if p.stem != "comparison"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    saved = tmp_path / "model.tw"
    command = [sys.executable, str(example), "--size", "small", "--save", str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" in done.stdout and tw.load(saved).dims
