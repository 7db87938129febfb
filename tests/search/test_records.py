from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path
from subprocess import PIPE

import log_trials
import msgspec
import pytest
from log_trials import LogTrials
from search_surfaces import Clock, dense, dense_task

from tilewright.passes.spaces.workload import Factor, Operand, Window, Workload
from tilewright.runtime.errors import LogError
from tilewright.search.database import log_file, records
from tilewright.search.database.records import TuningLog, TuningRecord, cells
from tilewright.search.database.slot_records import SlotRecord
from tilewright.search.database.workload_form import FactorForm, OperandForm, WindowForm, WorkloadForm
from tilewright.search.runner.measurer import Measurer
from tilewright.search.runner.replay import SurfaceRunner
from tools.soak.conditions import files_up_to


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
    assert first.merge([TuningLog(tmp_path / "b.jsonl")]) == 1
    assert first.merge([TuningLog(tmp_path / "b.jsonl")]) == 0
    found = TuningLog(tmp_path / "a.jsonl")
    assert [r.dims["d0"] for r in found.records] == [1, 2]
    assert found.workloads[dense().key].workload() == dense()


def test_a_workload_survives_its_form() -> None:
    assert WorkloadForm.of(dense()).workload() == dense()
    full = dense()
    coded = replace(full, inputs=(full.inputs[0], replace(full.inputs[1], constant=True, panel=16, codes="u4g32")))
    assert WorkloadForm.of(coded).workload() == coded
    for own, form in ((Operand, OperandForm), (Factor, FactorForm), (Window, WindowForm), (Workload, WorkloadForm)):
        assert {f.name for f in fields(own)} <= {f.name for f in msgspec.structs.fields(form)}, f"{form.__name__} drops a field"


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


WHOLE = {"record": "measurement", "workload": "w", "name": "op", "family": "generic", "config": "generic", "dims": {"d0": 4},
         "seconds": [1e-3], "schema": 1}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seconds": [0.0]}, "1e-09"),
        ({"seconds": [-1e-3]}, "1e-09"),
        ({"seconds": [1e-12]}, "1e-09"),
        ({"seconds": [None]}, "null"),
        ({"seconds": [1e300]}, "<= 1000000"),
        ({"seconds": ["1"]}, "str"),
        ({"seconds": []}, "neither seconds nor an error"),
        ({"threads": 0}, "0 threads"),
        ({"threads": -1}, ">= 0"),
        ({"threads": True}, "bool"),
        ({"dims": {"d0": -1}}, ">= 0"),
        ({"dims": {"d0": 2**70}}, "<= 1099511627776"),
        ({"dims": {"d1": 4}}, "the workload's are d0"),
        ({"dims": {"d0": 2**39}}, "its arithmetic or its bytes are"),
        ({"config": "x" * 5000}, "<= 4096"),
        ({"note": 1}, "unknown field `note`"),
        ({"when": -1}, ">= 0"),
        ({"built": {"registers": -1}}, ">= 0"),
        ({"schema": 7}, "measurement of schema 7; this version of Tilewright reads schema 3"),
        ({"record": "plan"}, "plan"),
    ],
)
def test_what_cannot_be_is_skipped_by_line_and_logged(change: dict[str, object], told: str, tmp_path: Path,
                                                      caplog: pytest.LogCaptureFixture) -> None:
    path, log = tmp_path / "log.jsonl", TuningLog(tmp_path / "log.jsonl")
    log.describe(dense())
    key = dense().key
    path.write_bytes(b"\n".join([path.read_bytes().strip(), *(msgspec.json.encode({**WHOLE, "workload": key, **c})
                                                              for c in ({}, change, {}))]))
    found = TuningLog(path)
    assert len(found) == 2 and [s.line for s in found.skipped] == [3]
    assert told in found.skipped[0].reason
    assert [m for r in caplog.records if r.name == "tilewright" and "log.jsonl:3: " in (m := r.getMessage()) and told in m]


