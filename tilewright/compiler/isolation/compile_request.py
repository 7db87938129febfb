"""A compile as it is sent to another process: one JSON line, and a file with the bytes of the constants."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.constants.bind_constants import as_constant
from tilewright.compiler.frontends.imported import ImportedModel
from tilewright.compiler.frontends.source import model_content
from tilewright.runtime import errors
from tilewright.runtime.errors import BuildError, OptionError, TilewrightError
from tilewright.runtime.program.artifact import raw_bytes
from tilewright.runtime.program.structure import Structure
from tilewright.runtime.ragged_dim import Ragged
from tilewright.runtime.shape import Dim
from tilewright.runtime.tensor import DType
from tilewright.runtime.wording import Wording, command_text

STAGE = "stage: "  # begins the lines on a worker's stderr that say what it is at


class SentArray(msgspec.Struct, frozen=True):
    """An array by name: its bytes are those at `offset` of the request's file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class SentDim(msgspec.Struct, frozen=True):
    """A Dim."""

    lo: int
    hi: int
    multiple_of: int
    samples: tuple[int, ...] | None
    at: tuple[str, ...] | None
    over: str = ""
    length: str = ""
    align: int = 1

    @staticmethod
    def of(dims: Mapping[str, Dim]) -> dict[str, SentDim]:
        return {n: SentDim(d.lo, d.hi, d.multiple_of, d.samples, d.at,
                           *((d.over, d.length, d.align) if isinstance(d, Ragged) else ())) for n, d in dims.items()}


class CompileRequest(msgspec.Struct, frozen=True):
    """What `Compilation` holds. path: of the model; None where `text` is what a front end made of it, or the model itself.

    arrays: the file of the constants; `own` are those of the model, `constants` the caller's. output: where the artifact goes;
    None: import and graph passes only, for whoever then compiles in its own process.
    """

    path: str | None
    text: str
    own_dims: dict[str, SentDim]
    own_donate: tuple[str, ...]
    own: tuple[SentArray, ...]
    input_structure: Structure | None
    output_structure: Structure | None
    consumed: tuple[str, ...]
    dims: dict[str, SentDim]
    target: str
    options: str
    constants: tuple[SentArray, ...]
    donate: tuple[str, ...]
    function: str | None
    arrays: str
    output: str | None

    @staticmethod
    def of(compilation: Compilation, arrays: Path, output: Path | None) -> CompileRequest:
        """The request for a compilation; writes the file of its constants. A model in memory is imported here."""
        path = _path(compilation.model_ir)
        model = ImportedModel("") if path is not None else _imported(compilation)
        caller = {n: v for n, v in compilation.given_constants.items() if n not in model.consumed}
        with arrays.open("wb") as file:
            own = [_sent(name, value, file) for name, value in model.constants.items()]
            given = [_sent(name, value, file) for name, value in caller.items()]
        return CompileRequest(
            path, model.text, SentDim.of(model.dims), tuple(model.donate), tuple(own), model.input_structure,
            model.output_structure, tuple(sorted(model.consumed)), SentDim.of(dict(compilation.dims)), str(compilation.target),
            _sent_options(compilation.options), tuple(given), tuple(map(str, compilation.given_donations)),
            compilation.function, str(arrays), None if output is None else str(output),
        )  # fmt: skip

    def compilation(self) -> Compilation:
        """What was sent."""
        data = np.memmap(self.arrays, np.uint8, "r") if os.path.getsize(self.arrays) else np.empty(0, np.uint8)
        model = self.path if self.path is not None else ImportedModel(
            self.text, _dims(self.own_dims), _arrays(self.own, data), self.own_donate, self.input_structure,
            self.output_structure, frozenset(self.consumed))
        return Compilation(model, _dims(self.dims), full_target(self.target), CompileOptions(**json.loads(self.options)),
                           _arrays(self.constants, data), self.donate, self.function)


class CompileReply(msgspec.Struct, frozen=True):
    """Nothing, or the error: the name of its class, its message in both wordings, and what the compiler said."""

    kind: str | None = None
    python: str = ""
    command: str = ""
    log: str = ""

    @staticmethod
    def of(error: TilewrightError) -> CompileReply:
        return CompileReply(type(error).__name__, str(error), command_text(error), getattr(error, "log", ""))

    def error(self) -> TilewrightError | None:
        """The error as it was raised."""
        if self.kind is None:
            return None
        made: TilewrightError = getattr(errors, self.kind, TilewrightError)(Wording(self.python, self.command))
        if isinstance(made, BuildError):
            made.log = self.log
        return made


def _path(model: object) -> str | None:
    """The path of a model that a front end or the parser reads; None for any other."""
    if isinstance(model, str | os.PathLike) and os.path.isfile(model):
        return os.path.abspath(model)
    return None


def _imported(compilation: Compilation) -> ImportedModel:
    model = compilation.model
    if isinstance(model, ImportedModel):
        return model
    text = model_content(model)
    return ImportedModel(text if isinstance(text, str) else text.decode(errors="replace"))


def _sent(name: str, value: Any, file: Any) -> SentArray:
    if not isinstance(name, str):
        raise OptionError(f"constants: wanted names of arguments, got {name!r}; give each value the name of its argument")
    array = as_constant(name, value)
    offset = file.tell()
    file.write(raw_bytes(array))
    file.write(bytes(-file.tell() % 64))
    return SentArray(name, DType.of(array.dtype).value, array.shape, offset)


def _arrays(sent: Iterable[SentArray], data: np.ndarray) -> dict[str, np.ndarray]:
    found = {}
    for s in sent:
        dtype = DType(s.dtype).numpy
        size = int(np.prod(s.shape, dtype=np.int64)) * dtype.itemsize
        found[s.name] = data[s.offset : s.offset + size].view(dtype).reshape(s.shape)
    return found


def _dims(sent: Mapping[str, SentDim]) -> dict[str, Dim]:
    return {n: Ragged(d.lo, d.hi, d.over, d.multiple_of, d.samples, d.at, d.length, d.align) if d.over
            else Dim(d.lo, d.hi, d.multiple_of, d.samples, d.at) for n, d in sent.items()}


def _sent_options(options: CompileOptions) -> str:
    """As JSON, those that decide what is compiled; who watches or builds stays here."""
    found = {f.name: getattr(options, f.name) for f in fields(options) if f.compare}
    return json.dumps({name: value.value if isinstance(value, Enum) else str(value) if isinstance(value, Path) else value
                       for name, value in found.items()})
