"""tools.guards: a saved model between pages that nobody may touch, and what it says of one that leaves them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.target import Target
from tools import guards
from tools.checkout import ROOT


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    g = ops.Graph()
    x, w = g.input("x", ["M", 12]), g.input("w", [12, 20])
    g.output(ops.softmax(ops.matmul(x, w)))
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    weights = np.linspace(-1, 1, 240, dtype=np.float32).reshape(12, 20)
    path = tmp_path_factory.mktemp("guards") / "model.tw"
    tw.compile(g, {"M": (1, 40)}, constants={"w": weights}, options=options).save(path)
    return path


def test_a_sound_model_runs(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert guards.main([str(saved), "--shapes", "4"]) == 0
    assert "4 shapes between guard pages, 0 wrong" in capfd.readouterr().out


SHORT = """
import sys
from pathlib import Path
from tools import guards
from tools.forge.guarded import GuardedMemory
whole = GuardedMemory.array
GuardedMemory.array = lambda memory, like, at_end: whole(memory, like[:1] if like.ndim == 2 else like, True)
guards.run_model(Path(sys.argv[1]), 4, 0)
"""


def test_a_read_beyond_the_first_row_ends_the_process(saved: Path) -> None:
    """Inputs of one row where the shape has more."""
    done = subprocess.run([sys.executable, "-c", SHORT, str(saved)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGSEGV, done.stdout + done.stderr
