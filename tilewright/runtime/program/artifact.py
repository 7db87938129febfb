"""Artifact: compiled programs in one file.

Layout: a 64-byte header, the manifest (JSON), then sections at 64-byte boundaries, uncompressed, then signatures (JSON) if there
are any. Header, little-endian: magic, schema, bytes of the manifest, of the file, of the signatures, sha256 of the manifest. A
section's offset counts from the first boundary after the manifest. The manifest holds the hash of every section, so its own hash
stands for the whole file, and that is what is signed (signing.py). What a program says is held against its code (seal.py).
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import msgspec
import numpy as np

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.program import SCHEMA, Program
from tilewright.runtime.program.seal import Part, seal
from tilewright.runtime.program.signing import Keys, Signature, check_signatures
from tilewright.runtime.program.stored_bytes import StoredBytes, StoredFile
from tilewright.runtime.program.stored_indices import index_bits, is_narrow, widened, widened_size

MAGIC = b"\x89TWMODL\n"
ALIGNMENT = 64
HEADER = struct.Struct("<8sIIQQ32s")  # magic, schema, bytes of manifest, of the file, of the signatures; manifest sha256
_MOST_MANIFEST = 1 << 28
_BLOCK = 1 << 20  # bytes that are read and hashed at a time, so that the second finds them in the cache
Memory = Union[bytes, bytearray, memoryview, "np.ndarray[Any, Any]"]
Verify = Literal["lazy", "full", "none"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Bundle:
    """A program and its memory: `code` and `llvm_ir` by digest of the object code, `constants` by their own digests."""

    program: Program
    code: Mapping[str, Memory]
    constants: Mapping[str, Memory]
    llvm_ir: Mapping[str, str] = field(default_factory=dict)


class Section(msgspec.Struct, frozen=True):
    """A run of bytes of the file. entries: of a pool whose indices they are, in fewer bits than bytes have; else 0."""

    name: str
    offset: int
    size: int
    sha256: str
    entries: int = 0


class Group(msgspec.Struct, frozen=True):
    """One target's program: names of its sections. host, binder: the objects that hold the program's seal, by their digests."""

    target: str
    features: str
    program: str
    host: str
    binder: str
    code: dict[str, str]
    constants: dict[str, str]
    llvm_ir: dict[str, str]


class Manifest(msgspec.Struct, frozen=True):
    """What the file holds. label: what its writer keeps it under."""

    schema: int
    groups: tuple[Group, ...]
    sections: tuple[Section, ...]
    label: str = ""


class Artifact:
    """An open artifact; the file stays open as long as this lives.

    Args:
        data: the file's content, where it was read already; `path` then only names it.
        keys: public keys, of which one has to have signed it.
    Attributes:
        digest: the hash of the manifest. signer: the signature by one of the keys.
    Raises:
        ArtifactError: not an artifact, of another version, truncated or damaged. SignatureError: not signed by one of the keys.
    """

    def __init__(self, path: str | os.PathLike[str], data: bytes | None = None, keys: Keys | None = None) -> None:
        self.path = path_of(path, "load")
        self.stored: StoredBytes = StoredFile(self.path) if data is None else StoredBytes(data)
        size = self.stored.size
        begin = self.stored.read(0, min(size, HEADER.size))
        if begin[: len(MAGIC)] != MAGIC:
            raise self._no_model()
        if size < HEADER.size:
            raise ArtifactError(f"{self.path} is truncated: {size} bytes are less than a header; copy or save it again")
        _, schema, self._length, whole, self._signed, self.digest = HEADER.unpack(begin)
        if schema != SCHEMA:
            raise ArtifactError(f"{self.path} has format {schema} and this Tilewright reads {SCHEMA}; compile the model "
                                "again with this version")
        if size != whole:
            raise self.damaged(f"wanted {whole} bytes, found {size}", "truncated" if size < whole else "damaged")
        if self._length > _MOST_MANIFEST or self._length + self._signed > size - HEADER.size:
            raise self.damaged(f"its manifest has {self._length} bytes and its signatures have {self._signed}")
        text = self.stored.read(HEADER.size, self._length)
        if hashlib.sha256(text).digest() != self.digest:
            raise self.damaged("its manifest does not match its hash")
        self.signer = None if keys is None else check_signatures(self.signatures(), self.digest, keys, str(self.path))
        self.manifest = self.decode(text, Manifest, "manifest")
        if self.manifest.schema != schema:
            raise self.damaged(f"its header says format {schema} and its manifest format {self.manifest.schema}")
        if not self.manifest.groups:
            raise self.damaged("it holds no program")
        self.start = align(HEADER.size + self._length)
        self.sections = {s.name: s for s in self.manifest.sections}
        for section in self.manifest.sections:
            if section.offset < 0 or section.size < 0 or self.start + section.offset + section.size > size:
                raise self.damaged(f"section {section.name} lies outside the file")
            if section.entries and not (is_narrow(section.entries) and section.size % index_bits(section.entries) == 0):
                raise self.damaged(f"section {section.name} is said to be indices of a pool of {section.entries}")
        self.end = self.start + max((s.offset + s.size for s in self.manifest.sections), default=0)
        if self.end + self._signed != size:
            raise self.damaged(f"wanted {self.end + self._signed} bytes, as its sections and signatures say, found {size}")

    def section(self, name: str) -> memoryview:
        """The bytes of a section, read-only; ArtifactError when they do not match their hash."""
        found = self.named(name)
        return self._read(found, self._room(found.size), verify=True)

    def constant(self, name: str, verify: bool) -> memoryview:
        """As `section`, aligned for kernels. Without `verify` only a change of the file's size or time is told."""
        found = self.named(name)
        if not verify and self.stored.was_written():
            raise ArtifactError(f"{self.path} was written to while it was loaded; load it again")
        return self._read(found, self._aligned(found.size), verify)

    def indices(self, section: Section, stored: memoryview) -> memoryview:
        """The bytes, aligned for kernels, of what is stored of indices; ArtifactError names one that is beyond their pool."""
        room = self._aligned(widened_size(section.entries, section.size))
        try:
            widened(np.frombuffer(stored, np.uint8), section.entries, room)
        except ValueError as error:
            raise self.damaged(f"section {section.name}: {error}") from error
        return room.data.toreadonly()

    def beginning(self, name: str) -> bytes:
        """The first 64 bytes of a section, not held against its hash: enough to tell the architecture of code."""
        found = self.named(name)
        return self.stored.read(self.start + found.offset, min(64, found.size))

    def verify_all(self, besides: Collection[str] = ()) -> None:
        """Check every section's hash, what lies between them, and every program against its code.

        Args:
            besides: sections that were read, and with that checked, already.
        Raises:
            ArtifactError: names the first that is not right.
        """
        self.verify_padding()
        block = np.empty(_BLOCK, np.uint8)
        for section in self.manifest.sections:
            if section.name not in besides:
                self._read(section, block, verify=True)
        for group in self.manifest.groups:
            LazyBundle(self, group).checked()

    def verify_padding(self) -> None:
        """ArtifactError unless there are zeros between the sections."""
        places = sorted((self.start + s.offset, s.size) for s in self.manifest.sections)
        at = HEADER.size + self._length
        for offset, size in places:
            if any(self.stored.read(at, max(0, offset - at))):
                raise self.damaged(f"what lies before byte {offset} is no padding")
            at = max(at, offset + size)

    def signatures(self) -> tuple[Signature, ...]:
        """The signatures as they stand there, checked by nobody."""
        text = self.stored.read(self.stored.size - self._signed, self._signed)
        return self.decode(text, tuple[Signature, ...], "signatures") if text else ()

    def bundles(self, kind: str) -> Iterator[LazyBundle]:
        """The stored programs for a kind of target ("host", "cuda"), best first."""
        for group in self.manifest.groups:
            if group.target.partition(":")[0] == kind:
                yield LazyBundle(self, group)

    def damaged_section(self, section: Section) -> ArtifactError:
        """What is said of a section whose bytes are not those that its hash was made of."""
        changed = "it was written to while it was loaded" if self.stored.was_written() else "copy or save it again"
        return self.damaged(f"section {section.name} does not match its hash", remedy=changed)

    def named(self, name: str) -> Section:
        """The section of a name; ArtifactError where there is none."""
        if name not in self.sections:
            raise self.damaged(f"it has no section {name}")
        return self.sections[name]

    def _room(self, size: int) -> np.ndarray[Any, Any]:
        try:
            return np.empty(size, np.uint8)
        except MemoryError as error:
            raise ArtifactError(f"{self.path}: no memory for {size} bytes of it; load it where there is more") from error

    def _aligned(self, size: int) -> np.ndarray[Any, Any]:
        room = self._room(size + ALIGNMENT)
        start = -room.ctypes.data % ALIGNMENT
        return room[start : start + size]

    def _read(self, section: Section, room: np.ndarray[Any, Any], verify: bool) -> memoryview:
        """The bytes of a section, read into a room of its size; one of a block's size holds the last of them alone."""
        target, digest = room.data, hashlib.sha256()
        keeps = room.nbytes >= section.size
        for at in range(0, section.size, _BLOCK):
            count = min(_BLOCK, section.size - at)
            part = target[at : at + count] if keeps else target[:count]
            self.stored.read_into(self.start + section.offset + at, part)
            if verify:
                digest.update(part)
        if verify and digest.hexdigest() != section.sha256:
            raise self.damaged_section(section)
        return target.toreadonly()

    def decode(self, data: bytes | memoryview, kind: type[_T], what: str) -> _T:
        """JSON of the file as a value of its kind."""
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise self.damaged(f"its {what} cannot be read ({error})") from error

    def damaged(self, why: str, kind: str = "damaged", remedy: str = "copy or save it again") -> ArtifactError:
        """The error about this file."""
        return ArtifactError(f"{self.path} is {kind}: {why}; {remedy}")

    def _no_model(self) -> ArtifactError:
        source = self.path.suffix in (".mlir", ".onnx", ".pt2", ".txt")
        remedy = f"give it to tw.compile({str(self.path)!r}) first" if source else "check the path, or save the model again"
        return ArtifactError(f"{self.path} is not a Tilewright model; wanted a file that save() wrote: {remedy}")


