"""TuningRecord and TuningLog: everything that was measured, as JSON Lines that are appended and never rewritten.

A killed run loses at most the record in flight, and processes that share a log do not mix their lines (log_file.py). A line that
cannot be read, or that says what cannot be, is told of with its number and skipped.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from tilewright.passes.spaces.family_registry import current_text, has_former_names
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import OptionError
from tilewright.runtime.log import LOG
from tilewright.search.database.cut_records import SCHEMA as CUT_SCHEMA
from tilewright.search.database.cut_records import CutRecord
from tilewright.search.database.farm_records import SCHEMA as FARM_SCHEMA
from tilewright.search.database.farm_records import FarmRecord, MarkRecord
from tilewright.search.database.log_file import LONGEST, LogFile
from tilewright.search.database.slot_records import CURVE, SlotRecord
from tilewright.search.database.slot_records import OLDEST as OLDEST_SLOT
from tilewright.search.database.slot_records import SCHEMA as SLOT_SCHEMA
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.space.kernel_facts import KernelFacts
from tilewright.search.space.shapes import Dims

# 2: the runner; 3: beside
SCHEMA, OLDEST = 3, 1
TICK = 1e-9  # seconds between two times that a clock tells apart
_TOLD = 20  # lines that are told of one by one

Seconds = Annotated[float, msgspec.Meta(ge=TICK, le=1e6)]  # of a launch
Spent = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]  # seconds on something, or since 1970
Extent = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Name = Annotated[str, msgspec.Meta(max_length=1 << 12)]
Text = Annotated[str, msgspec.Meta(max_length=1 << 20)]


class TuningRecord(msgspec.Struct, frozen=True, tag="measurement", tag_field="record", forbid_unknown_fields=True, gc=False):
    """One kernel at one shape on some threads, or why it could not be built or run (`error`; no dims: it was not built).

    seconds: per launch, best first. object: digest of the machine code without its name; equal ones are measured once.
    cache: state of the operands before a launch. when: seconds since 1970. versions: package -> version. built: what the code
    of a GPU kernel told. runner: which of a farm's took it. beside: names the request in which kernels were timed beside each
    other; medians of their seconds then have the median ratio of its rounds. within: bytes of a cache line before its inputs.
    """

    workload: Name
    name: Name
    family: Name
    config: Name
    dims: dict[Name, Extent]
    threads: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)] = 1
    seconds: Annotated[tuple[Seconds, ...], msgspec.Meta(max_length=1 << 12)] = ()
    error: Text = ""
    cache: Name = "warm"
    object: Name = ""
    device: Name = ""
    versions: dict[Name, Name] = {}
    when: Spent = 0.0
    build_seconds: Spent = 0.0
    built: KernelFacts | None = None
    runner: Name = ""
    beside: Name = ""
    within: Annotated[int, msgspec.Meta(ge=0, le=1 << 12)] = 0
    schema: Annotated[int, msgspec.Meta(ge=OLDEST, le=SCHEMA)] = SCHEMA

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


class _Header(msgspec.Struct):
    """What a record of any schema says of itself."""

    record: str = ""
    schema: int = 0


Line = WorkloadForm | TuningRecord | SlotRecord | FarmRecord | MarkRecord | CutRecord
_decode: Callable[[bytes], Line] = msgspec.json.Decoder(Line).decode


class TuningLog:
    """Records in memory and, with a path, in a file: what it holds is read, what is added is appended.

    Lines that are not read are in `skipped`, and in the package's log as warnings. A log in a folder or behind a URL is a
    StoredLog (stored_log.py).

    Args:
        path: of the file, made when first written to; None keeps the records in memory only.
        writes: will there be records to add? Then it is now that a file which cannot be written is an error.

    Raises LogError for a path that is no file or cannot be read.
    """

    def __init__(self, path: Path | None = None, writes: bool = False) -> None:
        self.path = path
        self.records: list[TuningRecord] = []
        self.workloads: dict[str, WorkloadForm] = {}
        self.slots: list[SlotRecord] = []
        self.skipped: list[Skipped] = []
        self._reader = LineReader(self.skipped)
        self.farms, self.marks, self.cuts = self._reader.farms, self._reader.marks, self._reader.cuts
        self._file = None if path is None else LogFile(path)
        if self._file is not None:
            if writes:
                self._file.prepare()
            self._reader.read(self._file.lines(), str(path), self.records, self.workloads, self.slots)
            self.records = self._reader.undoubted(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: TuningRecord) -> None:
        """Append a record; it is in the file when this returns, unless the file cannot be written: then as soon as it can."""
        self._write([record])
        self.records.append(record)

    def add_slot(self, record: SlotRecord) -> None:
        """Append a slot of a model's schedule."""
        self._write([record])
        self.slots.append(record)

    def add_farm(self, record: FarmRecord) -> None:
        """Append a state of a farm."""
        self._write([record])
        self.farms.append(record)

    def add_cut(self, record: CutRecord) -> None:
        """Append what was measured of a partition."""
        self._write([record])
        self.cuts.append(record)

    def mark(self, record: MarkRecord) -> None:
        """Append that measurements are in doubt; whoever opens the log from now on does not see them."""
        self._write([record])
        self._reader.marks.append(record)

    def describe(self, workload: Workload) -> None:
        """Store what a workload is, once, so that its records can be read without the model."""
        if workload.key not in self.workloads:
            form = WorkloadForm.of(workload)
            self._write([form])
            self.workloads[workload.key] = form

    def finish(self) -> None:
        """Nothing more will be added: write what the file did not take before."""
        if self._file is not None:
            self._file.finish()

    def of(self, workload: str, device: str = "") -> Iterator[TuningRecord]:
        """Records of a workload's key, of one device where it is given."""
        return (r for r in self.records if r.workload == workload and device in ("", r.device))

    def merge(self, others: Iterable[TuningLog]) -> int:
        """Add the records of other logs that are not here yet; returns how many."""
        have = {identity(r) for r in self.records}
        before = len(self.records)
        for other in others:
            self.skipped += other.skipped
            forms = [form for key, form in other.workloads.items() if key not in self.workloads]
            records = list({identity(r): r for r in other.records if identity(r) not in have}.values())
            self._write([*forms, *records])
            self.workloads.update({form.key: form for form in forms})
            self.records += records
            have.update(map(identity, records))
        return len(self.records) - before

    def _write(self, lines: Iterable[Line]) -> None:
        if self._file is not None:
            self._file.append([msgspec.json.encode(line) + b"\n" for line in lines])


