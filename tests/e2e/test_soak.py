"""Two minutes of the soak, as its command line runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_two_minutes_without_a_finding(tmp_path: Path) -> None:
    """A caller, a compiler and a loader under all faults. The limit of a hang is wide: other tests run beside."""
    command = [sys.executable, "-m", "tools.soak", "--minutes", "2", "--seed", "0", "--actors", "caller,compiler,loader",
               "--hang", "240", "--pace", "1", "--folder", str(tmp_path / "run"), "--json", str(tmp_path / "soak.json")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    counts = json.loads((tmp_path / "soak.json").read_text())
    assert not counts["findings"], ended.stdout
    assert ended.returncode == 0 and counts["seconds"] >= 120
    done = {row["what"] for row in counts["outcomes"] if row["count"]}
    assert done & {"call", "compile"}  # on a busy machine not all come to it
    assert counts["totals"]["right"] > 0 and counts["totals"]["typed"] > 0 and len(counts["faults"]) >= 3