@dataclass(frozen=True)
class LazyBundle:
    """A stored program whose sections are read on demand, each held against its hash."""

    artifact: Artifact
    group: Group

    def program(self) -> Program:
        """The program; ArtifactError where it is not the one that its code was compiled for."""
        group, opened = self.group, self.artifact
        stored = opened.section(group.program)
        for part, digest in self._sealed():
            if seal(part, bytes(stored)) not in bytes(self._object(digest)):
                raise opened.damaged(f"{group.program} is not what its {part} code was compiled for")
        found = opened.decode(stored, Program, "program")
        if (found.target, found.features) != (group.target, group.features):
            raise opened.damaged(f"its manifest says {group.target} of {group.program}, which is for {found.target}")
        return msgspec.structs.replace(found, host_object=group.host, binder_object=group.binder)

    def code(self) -> dict[str, memoryview]:
        """Objects by digest, which is that of their bytes."""
        return {digest: self._object(digest) for digest in self.group.code}

    def check_seals(self, code: Mapping[str, Memory]) -> None:
        """Hold code that was compiled anew against the program; ArtifactError where it is of another one."""
        stored = bytes(self.artifact.section(self.group.program))
        for part, digest in self._sealed():
            if seal(part, stored) not in bytes(code[digest]):
                raise self.artifact.damaged(f"its LLVM IR {digest[:12]} is not of {self.group.program}")

    def headers(self) -> Iterator[bytes]:
        """The first bytes of each object, unverified: enough to tell its architecture."""
        return map(self.artifact.beginning, self.group.code.values())

    def constants(self, verify: bool = True, shared: bool = False) -> LazyConstants:
        return LazyConstants(self.artifact, self.group.constants, verify, shared)

    def llvm_ir(self) -> Mapping[str, str]:
        return StoredTexts(self.artifact, self.group.llvm_ir)

    def load(self) -> Bundle:
        return Bundle(self.checked(), self.code(), self.constants(), self.llvm_ir())

    def checked(self) -> Program:
        """The program; ArtifactError where not all code and constants that it names are there."""
        program, opened = self.program(), self.artifact
        named = [program.runtime_object, *(k.object for t in program.tables for k in t.kernels)]
        named += [program.prelude.object] if program.prelude is not None else []
        lost = sorted({d for d in named if d} - set(self.group.code))
        if lost:
            raise opened.damaged(f"it holds no code {', '.join(lost)}")
        for constant in program.constants:
            section = opened.sections.get(self.group.constants.get(constant.digest, ""))
            wanted, digest = constant.stored_size, constant.stored or constant.digest
            if section is None or section.sha256 != digest or section.size != wanted or section.entries != constant.entries:
                raise opened.damaged(f"constant {constant.name}: wanted {wanted} bytes with the hash {digest[:12]}")
        return program

    def _sealed(self) -> list[tuple[Part, str]]:
        return [("host", self.group.host), *([("binder", self.group.binder)] if self.group.binder else [])]  # type: ignore[list-item]

    def _object(self, digest: str) -> memoryview:
        opened = self.artifact
        section = opened.sections.get(self.group.code.get(digest, ""))
        if section is None or section.sha256 != digest:
            raise opened.damaged(f"it holds no code {digest}")
        return opened.section(section.name)


