"""Tensors that a model holds, as arrays: embedded ones without a copy where that can be, external ones mapped from their file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilewright.compiler.frontends.onnx.model_file import ModelFile
from tilewright.runtime.errors import IngestError

_PACKED = {TensorProto.UINT4: 2, TensorProto.INT4: 2, TensorProto.FLOAT4E2M1: 2, TensorProto.UINT2: 4, TensorProto.INT2: 4}


def array_of(tensor: onnx.TensorProto, file: ModelFile) -> np.ndarray[Any, Any]:
    """The elements of a tensor.

    Raises:
        IngestError: the data are missing, cut off, outside of the model's folder, or of a type that has no arrays.
    """
    what = f"initializer {tensor.name!r}" if tensor.name else "a constant"
    if tensor.data_type == TensorProto.STRING:
        raise IngestError(f"{what} holds strings, which are not compiled: encode them before the model")
    if any(d < 0 for d in tensor.dims):
        raise IngestError(f"{what} has the shape {list(tensor.dims)}: an extent is negative. Export the model again")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _mapped(tensor, file, what)
    if tensor.HasField("raw_data"):
        wanted = _bytes(tensor, what)
        if len(tensor.raw_data) != wanted:
            raise IngestError(
                f"{what} of shape {list(tensor.dims)} needs {wanted} bytes, and {len(tensor.raw_data)} came: the "
                "file is damaged. Export the model again"
            )
    elif math.prod(tensor.dims) > (held := _held(tensor)):
        raise IngestError(
            f"{what} of shape {list(tensor.dims)} needs {math.prod(tensor.dims)} elements, and {held} came: the "
            "file is damaged. Export the model again"
        )
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (TypeError, ValueError, KeyError) as error:
        raise IngestError(f"{what} cannot be read: {error}. Export the model again") from error


def _held(tensor: onnx.TensorProto) -> int:
    """Elements in the typed fields, at least as many as there are numbers."""
    per = _PACKED.get(tensor.data_type, 1)
    fields = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    return per * sum(map(len, fields))


def _dtype(tensor: onnx.TensorProto, what: str) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return found
    except KeyError:
        raise IngestError(f"{what} is of element type {tensor.data_type}, which ONNX {onnx.__version__} does not know") from None


def _bytes(tensor: onnx.TensorProto, what: str) -> int:
    count, per = int(math.prod(tensor.dims)), _PACKED.get(tensor.data_type)
    return -(-count // per) if per else count * _dtype(tensor, what).itemsize


def _mapped(tensor: onnx.TensorProto, file: ModelFile, what: str) -> np.ndarray[Any, Any]:
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if file.folder is None:
        raise IngestError(
            f"{what} lies in the file {location!r} beside the model, and the model came from memory: pass the "
            "path of the .onnx file"
        )
    inside = location and "\0" not in location and not Path(location).is_absolute() and ".." not in Path(location).parts
    path = (file.folder / location).resolve() if inside else file.folder
    if not inside or not any(path.is_relative_to(home) for home in (file.folder.resolve(), file.home)):
        raise IngestError(
            f"{what} names the file {location!r}, which is not inside of the model's folder {file.folder}: keep "
            "external data beside the model"
        )
    if not path.is_file():
        raise IngestError(f"{what} lies in {str(path)!r}, which does not exist: copy it beside the model")
    size, wanted = path.stat().st_size, _bytes(tensor, what)
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", wanted))
    except ValueError:
        raise IngestError(f"{what}: offset and length of its external data are no numbers. Export the model again") from None
    if offset < 0 or length != wanted or offset + wanted > size:
        raise IngestError(
            f"{what} of shape {list(tensor.dims)} needs {wanted} bytes; its entry says {length} at {offset} of "
            f"{path.name}, which has {size}. Copy the whole file, or export the model again"
        )
    if not wanted:
        return np.empty(tuple(tensor.dims), _dtype(tensor, what))
    raw = np.memmap(path, np.uint8, "r", offset, (wanted,))
    if tensor.data_type in _PACKED:
        embedded = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=raw.tobytes())
        return np.asarray(numpy_helper.to_array(embedded))
    return raw.view(_dtype(tensor, what)).reshape(tuple(tensor.dims))
