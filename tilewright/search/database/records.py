"""TuningRecord and TuningLog: everything that was measured, as JSON Lines that are appended and never rewritten.

A line is written by one system call, so that a killed run loses at most the record in flight, and processes that share a
log do not mix their lines. A line that cannot be read is reported with its number and skipped.
"""

from __future__ import annotations

import functools
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tilewright.passes.spaces.family_registry import current_text
from tilewright.passes.spaces.workload import Workload
from tilewright.search.database.slot_records import SCHEMA as SLOT_SCHEMA
from tilewright.search.database.slot_records import SlotRecord
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.space.kernel_facts import KernelFacts
from tilewright.search.space.shapes import Dims

SCHEMA = 1


class TuningRecord(msgspec.Struct, frozen=True, tag="measurement", tag_field="record"):
    """One kernel at one shape on some threads, or why it could not be built or run (`error`; no dims: it was not built).

    seconds: per launch, best first. object: digest of the machine code without its name; equal ones are measured once.
    cache: state of the operands before a launch. when: seconds since 1970. versions: package -> version. built: what the code
    of a GPU kernel told.
    """

    workload: str
    name: str
    family: str
    config: str
    dims: dict[str, int]
    threads: int = 1
    seconds: tuple[float, ...] = ()
    error: str = ""
    cache: str = "warm"
    object: str = ""
    device: str = ""
    versions: dict[str, str] = {}
    when: float = 0.0
    build_seconds: float = 0.0
    built: KernelFacts | None = None
    schema: int = SCHEMA

    @property
    def time(self) -> float:
        """The estimate: the lower quartile."""
        return _quartile(self.seconds) if self.seconds else float("inf")

    @property
    def shape(self) -> Dims:
        return tuple(self.dims.items())


class Skipped(msgspec.Struct, frozen=True):
    """A line of a log that was not read."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


Line = WorkloadForm | TuningRecord | SlotRecord


class TuningLog:
    """Records in memory and, with a path, in a file: what it holds is read, what is added is appended.

    Args:
        path: of the file, made when first written to; None keeps the records in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.records: list[TuningRecord] = []
        self.workloads: dict[str, WorkloadForm] = {}
        self.slots: list[SlotRecord] = []
        self.skipped: list[Skipped] = []
        self._broken_end = False
        if path is not None and path.exists():
            self._read(path)

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: TuningRecord) -> None:
        """Append a record; it is in the file when this returns."""
        self._write(record)
        self.records.append(record)

    def add_slot(self, record: SlotRecord) -> None:
        """Append a slot of a model's schedule."""
        self._write(record)
        self.slots.append(record)

    def describe(self, workload: Workload) -> None:
        """Store what a workload is, once, so that its records can be read without the model."""
        if workload.key not in self.workloads:
            form = WorkloadForm.of(workload)
            self._write(form)
            self.workloads[workload.key] = form

    def of(self, workload: str, device: str = "") -> Iterator[TuningRecord]:
        """Records of a workload's key, of one device where it is given."""
        return (r for r in self.records if r.workload == workload and device in ("", r.device))

    def merge(self, others: Iterable[Path]) -> int:
        """Add the records of other logs that are not here yet; returns how many."""
        have = {_identity(r) for r in self.records}
        added = 0
        for path in others:
            other = TuningLog(path)
            self.skipped += other.skipped
            for key, form in other.workloads.items():
                if key not in self.workloads:
                    self._write(form)
                    self.workloads[key] = form
            for record in other.records:
                if _identity(record) not in have:
                    have.add(_identity(record))
                    self.add(record)
                    added += 1
        return added

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        self._broken_end = bool(data) and not data.endswith(b"\n")
        decoder = msgspec.json.Decoder(Line)
        current = functools.cache(current_text)
        for number, line in enumerate(data.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                found = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self.skipped.append(Skipped(str(path), number, f"no record: {error}"))
                continue
            if isinstance(found, WorkloadForm):
                self.workloads[found.key] = found
            elif isinstance(found, SlotRecord):
                if found.schema == SLOT_SCHEMA:
                    self.slots.append(found)
                else:
                    self.skipped.append(Skipped(str(path), number, f"slot of schema {found.schema}, wanted {SLOT_SCHEMA}"))
            elif found.schema != SCHEMA:
                self.skipped.append(Skipped(str(path), number, f"schema {found.schema}, wanted {SCHEMA}"))
            else:
                self.records.append(msgspec.structs.replace(found, config=current(found.config)))

    def _write(self, line: Line) -> None:
        if self.path is None:
            return
        data = msgspec.json.encode(line) + b"\n"
        if self._broken_end:  # the last writer was killed within a line
            data, self._broken_end = b"\n" + data, False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


def latest(records: Iterable[TuningRecord]) -> Mapping[tuple[str, Dims, int], TuningRecord]:
    """The last record of each (configuration, shape, threads)."""
    return {(r.config, r.shape, r.threads): r for r in records}


@dataclass(frozen=True)
class Cell:
    """One configuration at one shape on some threads. seconds: the lower quartile of all that was measured; turns: how often."""

    config: str
    shape: Dims
    threads: int
    seconds: float
    turns: int


def cells(records: Iterable[TuningRecord]) -> list[Cell]:
    """Of the good records, in the order of the first of each."""
    found: dict[tuple[str, Dims, int], list[tuple[float, ...]]] = {}
    for r in records:
        if r.seconds:
            found.setdefault((r.config, r.shape, r.threads), []).append(r.seconds)
    return [Cell(*key, statistics.median(map(_quartile, turns)), len(turns)) for key, turns in found.items()]


def _quartile(turn: Sequence[float]) -> float:
    """The lower one: neither one lucky batch nor a disturbed half moves it."""
    return sorted(turn)[len(turn) // 4]


def _identity(r: TuningRecord) -> tuple[object, ...]:
    return (r.workload, r.config, r.shape, r.threads, r.device, r.when, r.seconds, r.error)
