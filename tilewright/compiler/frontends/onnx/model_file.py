"""Reading an ONNX model: from a path, bytes or a ModelProto, with its opset checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Union

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tilewright.runtime.errors import IngestError

OnnxModel = Union[str, "os.PathLike[str]", bytes, onnx.ModelProto]
OLDEST, NEWEST = 13, onnx.defs.onnx_opset_version()


@dataclass(frozen=True)
class ModelFile:
    """A model with the folder that its external data lies in (None: it came from memory), and how to name it in messages.

    home: the folder of the file that the path leads to, when the path is a link, as in a cache of downloads.
    """

    proto: onnx.ModelProto
    name: str
    folder: Path | None = None
    home: Path = Path()

    @property
    def opsets(self) -> dict[str, int]:
        """Domain -> version; the domain of ONNX itself is ""."""
        return opsets_of(self.proto.opset_import)


def opsets_of(imports: list[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Domain -> version, "ai.onnx" written as ""."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in imports}


def read_onnx(model: OnnxModel) -> ModelFile:
    """The model, not yet its external data.

    Raises:
        IngestError: no such file, no ONNX model in it, or an opset that is not known.
    """
    if isinstance(model, onnx.ModelProto):
        return _checked(ModelFile(model, "the ONNX model"))
    if isinstance(model, bytes):
        return _checked(ModelFile(_parsed(model, "the ONNX model"), "the ONNX model"))
    if not isinstance(model, str | os.PathLike):
        raise IngestError(f"wanted the path of an .onnx file, its bytes or an onnx.ModelProto; got {type(model).__name__}")
    path = Path(model)
    if not path.is_file():
        raise IngestError(f"no model at {str(path)!r}: pass the path of an .onnx file")
    return _checked(ModelFile(_parsed(path.read_bytes(), str(path)), str(path), path.absolute().parent, path.resolve().parent))


def _parsed(data: bytes, name: str) -> onnx.ModelProto:
    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise IngestError(
            f"{name} is no ONNX model, or was cut off: its {len(data)} bytes do not parse as a ModelProto. "
            "Export it again, or copy the whole file"
        ) from error


def _texts(graph: onnx.GraphProto) -> Iterator[object]:
    """Every name of a graph; protobuf gives those that are no UTF-8 as bytes."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)
    yield from (t.name for t in graph.initializer)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            if attribute.HasField("g"):
                yield from _texts(attribute.g)


def _checked(file: ModelFile) -> ModelFile:
    model, name = file.proto, file.name
    if not model.HasField("graph") or not model.graph.output:
        raise IngestError(
            f"{name} is no ONNX model: it has no graph with an output. Pass a file that was written by an ONNX exporter"
        )
    if model.graph.sparse_initializer:
        raise IngestError(f"{name} has sparse initializers, which are not compiled: export its weights as dense tensors")
    if (damaged := next((text for text in _texts(model.graph) if not isinstance(text, str)), None)) is not None:
        raise IngestError(f"{name} is damaged: the name {damaged!r} in it is no text in UTF-8; copy or export it again")
    version = file.opsets.get("", NEWEST)
    if version > NEWEST:
        raise IngestError(
            f"{name} is of opset {version}; wanted {OLDEST} to {NEWEST}. Upgrade the onnx package "
            f"({onnx.__version__} is installed), or export with opset_version={NEWEST}"
        )
    if version < 1:
        raise IngestError(f"{name} is of opset {version}; wanted {OLDEST} to {NEWEST}")
    return file
