"""StoredLog: the records of a store, of which a search reads those of its own workloads; and what a path or URL opens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import LogError
from tilewright.runtime.log import LOG
from tilewright.search.database.record_place import RecordPlace, place_of
from tilewright.search.database.record_store import FORMS, MARKS, SLOTS, Index, RecordStore, Span
from tilewright.search.database.records import Line, TuningLog, TuningRecord, identity
from tilewright.search.database.segments import segment_writer
from tilewright.search.database.slot_records import SlotRecord
from tilewright.search.database.workload_form import WorkloadForm

_TRIES = 5
_LARGE = 32 << 20  # bytes of segments from which a search that ends compacts the store


class StoredLog(TuningLog):
    """A log over a store. Its compacted part is read as it is asked for, a workload at a time; segments when it is opened.

    What others add later is not seen.
    """

    def __init__(self, place: RecordPlace, writes: bool = False) -> None:
        super().__init__()
        self.store = RecordStore(place)
        self._writer = segment_writer(place) if writes else None
        self._index, fresh = self.store.opened()
        self._fresh_bytes = sum(len(data) for _, data in fresh)
        self._loaded: dict[str, list[TuningRecord]] = {}
        self._added: dict[str, list[TuningRecord]] = {}
        self._all: list[TuningRecord] | None = None
        self._forms: dict[str, WorkloadForm] | None = None
        self._described: set[str] = set()
        self._slots: list[SlotRecord] | None = None
        found: list[TuningRecord] = []
        self._new_forms: dict[str, WorkloadForm] = {}
        self._new_slots: list[SlotRecord] = []
        self._read(lambda index: index.others.get(MARKS, Span()), [], {}, [])
        for name, data in fresh:
            whole = data[: data.rfind(b"\n") + 1]
            self._reader.read(enumerate(whole.splitlines(), 1), f"{place.text}/{name}", found, self._new_forms, self._new_slots)
        for record in sorted(self._reader.undoubted(found), key=lambda r: r.when):
            self._added.setdefault(record.workload, []).append(record)

    def __len__(self) -> int:
        return sum(s.count for s in self._index.workloads.values()) + sum(map(len, self._added.values()))

    @property
    def records(self) -> list[TuningRecord]:
        """All of them."""
        if self._all is None:
            self._all = [r for key in dict.fromkeys((*self._index.workloads, *self._added)) for r in self._of(key)]
        return self._all

    @records.setter
    def records(self, value: list[TuningRecord]) -> None:
        self._all = value or None

    @property
    def workloads(self) -> dict[str, WorkloadForm]:
        """All that are described."""
        if self._forms is None:
            self._forms = {}
            self._read(lambda index: index.others.get(FORMS, Span()), [], self._forms, [])
            self._forms.update(self._new_forms)
        return self._forms

    @workloads.setter
    def workloads(self, value: dict[str, WorkloadForm]) -> None:
        self._forms = value or None

    @property
    def slots(self) -> list[SlotRecord]:
        """Of all schedules."""
        if self._slots is None:
            self._slots = []
            self._read(lambda index: index.others.get(SLOTS, Span()), [], {}, self._slots)
            self._slots += self._new_slots
        return self._slots

    @slots.setter
    def slots(self, value: list[SlotRecord]) -> None:
        self._slots = value or None

    def of(self, workload: str, device: str = "") -> Iterator[TuningRecord]:
        return (r for r in self._of(workload) if device in ("", r.device))

    def add(self, record: TuningRecord) -> None:
        self._write([record])
        self._added.setdefault(record.workload, []).append(record)
        if self._all is not None:
            self._all.append(record)

    def describe(self, workload: Workload) -> None:
        if workload.key in self._index.workloads or workload.key in self._described or workload.key in self._new_forms:
            return
        form = WorkloadForm.of(workload)
        self._write([form])
        self._described.add(workload.key)
        self._new_forms[workload.key] = form
        if self._forms is not None:
            self._forms[workload.key] = form

    def merge(self, others: Iterable[TuningLog]) -> int:
        self._all = self._all or self.records
        known = len(self._all)
        count = super().merge(others)
        for record in self._all[known:]:
            self._added.setdefault(record.workload, []).append(record)
        return count

    def finish(self) -> None:
        """Nothing more will be added: write what is left, and where much lies in segments, compact them."""
        if self._writer is not None:
            self._writer.finish()
            if self._fresh_bytes > _LARGE:
                done = self.store.compact()
                LOG.info("record store %s: %d records compacted", self.store.place.text, done.records)
                self._fresh_bytes = 0

    def _of(self, workload: str) -> list[TuningRecord]:
        """Of the data file, and after it those of segments and of this log that are not in it."""
        if workload not in self._loaded:
            found: list[TuningRecord] = []
            self._read(lambda index: index.workloads.get(workload, Span()), found, self._new_forms, [])
            self._loaded[workload] = self._reader.undoubted(found)
        added = self._added.get(workload, [])
        if not added:
            return self._loaded[workload]
        have = set(map(identity, self._loaded[workload]))
        return [*self._loaded[workload], *(r for r in added if identity(r) not in have)]

    def _read(self, part: Callable[[Index], Span], records: list[TuningRecord], forms: dict[str, WorkloadForm],
              slots: list[SlotRecord]) -> None:
        """part: of an index, what is read."""
        for _ in range(_TRIES):
            try:
                lines = self.store.span(self._index, part(self._index))
                break
            except FileNotFoundError as error:  # compacted meanwhile: it is elsewhere in the file that took its place
                now, _ = self.store.opened()
                if now == self._index:
                    raise self.store.without_data(now) from error
                self._index = now
        else:
            raise LogError(f"record store {self.store.place.text} is compacted faster than it is read; try again later")
        self._reader.read(enumerate(lines, 1), f"{self.store.place.text}/{self._index.data}", records, forms, slots)

    def _write(self, lines: Iterable[Line]) -> None:
        if self._writer is not None:
            encoded = [msgspec.json.encode(line) + b"\n" for line in lines]
            self._fresh_bytes += sum(map(len, encoded))
            self._writer.append(encoded)


def open_log(place: str | os.PathLike[str] | None, writes: bool = False) -> TuningLog:
    """The log at a path (a file of JSON Lines), a folder, or a URL; None: in memory only.

    Raises:
        LogError: it cannot be read, or, with `writes`, written. OptionError: a URL, and fsspec is not installed.
    """
    if place is None:
        return TuningLog()
    found = place_of(os.fspath(place))
    return TuningLog(Path(place), writes=writes) if found is None else StoredLog(found, writes)