def test_many_bad_lines_are_told_of_in_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"{}\n" * 1000)
    assert len(TuningLog(path).skipped) == 1000
    assert len(caplog.records) < 30 and "980 more lines are skipped" in caplog.text


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("flops", "(d0 +", "cannot read the size expression"),
        ("flops", "max()", "a size cannot be read"),
        ("flops", "d0 // 0", "division"),
        ("bytes", "d0 * d9", "not one of the dims d0"),
        ("loops", [["m", "d0"]], "the workload has 1 loops"),
        ("note", 1, "unknown field `note`"),
    ],
)
def test_a_workload_that_describes_no_operator_is_skipped(field: str, value: object, told: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    form = {"record": "workload", **msgspec.to_builtins(WorkloadForm.of(dense())), field: value}
    path.write_bytes(msgspec.json.encode(form) + b"\n")
    found = TuningLog(path)
    assert not found.workloads and told in found.skipped[0].reason


def test_a_curve_of_another_length_is_skipped(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl")
    for curve in ((), (0.1,), (0.1,) * 4):
        log.add_slot(SlotRecord("run", 1, "arm", "ucb", 0, 0.0, 1.0, (), 1e-3, 1.0, 1.0, curve=curve))
    found = TuningLog(tmp_path / "log.jsonl")
    assert [len(s.curve) for s in found.slots] == [0, 4] and [s.line for s in found.skipped] == [2]


def test_a_line_longer_than_any_record_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (log_file, records):
        monkeypatch.setattr(module, "LONGEST", 1 << 12)
    path, log = tmp_path / "log.jsonl", TuningLog(tmp_path / "log.jsonl")
    log.add(record(1))
    path.write_bytes(path.read_bytes() + b"x" * 10_000 + b"\n" + b" " * (1 << 12) + b"\n")
    log.add(record(2))
    found = TuningLog(path)
    assert [r.dims["d0"] for r in found.records] == [1, 2]
    assert [(s.line, s.reason) for s in found.skipped] == [(2, "longer than 0 MiB, no record")]


def test_a_cut_line_is_set_apart_when_a_search_begins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log.jsonl"
    log = TuningLog(path)
    log.add(record(1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    found = TuningLog(path, writes=True)
    assert "its last writer was stopped within a line" in caplog.text
    assert path.read_bytes() == whole + whole[:30] + b"\n"
    found.add(record(2))
    assert path.read_bytes().startswith(whole + whole[:30] + b"\n")
    assert [r.dims["d0"] for r in TuningLog(path).records] == [1, 2]


def test_a_line_that_another_process_left_half_is_set_apart_by_the_next(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl", writes=True)
    log.add(record(1))
    with (tmp_path / "log.jsonl").open("ab") as other:
        other.write(b'{"record":"measu')
    log.add(record(2))
    found = TuningLog(tmp_path / "log.jsonl")
    assert [r.dims["d0"] for r in found.records] == [1, 2] and [s.line for s in found.skipped] == [2]


WRITER = """
import sys
from pathlib import Path
from tilewright.search.database.records import TuningLog, TuningRecord
log = TuningLog(Path(sys.argv[1]), writes=True)
print(flush=True)
sys.stdin.readline()
for number in range(400):
    log.add(TuningRecord("w", sys.argv[2], "generic", "generic", {"d0": number}, 1, (1e-3,), error="e" * (number * 37 % 9000)))
"""


def test_writers_at_one_time_mix_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stdin=PIPE, stdout=PIPE) for name in ("a", "b")]
    for writer in writers:
        assert writer.stdout is not None and writer.stdin is not None
        writer.stdout.readline()
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    assert [w.communicate()[0] for w in writers] == [b"", b""]
    found = TuningLog(path)
    assert not found.skipped
    for name in ("a", "b"):
        assert [r.dims["d0"] for r in found.records if r.name == name] == list(range(400))


def test_a_writer_waits_for_the_lock_of_another(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = TuningLog(path, writes=True)
    with path.open("ab", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writer = threading.Thread(target=log.add, args=(record(2),))
        other.write(msgspec.json.encode(record(1))[:50])
        writer.start()
        writer.join(0.1)
        other.write(msgspec.json.encode(record(1))[50:] + b"\n")
        fcntl.flock(other, fcntl.LOCK_UN)
    writer.join()
    assert [r.dims["d0"] for r in TuningLog(path).records] == [1, 2] and not TuningLog(path).skipped


def test_a_lock_that_is_never_given_back_does_not_stop_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(log_file, "_PATIENCE", 0.01)
    log = TuningLog(tmp_path / "log.jsonl", writes=True)
    with (tmp_path / "log.jsonl").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        log.add(record(1))
        assert "held its lock" in caplog.text
    assert len(TuningLog(tmp_path / "log.jsonl")) == 1


def test_what_is_no_file_is_refused_at_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    for path, told in ((tmp_path, "a directory"), (tmp_path / "fifo", "no regular file"), (Path("/dev/full"), "no regular file"),
                       (tmp_path / "file" / "log.jsonl", "Not a directory"), (tmp_path / ("x" * 300), "File name too long"),
                       (tmp_path / "a\0b", "null")):
        for writes in (False, True):
            with pytest.raises(LogError, match=told) as error:
                TuningLog(path, writes)
            assert str(path) in str(error.value)


def test_a_file_that_cannot_be_written_is_refused_where_something_will_be() -> None:
    path = Path("/proc/version")  # nobody may write it, root neither
    assert len(TuningLog(path)) == 0
    with pytest.raises(LogError, match=r"/proc/version cannot be written: .*; give a file that can be"):
        TuningLog(path, writes=True)


def test_a_full_disk_at_the_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    TuningLog(path).add(record(1))
    before = path.read_bytes()
    with files_up_to(len(before) + 100), pytest.raises(LogError, match=r"File too large.*make room"):
        TuningLog(path, writes=True)
    assert path.read_bytes() == before
    TuningLog(path, writes=True)
    assert path.read_bytes() == before


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log.jsonl"
    log = TuningLog(path, writes=True)
    log.add(record(1))
    before = path.read_bytes()
    with files_up_to(len(before) + 40):  # the next record is written in part
        log.add(record(2))
        log.add(record(3))
        assert path.read_bytes() == before
        assert [r.dims["d0"] for r in log.records] == [1, 2, 3]
        assert caplog.text.count("measurements are kept in memory") == 1
        log.finish()
        assert "2 of its lines are lost" in caplog.text
    log.add(record(4))
    assert [r.dims["d0"] for r in TuningLog(path).records] == [1, 2, 3, 4]


def test_what_the_disk_did_not_take_is_written_at_the_end(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl", writes=True)
    with files_up_to(0):
        log.add(record(1))
    assert not len(TuningLog(tmp_path / "log.jsonl"))
    log.finish()
    assert len(TuningLog(tmp_path / "log.jsonl")) == 1


def test_parts_that_are_equal_are_one_object(tmp_path: Path) -> None:
    """A million lines fit in memory, and the collector of cycles has nothing to look at."""
    log = TuningLog(tmp_path / "log.jsonl")
    for _ in range(2):
        log.add(record(1, versions={"compiler": "1"}))
    one, two = TuningLog(tmp_path / "log.jsonl").records
    for field in ("workload", "family", "config", "device", "dims", "versions"):
        assert getattr(one, field) is getattr(two, field)
    assert not gc.is_tracked(one)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e-12])
def test_a_time_that_cannot_be_is_a_failed_measurement(seconds: float, tmp_path: Path) -> None:
    task, clock = dense_task(), Clock()
    log = TuningLog(tmp_path / "log.jsonl")
    measurer = Measurer(task.workload, clock.context(SurfaceRunner(lambda config, dims, threads: seconds), log))
    config = task.defaults()[0]
    found = measurer.measure(config, (("d0", 8),), 1)
    assert found is not None and not found.seconds and "impossible time" in found.error
    assert TuningLog(tmp_path / "log.jsonl").records == [found]


def test_damaged_logs_are_read_and_gone_on_with(tmp_path: Path) -> None:
    trials = LogTrials(tmp_path)
    assert [fault for seed in range(12) for fault in trials.faults(seed)] == []


def test_killed_tuners_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, log_trials.__file__, str(tmp_path / "log.jsonl"), "4", "0"]
    paths = os.pathsep.join(map(str, (Path(log_file.__file__).parents[3], Path(log_trials.__file__).parent)))
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
