"""Record stores: what several writers added, torn, moved in time, compacted meanwhile, on a disk and behind a URL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_surfaces import dense

from tilewright.runtime.errors import LogError
from tilewright.search.database import segments
from tilewright.search.database.record_place import LocalPlace
from tilewright.search.database.record_store import INDEX, RecordStore
from tilewright.search.database.records import TuningLog, TuningRecord, identity
from tilewright.search.database.stored_log import StoredLog, open_log

WORKLOADS = [dense(64, key=f"{n:08x}") for n in range(3)]


def record(number: int, when: float = 0.0, workload: int = 0, device: str = "here") -> TuningRecord:
    w = WORKLOADS[workload]
    return TuningRecord(w.key, w.name, "host_matmul", f"host_matmul{{mr={number % 9 + 1} nv=2 lanes=16}}", {"d0": number + 1}, 1,
                        (1e-6 * (number + 1),), device=device, when=when)


def identities(log: TuningLog) -> set[tuple[object, ...]]:
    return {identity(r) for r in log.records}


def store_at(folder: Path) -> StoredLog:
    log = open_log(f"{folder}{os.sep}", writes=True)
    assert isinstance(log, StoredLog)
    return log


def segment_files(folder: Path) -> list[Path]:
    return sorted((folder / segments.SEGMENTS).glob("*.jsonl"))


def test_a_path_a_folder_and_a_url(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert type(open_log(tmp_path / "log.jsonl")) is TuningLog
    assert isinstance(open_log(tmp_path / "there"), StoredLog)
    assert isinstance(open_log(f"{tmp_path}/new/"), StoredLog) and not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="is a file; wanted a folder"):
        open_log(f"{tmp_path}/file/")
    with pytest.raises(LogError, match="cannot be reached"):
        open_log("nothing-knows-this://bucket/x")


@pytest.mark.parametrize("url", [False, True])
def test_what_is_added_is_found_by_others_before_and_after_compaction(tmp_path: Path, url: bool) -> None:
    if url:
        pytest.importorskip("fsspec")
    place = f"memory://{tmp_path.name}" if url else f"{tmp_path}/store/"
    wanted = set()
    for writer in range(3):
        log = open_log(place, writes=True)
        for w in WORKLOADS:
            log.describe(w)
        for n in range(70):
            made = record(n, 100.0 * writer + n, n % 3, f"device {writer}")
            log.add(made)
            wanted.add(identity(made))
        log.finish()
        if writer == 1:
            assert isinstance(log, StoredLog)
            log.store.compact()
    found = open_log(place)
    assert isinstance(found, StoredLog)
    assert identities(found) == wanted and len(found) == len(wanted) and set(found.workloads) == {w.key for w in WORKLOADS}
    done = found.store.compact()
    assert (done.records, done.workloads, done.unread) == (210, 3, 0)
    found.store.compact()
    again = open_log(place)
    assert identities(again) == wanted
    assert {r.device for r in again.of(WORKLOADS[1].key, "device 2")} == {"device 2"}
    assert [r.when for r in again.of(WORKLOADS[0].key)] == sorted(r.when for r in again.of(WORKLOADS[0].key))
    assert not found.store.place.names(segments.SEGMENTS)


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    log = store_at(tmp_path)
    for n in range(5):
        log.add(record(n))
    (segment,) = segment_files(tmp_path)
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-20])
    found = open_log(tmp_path)
    assert len(found) == 4
    done = RecordStore(LocalPlace(tmp_path)).compact()
    assert done.records == 4 and done.unread == 0
    segment.write_bytes(whole)  # its writer was only slow
    assert len(open_log(tmp_path)) == 5
    assert RecordStore(LocalPlace(tmp_path)).compact().records == 5
    segment_files(tmp_path)
    other = store_at(tmp_path)
    other.add(record(9))
    for path in segment_files(tmp_path):
        path.write_bytes(path.read_bytes() + b'{"record":"measurement"\n\xff\xfe\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.runtime.log.LOG.warning", lambda *_, **__: None)
        assert len(open_log(tmp_path)) == 6
        assert RecordStore(LocalPlace(tmp_path)).compact().records == 6


def test_a_writer_goes_on_after_its_segment_was_removed(tmp_path: Path) -> None:
    log = store_at(tmp_path)
    log.add(record(0, 1.0))
    for _ in range(2):
        RecordStore(LocalPlace(tmp_path)).compact()
    assert not segment_files(tmp_path)
    log.add(record(1, 2.0))
    log.finish()
    assert len(segment_files(tmp_path)) == 1
    assert identities(open_log(tmp_path)) == {identity(record(0, 1.0)), identity(record(1, 2.0))}


def test_readers_opened_before_a_compaction(tmp_path: Path) -> None:
    log = store_at(tmp_path)
    log.add(record(0, 1.0))
    store = RecordStore(LocalPlace(tmp_path))
    store.compact()
    log.add(record(1, 1.0, 1))
    store.compact()
    reader, later = open_log(tmp_path), open_log(tmp_path)
    for n in range(2, 5):
        log.add(record(n, 1.0 + n))
        store.compact()
    assert {r.workload for r in reader.of(WORKLOADS[1].key)} == {WORKLOADS[1].key}  # it lies elsewhere now
    assert identities(later) == identities(open_log(tmp_path)) and len(later.records) == 5


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.floats(-1e3, 1e3), st.sampled_from("acfx")), max_size=40))
def test_nothing_is_lost_and_nothing_is_twice(tmp_path_factory: pytest.TempPathFactory, steps: object) -> None:
    """Steps of (writer, number, skew of its clock, action): add, compact, finish and open anew, read."""
    folder = tmp_path_factory.mktemp("store")
    writers = [store_at(folder) for _ in range(3)]
    wanted: dict[tuple[object, ...], TuningRecord] = {}
    by_writer: dict[int, list[tuple[object, ...]]] = {0: [], 1: [], 2: []}
    assert isinstance(steps, list)
    for tick, (writer, number, skew, action) in enumerate(steps):
        if action == "a":
            made = record(number, max(0.0, 1e6 + tick + skew), number % 3, f"w{writer}")
            if identity(made) in wanted:
                continue
            writers[writer].add(made)
            wanted[identity(made)] = made
            by_writer[writer].append(identity(made))
        elif action == "c":
            RecordStore(LocalPlace(folder)).compact()
        elif action == "f":
            writers[writer].finish()
            writers[writer] = store_at(folder)
        else:
            assert identities(open_log(folder)) == set(wanted)
    found = open_log(folder)
    assert sorted(map(str, (identity(r) for r in found.records))) == sorted(map(str, wanted))
    RecordStore(LocalPlace(folder)).compact()
    compacted = open_log(folder)
    assert sorted(map(str, (identity(r) for r in compacted.records))) == sorted(map(str, wanted))


def test_two_processes_write_while_a_third_compacts(tmp_path: Path) -> None:
    text = ("import sys\nsys.path[:0] = ['tests', 'tests/search']\nfrom pathlib import Path\n"
            "from test_record_store import record, store_at\n"
            "log = store_at(Path(sys.argv[1]))\nfor n in range(150):\n    log.add(record(n, float(n), n % 3, sys.argv[2]))\n"
            "log.finish()\n")
    home = Path(__file__).parents[2]
    made = [subprocess.Popen([sys.executable, "-c", text, str(tmp_path), name], cwd=home) for name in ("one", "two")]
    store = RecordStore(LocalPlace(tmp_path))
    while any(p.poll() is None for p in made):
        store.compact()
        threading.Event().wait(0.02)
    assert [p.returncode for p in made] == [0, 0]
    for _ in range(2):
        store.compact()
    found = open_log(tmp_path)
    assert len(found) == len(found.records) == 300 and {r.device for r in found.records} == {"one", "two"}


def test_an_index_of_another_version_or_damaged(tmp_path: Path) -> None:
    log = store_at(tmp_path)
    log.add(record(0))
    store = RecordStore(LocalPlace(tmp_path))
    store.compact()
    index = store.index()
    (tmp_path / INDEX).write_bytes(msgspec.json.encode(msgspec.structs.replace(index, schema=7)))
    with pytest.raises(LogError, match="schema 7"):
        open_log(tmp_path)
    (tmp_path / INDEX).write_bytes(b"{")
    with pytest.raises(LogError, match="damaged"):
        open_log(tmp_path)


def test_an_index_that_names_other_files(tmp_path: Path) -> None:
    log = store_at(tmp_path / "s")
    log.add(record(0))
    store = RecordStore(LocalPlace(tmp_path / "s"))
    store.compact()
    index = store.index()
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "s" / INDEX).write_bytes(msgspec.json.encode(msgspec.structs.replace(index, data="../precious")))
    for use in (store.compact, lambda: open_log(tmp_path / "s")):
        with pytest.raises(LogError, match="damaged"):
            use()
    assert (tmp_path / "precious").read_text() == "mine"
    (tmp_path / "s" / INDEX).write_bytes(msgspec.json.encode(index))
    (tmp_path / "s" / index.data).unlink()
    for use in (store.compact, lambda: open_log(tmp_path / "s").records):
        with pytest.raises(LogError, match="which is not there; remove it"):
            use()


def test_compacting_what_holds_nothing_writes_nothing(tmp_path: Path) -> None:
    assert RecordStore(LocalPlace(tmp_path / "new")).compact().records == 0
    assert not (tmp_path / "new").exists()


def test_a_store_that_cannot_be_written_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    with pytest.raises(LogError, match="cannot be written: Read-only file system"):
        store_at(tmp_path)


@pytest.mark.parametrize("kind", ["file", "folder", "url"])
def test_what_is_not_written_at_the_end_is_kept_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str,
                                                      caplog: pytest.LogCaptureFixture) -> None:
    place = {"file": str(tmp_path / "log.jsonl"), "folder": f"{tmp_path}/store/", "url": f"memory://{tmp_path.name}"}[kind]
    (tmp_path / "aside").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "aside"))
    log = open_log(place, writes=True)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tilewright.runtime.log.LOG.propagate", True)
    with monkeypatch.context() as patch:
        patch.setattr("fsspec.implementations.memory.MemoryFileSystem.pipe_file" if kind == "url" else "os.write", full)
        for n in range(3):
            log.add(record(n))
        log.finish()
    (kept,) = (tmp_path / "aside").iterdir()
    assert f"3 of its lines are in {kept}" in caplog.text
    again = open_log(place, writes=True)
    assert again.merge([open_log(kept)]) == 3
    again.finish()
    assert len(open_log(place)) == 3


def test_a_full_disk_costs_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = store_at(tmp_path)
    log.add(record(0))
    whole = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    log.add(record(1))
    monkeypatch.setattr("os.write", whole)
    assert len(open_log(tmp_path)) == 1
    log.add(record(2))
    assert len(open_log(tmp_path)) == 3