class LazyConstants(Mapping[str, Memory]):
    """Constants by digest, each read when it is first asked for and kept.

    Args:
        verify: hold each against its hash then.
        shared: leave them in pages of the file, which all processes that map it share; it has to stay as it is. Indices that are
            stored in fewer bits than they have in memory take memory of their own all the same.
    """

    def __init__(self, artifact: Artifact, names: Mapping[str, str], verify: bool = True, shared: bool = False) -> None:
        self._artifact, self._names, self._verify, self._shared = artifact, names, verify, shared
        self._found: dict[str, memoryview] = {}
        self._pages: memoryview | None = None

    def __getitem__(self, digest: str) -> memoryview:
        found = self._found.get(digest)
        if found is None:
            name = self._names[digest]
            read = self._mapped(name) if self._shared else self._artifact.constant(name, self._verify)
            section = self._artifact.named(name)
            found = self._found.setdefault(digest, self._artifact.indices(section, read) if section.entries else read)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def are_read(self) -> bool:
        """Is there nothing left to read?"""
        return len(self._found) == len(self._names)

    def read_all(self) -> None:
        """Read, and hold against their hashes, all of them now."""
        for digest in self._names:
            self[digest]

    def _mapped(self, name: str) -> memoryview:
        opened = self._artifact
        section = opened.named(name)
        self._pages = self._pages or opened.stored.mapped()
        data = self._pages[opened.start + section.offset :][: section.size]
        if self._verify and hashlib.sha256(data).hexdigest() != section.sha256:
            raise opened.damaged_section(section)
        return data