class LineReader:
    """From lines to records. Equal parts of records are one object, so that a long log fits in memory.

    skipped: takes the lines that are not read.
    """

    def __init__(self, skipped: list[Skipped]) -> None:
        self.skipped = skipped
        self.farms: list[FarmRecord] = []
        self.marks: list[MarkRecord] = []
        self.cuts: list[CutRecord] = []
        self._renamed, self._texts = functools.cache(_had_other_names), functools.cache(current_text)
        self._shared: dict[object, object] = {}
        self._configs: dict[str, str] = {}
        self._shapes: dict[tuple[object, ...], str] = {}

    def read(self, lines: Iterable[tuple[int, bytes]], name: str, records: list[TuningRecord], workloads: dict[str, WorkloadForm],
             slots: list[SlotRecord]) -> None:
        """Put numbered lines of a file into `records`, `workloads` and `slots`."""
        told = len(self.skipped)
        shapes = self._shapes
        for number, line in lines:
            try:
                found = _decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if line.strip():
                    self._skip(name, number, _why_not(line, error))
                continue
            if isinstance(found, TuningRecord):
                key = (found.workload, *found.dims.items())
                if key not in shapes:
                    form = workloads.get(found.workload)
                    shapes[key] = "" if form is None or not (found.dims or found.seconds) else form.shape_fault(found.dims)
                fault = _fault(found) or shapes[key]
                if fault:
                    self._skip(name, number, f"no record: {fault}")
                else:
                    config = found.config
                    renamed = self._renamed(config.partition("{")[0])
                    current = self._texts(config) if renamed else self._configs.setdefault(config, config)
                    _share(found, current, self._shared)
                    records.append(found)
            elif isinstance(found, SlotRecord):
                if len(found.curve) in (0, CURVE):
                    slots.append(found)
                else:
                    self._skip(name, number, f"no slot: a curve of {len(found.curve)} numbers; wanted {CURVE} or none")
            elif isinstance(found, FarmRecord):
                self.farms.append(found)
            elif isinstance(found, MarkRecord):
                self.marks.append(found)
            elif isinstance(found, CutRecord):
                if found.fault:
                    self._skip(name, number, f"no cut: {found.fault}")
                else:
                    self.cuts.append(found)
            elif found != workloads.get(found.key):
                fault = found.fault()
                if fault:
                    self._skip(name, number, f"no workload: {fault}")
                else:
                    workloads[found.key] = found
        if len(self.skipped) > max(told, _TOLD):
            LOG.warning("log %s: %d more lines are skipped", name, len(self.skipped) - max(told, _TOLD))

    def undoubted(self, records: list[TuningRecord]) -> list[TuningRecord]:
        """Without the measurements that marks, read so far, say are in doubt."""
        if not self.marks:
            return records
        return [r for r in records if not (r.runner and any(m.covers(r.runner, r.when) for m in self.marks))]

    def _skip(self, name: str, line: int, reason: str) -> None:
        skipped = Skipped(name, line, reason)
        self.skipped.append(skipped)
        if len(self.skipped) <= _TOLD:
            LOG.warning("%s; the line is skipped", skipped, extra={"skipped": skipped})


