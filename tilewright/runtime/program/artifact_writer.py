"""Writes artifacts: bundles as one file (artifact.py has its layout), signed on request; signs those that are there."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.artifact import (
    HEADER,
    MAGIC,
    Artifact,
    Bundle,
    Group,
    Manifest,
    Memory,
    Section,
    align,
    path_of,
    raw_bytes,
)
from tilewright.runtime.program.program import SCHEMA, Constant
from tilewright.runtime.program.replace_file import replaced
from tilewright.runtime.program.seal import stored_program
from tilewright.runtime.program.signing import Key, Signature, sign
from tilewright.runtime.program.stored_bytes import kind_of
from tilewright.runtime.program.stored_indices import narrowed

_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Content:
    """A section to be written; its memory is asked for when its turn comes, and need not exist before and after. entries: of a
    pool whose indices it is, in few bits."""

    size: int
    sha256: str
    memory: Callable[[], Memory]
    entries: int = 0

    @staticmethod
    def of(data: Memory) -> _Content:
        found = raw_bytes(data)
        return _Content(found.nbytes, hashlib.sha256(found).hexdigest(), lambda: found)

    @staticmethod
    def constant(constant: Constant, memory: Callable[[], Memory]) -> _Content:
        if not constant.entries:
            return _Content(constant.size, constant.digest, memory)

        def few() -> Memory:
            return narrowed(np.frombuffer(raw_bytes(memory()), np.uint8), constant.entries)

        return _Content(constant.stored_size, constant.stored, few, constant.entries)


@dataclass(frozen=True)
class _Head:
    """What stands before the sections."""

    manifest: Manifest
    text: bytes

    @staticmethod
    def of(manifest: Manifest) -> _Head:
        return _Head(manifest, msgspec.json.encode(manifest))

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.text).digest()

    @property
    def start(self) -> int:
        """Where the sections begin."""
        return align(HEADER.size + len(self.text))

    def packed(self, signatures: int) -> bytes:
        """Header and manifest of a file that ends with so many bytes of signatures."""
        size = self.start + max((s.offset + s.size for s in self.manifest.sections), default=0) + signatures
        return HEADER.pack(MAGIC, SCHEMA, len(self.text), size, signatures, self.digest) + self.text


def write_artifact(path: str | os.PathLike[str], bundles: Sequence[Bundle], *, sync: bool = True, key: Key | None = None) -> None:
    """Write all bundles as one file, atomically: readers see the old file or the whole new one. Constants are asked for one by
    one, so that a mapping may make each when it is asked for.

    Args:
        sync: wait until the disk has it.
        key: a private key to sign with (signing.py).
    Raises:
        ArtifactError: the folder does not exist, may not be written, or is full; the path is something else than a file; a
            constant is not what its digest says. OptionError: the key is none, or `cryptography` is not installed.
    """
    _written(path, lambda file: write_bundles(file, bundles, key), sync)


def artifact_bytes(bundles: Sequence[Bundle]) -> bytes:
    """What `write_artifact` would write."""
    file = io.BytesIO()
    write_bundles(file, bundles)
    return file.getvalue()


def sign_artifact(opened: Artifact, path: str | os.PathLike[str], key: Key) -> Signature:
    """Write an open artifact with a signature more, after all of it is checked; of one key there is one signature.

    Raises:
        ArtifactError: it is damaged, or the file cannot be written. OptionError: as of `write_artifact`.
    """
    opened.verify_all()
    made = sign(opened.digest, key)
    text = msgspec.json.encode([*(s for s in opened.signatures() if s.key != made.key), made])
    fields = list(HEADER.unpack(opened.stored.read(0, HEADER.size)))
    fields[3], fields[4] = opened.end + len(text), len(text)

    def write(file: IO[bytes]) -> None:
        file.write(HEADER.pack(*fields))
        for at in range(HEADER.size, opened.end, _BLOCK):
            file.write(opened.stored.read(at, min(_BLOCK, opened.end - at)))
        file.write(text)

    _written(path, write)
    return made


def _written(path: str | os.PathLike[str], write: Callable[[IO[bytes]], None], sync: bool = True) -> None:
    target = path_of(path, "save")
    _refuse_others(target)
    try:
        with replaced(target, sync) as file:
            write(file)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {target}: {error.strerror}; choose a folder with room that may be written"
        ) from error


def _refuse_others(target: Path) -> None:
    """ArtifactError where the path cannot name a file to be written."""
    place = os.path.realpath(target)
    if not os.path.isdir(os.path.dirname(place)):
        raise ArtifactError(f"cannot write {target}: the folder {os.path.dirname(place)} does not exist; create it first")
    try:
        kind = kind_of(os.stat(place).st_mode)
    except OSError:  # nothing there; or its name is too long, which writing tells
        return
    if kind:
        inside = f" such as {target / 'model.tw'}" if os.path.isdir(place) else " of its own"
        raise ArtifactError(f"cannot write {target}: it is {kind}; give a file name{inside}")


def write_bundles(file: IO[bytes], bundles: Sequence[Bundle], key: Key | None = None, label: str = "") -> None:
    """Write an artifact into an open file.

    Args:
        label: what the writer keeps the file under; it is in the manifest.
    Raises:
        ArtifactError: a constant is not what its digest says. OSError: as of the file. OptionError: as of `write_artifact`.
    """
    contents: dict[str, _Content] = {}
    groups = tuple(_group(index, bundle, contents) for index, bundle in enumerate(bundles))
    sections, end = [], 0
    for name, content in contents.items():
        sections.append(Section(name, end, content.size, content.sha256, content.entries))
        end = align(end + content.size)
    head = _Head.of(Manifest(SCHEMA, groups, tuple(sections), label))
    signatures = b"" if key is None else msgspec.json.encode([sign(head.digest, key)])
    file.write(head.packed(len(signatures)))
    for section, content in zip(sections, contents.values(), strict=True):
        file.write(bytes(head.start + section.offset - file.tell()))
        file.write(_checked(section, raw_bytes(content.memory())))
    file.write(bytes(max(0, head.start - file.tell())))
    file.write(signatures)


def _group(index: int, bundle: Bundle, contents: dict[str, _Content]) -> Group:
    """Add the bundle's sections; equal ones are stored once."""

    def add(name: str, data: Memory) -> str:
        return place(name, _Content.of(data))

    def place(name: str, content: _Content) -> str:
        contents.setdefault(name, content)
        return name

    program = bundle.program
    constants = {c.digest: _Content.constant(c, partial(bundle.constants.__getitem__, c.digest)) for c in program.constants}
    return Group(
        target=program.target,
        features=program.features,
        program=add(f"program/{index}", stored_program(program)),
        host=program.host_object,
        binder=program.binder_object,
        code={d: add(f"code/{index}/{d}", data) for d, data in bundle.code.items()},
        constants={d: place(f"constant/{d}" + (f"/{content.entries}" if content.entries else ""), content)
                   for d, content in constants.items()},
        llvm_ir={d: add(f"llvm/{index}/{d}", text.encode()) for d, text in bundle.llvm_ir.items()},
    )


def _checked(section: Section, data: memoryview) -> memoryview:
    """The data of a section, as it was described."""
    later = section.name.startswith("constant/")  # hashed when it was described, and asked for only now
    if data.nbytes != section.size or (later and hashlib.sha256(data).hexdigest() != section.sha256):
        raise ArtifactError(f"{section.name} is not what the program says: an array that was given as a constant has changed "
                            "since; compile the model again, and leave its arrays as they are meanwhile")
    return data
