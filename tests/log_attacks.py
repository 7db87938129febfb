"""Damaged tuning logs, by seed: what a disk, an editor, a kill or another program does to one. Lines that were left alone are
known, so that one can see whether any of them is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

VALUES: tuple[Any, ...] = (0, -1, 1, 1e-12, 1e300, -1e300, 2**31, 2**63, 10**400, None, True, "", "x", "\0", "é" * 9000, [], {},
                           [[]], [0.0], [-1.0], [1e-12, 1.0], ["1"], {"d0": -1}, {"d0": 2**70}, {"d0": "7"}, {"e9": 7}, {"d0": 0},
                           1e-9)
TEXTS = ("", "d0 +", "d9 * d0", "max()", "(" * 5000, "d0 // 0", "1.5", "d0\0", "__import__('os')", "d0 % 0", "-" * 3000 + "d0")
GARBAGE = (b"", b" \t ", b"null", b"[]", b"{}", b"7", b'"text"', b"\xff\xfe\x00", b"\0" * 5000, b"[" * 200_000,
           b'{"record":' * 3000,
           b'{"record":"measurement"', b'{"record":"plan","schema":1}', b"x" * 1_000_000, "\ufeff{}".encode())


@dataclass
class DamagedLog:
    """lines: of the file. whole: of each line, is it as it was written? notes: what was done."""

    lines: list[bytes]
    whole: list[bool]
    notes: list[str] = field(default_factory=list)
    end: bytes = b"\n"

    @property
    def data(self) -> bytes:
        return b"\n".join(self.lines) + (self.end if self.lines else b"")

    @property
    def kept(self) -> list[bytes]:
        """Lines that nothing was done to."""
        return [line for line, whole in zip(self.lines, self.whole, strict=True) if whole]

    def put(self, at: int, line: bytes) -> None:
        self.lines[at], self.whole[at] = line, False

    def insert(self, at: int, line: bytes, whole: bool = False) -> None:
        self.lines.insert(at, line)
        self.whole.insert(at, whole)


def attack(lines: list[bytes], seed: int) -> DamagedLog:
    """One to six accidents with a log of these lines."""
    rng = random.Random(seed)
    log = DamagedLog(list(lines), [True] * len(lines))
    accidents = (_value, _value, _value, _field, _schema, _text, _bits, _garbage, _order)
    for _ in range(rng.randint(1, 5)):
        accident = rng.choice(accidents)
        accident(log, rng)
        log.notes.append(accident.__name__)
    if rng.random() < 0.3:
        _cut(log, rng)
    return log


def _object(log: DamagedLog, rng: random.Random) -> tuple[int, dict[str, Any]] | None:
    at = rng.randrange(len(log.lines))
    return (at, json.loads(log.lines[at])) if log.whole[at] else None


def _changed(change: Callable[[dict[str, Any], random.Random], None]) -> Callable[[DamagedLog, random.Random], None]:
    """An accident that rewrites one line that is still whole."""

    def accident(log: DamagedLog, rng: random.Random) -> None:
        found = _object(log, rng)
        if found is not None:
            before = log.lines[found[0]]
            change(found[1], rng)
            after = json.dumps(found[1], separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
            if json.loads(after) != json.loads(before):
                log.put(found[0], after)

    accident.__name__ = change.__name__
    return accident


@_changed
def _value(record: dict[str, Any], rng: random.Random) -> None:
    """Another value somewhere, at the top or within."""
    holder: Any = record
    key: Any = rng.choice(list(holder))
    while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.6:
        holder = holder[key]
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    holder[key] = rng.choice(VALUES)


@_changed
def _field(record: dict[str, Any], rng: random.Random) -> None:
    """A field that is missing, called otherwise, or not known."""
    key = rng.choice(list(record))
    match rng.randrange(3):
        case 0:
            del record[key]
        case 1:
            record[key + "_"] = record.pop(key)
        case _:
            record["note"] = rng.choice(VALUES)


@_changed
def _schema(record: dict[str, Any], rng: random.Random) -> None:
    record["schema"] = rng.choice((0, 2, 99, -1, 2**63, "1", None, 1.5))


@_changed
def _text(record: dict[str, Any], rng: random.Random) -> None:
    """A size or a configuration that is none."""
    keys = [k for k, v in record.items() if isinstance(v, str)]
    record[rng.choice(keys)] = rng.choice(TEXTS)
    if "loops" in record:
        record["loops"] = [[role, rng.choice(TEXTS)] for role, _ in record["loops"]]


def _bits(log: DamagedLog, rng: random.Random) -> None:
    at = rng.randrange(len(log.lines))
    line = bytearray(log.lines[at])
    for _ in range(rng.randint(1, 8)):
        if line:
            line[rng.randrange(len(line))] ^= 1 << rng.randrange(8)
    log.put(at, bytes(line))


def _garbage(log: DamagedLog, rng: random.Random) -> None:
    log.insert(rng.randrange(len(log.lines) + 1), rng.choice(GARBAGE))


def _order(log: DamagedLog, rng: random.Random) -> None:
    """A line twice, or elsewhere."""
    at = rng.randrange(len(log.lines))
    log.insert(rng.randrange(len(log.lines) + 1), log.lines[at], log.whole[at])


def _cut(log: DamagedLog, rng: random.Random) -> None:
    """The file ends within a line."""
    at = rng.randrange(len(log.lines))
    del log.lines[at + 1 :], log.whole[at + 1 :]
    log.put(at, log.lines[at][: rng.randrange(max(1, len(log.lines[at])))])
    log.end = b""
    log.notes.append("cut")
