"""KernelArchive: candidate kernels of a model in one file, built where the compiler is, measured where the GPU is.

Layout, little-endian: a header (magic, schema, bytes of the manifest, bytes of the file, sha256 of the manifest), the manifest
(JSON), then sections, each compressed by LZMA. Every image is stored once, all images in one section, since they are much alike.
Hashes detect damage, not malice: an archive holds native code.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.archive.stored_case import StoredCase
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.runner.verification import Case
from tilewright.search.space.shapes import Dims, Points

MAGIC = b"\x89TWKERN\n"
SCHEMA, READABLE = 2, (1, 2)
_HEADER = struct.Struct("<8sIIQ32s")
_IMAGES = "images"
_MOST = 1 << 32  # bytes of a section that is taken apart


class ArchiveOperator(msgspec.Struct, frozen=True):
    """A workload of a model with its candidates.

    shapes, weights, measured_weights: of search/space/shapes.py (Points). held_out: shapes that only a certificate may measure.
    share: of the time of a search over the whole archive. families: the preferred one first. failed: configuration -> why it
    could not be built.
    """

    workload: WorkloadForm
    families: tuple[str, ...]
    kernels: tuple[MicroKernel, ...]
    shapes: tuple[Dims, ...]
    weights: tuple[float, ...]
    held_out: tuple[Dims, ...]
    share: float
    measured_weights: bool = False
    failed: dict[str, str] = {}

    @property
    def points(self) -> Points:
        return Points(self.shapes, self.weights, self.measured_weights)


class ImageSpan(msgspec.Struct, frozen=True):
    """Where an image lies among all images."""

    offset: int
    size: int


class ArchiveSection(msgspec.Struct, frozen=True):
    """A run of bytes behind the manifest, and what it is when taken apart."""

    offset: int
    size: int
    sha256: str
    whole: int


class ArchiveManifest(msgspec.Struct, frozen=True):
    """What the file holds. versions: of the compiler that built it. seed, max_regret, max_kernels: of the search."""

    target: str
    operators: tuple[ArchiveOperator, ...]
    images: dict[str, ImageSpan]
    sections: dict[str, ArchiveSection]
    versions: dict[str, str]
    seed: int = 0
    max_regret: float = 0.05
    max_kernels: int | None = None


@dataclass(frozen=True)
class Contents:
    """What an archive is written from. code: digest -> image. cases: workload key -> what its kernels must give."""

    target: str
    operators: Sequence[ArchiveOperator]
    code: Mapping[str, bytes]
    cases: Mapping[str, Sequence[Case]]
    versions: Mapping[str, str]
    seed: int = 0
    max_regret: float = 0.05
    max_kernels: int | None = None


def write_archive(path: Path, contents: Contents) -> None:
    """Atomically: readers see the old file or the whole new one. ArtifactError where it cannot be written."""
    images, pool = {}, bytearray()
    for digest, code in contents.code.items():
        images[digest] = ImageSpan(len(pool), len(code))
        pool += code
    parts = {_IMAGES: bytes(pool)}
    for o in contents.operators:
        workload = o.workload.workload()
        parts[_cases(o)] = msgspec.msgpack.encode([StoredCase.of(c, workload) for c in contents.cases[o.workload.key]])
    sections, body = {}, bytearray()
    for name, data in parts.items():
        packed = lzma.compress(data, preset=6)
        sections[name] = ArchiveSection(len(body), len(packed), hashlib.sha256(packed).hexdigest(), len(data))
        body += packed
    manifest = msgspec.json.encode(ArchiveManifest(contents.target, tuple(contents.operators), images, sections,
                                                   dict(contents.versions), contents.seed, contents.max_regret,
                                                   contents.max_kernels))
    size = _HEADER.size + len(manifest) + len(body)
    header = _HEADER.pack(MAGIC, SCHEMA, len(manifest), size, hashlib.sha256(manifest).digest())
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        try:
            temporary.write_bytes(header + manifest + body)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error.strerror}; choose a folder with room that may be written") from error


class KernelArchive:
    """An archive that was read.

    Raises:
        ArtifactError: not an archive, of another version, truncated or damaged; its sections are checked when they are used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ArtifactError(f"cannot read {path}: {error.strerror}") from error
        if data[: len(MAGIC)] != MAGIC:
            raise ArtifactError(f"{path} is no archive of kernels; wanted a file that `tilewright build-kernels` wrote")
        if len(data) < _HEADER.size:
            raise ArtifactError(f"{path} is truncated: {len(data)} bytes are less than a header; copy it again")
        _, schema, length, whole, digest = _HEADER.unpack_from(data)
        if schema not in READABLE:
            raise ArtifactError(f"{path} has format {schema} and this Tilewright reads {SCHEMA}; build the kernels again with "
                                "this version")
        if len(data) != whole:
            kind = "truncated" if len(data) < whole else "damaged"
            raise ArtifactError(f"{path} is {kind}: wanted {whole} bytes, found {len(data)}; copy it again")
        text = data[_HEADER.size : _HEADER.size + length]
        if hashlib.sha256(text).digest() != digest:
            raise ArtifactError(f"{path} is damaged: its manifest does not match its hash; copy it again")
        try:
            self.manifest = msgspec.json.decode(text, type=ArchiveManifest)
        except msgspec.MsgspecError as error:
            raise ArtifactError(f"{path} is damaged: its manifest cannot be read ({error}); build the kernels again") from error
        self._body = data[_HEADER.size + length :]

    def __iter__(self) -> Iterator[ArchiveOperator]:
        return iter(self.manifest.operators)

    def code(self, kernel: MicroKernel) -> bytes:
        """The image of a kernel; ArtifactError when it is not there or not the one that was stored."""
        at = self.manifest.images.get(kernel.object)
        data = b"" if at is None else self._images[at.offset : at.offset + at.size]
        if hashlib.sha256(data).hexdigest() != kernel.object:
            raise ArtifactError(f"{self.path} is damaged: the image of {kernel.config} does not match its hash; copy it again")
        return data

    def cases(self, operator: ArchiveOperator) -> list[Case]:
        """What the kernels of an operator must give."""
        try:
            stored = msgspec.msgpack.decode(self._section(_cases(operator)), type=list[StoredCase])
        except msgspec.MsgspecError as error:
            raise ArtifactError(f"{self.path} is damaged: expected outputs cannot be read ({error})") from error
        workload = operator.workload.workload()
        return [s.case(workload) for s in stored]

    @cached_property
    def _images(self) -> bytes:
        return self._section(_IMAGES)

    def _section(self, name: str) -> bytes:
        section = self.manifest.sections.get(name)
        if section is None:
            raise ArtifactError(f"{self.path} is damaged: it has no section {name}; build the kernels again")
        packed = self._body[section.offset : section.offset + section.size]
        if hashlib.sha256(packed).hexdigest() != section.sha256:
            raise ArtifactError(f"{self.path} is damaged: section {name} does not match its hash; copy it again")
        if not 0 <= section.whole < _MOST:
            raise ArtifactError(f"{self.path} is damaged: section {name} claims {section.whole} bytes")
        try:
            found = lzma.LZMADecompressor().decompress(packed, section.whole)
        except lzma.LZMAError as error:
            raise ArtifactError(f"{self.path} is damaged: section {name} cannot be taken apart ({error})") from error
        if len(found) != section.whole:
            raise ArtifactError(f"{self.path} is damaged: section {name} has {len(found)} bytes, wanted {section.whole}")
        return found


def _cases(operator: ArchiveOperator) -> str:
    return f"cases/{operator.workload.key}"
