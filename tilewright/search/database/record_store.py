"""RecordStore: a folder or URL that many writers add records to: segments, and what compaction made of them, with an index.

Layout: `segments/<writer>.jsonl`, one a writer; `records-<digest>.jsonl`, the records of each workload side by side;
`index.json`, which names that file, where each workload lies in it, and how many bytes of which segments are in it already;
`kernels/` (kernel_shelf.py). The index is written last: before it, nothing has changed for readers. A segment is removed by the
compaction after the one that took it in, so that a reader of the index before finds all it names.
"""

from __future__ import annotations

import fcntl
import hashlib
import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from tilewright.runtime.errors import LogError
from tilewright.runtime.log import LOG
from tilewright.search.database.log_file import LONGEST
from tilewright.search.database.record_place import LocalPlace, RecordPlace
from tilewright.search.database.segments import SEGMENTS

SCHEMA = 1
INDEX, DATA = "index.json", "records-{}.jsonl"
FORMS, SLOTS, MARKS = "workloads", "slots", "marks"  # spans beside those of the workloads
_QUIET = 3600.0  # seconds after which a line without an end gets none any more
_TRIES = 5

_Size = Annotated[int, msgspec.Meta(ge=0)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^(records-[0-9a-f]{16}\.jsonl)?$")]  # nothing outside of the store


class Span(msgspec.Struct, frozen=True):
    """Some lines of the data file: where they begin, their bytes and how many there are."""

    start: _Size = 0
    size: _Size = 0
    count: _Size = 0


class Index(msgspec.Struct, frozen=True):
    """data: the file of compacted records, "" where there is none. workloads: key -> its records. absorbed: segment -> bytes of
    it that are in the data file."""

    data: _Name = ""
    workloads: dict[str, Span] = {}
    others: dict[str, Span] = {}
    absorbed: dict[str, _Size] = {}
    schema: int = SCHEMA


class _Kind(msgspec.Struct):
    """What decides where a line goes."""

    record: str = ""
    workload: str = ""
    key: str = ""
    when: float = 0.0


@dataclass(frozen=True)
class Compacted:
    """records, workloads: in the data file. absorbed: bytes taken from segments. removed: segments. twice: lines that were there
    already. unread: lines that are no JSON."""

    records: int
    workloads: int
    absorbed: int
    removed: int
    twice: int
    unread: int


class RecordStore:
    """The files of one store. Whatever several processes do at once, no record that `append` of a writer took is lost."""

    def __init__(self, place: RecordPlace) -> None:
        self.place = place

    def index(self) -> Index:
        """As it is now; LogError for one that is damaged or of another version."""
        try:
            found = msgspec.json.decode(self.place.read(INDEX), type=Index)
        except FileNotFoundError:
            return Index()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._damaged(f"is damaged: {error}") from error
        if found.schema != SCHEMA:
            raise LogError(f"record store {self.place.text}: {INDEX} has schema {found.schema}; this version of Tilewright reads "
                           f"{SCHEMA}; another may read it")
        return found

    def without_data(self, index: Index) -> LogError:
        """The file that an index names is not there, and no newer index is."""
        return self._damaged(f"names {index.data}, which is not there")

    def _damaged(self, what: str) -> LogError:
        return LogError(f"record store {self.place.text}: {INDEX} {what}; remove it, and its segments that are left and the "
                        "newest records-*.jsonl are read by `tilewright logs merge`")

    def span(self, index: Index, span: Span) -> list[bytes]:
        """The lines of a span; FileNotFoundError where a newer index has taken the place of this one."""
        return self.place.read(index.data, span.start, span.size).splitlines(keepends=True) if span.count else []

    def fresh(self, index: Index) -> Iterator[tuple[str, bytes]]:
        """(segment, bytes) that the index does not hold, the oldest segments first."""
        for name, size in sorted(self.place.names(SEGMENTS).items()):
            begin = index.absorbed.get(name, 0)
            if size > begin:
                try:
                    yield name, self.place.read(f"{SEGMENTS}/{name}", begin)
                except FileNotFoundError:
                    continue  # compacted and removed since it was listed: whoever reads sees a newer index

    def opened(self) -> tuple[Index, list[tuple[str, bytes]]]:
        """An index and what it does not hold, which belong together."""
        for _ in range(_TRIES):
            index = self.index()
            fresh = list(self.fresh(index))
            if self.index() == index:
                return index, fresh
        raise LogError(f"record store {self.place.text} changes faster than it is read; try again when fewer compact it")

    def compact(self) -> Compacted:
        """Put all records into one file with an index, and remove the segments that the compaction before took in. Where there
        are none yet nothing is written."""
        if self.index() == Index() and not self.place.names(SEGMENTS):
            return Compacted(0, 0, 0, 0, 0, 0)
        with self.place.alone():
            before = self.index()
            taken = dict(before.absorbed)
            parts: list[Iterable[_Line]] = [self._old(before)]
            absorbed = 0
            for name, data in self.fresh(before):
                whole = data if self._is_over(name) else data[: data.rfind(b"\n") + 1]
                taken[name] = taken.get(name, 0) + len(whole)
                absorbed += len(whole)
                parts.append(_lines(name, whole))
            writer = _Compaction()
            for line in heapq.merge(*parts, key=lambda line: line.order):
                writer.take(line)
            data, index = writer.written(taken)
            self.place.write(index.data, data)
            self.place.write(INDEX, msgspec.json.encode(index))
            removed = self._remove(before, index)
        counts = sum(s.count for s in index.workloads.values())
        return Compacted(counts, len(index.workloads), absorbed, removed, writer.twice, writer.unread)

    def _old(self, index: Index) -> Iterator[_Line]:
        """What is compacted already; it comes before all else."""
        if not index.data:
            return
        try:
            data = self.place.read(index.data)
        except FileNotFoundError as error:
            raise self.without_data(index) from error
        yield from _lines("", data)

    def _is_over(self, name: str) -> bool:
        """Is the writer of a segment gone for long, so that a line without an end stays one?"""
        if not isinstance(self.place, LocalPlace):
            return True
        try:
            return self.place.path(f"{SEGMENTS}/{name}").stat().st_mtime < time.time() - _QUIET
        except OSError:
            return False

    def _remove(self, before: Index, now: Index) -> int:
        """Segments that the index before held whole, and its data file."""
        if self.index() != now:
            return 0  # another machine compacted at the same time: its index counts
        sizes, removed = self.place.names(SEGMENTS), 0
        for name, size in before.absorbed.items():
            if sizes.get(name) == size and now.absorbed.get(name) == size and self._remove_segment(name, size):
                removed += 1
        if before.data and before.data != now.data:
            self.place.remove(before.data)
        return removed

    def _remove_segment(self, name: str, size: int) -> bool:
        """Under its lock, and only while nothing was added."""
        path = f"{SEGMENTS}/{name}"
        if not isinstance(self.place, LocalPlace):
            self.place.remove(path)
            return True
        try:
            with open(self.place.path(path), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if file.seek(0, 2) != size:
                    return False
                self.place.remove(path)
        except OSError:
            return False
        return True


class _Line(msgspec.Struct, frozen=True):
    """order: the latest time that its writer had told by then, so that a clock set back does not mix a writer's lines."""

    order: tuple[float, str, int]
    kind: _Kind
    data: bytes


def _lines(name: str, data: bytes) -> Iterator[_Line]:
    decode, latest = msgspec.json.Decoder(_Kind).decode, 0.0
    for number, line in enumerate(data.splitlines()):
        if not line.strip() or len(line) > LONGEST:
            continue
        try:
            kind = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            kind = _Kind("damaged")
        latest = max(latest, kind.when) if name else 0.0
        yield _Line((latest, name, number), kind, line + b"\n")


class _Compaction:
    """Lines as they come, each once: equal ones are copies of one measurement, which holds the time it was taken."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], list[bytes]] = {}
        self._seen: set[bytes] = set()
        self.twice = self.unread = 0

    def take(self, line: _Line) -> None:
        kind = line.kind
        digest = hashlib.blake2b(line.data, digest_size=16).digest()
        if digest in self._seen:
            self.twice += 1
            return
        match kind.record:
            case "measurement":
                place = ("", kind.workload)
            case "workload":
                place = (FORMS, "")
            case "damaged" | "":
                self.unread += 1
                return
            case "mark" | "farm" | "cut":
                place = (MARKS, "")
            case _:
                place = (SLOTS, "")
        self._seen.add(digest)
        self._parts.setdefault(place, []).append(line.data)

    def written(self, absorbed: Mapping[str, int]) -> tuple[bytes, Index]:
        workloads: dict[str, Span] = {}
        others: dict[str, Span] = {}
        parts: list[bytes] = []
        at = 0
        for (kind, key), lines in sorted(self._parts.items()):
            part = b"".join(lines)
            (others if kind else workloads)[kind or key] = Span(at, len(part), len(lines))
            parts.append(part)
            at += len(part)
        data = b"".join(parts)
        if self.unread:
            LOG.warning("%d lines of segments are no records and are left out", self.unread)
        name = DATA.format(hashlib.sha256(data).hexdigest()[:16])
        return data, Index(name, workloads, others, dict(absorbed))
