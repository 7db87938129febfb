"""Artifact: compiled programs in one file that is mapped, not read.

Layout: a 64-byte header, the manifest (JSON), then sections at 64-byte boundaries, uncompressed. Header, little-endian:
magic, schema, bytes of the manifest, bytes of the file, 8 zero bytes, sha256 of the manifest. A section's offset counts
from the first boundary after the manifest. Hashes detect damage, not malice: an artifact is native code.
"""

from __future__ import annotations

import hashlib
import io
import math
import mmap
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, Union

import msgspec
import numpy as np

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.program import READABLE, SCHEMA, Program

MAGIC = b"\x89TWMODL\n"
ALIGNMENT = 64
_HEADER = struct.Struct("<8sIIQ8x32s")  # magic, schema, manifest bytes, file bytes, manifest sha256
Verify = Literal["code", "all"]
Memory = Union[bytes, bytearray, memoryview, "np.ndarray[Any, Any]"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Bundle:
    """A program and its memory: `code` and `llvm_ir` by digest of the object code, `constants` by their own digests."""

    program: Program
    code: Mapping[str, Memory]
    constants: Mapping[str, Memory]
    llvm_ir: Mapping[str, str] = field(default_factory=dict)


class Section(msgspec.Struct, frozen=True):
    """A run of bytes of the file."""

    name: str
    offset: int
    size: int
    sha256: str


class Group(msgspec.Struct, frozen=True):
    """One target's program: names of its sections."""

    target: str
    features: str
    program: str
    code: dict[str, str]
    constants: dict[str, str]
    llvm_ir: dict[str, str]


class Manifest(msgspec.Struct, frozen=True):
    """What the file holds."""

    schema: int
    groups: tuple[Group, ...]
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class _Content:
    """A section to be written; its memory is asked for when its turn comes, and need not exist before and after."""

    size: int
    sha256: str
    memory: Callable[[], Memory]

    @staticmethod
    def of(data: Memory) -> _Content:
        found = raw_bytes(data)
        return _Content(found.nbytes, hashlib.sha256(found).hexdigest(), lambda: found)


def write_artifact(path: str | os.PathLike[str], bundles: Sequence[Bundle], sync: bool = True) -> None:
    """Write all bundles as one file, atomically: readers see the old file or the whole new one. Constants are asked for one by
    one, so that a mapping may make each when it is asked for.

    Args:
        sync: wait until the disk has it.
    Raises:
        ArtifactError: the folder does not exist, may not be written, or is full; a constant is not what its digest says.
    """
    target = _path(path, "save")
    if not target.parent.is_dir():
        raise ArtifactError(f"cannot write {target}: the folder {target.parent} does not exist; create it first")
    if os.path.isdir(target):  # False also for a name that is too long
        raise ArtifactError(f"cannot write {target}: it is a folder; give a file name such as {target / 'model.tw'}")
    temporary = target.parent / f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        try:
            with temporary.open("xb") as file:
                _write(file, bundles)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {target}: {error.strerror}; choose a folder with room that may be written"
        ) from error


def artifact_bytes(bundles: Sequence[Bundle]) -> bytes:
    """What `write_artifact` would write."""
    file = io.BytesIO()
    _write(file, bundles)
    return file.getvalue()


def _write(file: IO[bytes], bundles: Sequence[Bundle]) -> None:
    contents: dict[str, _Content] = {}
    groups = tuple(_group(index, bundle, contents) for index, bundle in enumerate(bundles))
    sections, end = [], 0
    for name, content in contents.items():
        sections.append(Section(name, end, content.size, content.sha256))
        end = _align(end + content.size)
    manifest = msgspec.json.encode(Manifest(SCHEMA, groups, tuple(sections)))
    start = _align(_HEADER.size + len(manifest))
    size = start + max((s.offset + s.size for s in sections), default=0)
    header = _HEADER.pack(MAGIC, SCHEMA, len(manifest), size, hashlib.sha256(manifest).digest())
    file.write(header + manifest)
    for section, content in zip(sections, contents.values(), strict=True):
        file.write(bytes(start + section.offset - file.tell()))
        file.write(_checked(section, raw_bytes(content.memory())))


def _path(path: Any, what: str) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ArtifactError(f"{what}: wanted the path of a file such as 'model.tw', got {type(path).__name__}; give it as text")
    if "\0" in os.fspath(path):
        raise ArtifactError(f"{what}: wanted the path of a file, got one with a null byte, {os.fspath(path)!r}; leave it out")
    return Path(path)


def _group(index: int, bundle: Bundle, contents: dict[str, _Content]) -> Group:
    """Add the bundle's sections; equal ones are stored once."""

    def add(name: str, data: Memory) -> str:
        return place(name, _Content.of(data))

    def place(name: str, content: _Content) -> str:
        contents.setdefault(name, content)
        return name

    program = bundle.program
    constants = {d: _Content(size, d, partial(bundle.constants.__getitem__, d)) for d, size in constant_bytes(bundle).items()}
    return Group(
        program.target,
        program.features,
        add(f"program/{index}", msgspec.json.encode(program)),
        {d: add(f"code/{index}/{d}", data) for d, data in bundle.code.items()},
        {d: place(f"constant/{d}", content) for d, content in constants.items()},
        {d: add(f"llvm/{index}/{d}", text.encode()) for d, text in bundle.llvm_ir.items()},
    )


def constant_bytes(bundle: Bundle) -> dict[str, int]:
    """The size of each constant, by its digest."""
    return {c.digest: math.prod(c.shape) * c.dtype.bytes for c in bundle.program.constants}


