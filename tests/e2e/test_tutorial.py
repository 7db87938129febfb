"""The tutorial's blocks run as they stand, in order; the one for another process in one that has no PyTorch and no compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"```python( title=\"another process\")?\n(.*?)```", re.DOTALL)
ALONE = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "torch_mlir", "llvmlite", "scipy") or name == "tilewright.compiler":
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refused())
"""


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    import torch

    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "tutorial"}
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) >= 8
    for alone, code in blocks:
        if alone:
            known = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run([sys.executable, "-c", ALONE + code], capture_output=True, text=True, check=False, env=known)
            assert done.returncode == 0, done.stderr
        else:
            exec(compile(code, "docs/tutorial.md", "exec"), names)
