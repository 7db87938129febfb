"""tools.bench.grouped at a small size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.bench import grouped

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("built_here")
SMALL = ["--groups", "3", "--inner", "8", "--columns", "16", "--types", "f32", "--rounds", "1"]


def test_records_and_right_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    assert grouped.main([*SMALL, "--tokens", "1,5", "--json", str(out)]) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [r["tokens"] for r in records] == [1, 5]
    assert all(r["error"] < 1e-5 and set(r["ratios"]) == {"loop", "grouped_mm"} for r in records)
    assert "over the best" in capsys.readouterr().out


def test_more_groups_a_token_than_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        grouped.main([*SMALL, "--top", "4"])
    assert "--top is from 1 to the number of groups" in capsys.readouterr().err