def _checked(section: Section, data: memoryview) -> memoryview:
    """The data of a section, as it was described."""
    later = section.name.startswith("constant/")  # hashed when it was described, and asked for only now
    if data.nbytes != section.size or (later and hashlib.sha256(data).hexdigest() != section.sha256):
        raise ArtifactError(f"{section.name} is not what the program says: an array that was given as a constant has changed "
                            "since; compile the model again, and leave its arrays as they are meanwhile")
    return data


class Artifact:
    """An open artifact; the file stays mapped as long as this or any section's memory lives.

    Args:
        data: the file's content, where it was read already; `path` then only names it.
    Raises:
        ArtifactError: not an artifact, of another version, truncated or damaged.
    """

    def __init__(self, path: str | os.PathLike[str], data: bytes | None = None) -> None:
        self.path = _path(path, "load")
        self._memory = _mapped(self.path) if data is None else memoryview(data)
        size = self._memory.nbytes
        if size < _HEADER.size:
            raise ArtifactError(f"{self.path} is truncated: {size} bytes are less than a header; copy or save it again")
        _, schema, length, whole, digest = _HEADER.unpack(self._memory[: _HEADER.size])
        if schema not in READABLE:
            raise ArtifactError(
                f"{self.path} has format {schema} and this Tilewright reads {' and '.join(map(str, READABLE))}; compile the "
                "model again with this version"
            )
        if size != whole:
            raise ArtifactError(
                f"{self.path} is {'truncated' if size < whole else 'damaged'}: wanted {whole} bytes, found {size}; "
                "copy or save it again"
            )
        text = self._memory[_HEADER.size : _HEADER.size + length]
        if hashlib.sha256(text).digest() != digest:
            raise ArtifactError(f"{self.path} is damaged: its manifest does not match its hash; copy or save it again")
        self.manifest = _decode(text, Manifest, self.path)
        self._start = _align(_HEADER.size + length)
        self._sections = {s.name: s for s in self.manifest.sections}
        for section in self.manifest.sections:
            if section.offset < 0 or section.size < 0 or self._start + section.offset + section.size > size:
                raise ArtifactError(
                    f"{self.path} is damaged: section {section.name} lies outside the file; save it again"
                )

    def section(self, name: str, verify: bool = True) -> memoryview:
        """Mapped bytes of a section, read-only; ArtifactError when they do not match their hash."""
        if name not in self._sections:
            raise ArtifactError(f"{self.path} is damaged: it has no section {name}; save it again")
        section = self._sections[name]
        data = self._memory[self._start + section.offset :][: section.size]
        if verify and hashlib.sha256(data).hexdigest() != section.sha256:
            raise ArtifactError(
                f"{self.path} is damaged: section {name} does not match its hash; copy or save it again"
            )
        return data

    def verify_all(self) -> None:
        """Check every section's hash, constants and LLVM IR too."""
        for name in self._sections:
            self.section(name)

    def bundles(self, kind: str) -> Iterator[LazyBundle]:
        """The stored programs for a kind of target ("host", "cuda"), best first."""
        for group in self.manifest.groups:
            if group.target.partition(":")[0] == kind:
                yield LazyBundle(self, group)


def _mapped(path: Path) -> memoryview:
    """The file's content. ArtifactError when it cannot be read or does not begin as an artifact does."""
    if path.is_dir():
        raise ArtifactError(f"cannot read {path}: it is a folder; wanted a file that save() wrote, such as {path / 'model.tw'}")
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                source = path.suffix in (".mlir", ".onnx", ".pt2", ".txt")
                remedy = f"give it to tw.compile({str(path)!r}) first" if source else "check the path, or save the model again"
                raise ArtifactError(f"{path} is not a Tilewright model; wanted a file that save() wrote: {remedy}")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror}; wanted a file that save() wrote: check the path") from error


@dataclass(frozen=True)
class LazyBundle:
    """A stored program whose sections are looked at on demand."""

    artifact: Artifact
    group: Group

    def program(self) -> Program:
        return _decode(self.artifact.section(self.group.program), Program, self.artifact.path)

    def code(self) -> dict[str, memoryview]:
        return {digest: self.artifact.section(name) for digest, name in self.group.code.items()}

    def headers(self) -> Iterator[bytes]:
        """The first bytes of each object, unverified: enough to tell its architecture."""
        for name in self.group.code.values():
            yield bytes(self.artifact.section(name, verify=False)[:64])

    def constants(self) -> dict[str, memoryview]:
        return {digest: self.artifact.section(name, verify=False) for digest, name in self.group.constants.items()}

    def llvm_ir(self) -> Mapping[str, str]:
        return StoredTexts(self.artifact, self.group.llvm_ir)

    def load(self) -> Bundle:
        return Bundle(self.program(), self.code(), self.constants(), self.llvm_ir())


@dataclass(frozen=True)
class StoredTexts(Mapping[str, str]):
    """Texts that are read and checked when asked for."""

    artifact: Artifact
    names: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        return bytes(self.artifact.section(self.names[key])).decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _decode(data: memoryview, kind: type[_T], path: Path) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ArtifactError(
            f"{path} is damaged: its {kind.__name__.lower()} cannot be read ({error}); save it again"
        ) from error


def raw_bytes(memory: Memory) -> memoryview:
    """The bytes of a buffer or array, not copied where it is C-contiguous."""
    if isinstance(memory, np.ndarray):
        memory = np.ascontiguousarray(memory).reshape(-1).view(np.uint8).data
    found = memoryview(memory)
    return found.cast("B") if found.nbytes else memoryview(b"")


def _align(value: int) -> int:
    return -(-value // ALIGNMENT) * ALIGNMENT
