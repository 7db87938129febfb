"""What is no model: an error for each kind of thing that is often passed as one, which says what to pass instead."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path

from tilewright.runtime.errors import IngestError, perhaps
from tilewright.runtime.wording import Wording, option

WANTED = ("wanted MLIR text, the path of an .mlir, .onnx or .pt2 file, an ir.Module, what tw.ops built, a torch.nn.Module or "
          "ExportedProgram, or an onnx.ModelProto")
_WEIGHTS = (".bin", ".ckpt", ".npy", ".npz", ".pt", ".pth", ".safetensors")
_BYTECODE = b"ML\xefR"
_HEAD = 4096  # bytes that tell what a file is
_SHOWN = 60  # characters of a text that is no model


def no_model(model: object) -> IngestError:
    """For an object that no front end takes."""
    return IngestError(f"cannot read a model from {_kind(model)}: {WANTED}; {_remedy(model)}")


def no_file(path: Path) -> IngestError:
    """For a path that is no file."""
    if not str(path).strip() or path == Path():
        return IngestError(f"the model is an empty text: {WANTED}; pass one of these")
    if os.path.isdir(path):  # False also for a name that is too long
        return IngestError(f"no model at {str(path)!r}: wanted a file, got a folder; name the file in it")
    folder = path.parent
    there = [p.name for p in folder.iterdir() if p.suffix == path.suffix and p.is_file()] if os.path.isdir(folder) else []
    return IngestError(f"no model at {str(path)!r}: wanted the path of a file, and there is none; check the path"
                       f"{perhaps(path.name, there)}")


def no_text(content: str, where: str) -> IngestError | None:
    """For content that is certainly no MLIR; None where it may be. where: names it."""
    try:
        content.encode()
    except UnicodeEncodeError as error:
        return IngestError(f"{where} is no text: wanted characters of Unicode, got {content[error.start]!r} at {error.start}; "
                           "decode the file that it is from as UTF-8")
    start = content.lstrip()[:_SHOWN]
    if not start:
        return IngestError(f"{where} is empty: wanted MLIR text with one public function; export the model again")
    if start.lower().startswith(("<!doctype", "<html", "<?xml")):
        return IngestError(f"{where} is a web page: wanted MLIR text, got {start.splitlines()[0]!r}; download the file "
                           "itself, not the page about it")
    return None


def file_text(path: Path) -> str:
    """The text of a file of MLIR; IngestError where it is no UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise IngestError(f"{path} is no MLIR: byte {error.start} is no text in UTF-8; wanted .mlir, .onnx or .pt2, which the "
                          "name of a file tells") from error


def is_bytecode(path: Path) -> bool:
    """Is the file MLIR in its binary form?"""
    with path.open("rb") as file:
        return file.read(len(_BYTECODE)) == _BYTECODE


def check_content(path: Path) -> None:
    """Look at how the file begins. IngestError when it is certainly no MLIR, as text or as bytecode."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise IngestError(f"cannot read {path}: {error.strerror}; wanted a file that may be read, check its rights") from error
    if path.suffix == ".tw" or head.startswith(b"\x89TWMODL"):
        raise IngestError(f"{path} is compiled already: wanted a model to compile, got what save() wrote; open it with "
                          + Wording(f"tw.load({str(path)!r})", "`tilewright run` or `tilewright explain`"))
    if path.suffix in _WEIGHTS:
        raise IngestError(f"{path} holds weights: wanted a model, got a {path.suffix} file; pass "
                          + Wording("the torch.nn.Module", "the .pt2 file of the torch.nn.Module")
                          + " that they belong to, or bind them with " + option("constants")
                          + " to a model that takes them as arguments")
    if head.startswith(_BYTECODE):
        return
    if b"\0" in head:
        raise IngestError(f"{path} is no MLIR: wanted its text or bytecode, got other binary content, {head[:8]!r}...; export "
                          "the model again as an .mlir, .onnx or .pt2 file")
    if (problem := no_text(head.decode(errors="replace"), str(path))) is not None:
        raise problem


def _kind(model: object) -> str:
    return f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__


def _remedy(model: object) -> str:
    if isinstance(model, type):
        return f"pass an instance, {model.__name__}(...)"
    if isinstance(model, Mapping):
        return "a dict of weights (a state dict) does not say what to compute: pass the torch.nn.Module with args="
    if isinstance(model, list | tuple):
        return "compile each model by itself, in a call of its own"
    if isinstance(model, bytes | bytearray):
        return "decode it to text, or pass the path"
    if hasattr(model, "shape") and hasattr(model, "dtype"):
        return "an array goes to the compiled function, or to constants= where it never changes"
    if inspect.isroutine(model):
        return "put a function of torch into the forward of a torch.nn.Module, or build the graph with tw.ops"
    return "pass one of these"
