from __future__ import annotations

from pathlib import Path

import pytest
from search_surfaces import dense

from tilewright.search.database.records import TuningLog, TuningRecord, cells
from tilewright.search.database.workload_form import WorkloadForm


def record(number: int, **changes: object) -> TuningRecord:
    fields: dict[str, object] = {"workload": "w", "name": "op", "family": "host_matmul", "config": f"host_matmul{{mr={number}}}",
                                 "dims": {"d0": number}, "seconds": (1e-3,), "device": "here", "when": float(number)}
    return TuningRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_records_are_in_the_file_as_soon_as_they_are_added(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl")
    for number in range(3):
        log.add(record(number))
        assert len(TuningLog(tmp_path / "log.jsonl")) == number + 1
    assert TuningLog(tmp_path / "log.jsonl").records == log.records


def test_a_corrupted_line_is_reported_with_its_number_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = TuningLog(path)
    for number in range(3):
        log.add(record(number))
    lines = path.read_bytes().split(b"\n")
    lines[1] = b'{"record": "measurement", "workload": 7'
    lines.insert(2, b"\xff\xfe not json")
    lines.insert(3, b'{"record":"measurement","schema":99,"workload":"w","name":"","family":"","config":"","dims":{}}')
    path.write_bytes(b"\n".join(lines))
    found = TuningLog(path)
    assert [r.dims["d0"] for r in found.records] == [0, 2]
    assert [s.line for s in found.skipped] == [2, 3, 4]
    assert f"{path}:2: " in str(found.skipped[0])
    assert "schema 99" in found.skipped[2].reason


def test_a_log_cut_within_a_line_goes_on_on_a_new_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = TuningLog(path)
    log.add(record(1))
    log.add(record(2))
    path.write_bytes(path.read_bytes()[:-20])
    again = TuningLog(path)
    assert len(again) == 1 and len(again.skipped) == 1
    again.add(record(3))
    final = TuningLog(path)
    assert [r.dims["d0"] for r in final.records] == [1, 3]
    assert [s.line for s in final.skipped] == [2]


def test_merge_takes_what_is_new_once(tmp_path: Path) -> None:
    first, second = TuningLog(tmp_path / "a.jsonl"), TuningLog(tmp_path / "b.jsonl")
    first.add(record(1))
    second.add(record(1))
    second.add(record(2))
    second.describe(dense())
    assert first.merge([tmp_path / "b.jsonl"]) == 1
    assert first.merge([tmp_path / "b.jsonl"]) == 0
    found = TuningLog(tmp_path / "a.jsonl")
    assert [r.dims["d0"] for r in found.records] == [1, 2]
    assert found.workloads[dense().key].workload() == dense()


def test_a_workload_survives_its_form() -> None:
    assert WorkloadForm.of(dense()).workload() == dense()


@pytest.mark.parametrize("seconds", [(1.0, 2.0, 3.0, 4.0), (1.0, 2.0)])
def test_the_estimate_is_the_lower_quartile(seconds: tuple[float, ...]) -> None:
    assert record(1, seconds=seconds).time == seconds[len(seconds) // 4]
    assert record(1, seconds=(), error="crash").time == float("inf")


def test_what_was_measured_often_is_one_cell() -> None:
    good = [record(1, seconds=(1.0, 1.1)), record(2, seconds=(5.0,)), record(1, seconds=(0.9, 1.3))]
    one, two = cells([*good, record(1, error="lost", seconds=())])
    assert (one.config, one.seconds, one.turns) == ("host_matmul{mr=1}", 0.95, 2)
    assert (two.seconds, two.turns) == (5.0, 1)


def test_configurations_of_older_logs_get_the_option_names_of_today(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    TuningLog(path).add(record(0, family="simt", config="simt{bm=16 turn=true split=2}"))
    assert [r.config for r in TuningLog(path).records] == ["simt{bm=16 transpose-on-copy=true split-k=2}"]
    assert b"turn=true" in path.read_bytes()
