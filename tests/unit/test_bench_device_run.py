"""What the commands for one GPU share: records reach their file as they come, no record tells a path of the machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.bench.gpu.device_run import Records, build_or_run


def test_records_are_written_as_they_come_and_keep_what_a_file_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text('{"record": "earlier"}\n')
    records = Records(file)
    for n in range(2):
        records.add({"record": "case", "n": n})
        assert [json.loads(line) for line in file.read_text().splitlines()][1:] == records
    assert len(records) == 2 and capsys.readouterr().out.count("\n") == 2


def test_a_run_tells_its_device_and_no_path_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.cuda.cuda_device.properties_of", lambda n: f"device {n}")
    monkeypatch.setattr(sys, "argv", ["bench", "gpu", "--artifacts", str(tmp_path / "made"), "--filter", "dense_*"])
    records = Records(None)
    records.begin(SimpleNamespace(__version__="2"), driver=7)
    assert records[0]["device"] == "device 0" and records[0]["driver"] == 7 and records[0]["torch"] == "2"
    assert records[0]["command"] == ["gpu", "--artifacts", "made", "--filter", "dense_*"]


def test_a_folder_builds_and_none_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "artifacts"
    assert build_or_run(folder, lambda at: [at / "a.tw"] if at.is_dir() else [], lambda: "summary") == 0
    assert capsys.readouterr().out == f"{folder / 'a.tw'}\n"
    assert build_or_run(None, lambda at: [at / "a.tw"], lambda: "summary") == 0
    assert capsys.readouterr().out == "summary\n"