@dataclass(frozen=True)
class StoredTexts(Mapping[str, str]):
    """Texts that are read and checked when asked for."""

    artifact: Artifact
    names: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        try:
            return bytes(self.artifact.section(self.names[key])).decode()
        except UnicodeDecodeError as error:
            raise self.artifact.damaged(f"{self.names[key]} is no text ({error})") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def path_of(path: Any, what: str) -> Path:
    """The path of a file. ArtifactError where it is none; `what` says who asks."""
    if not isinstance(path, str | os.PathLike):
        raise ArtifactError(f"{what}: wanted the path of a file such as 'model.tw', got {type(path).__name__}; give it as text")
    text = os.fsdecode(path)
    if "\0" in text:
        raise ArtifactError(f"{what}: wanted the path of a file, got one with a null byte, {text!r}; leave it out")
    return Path(text)


def constant_bytes(bundle: Bundle) -> dict[str, int]:
    """What is stored of each constant, by its digest."""
    return {c.digest: c.stored_size for c in bundle.program.constants}


def raw_bytes(memory: Memory) -> memoryview:
    """The bytes of a buffer or array, not copied where it is C-contiguous."""
    if isinstance(memory, np.ndarray):
        memory = np.ascontiguousarray(memory).reshape(-1).view(np.uint8).data
    found = memoryview(memory)
    return found.cast("B") if found.nbytes else memoryview(b"")


def align(value: int) -> int:
    """The next boundary of a section."""
    return -(-value // ALIGNMENT) * ALIGNMENT
