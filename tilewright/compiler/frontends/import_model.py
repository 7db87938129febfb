"""Which front end takes a model: recognised by the root module of its type or the suffix of its path, without importing it.

The packages `tilewright.compiler.frontends.torch` and `.onnx` alone import those libraries, and are imported here by name, when
a model of theirs comes.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, TypeVar

from tilewright.compiler.frontends.imported import ExampleInputs, ImportedModel
from tilewright.compiler.frontends.unreadable import no_file
from tilewright.compiler.ops.graph import Graph
from tilewright.runtime.errors import IngestError, OptionError
from tilewright.runtime.shape import Dim

M = TypeVar("M")


def import_model(
    model: M, dims: Mapping[str, Dim], example: ExampleInputs, constants: Mapping[str, Any] | None = None
) -> M | ImportedModel:
    """The model through its front end; one that needs none as it is.

    Args:
        dims: the caller's ranges, by dim name or place.
        example: for a torch.nn.Module.
        constants: the caller's, by argument; inputs of an ONNX model that decide shapes are among them.
    Raises:
        IngestError: the front end's library is not installed, or refuses the model.
        OptionError: `example` is given for another kind of model, or missing for a module.
    """
    path = Path(model) if isinstance(model, str | os.PathLike) and "\n" not in str(model) else None
    if _is_one_of(model, "torch", "Module"):
        if example.args is None and example.kwargs is None:
            raise OptionError(f"{type(model).__name__} is a torch.nn.Module: wanted args=(...) or kwargs={{...}}, example inputs "
                              "to export it with; got neither")
        example.check()
        return _torch(model, dims, example)
    if (example.args is not None or example.kwargs is not None) and isinstance(model, FunctionType | MethodType):
        example.check()
        return _torch(model, dims, example)
    if example.given:
        raise OptionError("args=, kwargs= and dynamic_shapes= are for a torch.nn.Module or a function, which they export; got "
                          f"{type(model).__name__}; leave them out and give its dims in dynamic_dims")
    if _is_one_of(model, "torch", "ExportedProgram"):
        return _torch(model, dims, example)
    if _is_one_of(model, "onnx", "ModelProto"):
        return _onnx(model, dims, constants or {})
    if path is not None and path.suffix == ".pt2":
        return _torch(_saved_program(_existing(path)), dims, example)
    if path is not None and path.suffix == ".onnx":
        return _onnx(_existing(path), dims, constants or {})
    if isinstance(model, Graph):
        return ImportedModel(model.module_text(), constants=model.constants)
    return model


def _is_one_of(model: object, library: str, name: str) -> bool:
    """Is the model of a class of this library and name, or of a subclass?"""
    return any(c.__name__ == name and c.__module__.partition(".")[0] == library for c in type(model).__mro__)


def _existing(path: Path) -> Path:
    if not os.path.isfile(path):
        raise no_file(path)
    return path


def _torch(model: Any, dims: Mapping[str, Dim], example: ExampleInputs) -> ImportedModel:
    front_end = _front_end("torch")
    found: ImportedModel = front_end.import_torch(model, example.args, example.kwargs, example.dynamic_shapes, dims)
    return found


def _onnx(model: Any, dims: Mapping[str, Dim], constants: Mapping[str, Any]) -> ImportedModel:
    found: ImportedModel = _front_end("onnx").import_onnx(model, dims, constants)
    return found


def _front_end(library: str) -> Any:
    _require(library)
    return importlib.import_module(f"tilewright.compiler.frontends.{library}.importer")


def _require(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise IngestError(f'this model needs {library}, which is not installed: pip install "tilewright[{library}]"')


def _saved_program(path: Path) -> Any:
    if not zipfile.is_zipfile(path):
        raise IngestError(f"{path} is no exported program: wanted a file that torch.export.save wrote, and it is no archive; "
                          "save it again")
    _require("torch")
    if not zipfile.is_zipfile(path):
        raise IngestError(f"{path} is no program that torch.export.save wrote: it is no archive; save it again")
    try:
        return importlib.import_module("torch.export").load(path)
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise IngestError(f"{path} is no program that torch.export.save wrote: {error}; save it again with this torch") from error