def _had_other_names(family: str) -> bool:
    try:
        return has_former_names(family)
    except OptionError:
        return False


def _fault(r: TuningRecord) -> str:
    """Why a record whose fields are well formed says nothing, or what cannot be; empty for a good one."""
    if r.seconds:
        return "" if r.threads else "a measurement on 0 threads; wanted 1 or more"
    return "" if r.error else "neither seconds nor an error"


def _share(r: TuningRecord, config: str, shared: dict[object, object]) -> None:
    """Put in a record that was just read, in place of its parts, equal ones of earlier records."""
    keep, put = shared.setdefault, msgspec.structs.force_setattr
    put(r, "config", config)
    for field in ("workload", "name", "family", "device", "cache"):
        text = getattr(r, field)
        put(r, field, keep(text, text))
    put(r, "dims", keep(("dims", *r.dims.items()), r.dims))
    put(r, "versions", keep(("versions", *r.versions.items()), r.versions))


def _why_not(line: bytes, error: Exception) -> str:
    """Why a line is not read."""
    if len(line) == LONGEST:
        return f"longer than {LONGEST >> 20} MiB, no record"
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return f"no record: {error}"
    known = {"measurement": (OLDEST, SCHEMA), "slot": (OLDEST_SLOT, SLOT_SCHEMA), "farm": (FARM_SCHEMA, FARM_SCHEMA),
             "mark": (FARM_SCHEMA, FARM_SCHEMA), "cut": (CUT_SCHEMA, CUT_SCHEMA)}
    first, last = known.get(header.record, (0, 0))
    if not last or header.schema == 0 or first <= header.schema <= last:
        return f"no record: {error}"
    return (f"{header.record} of schema {header.schema}; this version of Tilewright reads schema {last}, from {first} on; "
            "another may read both")


def latest(records: Iterable[TuningRecord]) -> Mapping[tuple[str, Dims, int], TuningRecord]:
    """The last record of each (configuration, shape, threads)."""
    return {(r.config, r.shape, r.threads): r for r in records}


def impossible(seconds: Sequence[float]) -> str:
    """Why no launch takes these seconds; empty for a good measurement."""
    try:
        msgspec.convert(seconds, tuple[Seconds, ...])
    except msgspec.ValidationError as error:
        return f"impossible time: {error}"
    return ""


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


def identity(r: TuningRecord) -> tuple[object, ...]:
    """Equal for copies of one measurement."""
    return (r.workload, r.config, r.shape, r.threads, r.device, r.when, r.seconds, r.error)
