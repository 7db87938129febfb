"""Forges artifacts: changes what a file says, field by field, and makes all hashes right again; or changes bytes alone.

Knows the layout by itself, so that it forges what the writer would refuse to write.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_HEADER = struct.Struct("<8sIIQQ32s")
_ALIGNMENT = 64
_INTEGERS = (0, -1, 1, 2, 7, 255, 256, 1 << 31, (1 << 31) - 1, (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 64, 10**30)
_TEXTS = ("", "0", "1", "-1", "nope", "T", "M*1000000", "M - 1000", "M//0", "mod(M, 0)", "9" * 40, "((((", "M**M", "\0", "ü",
          "(" * 5000, "host", "cuda:sm_90a", "f64", "i8", "leaf", "pointer", "fallback", "__import__('os')")  # fmt: skip
Path = tuple[Any, ...]


@dataclass(frozen=True)
class Forged:
    """A file, and what was done to it."""

    data: bytes
    what: str


@dataclass
class Parts:
    """An artifact taken apart: the manifest as JSON, sections by name."""

    head: tuple[Any, ...]
    manifest: dict[str, Any]
    sections: dict[str, bytes]

    @staticmethod
    def of(data: bytes) -> Parts:
        head = _HEADER.unpack_from(data)
        manifest = json.loads(data[_HEADER.size : _HEADER.size + head[2]])
        start = _aligned(_HEADER.size + head[2])
        return Parts(head, manifest, {s["name"]: data[start + s["offset"] :][: s["size"]] for s in manifest["sections"]})

    def joined(self, manifest: Any = None) -> bytes:
        """The file, its hashes made right. manifest: what stands there in place of the one that is right."""
        body, right = bytearray(), json.loads(json.dumps(self.manifest))
        for section in right["sections"]:
            data = self.sections[section["name"]]
            body += bytes(-len(body) % _ALIGNMENT)
            section.update(offset=len(body), size=len(data), sha256=hashlib.sha256(data).hexdigest())
            body += data
        text = json.dumps(right if manifest is None else manifest, separators=(",", ":")).encode()
        start = _aligned(_HEADER.size + len(text))
        magic, schema, _, _, _, _ = self.head
        size = start + len(body)
        head = _HEADER.pack(magic, schema, len(text), size, 0, hashlib.sha256(text).digest())
        return (head + text).ljust(start, b"\0") + bytes(body)


def forgeries(data: bytes, count: int, rng: random.Random) -> Iterator[Forged]:
    """Files that say something else, with right hashes: three of four times in the program, every one of its fields in turn, else
    in the manifest."""
    parts = Parts.of(data)
    name = parts.manifest["groups"][0]["program"]
    program = json.loads(parts.sections[name])
    fields = _by_field(program)
    turn = list(fields)
    rng.shuffle(turn)
    for number in range(count):
        if number % 4 == 3:
            manifest, what = _changed(parts.manifest, rng.choice(list(_paths(parts.manifest))), rng)
            yield Forged(parts.joined(manifest), f"manifest {what}")
        else:
            other, what = _changed(program, rng.choice(fields[turn[number % len(turn)]]), rng)
            forged = Parts(parts.head, parts.manifest, {**parts.sections, name: json.dumps(other).encode()})
            yield Forged(forged.joined(), f"program {what}")


def mutants(data: bytes, count: int, rng: random.Random) -> Iterator[Forged]:
    """Files with other bytes, hashes as they were: bits, bytes, runs of zeros, pieces moved, cut or put in, ends cut off."""
    for _ in range(count):
        made, kind = bytearray(data), rng.choice(("bit", "byte", "zeros", "moved", "cut", "put in", "end"))
        at, to = rng.randrange(len(made)), rng.randrange(len(made))
        if rng.random() < 0.3:
            at = rng.randrange(_HEADER.size)
        length = 1 << rng.randrange(10)
        if kind == "bit":
            made[at] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            made[at] = rng.randrange(256)
        elif kind == "zeros":
            made[at : at + length] = bytes(len(made[at : at + length]))
        elif kind == "moved":
            piece = made[to : to + length]
            made[at : at + len(piece)] = piece
        elif kind == "cut":
            del made[at : at + length]
        elif kind == "put in":
            made[at:at] = rng.randbytes(length)
        else:
            del made[at:]
        yield Forged(bytes(made), f"{kind} at {at}")


def _by_field(value: Any) -> dict[tuple[str, ...], list[Path]]:
    """Where each field of each struct stands, list numbers left out of its name."""
    found: dict[tuple[str, ...], list[Path]] = {}
    for path in _paths(value):
        found.setdefault(tuple(p for p in path if isinstance(p, str)), []).append(path)
    return found


def _paths(value: Any, at: Path = ()) -> Iterator[Path]:
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for key, item in items:
        yield (*at, key)
        yield from _paths(item, (*at, key))


def _changed(document: Any, path: Path, rng: random.Random) -> tuple[Any, str]:
    """A copy in which the value at a path is another one."""
    made = json.loads(json.dumps(document))
    owner = made
    for key in path[:-1]:
        owner = owner[key]
    before = owner[path[-1]]
    if rng.random() < 0.1 and isinstance(owner, dict):
        del owner[path[-1]]
        return made, f"{path}: left out"
    after = _other(before, document, rng)
    owner[path[-1]] = after
    return made, f"{path}: {str(before)[:40]!r} -> {str(after)[:40]!r}"


def _other(value: Any, document: Any, rng: random.Random) -> Any:
    """Another value: mostly of the same type, sometimes of none that fits."""
    if rng.random() < 0.1:
        return rng.choice([None, True, 1.5, [], {}, "x", -1, [[[]]]])
    if isinstance(value, int) and not isinstance(value, bool):
        return rng.choice([*_INTEGERS, value + 1, value - 1, value * 2, value // 2, -value])
    if isinstance(value, str):
        seen = [s for s in (_at(document, p) for p in _paths(document)) if isinstance(s, str)]
        return rng.choice([rng.choice(seen), rng.choice(_TEXTS), f"{value} + 1", f"2*({value})", value[:-1], value + value])
    if isinstance(value, list) and value:
        i = rng.randrange(len(value))
        return rng.choice([[], value[:i], value[i:], [*value, value[i]], value[::-1], value * 3])
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        less = {k: v for k, v in value.items() if k != key}
        return rng.choice([{}, less, {**less, key + "x": value[key]}, {**value, key: rng.choice(list(value.values()))}])
    return rng.choice([0, 1, "", "M", [], {}, [0], [[0, 0]], [[0, 7]], {"kind": "leaf", "number": 9}, True])


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _aligned(value: int) -> int:
    return -(-value // _ALIGNMENT) * _ALIGNMENT
